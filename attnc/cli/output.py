"""What commands print: tables or one JSON object on stdout, errors on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnc.errors import AttncError, ConvergenceError, PrecisionError, UnsupportedError

PROVED, NOT_PROVED, BAD_INPUT = 0, 1, 2
_STYLE: Any = {"title_justify": "left", "box": box.SIMPLE_HEAD}


@contextmanager
def errors_reported(as_json: bool) -> Iterator[None]:
    """Print an AttncError as a message on stderr, with `--json` also as an object on stdout; exit with status 2."""
    try:
        yield
    except AttncError as problem:
        stderr = Console(stderr=True, highlight=False)
        stderr.print(Text.assemble(("error: ", "bold red"), str(problem)), soft_wrap=True)
        if as_json:
            print_json({"error": _error_record(problem)})
        raise typer.Exit(BAD_INPUT) from problem


def _error_record(problem: AttncError) -> dict[str, Any]:
    """The kind and the message; the list of problems, or the bound that is reachable, where the error has one."""
    record: dict[str, Any] = {"kind": type(problem).__name__, "message": str(problem)}
    if isinstance(problem, UnsupportedError):
        record["problems"] = [asdict(part) for part in problem.problems]
    if isinstance(problem, (ConvergenceError, PrecisionError)):
        record["reachable"] = problem.reachable
    return record


def print_json(record: Mapping[str, Any]) -> None:
    """Print one JSON object; infinity and NaN, which JSON does not have, become null.

    >>> print_json({"quality": float("inf")})
    {
      "quality": null
    }
    """
    typer.echo(json.dumps(_finite(record), indent=2, allow_nan=False))


def print_rows(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with a header. On a narrow terminal it is wider than the screen; no cell is cut or folded."""
    console, table = Console(highlight=False), Table(title=Text(title, "bold"), **_STYLE)
    for name in header:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    needed = console.measure(table, options=console.options.update(width=10_000)).maximum
    console.width = max(console.width, needed)
    console.print(table)


def print_facts(title: str, facts: Mapping[str, str], style: str = "bold") -> None:
    """Print a table of two columns, names and values. Long values are folded."""
    table = Table(title=Text(title, style) if title else None, show_header=False, **_STYLE)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(Text(name), Text(value))
    Console(highlight=False).print(table)


def run_facts(seconds: float, files: Mapping[str, str]) -> dict[str, str]:
    """The run time and the files that were written.

    >>> run_facts(0.5, {"output": "a.safetensors"})
    {'time': '0.50 s', 'written': 'a.safetensors'}
    """
    return {"time": f"{seconds:.2f} s", **({"written": "\n".join(files.values())} if files else {})}


def number(x: float) -> str:
    """All significant digits, and no more.

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
