"""`attnc head`: a function, as a softmax head with a proof. `attnc functions`: the names."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Annotated

import typer

import attnc
from attnc.cli.options import (
    Dtype,
    Force,
    Json,
    Output,
    Plot,
    Report,
    check_files,
    parse_dtype,
    write_report,
)
from attnc.cli.output import errors_reported, finish, print_json, progress_bar, table
from attnc.cli.own_code import OBJECT, load_object, user_code
from attnc.errors import InputError

_NAME = "From `attnc functions`: gelu, 'clip(-25,25)', …; or module:function (runs your own code)."
_EPS = "Build the smallest head with a proved error of at most E."
_Anchors = Annotated[int | None, typer.Option(metavar="P", help="Or build the best head with P anchors.")]


def head(
    name: Annotated[str, typer.Argument(help=_NAME)],
    domain: Annotated[tuple[float, float], typer.Option(metavar="LO HI", help="The interval of inputs.")],
    eps: Annotated[float | None, typer.Option(metavar="E", help=_EPS)] = None,
    anchors: _Anchors = None,
    design: Annotated[str, typer.Option(help="auto, nearest, smooth, graded, gated or tuned.")] = "auto",
    heads: Annotated[int, typer.Option(metavar="H", help="Split the interval over H heads.")] = 1,
    dtype: Dtype = "float32",
    output: Output = None,
    plot: Plot = None,
    report: Report = None,
    json: Json = False,
    force: Force = False,
) -> None:
    """Turn a function into a softmax head and prove its error.

    Exit status: 0 proved, 1 measured only, 2 bad input.

    With module:function, YOUR OWN PYTHON CODE IS IMPORTED AND RUN, from the current directory or Python's path.

    Example: attnc head gelu --domain -8 8 --eps 1e-4 -o gelu.safetensors
    """
    own = OBJECT.fullmatch(name) is not None
    with errors_reported(json), user_code() if own else nullcontext():
        if (eps is None) == (anchors is None):
            given = "neither" if eps is None else "both"
            raise InputError(f"give either --eps E or --anchors P: got {given}")
        files, began = check_files(output, plot, force, report=report), time.perf_counter()
        with progress_bar(f"building {name}") as progress:
            built = attnc.head(
                load_object(name) if own else name, domain=domain, eps=eps, anchors=anchors, design=design, heads=heads,
                dtype=parse_dtype(dtype), progress=progress,
            )  # fmt: skip
            seconds = time.perf_counter() - began
            if output is not None:
                built.save(output)
            if plot is not None:
                progress(f"drawing {plot}")
                attnc.plot.head(built, path=plot)
            write_report(built, report, progress)
    finish(built, f"{name} as a softmax head", json, {}, seconds, files)


def functions(json: Json = False) -> None:
    """List the functions that have a name.

    Example: attnc functions
    """
    from attnc.functions import meaning, names, signature

    if json:
        rows = [{"name": n, "signature": signature(n), "formula": meaning(n)} for n in names()]
        print_json({"functions": rows})
    else:
        typer.echo(table(("function", "formula"), [(signature(name), meaning(name)) for name in names()]))
