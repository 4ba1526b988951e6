"""`attnc show` and `attnc verify`: what a saved result contains, and its bound proved again."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict

import typer

import attnc
from attnc.cli import output
from attnc.cli.options import Json, Saved


def show(path: Saved, json: Json = False) -> None:
    """Show a saved result without proving its bound again.

    Exit status: 0 the certificates apply to the stored numbers, 1 they do not, or the error is measured, or its rounding is
    not claimed (bfloat16, float16), 2 the file was not written by attnc, or is damaged or edited.

    Example: attnc show net.safetensors
    """
    from attnc.exporters.safetensors import load
    from attnc.pretrained.directory import read_report

    with output.errors_reported(json):
        with output.progress_bar(f"reading {path}") as progress:
            result, changed = read_report(path, progress) if path.is_dir() else (load(path), None)
        status, reason = output.status_of(result, changed)
        if json:
            output.print_json({"file": str(path), **output.result_json(result, status, reason)})
        else:
            versions = result.certificate.versions.items()
            facts = {"built with": ", ".join(f"{name} {version}" for name, version in versions)}
            if reason is None:
                facts["note"] = f"read, not proved again; `attnc verify {path}` proves it"
            typer.echo(output.result_text(result, status, reason, str(path), facts))
    if reason is not None:
        raise typer.Exit(output.NOT_PROVED)


def verify(path: Saved, json: Json = False) -> None:
    """Prove the bound of a saved result again.

    The proof starts from the stored numbers of a head, a network or a converted model. An error that was only measured
    has no proof to check: its status is unknown.

    Of a model in bfloat16 or float16, the approximation is proved; nothing is claimed of its rounding.

    Exit status: 0 proved, 1 refuted or unknown, 2 the file was not written by attnc, or is damaged or edited.

    Example: attnc verify gelu.safetensors
    """
    from attnc.pretrained.verify import verify_directory
    from attnc.records.cards import bound_name
    from attnc.records.fields import at_most

    with output.errors_reported(json):
        began = time.perf_counter()
        with output.progress_bar(f"verifying {path}") as progress:
            verdict = verify_directory(path, progress=progress) if path.is_dir() else attnc.verify(path)
        seconds = time.perf_counter() - began
    if json:
        output.print_json({"file": str(path), **asdict(verdict), "seconds": round(seconds, 3)})
    else:
        parts = Counter(str(part.status) for part in verdict.children)
        facts = {
            "file": str(path),
            "status": verdict.status_text,
            "reason": verdict.reason,
            bound_name(bool(verdict), verdict.exact): verdict.bound is not None and at_most(verdict.bound),
            "input": verdict.input is not None and output.shortened([f"{x!r}" for x in verdict.input]),
            "error there": verdict.error is not None and f"{verdict.error:.6g}",
            "parts": ", ".join(f"{n} {status}" for status, n in parts.items()),
            "time": f"{seconds:.2f} s",
        }
        typer.echo(output.facts_text({name: value for name, value in facts.items() if value}))
    if not verdict:
        raise typer.Exit(output.NOT_PROVED)
