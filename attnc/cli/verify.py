"""`attnc verify`: a certificate proved anew, from the numbers in its file."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import attnc
from attnc.certify.check import Verdict
from attnc.certify.record import HeadRecord, read
from attnc.cli.output import NOT_PROVED, errors_reported, interval, number, print_facts, print_json
from attnc.cli.progress import progress

_STYLES = {"proved": "bold green", "refuted": "bold red", "unknown": "bold yellow"}


def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file that `attnc head --save` wrote.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Prove the bound of a saved head anew, from the numbers in the file.

    Exit status: 0 proved, 1 refuted or unknown, 2 not a head's file, or a damaged or edited one.

    Example: attnc verify gelu.safetensors
    """
    with errors_reported(json):
        record = read(path)
        began = time.perf_counter()
        with progress(f"verifying {path}"):
            verdict = attnc.verify(path)
        seconds = time.perf_counter() - began
        if json:
            print_json(_record(path, record, verdict, seconds))
        else:
            print_facts(
                f"{path}: {verdict.status}", _facts(record, verdict, seconds), _STYLES[verdict.status]
            )
    if not verdict:
        raise typer.Exit(NOT_PROVED)


def _record(path: Path, record: HeadRecord, verdict: Verdict, seconds: float) -> dict[str, Any]:
    known = record.certificate or record.measured
    assert known is not None
    return {
        "file": str(path),
        **asdict(verdict),
        "function": known.function,
        "domain": {"lo": known.domain.lo, "hi": known.domain.hi},
        "dtype": record.numbers.dtype,
        "heads": record.numbers.heads,
        "anchors": record.numbers.anchors_per_head,
        "seconds": round(seconds, 3),
    }


def _facts(record: HeadRecord, verdict: Verdict, seconds: float) -> dict[str, str]:
    known = record.certificate or record.measured
    assert known is not None
    numbers = record.numbers
    facts = {
        "status": verdict.status,
        "reason": verdict.reason,
        "claim": f"|head(s) - f(s)| <= bound, f = {known.function}, s in {interval(known.domain)}",
        "bound": "none" if verdict.bound is None else number(verdict.bound),
        "cells": str(verdict.cells),
    }
    if verdict.input is not None:
        facts["refuting input"] = f"s = {verdict.input!r}"
    if verdict.error is not None:
        facts["error there"] = f"{verdict.error:.6g}"
    heads = f"{numbers.heads} {'head' if numbers.heads == 1 else 'heads'}"
    facts["network"] = f"{heads} of {numbers.anchors_per_head} anchors, {numbers.dtype}"
    facts["time"] = f"{seconds:.2f} s"
    return facts
