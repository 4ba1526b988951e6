"""`attnc verify`: a certificate proved anew, from the numbers in its file."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import attnc
from attnc.records.verdict import Verdict
from attnc.cli.converted_report import claim
from attnc.cli.network_report import box_text, point_text
from attnc.cli.output import NOT_PROVED, errors_reported, interval, number, print_facts, print_json
from attnc.cli.progress import progress
from attnc.errors import FileError
from attnc.exporters.safetensors import read_any
from attnc.network.describe import assumed
from attnc.pretrained.directory import Conversion, read_conversion
from attnc.program import Lookup
from attnc.records.measured import NetworkMeasured
from attnc.records.network_certificate import NetworkCertificate, box_json
from attnc.records.network_numbers import Attention, Selection
from attnc.records.network_record import NetworkRecord
from attnc.records.record import HeadRecord

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


def _read(path: Path) -> HeadRecord | NetworkRecord | Conversion:
    if not path.is_dir():
        return read_any(path)
    if not (path / "config.json").exists():
        raise FileError(f"cannot read {path}: a directory without config.json is none of `attnc convert`")
    return read_conversion(path)


def _about(record: HeadRecord | NetworkRecord | Conversion) -> dict[str, Any]:
    if isinstance(record, Conversion):
        return {"model": record.report.model, "engine": record.engine, "report": record.report.to_json()}
    return _head_record(record) if isinstance(record, HeadRecord) else _network_record(record)


def _head_record(record: HeadRecord) -> dict[str, Any]:
    known = record.certificate or record.measured
    assert known is not None
    return {
        "function": known.function,
        "domain": {"lo": known.domain.lo, "hi": known.domain.hi},
        "dtype": record.numbers.dtype,
        "heads": record.numbers.heads,
        "anchors": record.numbers.anchors_per_head,
    }


def _network_record(record: NetworkRecord) -> dict[str, Any]:
    layers, heads = _counted(record)
    return {
        "program": record.program.digest(),
        "domain": box_json(_known(record).domain),
        "dtype": record.numbers.dtype,
        "layers": layers,
        "heads": heads,
        "certificate": None if record.certificate is None else record.certificate.to_json(),
        "measured": None if record.measured is None else record.measured.to_json(),
    }


def _facts(
    record: HeadRecord | NetworkRecord | Conversion, verdict: Verdict, seconds: float
) -> dict[str, str]:
    facts = {
        "status": verdict.status,
        "reason": verdict.reason,
        "claim": _claim(record),
        "bound": "none" if verdict.bound is None else number(verdict.bound),
        "cells": str(verdict.cells),
    }
    if verdict.input is not None:
        of_network = isinstance(record, NetworkRecord)
        facts["refuting input"] = f"x = {_point(verdict.input)}" if of_network else f"s = {verdict.input!r}"
    if verdict.error is not None:
        facts["error there"] = f"{verdict.error:.6g}"
    if isinstance(record, HeadRecord):
        facts["network"] = _head_size(record)
    elif isinstance(record, NetworkRecord):
        facts["layers"] = _network_size(record)
    else:
        facts["blocks"] = ", ".join(_verdicts(verdict))
    facts["time"] = f"{seconds:.2f} s"
    return facts


def _claim(record: HeadRecord | NetworkRecord | Conversion) -> str:
    if isinstance(record, Conversion):
        return f"|executed - original| <= exact + rounding in every output of a block, {claim(record.report)}"
    return _head_claim(record) if isinstance(record, HeadRecord) else _network_claim(record)


def _verdicts(verdict: Verdict) -> list[str]:
    """How many blocks have which verdict."""
    found = [v.status for _, v in getattr(verdict, "blocks", ())]
    return [f"{found.count(status)} {status}" for status in _STYLES if status in found] or ["none looked at"]


def _head_claim(record: HeadRecord) -> str:
    known = record.certificate or record.measured
    assert known is not None
    return f"|head(s) - f(s)| <= bound, f = {known.function}, s in {interval(known.domain)}"


def _network_claim(record: NetworkRecord) -> str:
    inside = f"x in {box_text(_known(record).domain)}"
    if record.certificate is None:
        return f"none: |network(x) - f(x)| was measured, {inside}"
    lookups = [step for step in record.program.steps if isinstance(step, Lookup)]
    if lookups:
        return f"|network(x) - f(x)| <= bound in every output, {inside}, for every {assumed(lookups[0])}"
    program = f"program {record.certificate.program[:12]}…"
    return f"|network(x) - program(x)| <= bound in every output, {inside}, {program}"


def _head_size(record: HeadRecord) -> str:
    numbers = record.numbers
    return f"{_count(numbers.heads, 'head')} of {numbers.anchors_per_head} anchors, {numbers.dtype}"


def _network_size(record: NetworkRecord) -> str:
    layers, heads = _counted(record)
    return f"{layers} of attention, {_count(heads, 'head')}, {record.numbers.dtype}"


def _counted(record: NetworkRecord) -> tuple[int, int]:
    """Layers of attention and heads: one for every neuron, one for a lookup."""
    heads = []
    for stage in record.numbers.stages:
        if isinstance(stage, Attention):
            heads.append(record.program.shapes[stage.value][-1])
        elif isinstance(stage, Selection):
            heads.append(1)
    return len(heads), sum(heads)


def _known(record: NetworkRecord) -> NetworkCertificate | NetworkMeasured:
    known = record.certificate or record.measured
    assert known is not None
    return known


def _point(given: Any) -> str:
    return point_text(given if isinstance(given, (tuple, list)) else (given,))


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
