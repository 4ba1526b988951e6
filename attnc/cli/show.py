"""`attnc show`: what a file or a directory contains."""

from __future__ import annotations

import typer

from attnc.cli.options import Json, Saved
from attnc.cli.output import NOT_PROVED, errors_reported, print_json
from attnc.cli.results import load_result


def show(path: Saved, json: Json = False) -> None:
    """Show a saved result without proving its bound again.

    Exit status: 0 the certificates apply to the stored numbers, 1 they do not, or the error is measured, 2 the file was
    not written by attnc, or is damaged or edited.

    Example: attnc show net.safetensors
    """
    with errors_reported(json):
        result = load_result(path)
        if json:
            print_json({"file": str(path), **result.record()})
        else:
            versions = result.certificate.versions.items()
            built = {"built with": ", ".join(f"{name} {version}" for name, version in versions)}
            note = {"note": f"read, not proved again; `attnc verify {path}` proves it"}
            typer.echo(result.text(str(path), built if result.reason else built | note))
    if result.reason is not None:
        raise typer.Exit(NOT_PROVED)
