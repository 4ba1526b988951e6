"""`attnc zoo`: transformers whose mechanism is known."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from attnc.cli.options import Force, Json, Plot, check_files, output_option, parse_dtype
from attnc.cli.output import (
    NOT_PROVED,
    errors_reported,
    facts_text,
    print_json,
    progress_bar,
    result_json,
    result_text,
    run_facts,
    status_of,
    table,
)

zoo = typer.Typer(
    help="Attention-only models whose mechanism is known, each with its certificate.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_Dtype = Annotated[
    str | None, typer.Option(help="float32 or float64; by default float32 for tokens, else float64.")
]
_Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `attnc zoo list`.")]
_Vocabulary = Annotated[int | None, typer.Option(metavar="V", help="Another number of tokens.")]
_Length = Annotated[int | None, typer.Option(metavar="N", help="Another largest length.")]
_Output = Annotated[Path, output_option("The file to write (.safetensors).")]


@zoo.command("list")
def list_models(json: Json = False) -> None:
    """List the models of the zoo.

    Example: attnc zoo list
    """
    from attnc import zoo as models

    entries = {name: models.about(name) for name in models.names()}
    if json:
        rows = [
            {"name": name, "computes": task.computes, "vocabulary": getattr(task, "vocabulary", None)}
            | {"length": getattr(task, "length", None), "seconds": getattr(task, "seconds", 1)}
            for name, task in entries.items()
        ]
        print_json({"models": rows})
    else:
        sizes = {
            name: f"{t.vocabulary}, {t.length}"
            for name, t in entries.items()
            if isinstance(t, models.TokenTask)
        }
        rows_text = [
            (name, sizes.get(name, "numbers"), f"{t.computes}{_time(t)}") for name, t in entries.items()
        ]
        typer.echo(table(("name", "V, n", "computes"), rows_text))


def _time(task: Any) -> str:
    """How long it takes to build a model, if that is more than about a second."""
    seconds = getattr(task, "seconds", 1)
    return f" (takes about {seconds} s)" if seconds > 1 else ""


@zoo.command("show")
def show(
    name: _Name,
    vocabulary: _Vocabulary = None,
    length: _Length = None,
    dtype: _Dtype = None,
    plot: Plot = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Build a model, prove it, and show its mechanism, heads and certificate.

    Exit status: 0 proved, 1 measured only, 2 bad input.

    Example: attnc zoo show induction --plot induction.png
    """
    _build(name, vocabulary, length, dtype, None, plot, force, json)


@zoo.command("save")
def save(
    name: _Name,
    output: _Output,
    vocabulary: _Vocabulary = None,
    length: _Length = None,
    dtype: _Dtype = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Build a model, prove it, and write it to a file that `attnc.load` and `attnc verify` read.

    Exit status: 0 proved, 1 measured only, 2 bad input.

    Example: attnc zoo save induction -o induction.safetensors
    """
    _build(name, vocabulary, length, dtype, output, None, force, json)


def _build(
    name: str,
    vocabulary: int | None,
    length: int | None,
    dtype: str | None,
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
            net = models.load(name, None if dtype is None else parse_dtype(dtype), vocabulary, length)
        if output is not None:
            net.save(output)
        if plot is not None:
            from attnc.plot import zoo_model

            zoo_model(net, name=name, path=plot)
        seconds, (status, reason) = time.perf_counter() - began, status_of(net)
        title = f"{name}: {task.computes}\n\n{task.mechanism}"
        if json:
            about = {"name": name, "computes": task.computes, "mechanism": task.mechanism, "status": status}
            shown = {
                "kind": net.certificate.subject,
                "reason": reason,
                "certificate": net.certificate.to_json(),
            }
            if isinstance(task, models.TokenTask):
                shown = result_json(net, status, reason)
            print_json({**about, **shown, "seconds": round(seconds, 3), "files": files})
        elif net.certificate.subject == "learner":
            typer.echo("\n\n".join((title, str(net.certificate), facts_text(run_facts(seconds, files)))))
        else:
            typer.echo(result_text(net, status, reason, title, run_facts(seconds, files)))
    if reason is not None:
        raise typer.Exit(NOT_PROVED)
