"""What commands print: text or one JSON object on stdout, errors on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer

from attnc.errors import AttncError, ConvergenceError, PrecisionError, UnsupportedError

NOT_PROVED, BAD_INPUT = 1, 2  # exit status
_SHOWN = 4  # items of a list


@contextmanager
def errors_reported(as_json: bool) -> Iterator[None]:
    """Print an AttncError as a message on stderr, with `--json` also as an object on stdout; exit with status 2."""
    try:
        yield
    except AttncError as problem:
        typer.secho("error: ", err=True, nl=False, fg="red", bold=True)
        typer.echo(str(problem), err=True)
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


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns. No cell is cut or folded.

    >>> print(table(("name", "kinks"), [("abs", "0"), ("tanh", "")]))
    name  kinks
    abs   0
    tanh
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (header, *rows))


def facts_text(facts: Mapping[str, str]) -> str:
    """Names and values in two columns, like a printed certificate.

    >>> print(facts_text({"design": "tuned"}))
    design:      tuned
    """
    width = max(13, 2 + max(map(len, facts)))
    return "\n".join(f"{name + ':':<{width}}{value}".rstrip() for name, value in facts.items())


def run_facts(seconds: float, files: Mapping[str, str]) -> dict[str, str]:
    """The run time and the files that were written."""
    return {"time": f"{seconds:.2f} s", **({"written": ", ".join(files.values())} if files else {})}


def shortened(items: Sequence[str]) -> str:
    """The first items of a list.

    >>> shortened(["a", "b"]), shortened(["a", "b", "c", "d", "e", "f"])
    ('a, b', 'a, b, c, d, … (6)')
    """
    return ", ".join(items[:_SHOWN]) + (f", … ({len(items)})" if len(items) > _SHOWN else "")
