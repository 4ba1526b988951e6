"""`attnc verify` on the directory of a converted model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attnc.pretrained import convert_
from attnc.records.fields import round_up
from tests.frontends.tiny_models import tiny
from tests.parts import reseal

from .checks import flip, refused, words


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("model") / "converted"
    model = tiny("opt")
    convert_(model, approximation=1e-3)
    model.save_pretrained(where)
    return where


@pytest.fixture
def converted(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "converted"))


def test_proved(run: Any, converted: Path) -> None:
    table, machine = run("verify", converted), run("verify", converted, "--json")
    assert (table.code, table.err, machine.code, machine.err) == (0, "", 0, "")
    for word in ("proved", "2 proved", "every input", "exact <= 0.001", "in every output of a block"):
        assert word in words(table.out)
    assert machine.json["status"] == "proved"
    assert [verdict["status"] for verdict in machine.json["children"]] == ["proved", "proved"]
    assert machine.json["report"]["certificate"]["facts"]["requested"] == 1e-3


def test_a_bound_made_smaller_is_not_proved(run: Any, converted: Path) -> None:
    file = converted / "config.json"
    config = json.loads(file.read_text())
    block = config["attnc"]["report"]["certificate"]["children"][1]
    block["approximation"] /= 4
    block["bound"] = round_up(block["approximation"] + block["rounding"])
    model = config["attnc"]["report"]["certificate"]
    for term in ("approximation", "bound"):
        model[term] = max(block[term] for block in model["children"])
    reseal(config["attnc"])
    file.write_text(json.dumps(config))
    table, machine = run("verify", converted), run("verify", converted, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "1 proved, 1 unknown" in words(table.out)
    assert machine.json["status"] == "unknown" and "approximation" in machine.json["reason"]


def test_what_is_damaged_is_refused(run: Any, converted: Path, tmp_path: Path) -> None:
    flip(converted / "model.safetensors", "decoder.layers.0.fc1.weight")
    refused(run("verify", converted, "--json"), "CertificateError", "not those that were converted")
    refused(run("verify", tmp_path, "--json"), "FileError", "config.json")
