"""The commands in one program. Only the command that runs imports torch: help and `--version` do not."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Annotated, Any

import typer

import attnc
from attnc.cli.compile import compile
from attnc.cli.convert import convert
from attnc.cli.export import export
from attnc.cli.head import functions, head
from attnc.cli.learn import learn
from attnc.cli.messages import note_options
from attnc.cli.reproduce import reproduce
from attnc.cli.saved import show, verify
from attnc.cli.zoo import zoo

app = typer.Typer(
    name="attnc",
    help="The attention compiler: functions and networks as softmax attention, with proved error bounds.",
    epilog="Exit status: 0 the result is proved, 1 it is not, 2 bad input.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (head, compile, convert, learn, reproduce, verify, show, export, functions):
    app.command()(command)
app.add_typer(zoo, name="zoo")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"attnc {attnc.__version__}")
        raise typer.Exit


@app.callback()
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The attention compiler: functions and networks as softmax attention, with proved error bounds."""
    group: Any = context.command
    command = group.commands.get(context.invoked_subcommand)
    if command is not None:
        note_options([command, *getattr(command, "commands", {}).values()])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with the arguments of the process, or with `arguments`, and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # the Φ of a formula must not fail on an ASCII terminal
    given = sys.argv[1:] if arguments is None else list(arguments)
    for option, following in zip(given, [*given[1:], "-"], strict=True):
        if (
            option.startswith("--domain=")
            and re.match(r"-(\D|$)", following)
            and not re.match(r"-\.\d", following)
        ):
            example = "--domain " + " ".join(option.partition("=")[2].split(",", 1))
            typer.echo(
                f"error: {option}: --domain takes two values with a space between them, as in {example}",
                err=True,
            )
            return 2
    try:
        app(args=None if arguments is None else list(arguments), prog_name="attnc")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
