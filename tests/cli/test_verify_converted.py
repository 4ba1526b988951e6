"""`attnc verify` on the directory of a converted model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnc.pretrained import convert_
from attnc.records.certificate import Certificate
from attnc.records.fields import round_up, seal
from tests.frontends.tiny_models import tiny

from .checks import flip, refused


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
    assert "2 proved" in table.out
    assert machine.json["status"] == "proved"
    assert [block["status"] for block in machine.json["children"]] == ["proved", "proved"]


def test_a_bound_made_smaller_is_not_proved(run: Any, converted: Path) -> None:
    file = converted / "config.json"
    config = json.loads(file.read_text())
    record = {key: value for key, value in config["attnc"].items() if key != "seal"}
    certificate = Certificate.from_json(record["report"]["certificate"])
    first, second = certificate.children
    smaller = second.approximation / 4
    second = replace(second, approximation=smaller, bound=round_up(smaller + second.rounding))
    record["report"]["certificate"] = replace(certificate, children=(first, second)).to_json()
    config["attnc"] = {**record, "seal": seal(record)}
    file.write_text(json.dumps(config))
    table, machine = run("verify", converted), run("verify", converted, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "1 proved, 1 unknown" in table.out
    assert machine.json["status"] == "unknown" and second.name in machine.json["reason"]


def test_what_is_damaged_is_refused(run: Any, converted: Path, tmp_path: Path) -> None:
    flip(converted / "attnc.safetensors", "decoder.layers.0.fc1.weight")
    refused(run("verify", converted, "--json"), "CertificateError", "fc1.weight")
    refused(run("verify", tmp_path, "--json"), "FileError", "config.json")
