"""`attnc head`: a function by its name, as a softmax head with a proof."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

import attnc
from attnc.cli.options import Dtype, Force, Json, Output, Plot, check_files, parse_dtype
from attnc.cli.output import NOT_PROVED, errors_reported, print_json, run_facts
from attnc.cli.progress import progress_bar
from attnc.cli.report import head_record, print_head
from attnc.errors import InputError


def head(
    name: Annotated[str, typer.Argument(help="A name from `attnc functions`: gelu, 'clip(-25,25)', …")],
    domain: Annotated[tuple[float, float], typer.Option(metavar="LO HI", help="The interval of inputs.")],
    eps: Annotated[
        float | None,
        typer.Option(metavar="E", help="Build the smallest head with a proved error of at most E."),
    ] = None,
    anchors: Annotated[
        int | None, typer.Option(metavar="P", help="Or build the best head with P anchors.")
    ] = None,
    design: Annotated[str, typer.Option(help="auto, nearest, smooth, graded, gated or tuned.")] = "auto",
    heads: Annotated[int, typer.Option(metavar="H", help="Split the interval over H heads.")] = 1,
    dtype: Dtype = "float32",
    output: Output = None,
    plot: Plot = None,
    json: Json = False,
    force: Force = False,
) -> None:
    """Turn a function into a softmax head and prove its error.

    Exit status: 0 proved, 1 measured only, 2 bad input.

    Example: attnc head gelu --domain -8 8 --eps 1e-4 -o gelu.safetensors
    """
    with errors_reported(json):
        if (eps is None) == (anchors is None):
            given = "neither" if eps is None else "both"
            raise InputError(
                f"give either --eps E (the smallest head within E) or --anchors P (the best head of that size): got {given}"
            )
        files = check_files(output, plot, force)
        began = time.perf_counter()
        with progress_bar(f"building {name}") as progress:
            size: dict[str, Any] = {"eps": eps, "anchors": anchors, "design": design, "heads": heads}
            result = attnc.head(name, domain=domain, dtype=parse_dtype(dtype), progress=progress, **size)
            seconds = time.perf_counter() - began
            if output is not None:
                result.save(output)
            if plot is not None:
                progress(f"drawing {plot}")
                attnc.plot.head(result, path=plot)
        if json:
            status = {"status": str(result.certificate.status)}
            print_json({**status, **head_record(result), "seconds": round(seconds, 3), "files": files})
        else:
            print_head(f"{name} as a softmax head", result, run_facts(seconds, files))
    if not result.certificate.proved:
        raise typer.Exit(NOT_PROVED)
