"""What commands print: a table or one JSON object on stdout; errors, and nothing else, on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnc.domain import Interval
from attnc.errors import AttncError

PROVED, NOT_PROVED, BAD_INPUT = 0, 1, 2


@contextmanager
def errors_reported(as_json: bool) -> Iterator[None]:
    """What attnc refuses becomes a message on stderr, with `--json` an object on stdout; exit status 2."""
    try:
        yield
    except AttncError as problem:
        stderr = Console(stderr=True, highlight=False)
        stderr.print(Text.assemble(("error: ", "bold red"), str(problem)), soft_wrap=True)
        if as_json:
            print_json({"error": {"kind": type(problem).__name__, "message": str(problem)}})
        raise typer.Exit(BAD_INPUT) from problem


def print_json(record: Mapping[str, Any]) -> None:
    """One object; JSON has no infinity and no NaN, so they become null.

    >>> print_json({"quality": float("inf")})
    {
      "quality": null
    }
    """
    typer.echo(json.dumps(_finite(record), indent=2, allow_nan=False))


def print_facts(title: str, facts: Mapping[str, str], style: str = "bold") -> None:
    """A table of two columns: what, and how much."""
    table = Table(
        title=Text(title, style=style), title_justify="left", box=box.SIMPLE_HEAD, show_header=False
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        table.add_row(Text(name), Text(fact))
    print_table(table)


def print_table(table: Table) -> None:
    Console(highlight=False).print(table)


def interval(domain: Interval) -> str:
    """The interval as it is read aloud.

    >>> interval(Interval(-8, 8))
    '[-8, 8]'
    """
    return f"[{number(domain.lo)}, {number(domain.hi)}]"


def number(x: float) -> str:
    """All the digits that matter, and no more.

    >>> number(-8.0), number(0.1), number(3.825e-07)
    ('-8', '0.1', '3.825e-07')
    """
    short = f"{x:g}"
    return short if float(short) == x else repr(x)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
