"""`attnc head`: a function by its name, as a softmax head with a proof."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

import attnc
import attnc.plot
from attnc.cli.head_report import head_facts, head_record
from attnc.cli.output import NOT_PROVED, chosen_dtype, errors_reported, made_facts, print_facts, print_json
from attnc.cli.progress import progress
from attnc.cli.targets import check_targets
from attnc.errors import InputError
from attnc.heads.candidates import DESIGNS
from attnc.plot.canvas import picture_format, require_matplotlib


def head(
    name: Annotated[str, typer.Argument(help="A name from `attnc functions`: gelu, 'clip(-25,25)', …")],
    on: Annotated[tuple[float, float], typer.Option(metavar="LO HI", help="The interval.")],
    eps: Annotated[
        float | None, typer.Option(metavar="E", help="Find the smallest head proved to stay within E.")
    ] = None,
    anchors: Annotated[
        int | None, typer.Option(metavar="P", help="Or: find the best head with P anchors.")
    ] = None,
    design: Annotated[str, typer.Option(help=f"One of {', '.join(DESIGNS)}.")] = "auto",
    heads: Annotated[int, typer.Option(metavar="H", help="Split the interval over H heads.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    save: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the head and its certificate (.safetensors).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Draw it (.png, .svg or .pdf; needs matplotlib).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Turn a function into a softmax head and prove its error.

    Example: attnc head gelu --on -8 8 --eps 1e-4 --save gelu.safetensors
    """
    with errors_reported(json):
        _check_request(eps, anchors)
        chosen = chosen_dtype(dtype)
        _check_files(save, plot, force)
        began = time.perf_counter()
        with progress(f"building {name}") as say:
            made = attnc.head(
                name,
                domain=on,
                eps=eps,
                anchors=anchors,
                design=design,
                heads=heads,
                dtype=chosen,
                progress=say,
            )
            seconds = time.perf_counter() - began
            if save is not None:
                say(f"writing {save}")
                made.save(save)
            if plot is not None:
                say(f"drawing {plot}")
                attnc.plot.head(made, path=plot)
        files = {"save": save, "plot": plot}
        written = {key: str(path) for key, path in files.items() if path is not None}
        if json:
            status = {"status": str(made.certificate.status)}
            print_json({**status, **head_record(made), "seconds": round(seconds, 3), "files": written})
        else:
            title, facts = head_facts(made)
            print_facts(title, {**facts, **made_facts(seconds, written)})
    if not made.certificate.proved:
        raise typer.Exit(NOT_PROVED)


def _check_request(eps: float | None, anchors: int | None) -> None:
    if (eps is None) == (anchors is None):
        given = "neither" if eps is None else "both"
        raise InputError(
            "give either --eps E (the smallest head that meets it) "
            f"or --anchors P (the best of that size): got {given}"
        )


def _check_files(save: Path | None, plot: Path | None, force: bool) -> None:
    if plot is not None:
        picture_format(plot)
        require_matplotlib()
    check_targets([path for path in (save, plot) if path is not None], force)
