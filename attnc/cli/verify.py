"""`attnc verify`: a certificate checked again, from the numbers in its file."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

import attnc
from attnc.cli.options import Json, Saved
from attnc.cli.output import NOT_PROVED, errors_reported, facts_text, print_json, shortened
from attnc.cli.progress import progress_bar

if TYPE_CHECKING:
    from attnc.records.verdict import Verdict


def verify(path: Saved, json: Json = False) -> None:
    """Prove the bound of a saved result again.

    The proof starts from the stored numbers of a head, a network or a converted model. An error that was only measured
    has no proof to check: its status is unknown.

    Exit status: 0 proved, 1 refuted or unknown, 2 the file was not written by attnc, or is damaged or edited.

    Example: attnc verify gelu.safetensors
    """
    with errors_reported(json):
        began = time.perf_counter()
        with progress_bar(f"verifying {path}"):
            verdict = attnc.verify(path)
        seconds = time.perf_counter() - began
    if json:
        print_json({"file": str(path), **asdict(verdict), "seconds": round(seconds, 3)})
    else:
        typer.echo(facts_text({"file": str(path), **_facts(verdict), "time": f"{seconds:.2f} s"}))
    if not verdict:
        raise typer.Exit(NOT_PROVED)


def _facts(verdict: Verdict) -> dict[str, str]:
    """The fields of a verdict that are set."""
    facts = {"status": str(verdict.status), "reason": verdict.reason}
    facts |= {} if verdict.bound is None else {"bound": f"{verdict.bound:g}"}
    facts |= {} if verdict.input is None else {"input": shortened([f"{x!r}" for x in verdict.input])}
    facts |= {} if verdict.error is None else {"error there": f"{verdict.error:.6g}"}
    parts = Counter(str(part.status) for part in verdict.children)
    return facts | ({"parts": ", ".join(f"{n} {status}" for status, n in parts.items())} if parts else {})
