"""`attnc verify`: the verdict, its exit status, and files that are not what they should be."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import attnc
from attnc.records.fields import at_most
from attnc.records.record import Record, read, write

from .checks import refused


def test_proved(run: Any, saved: Path, tanh: attnc.Head) -> None:
    assert tanh.certificate.proved
    table, machine = run("verify", saved), run("verify", saved, "--json")
    assert (table.code, machine.code) == (0, 0)
    assert (table.err, machine.err) == ("", "")
    for fact in ("proved", str(saved), machine.json["reason"], at_most(tanh.certificate.bound)):
        assert fact in table.out
    assert "input" not in table.out
    assert machine.json["status"] == "proved"
    assert machine.json["bound"] == tanh.certificate.bound
    assert machine.json["cells"] > 0
    assert machine.json["input"] is None


def changed(path: Path, **changes: Any) -> None:
    """Write the file anew with parts of its record replaced, the seal fitting."""
    record = read(path)
    write(path, Record(**{**vars(record), **changes}))


def test_refuted_with_the_input_that_refutes(run: Any, saved: Path) -> None:
    certificate = read(saved).certificate
    assert certificate.proved
    changed(saved, certificate=replace(certificate, bound=certificate.witness.error / 2))
    table, machine = run("verify", saved), run("verify", saved, "--json")
    assert (table.code, machine.code) == (1, 1)
    verdict = machine.json
    assert (
        verdict["status"] == "refuted" and "refuted" in table.out and repr(verdict["input"][0]) in table.out
    )
    at = torch.tensor(verdict["input"], dtype=torch.float64)
    error = (attnc.load(saved)(at.float()).double() - torch.tanh(at.float().double())).abs().item()
    assert error > verdict["bound"]
    assert verdict["error"] == pytest.approx(error, rel=1e-3)


def test_numbers_that_changed_are_unknown(run: Any, saved: Path) -> None:
    numbers = read(saved).numbers
    value = numbers.value.copy()
    value[0, 0, 1] += 1
    changed(saved, numbers=replace(numbers, value=value))
    ran = run("verify", saved, "--json")
    assert ran.code == 1
    assert ran.json["status"] == "unknown"
    assert "value" in ran.json["reason"]


def test_a_measured_head_is_unknown(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "sin.safetensors"
    attnc.head(lambda s: torch.lgamma(s + 4), domain=(-3, 3), anchors=6, design="smooth").save(path)
    table, machine = run("verify", path), run("verify", path, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "unknown" in table.out and "measured" in table.out
    assert (machine.json["status"], machine.json["bound"]) == ("unknown", None)


def test_a_file_that_does_not_exist(run: Any, tmp_path: Path) -> None:
    refused(run("verify", tmp_path / "none.safetensors", "--json"), "FileError", "none.safetensors")
    refused(run("verify", tmp_path, "--json"), "FileError", "config.json")


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.99])
def test_a_truncated_file(run: Any, saved: Path, kept: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * kept)])
    refused(run("verify", saved, "--json"), "FileError", str(saved))


def test_a_file_of_noise(run: Any, saved: Path) -> None:
    saved.write_bytes(bytes(range(256)) * 9)
    refused(run("verify", saved, "--json"), "FileError", str(saved))


def test_a_foreign_safetensors_file(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    refused(run("verify", path, "--json"), "FileError", str(path))


def test_a_certificate_edited_by_hand(run: Any, saved: Path) -> None:
    data = saved.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"]["attnc"])
    about["certificate"]["bound"] = 1e-12
    header["__metadata__"]["attnc"] = json.dumps(about)
    edited = json.dumps(header).encode()
    saved.write_bytes(struct.pack("<Q", len(edited)) + edited + data[8 + size :])
    refused(run("verify", saved, "--json"), "CertificateError", str(saved))


def test_infinity_does_not_break_the_json(run: Any, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = attnc.Verdict("refuted", "the head returns inf at s=1.0", 1e-5, (1.0,), float("inf"))
    monkeypatch.setattr(attnc, "verify", lambda _: verdict)
    ran = run("verify", saved, "--json")
    assert ran.code == 1
    assert "Infinity" not in ran.out
    assert (ran.json["input"], ran.json["error"]) == ([1.0], None)
