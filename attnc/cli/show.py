"""`attnc show`: what a file or a directory holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnc.cli.options import Json, Saved
from attnc.cli.output import NOT_PROVED, errors_reported, print_facts, print_json
from attnc.cli.report import conversion_status, load_saved, print_head, print_object, saved_record, shortened

if TYPE_CHECKING:
    from attnc.network.head import Head
    from attnc.network.network import Network
    from attnc.pretrained.directory import Conversion


def show(path: Saved, json: Json = False) -> None:
    """Show a saved result without proving its bound again.

    Exit status: 0 the certificates apply to the stored numbers, 1 they do not, 2 the file was not written by attnc,
    or is damaged or edited.

    Example: attnc show net.safetensors
    """
    with errors_reported(json):
        saved = load_saved(path)
        reason = _why_not_certified(path, saved)
        if json:
            about = {"file": str(path), "certified": reason is None, "reason": reason}
            print_json({**about, **saved_record(saved)})
        else:
            _print(path, saved, reason)
    if reason is not None:
        raise typer.Exit(NOT_PROVED)


def _why_not_certified(path: Path, saved: Head | Network | Conversion) -> str | None:
    from attnc.pretrained.directory import Conversion, changed_heads

    if not isinstance(saved, Conversion):
        return saved.why_not_certified()
    changed = changed_heads(path, saved)
    if changed:
        return f"{len(changed)} head{'s' * (len(changed) > 1)} changed since certified: {shortened(changed)}"
    if conversion_status(saved.report) != "proved":
        return "the bounds of some blocks are measured on calibration inputs, not proved"
    return None


def _print(path: Path, saved: Head | Network | Conversion, reason: str | None) -> None:
    from attnc.network.head import Head
    from attnc.network.network import Network

    known = saved.certificate if isinstance(saved, (Head, Network)) else saved.report.certificate
    versions = ", ".join(f"{name} {version}" for name, version in known.versions.items())
    note = f"read, not proved again; `attnc verify {path}` proves it"
    facts = {"built with": versions, "note": note if known.proved else "the error was measured, not proved"}
    if isinstance(saved, Head):
        print_head(f"{path}: a softmax head", saved, facts)
    elif isinstance(saved, Network):
        print_object(f"{path}: a network of softmax attention", saved.describe(), facts)
    elif reason is not None and conversion_status(saved.report) == "proved":
        print_facts(f"{path}: a converted model", {"model": saved.report.model, "not certified": reason})
    else:
        facts |= {"not certified": reason} if reason else {}
        print_object(f"{path}: a converted model", saved.report, facts)
