"""`attnc verify`: a certificate proved anew, from the numbers in its file."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import attnc
from attnc.cli.converted_report import claim
from attnc.cli.network_report import box_text, point_text
from attnc.cli.output import NOT_PROVED, errors_reported, interval, number, print_facts, print_json
from attnc.cli.progress import progress
from attnc.errors import FileError
from attnc.network.describe import assumed
from attnc.pretrained.directory import Conversion, read_conversion
from attnc.program import Lookup
from attnc.records.domains import domain_to_json
from attnc.records.record import Record, read
from attnc.records.verdict import Verdict

_PATH = "A file of `attnc head` or `attnc compile`, or a directory of `attnc convert`."
_STYLES = {"proved": "bold green", "refuted": "bold red", "unknown": "bold yellow"}


def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help=_PATH)],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Prove the bound of a saved head, network or converted model anew, from the numbers in the file or directory.

    Where the error was only measured there is nothing to prove: unknown.

    Exit status: 0 proved, 1 refuted or unknown, 2 not attnc's, or damaged or edited.

    Example: attnc verify gelu.safetensors
    """
    with errors_reported(json):
        record = _read(path)
        began = time.perf_counter()
        with progress(f"verifying {path}"):
            verdict = attnc.verify(path)
        seconds = time.perf_counter() - began
        if json:
            print_json({"file": str(path), **asdict(verdict), **_about(record), "seconds": round(seconds, 3)})
        else:
            print_facts(
                f"{path}: {verdict.status}", _facts(record, verdict, seconds), _STYLES[verdict.status]
            )
    if not verdict:
        raise typer.Exit(NOT_PROVED)


def _read(path: Path) -> Record | Conversion:
    if not path.is_dir():
        return read(path)
    if not (path / "config.json").exists():
        raise FileError(
            f"cannot read {path}: a directory without config.json was not written by `attnc convert`"
        )
    return read_conversion(path)


def _about(record: Record | Conversion) -> dict[str, Any]:
    if isinstance(record, Conversion):
        return {"model": record.report.model, "engine": record.engine, "report": record.report.to_json()}
    return _head_record(record) if record.kind == "head" else _network_record(record)


def _head_record(record: Record) -> dict[str, Any]:
    known, numbers = record.certificate, record.head
    return {
        "function": known.facts["function"],
        "domain": {"lo": known.interval.lo, "hi": known.interval.hi},
        "dtype": numbers.dtype,
        "heads": numbers.heads,
        "anchors": numbers.anchors_per_head,
    }


def _network_record(record: Record) -> dict[str, Any]:
    layers, heads = _counted(record)
    return {
        "program": record.network[0].digest(),
        "domain": domain_to_json(record.certificate.holds_for),
        "dtype": record.numbers.dtype,
        "layers": layers,
        "heads": heads,
        "certificate": record.certificate.to_json(),
    }


def _facts(record: Record | Conversion, verdict: Verdict, seconds: float) -> dict[str, str]:
    facts = {
        "status": str(verdict.status),
        "reason": verdict.reason,
        "claim": _claim(record),
        "bound": "none" if verdict.bound is None else number(verdict.bound),
        "cells": str(verdict.cells),
    }
    if verdict.input is not None:
        of_head = isinstance(record, Record) and record.kind == "head"
        facts["refuting input"] = (
            f"s = {verdict.input[0]!r}" if of_head else f"x = {point_text(verdict.input)}"
        )
    if verdict.error is not None:
        facts["error there"] = f"{verdict.error:.6g}"
    if isinstance(record, Conversion):
        facts["blocks"] = ", ".join(_verdicts(verdict))
    elif record.kind == "head":
        facts["network"] = _head_size(record)
    else:
        facts["layers"] = _network_size(record)
    facts["time"] = f"{seconds:.2f} s"
    return facts


def _claim(record: Record | Conversion) -> str:
    if isinstance(record, Conversion):
        return f"|executed - original| <= exact + rounding in every output of a block, {claim(record.report)}"
    return _head_claim(record) if record.kind == "head" else _network_claim(record)


def _verdicts(verdict: Verdict) -> list[str]:
    """How many blocks have which verdict."""
    found = [str(child.status) for child in verdict.children]
    return [f"{found.count(status)} {status}" for status in _STYLES if status in found] or ["none looked at"]


def _head_claim(record: Record) -> str:
    known = record.certificate
    return f"|head(s) - f(s)| <= bound, f = {known.facts['function']}, s in {interval(known.interval)}"


def _network_claim(record: Record) -> str:
    inside = f"x in {box_text(record.certificate.box)}"
    if not record.certificate.proved:
        return f"none: |network(x) - f(x)| was measured, {inside}"
    lookups = [step for step in record.network[0].steps if isinstance(step, Lookup)]
    if lookups:
        return f"|network(x) - f(x)| <= bound in every output, {inside}, for every {assumed(lookups[0])}"
    program = f"program {record.certificate.facts['program'][:12]}…"
    return f"|network(x) - program(x)| <= bound in every output, {inside}, {program}"


def _head_size(record: Record) -> str:
    numbers = record.head
    return f"{_count(numbers.heads, 'head')} of {numbers.anchors_per_head} anchors, {numbers.dtype}"


def _network_size(record: Record) -> str:
    layers, heads = _counted(record)
    return f"{layers} of attention, {_count(heads, 'head')}, {record.numbers.dtype}"


def _counted(record: Record) -> tuple[int, int]:
    """Layers of attention and heads: one for every neuron, one for a lookup."""
    program, numbers = record.network
    attention = [layer for layer in numbers.layers if layer.kind in ("pointwise", "lookup")]
    heads = [1 if layer.kind == "lookup" else program.shapes[layer.value][-1] for layer in attention]
    return len(heads), sum(heads)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
