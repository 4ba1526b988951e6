"""The commands in one program. Only the command that runs imports torch: help and `--version` do not."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from itertools import pairwise
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


def _domain_advice(given: Sequence[str]) -> str | None:
    """What is wrong with an interval that is not written as two values after `--domain`."""
    for option, following in pairwise([*given, "-"]):
        name, _, joined = option.partition("=")
        ends = [end for end in re.split(r"[\s,()\[\]]+", joined or following) if end]
        separate = joined and _is_number(following)
        if name == "--domain" and "," in (joined or following) and len(ends) == 2 and not separate:
            shown = option if joined else f"{option} {following}"
            return f"{shown}: --domain takes two values with a space between them, as in --domain {' '.join(ends)}"
    if len(given) > 3 and given[0] == "head" and _is_number(given[2]) and _is_number(given[3]):
        return f"{given[2]} {given[3]}: the interval is an option, as in --domain {given[2]} {given[3]}"
    return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?\.?\d\S*", text) is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with the arguments of the process, or with `arguments`, and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # the Φ of a formula must not fail on an ASCII terminal
    given = sys.argv[1:] if arguments is None else list(arguments)
    advice = _domain_advice(given)
    if advice is not None:
        typer.echo(f"error: {advice}", err=True)
        return 2
    try:
        app(args=None if arguments is None else list(arguments), prog_name="attnc")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
