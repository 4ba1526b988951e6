"""`attnc functions`: what `attnc head` knows by name."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from attnc.cli.output import number, print_json, print_table
from attnc.functions import get, meaning, names, signature

_PROBES = (0.3125, 0.8125, 1.4375)


def functions(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List the functions that have a name, with their formula and their kinks.

    Example: attnc functions
    """
    rows = [{"name": n, "signature": signature(n), "formula": meaning(n), "kinks": kinks(n)} for n in names()]
    if json:
        print_json({"functions": rows})
        return
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("function", "formula", "kinks"):
        table.add_column(title, no_wrap=title == "function", overflow="fold")
    for name in names():
        table.add_row(Text(signature(name), style="bold"), Text(meaning(name)), Text(", ".join(kinks(name))))
    print_table(table)


def kinks(name: str) -> list[str]:
    """Where the function is not analytic, in terms of its parameters.

    >>> kinks("relu"), kinks("clip"), kinks("soft_threshold"), kinks("tanh")
    (['0'], ['a', 'b'], ['-lam', 'lam'], [])
    """
    _, _, inside = signature(name).removesuffix(")").partition("(")
    parameters = [part.split("=")[0].strip() for part in inside.split(",") if part]
    chosen = dict(zip(_PROBES, parameters, strict=False))
    f = get(f"{name}({','.join(str(value) for value in chosen)})")
    return [_in_terms_of(chosen, kink) for kink in f.kinks]


def _in_terms_of(parameters: dict[float, str], kink: float) -> str:
    if kink in parameters:
        return parameters[kink]
    return f"-{parameters[-kink]}" if -kink in parameters else number(kink)
