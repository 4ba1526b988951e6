"""`attnc show`: what a file holds, and whether its certificate applies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import attnc
from attnc.records.record import read, write

from .checks import flip, refused


def test_a_network(run: Any, saved_network: Path, network: attnc.Network) -> None:
    table, machine = run("show", saved_network), run("show", saved_network, "--json")
    assert (table.code, table.err, machine.code, machine.err) == (0, "", 0, "")
    assert all(text in table.out for text in (str(network.describe()), str(network.certificate), "torch"))
    record = machine.json
    assert (record["kind"], record["status"], record["reason"]) == ("network", "proved", None)
    assert attnc.Certificate.from_json(record["certificate"]) == network.certificate
    assert record["parameters"] == sum(p.numel() for p in network.parameters())


def test_a_head(run: Any, saved: Path, tanh: attnc.Head) -> None:
    table, machine = run("show", saved), run("show", saved, "--json")
    assert (table.code, table.err, machine.code, machine.err) == (0, "", 0, "")
    assert all(text in table.out for text in (tanh.design, str(tanh.certificate), "torch"))
    record = machine.json
    assert (record["kind"], record["status"], record["reason"]) == ("head", "proved", None)
    assert attnc.Certificate.from_json(record["certificate"]) == tanh.certificate


def test_nothing_is_proved_anew(run: Any, saved_network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attnc, "verify", lambda _: pytest.fail("the proof began"))
    assert run("show", saved_network).code == 0


@pytest.mark.parametrize("tensor", ["stages.0.weight", "stages.1.0.key"])
def test_a_network_whose_numbers_changed(run: Any, saved_network: Path, tensor: str) -> None:
    flip(saved_network, tensor)
    table, machine = run("show", saved_network), run("show", saved_network, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert tensor in table.out and "<=" not in table.out
    assert machine.json["status"] == "unknown" and tensor in machine.json["reason"]


def test_a_head_whose_numbers_changed(run: Any, saved: Path) -> None:
    record = read(saved)
    value = record.numbers.value.copy()
    value[0, 0, 1] += 1
    write(saved, replace(record, numbers=replace(record.numbers, value=value)))
    table, machine = run("show", saved), run("show", saved, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "<=" not in table.out
    assert machine.json["status"] == "unknown" and "value" in machine.json["reason"]


def test_a_measured_head(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "sin.safetensors"
    attnc.head(lambda s: torch.lgamma(s + 4), domain=(-3, 3), anchors=6, design="smooth").save(path)
    table, machine = run("show", path), run("show", path, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert str(attnc.load(path).certificate) in table.out
    assert (machine.json["status"], machine.json["certificate"]["status"]) == ("measured", "measured")


def test_files_that_are_not_attncs(run: Any, tmp_path: Path, saved_network: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, foreign)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(saved_network.read_bytes()[:-9])
    for path in (tmp_path / "none.safetensors", tmp_path, foreign, cut):
        refused(run("show", path, "--json"), "FileError", str(path))
