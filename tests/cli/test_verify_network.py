"""`attnc verify` on networks: the verdict, its exit status, and files that were changed."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnc
from attnc.records.fields import at_most
from attnc.records.record import read, write

from .checks import flip, refused


def test_proved(run: Any, saved_network: Path, network: attnc.Network) -> None:
    table, machine = run("verify", saved_network), run("verify", saved_network, "--json")
    assert (table.code, table.err, machine.code, machine.err) == (0, "", 0, "")
    record = machine.json
    assert all(fact in table.out for fact in ("proved", record["reason"], at_most(network.certificate.bound)))
    assert (record["status"], record["bound"]) == ("proved", network.certificate.bound)
    assert record["input"] is None and record["cells"] > 0


def changed(path: Path, **changes: Any) -> None:
    """Write the file anew with parts of its record replaced, the seal fitting."""
    write(path, replace(read(path), **changes))


def test_a_bound_below_the_truth_is_not_proved(run: Any, saved_network: Path) -> None:
    certificate = read(saved_network).certificate
    changed(saved_network, certificate=replace(certificate, bound=certificate.witness.error / 2))
    table, machine = run("verify", saved_network), run("verify", saved_network, "--json")
    assert (table.code, machine.code) == (1, 1)
    verdict = machine.json
    assert verdict["status"] == "refuted"
    assert "refuted" in table.out and "input:" in table.out
    assert len(verdict["input"]) == 4
    assert verdict["error"] > verdict["bound"]


@pytest.mark.parametrize("tensor", ["stages.0.weight", "stages.1.0.value", "stages.2.bias"])
def test_a_flipped_bit_is_not_proved(run: Any, saved_network: Path, tensor: str) -> None:
    flip(saved_network, tensor)
    ran = run("verify", saved_network, "--json")
    assert ran.code == 1
    assert ran.json["status"] == "unknown"
    assert tensor in ran.json["reason"]


def test_a_certificate_edited_by_hand(run: Any, saved_network: Path) -> None:
    data = saved_network.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"]["attnc"])
    about["certificate"]["bound"] = 1e-30
    header["__metadata__"]["attnc"] = json.dumps(about)
    edited = json.dumps(header).encode()
    saved_network.write_bytes(struct.pack("<Q", len(edited)) + edited + data[8 + size :])
    for command in ("verify", "show"):
        refused(run(command, saved_network, "--json"), "CertificateError", str(saved_network))


def test_a_long_refuting_input_is_cut_in_the_table_only(
    run: Any, saved_network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = attnc.Verdict("refuted", "the network returns inf there", 1e-5, (0.125,) * 9, float("inf"))
    monkeypatch.setattr(attnc, "verify", lambda _: verdict)
    table, machine = run("verify", saved_network), run("verify", saved_network, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert "0.125, 0.125, 0.125, 0.125, … (9)" in table.out
    assert (machine.json["input"], machine.json["error"]) == ([0.125] * 9, None)
