"""`attnc verify`: a certificate checked again, from the numbers in its file."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

import attnc
from attnc.cli.options import Json, Saved
from attnc.cli.output import NOT_PROVED, errors_reported, number, print_facts, print_json
from attnc.cli.progress import progress_bar
from attnc.cli.report import claim, load_saved, saved_record, shortened

if TYPE_CHECKING:
    from attnc.records.verdict import Verdict

_STYLES = {"proved": "bold green", "refuted": "bold red", "unknown": "bold yellow"}


def verify(path: Saved, json: Json = False) -> None:
    """Prove the bound of a saved result again.

    The proof starts from the stored numbers of a head, a network or a converted model. An error that was only measured
    has no proof to check: its status is unknown.

    Exit status: 0 proved, 1 refuted or unknown, 2 the file was not written by attnc, or is damaged or edited.

    Example: attnc verify gelu.safetensors
    """
    with errors_reported(json):
        saved = load_saved(path)
        began = time.perf_counter()
        with progress_bar(f"verifying {path}"):
            verdict = attnc.verify(path)
        seconds = time.perf_counter() - began
        if json:
            record = {**saved_record(saved), **asdict(verdict)}
            print_json({"file": str(path), **record, "seconds": round(seconds, 3)})
        else:
            facts = {"claim": claim(saved), **_verdict_facts(verdict), "time": f"{seconds:.2f} s"}
            print_facts(f"{path}: {verdict.status}", facts, _STYLES[verdict.status])
    if not verdict:
        raise typer.Exit(NOT_PROVED)


def _verdict_facts(verdict: Verdict) -> dict[str, str]:
    facts = {
        "reason": verdict.reason,
        "bound": "none" if verdict.bound is None else number(verdict.bound),
        "cells": str(verdict.cells),
    }
    if verdict.input is not None:
        facts["refuting input"] = shortened([number(value) for value in verdict.input])
    if verdict.error is not None:
        facts["error there"] = f"{verdict.error:.6g}"
    blocks = [str(child.status) for child in verdict.children]
    if blocks:
        counts = [f"{blocks.count(status)} {status}" for status in _STYLES if status in blocks]
        facts["blocks"] = ", ".join(counts)
    return facts
