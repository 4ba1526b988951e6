"""`attnc zoo`: transformers whose mechanism is known."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from attnc.cli.options import Dtype, Force, Json, Plot, check_files, parse_dtype
from attnc.cli.output import (
    errors_reported,
    print_json,
    progress_bar,
    result_json,
    result_text,
    run_facts,
    status_of,
    table,
)

zoo = typer.Typer(
    help="Attention-only transformers whose mechanism is known, each proved for every sequence up to its length.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `attnc zoo list`.")]
_Vocabulary = Annotated[int | None, typer.Option(metavar="V", help="Another number of tokens.")]
_Length = Annotated[int | None, typer.Option(metavar="N", help="Another largest length.")]
_Output = Annotated[
    Path, typer.Option("-o", "--output", metavar="PATH", help="The file to write (.safetensors).")
]


@zoo.command("list")
def list_models(json: Json = False) -> None:
    """List the models of the zoo.

    Example: attnc zoo list
    """
    from attnc import zoo as models

    entries = {name: models.about(name) for name in models.names()}
    if json:
        rows = [
            {"name": name, "computes": task.computes, "vocabulary": task.vocabulary, "length": task.length}
            for name, task in entries.items()
        ]
        print_json({"models": rows})
    else:
        rows_text = [(name, f"{t.vocabulary}, {t.length}", t.computes) for name, t in entries.items()]
        typer.echo(table(("name", "V, n", "computes"), rows_text))


@zoo.command("show")
def show(
    name: _Name,
    vocabulary: _Vocabulary = None,
    length: _Length = None,
    dtype: Dtype = "float32",
    plot: Plot = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Build a model, prove it, and show its mechanism, heads and certificate.

    Exit status: 0 proved, 2 bad input.

    Example: attnc zoo show induction --plot induction.png
    """
    _build(name, vocabulary, length, dtype, None, plot, force, json)


@zoo.command("save")
def save(
    name: _Name,
    output: _Output,
    vocabulary: _Vocabulary = None,
    length: _Length = None,
    dtype: Dtype = "float32",
    force: Force = False,
    json: Json = False,
) -> None:
    """Build a model, prove it, and write it to a file that `attnc.load` and `attnc verify` read.

    Exit status: 0 proved, 2 bad input.

    Example: attnc zoo save induction -o induction.safetensors
    """
    _build(name, vocabulary, length, dtype, output, None, force, json)


def _build(
    name: str,
    vocabulary: int | None,
    length: int | None,
    dtype: str,
    output: Path | None,
    plot: Path | None,
    force: bool,
    json: bool,
) -> None:
    from attnc import zoo as models

    with errors_reported(json):
        task = models.about(name)
        files, began = check_files(output, plot, force), time.perf_counter()
        with progress_bar(f"building {name}"):
            net = models.load(name, parse_dtype(dtype), vocabulary, length)
        if output is not None:
            net.save(output)
        if plot is not None:
            from attnc.plot import token_attention

            known = [token for token in task.tokens if token in net.vocabulary] or list(net.vocabulary[:1])
            token_attention(net, sequence=known[: net.program.length], path=plot)
        seconds, (status, reason) = time.perf_counter() - began, status_of(net)
        if json:
            about = {"name": name, "computes": task.computes, "mechanism": task.mechanism}
            ran = {"seconds": round(seconds, 3), "files": files}
            print_json({**about, **result_json(net, status, reason), **ran})
        else:
            title = f"{name}: {task.computes}\n\n{task.mechanism}"
            typer.echo(result_text(net, status, reason, title, run_facts(seconds, files)))
