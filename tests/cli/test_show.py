"""`attnc show`: what a file holds, and whether its certificate applies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import attnc
from attnc.network.describe import COLUMNS
from attnc.records.record import HeadRecord, read, write

from .checks import flip, refused, words


def test_a_network(run: Any, saved_network: Path, network: attnc.Network) -> None:
    table, machine = run("show", saved_network), run("show", saved_network, "--json")
    assert (table.code, table.err, machine.code, machine.err) == (0, "", 0, "")
    certificate = network.certificate
    for word in (
        *COLUMNS,
        "proved: |network - program| <=",
        "Box(-1, 1, shape=(4,))",
        "float64",
        "torch",
        "not proved again",
    ):
        assert word in words(table.out)
    assert certificate.program[:12] not in table.out
    record = machine.json
    assert (record["kind"], record["certified"], record["reason"]) == ("network", True, None)
    assert record["bound"] == certificate.bound
    assert record["certificate"]["versions"] == certificate.versions
    assert record["domain"] == {"lo": -1.0, "hi": 1.0, "shape": [4]}
    assert len(record["layers"]) == 1


def test_a_head(run: Any, saved: Path, tanh: attnc.Head) -> None:
    table, machine = run("show", saved), run("show", saved, "--json")
    assert (table.code, table.err, machine.code, machine.err) == (0, "", 0, "")
    assert tanh.certificate is not None
    for word in ("tanh", "proved bound", "[-8, 8]", "quality", "not proved again"):
        assert word in words(table.out)
    record = machine.json
    assert (record["kind"], record["certified"], record["bound"]) == ("head", True, tanh.certificate.bound)
    assert attnc.Certificate.from_json(record["certificate"]) == tanh.certificate


def test_nothing_is_proved_anew(run: Any, saved_network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attnc, "verify", lambda _: pytest.fail("the proof began"))
    assert run("show", saved_network).code == 0


@pytest.mark.parametrize("tensor", ["stages.0.weight", "stages.1.0.key"])
def test_a_network_whose_numbers_changed(run: Any, saved_network: Path, tensor: str) -> None:
    flip(saved_network, tensor)
    table, machine = run("show", saved_network), run("show", saved_network, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "not certified" in table.out and "changed" in table.out
    assert "bound" not in table.out
    assert machine.json["certified"] is False
    assert tensor in machine.json["reason"]


def test_a_head_whose_numbers_changed(run: Any, saved: Path) -> None:
    record = read(saved)
    value = record.numbers.value.copy()
    value[0, 0, 1] += 1
    numbers = replace(record.numbers, value=value)
    write(saved, HeadRecord(numbers, record.certificate, None))
    table, machine = run("show", saved), run("show", saved, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "not certified" in table.out and "bound" not in table.out
    assert machine.json["reason"] == "changed since it was certified: value"


def test_a_measured_head(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "sin.safetensors"
    attnc.head(torch.sin, domain=(-3, 3), anchors=6, design="smooth").save(path)
    table, machine = run("show", path), run("show", path, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "not proved" in words(table.out)
    assert (machine.json["certified"], machine.json["certificate"]) == (False, None)


def test_files_that_are_not_attncs(run: Any, tmp_path: Path, saved_network: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, foreign)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(saved_network.read_bytes()[:-9])
    for path, said in (
        (tmp_path / "none.safetensors", "No such file"),
        (tmp_path, "cannot read"),
        (foreign, "not one that attnc wrote"),
        (cut, "damaged"),
    ):
        refused(run("show", path, "--json"), "FileError", said)
