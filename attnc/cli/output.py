"""What commands print: a table or one JSON object on stdout; errors, and what a
user's own code prints, on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnc.domain import Interval
from attnc.errors import AttncError, ConvergenceError, InputError, PrecisionError, UnsupportedError

PROVED, NOT_PROVED, BAD_INPUT = 0, 1, 2
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@contextmanager
def errors_reported(as_json: bool) -> Iterator[None]:
    """What attnc refuses becomes a message on stderr, with `--json` an object on stdout; exit status 2."""
    try:
        yield
    except AttncError as problem:
        stderr = Console(stderr=True, highlight=False)
        stderr.print(Text.assemble(("error: ", "bold red"), str(problem)), soft_wrap=True)
        if as_json:
            print_json({"error": _error_record(problem)})
        raise typer.Exit(BAD_INPUT) from problem


def _error_record(problem: AttncError) -> dict[str, Any]:
    """Every error has a kind and a message; some also list their parts, or say what could be proved instead."""
    record: dict[str, Any] = {"kind": type(problem).__name__, "message": str(problem)}
    if isinstance(problem, UnsupportedError):
        record["problems"] = [asdict(part) for part in problem.problems]
    if isinstance(problem, (ConvergenceError, PrecisionError)):
        record["reachable"] = problem.reachable
    return record


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


def print_table(table: Table, whole: bool = False) -> None:
    """A `whole` table is as wide as it is, also on a narrow terminal: no number in it is cut or folded."""
    console = Console(highlight=False)
    if whole:
        needed = console.measure(table, options=console.options.update(width=10_000)).maximum
        console.width = max(console.width, needed)
    console.print(table)


def made_facts(seconds: float, written: Mapping[str, str]) -> dict[str, str]:
    """How long it took, and the files that it left.

    >>> made_facts(0.5, {"save": "a.safetensors"})
    {'time': '0.50 s', 'written': 'a.safetensors'}
    """
    facts = {"time": f"{seconds:.2f} s"}
    if written:
        facts["written"] = "\n".join(written.values())
    return facts


def chosen_dtype(name: str) -> torch.dtype:
    """What --dtype names.

    >>> chosen_dtype("float64")
    torch.float64
    """
    if name not in _DTYPES:
        raise InputError(f"--dtype {name}: accepted are {' and '.join(_DTYPES)}")
    return _DTYPES[name]


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
