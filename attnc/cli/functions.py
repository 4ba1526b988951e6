"""`attnc functions`: the functions that `attnc head` knows by name."""

from __future__ import annotations

import typer

from attnc.cli.options import Json
from attnc.cli.output import print_json, table

_PROBES = (0.3125, 0.8125, 1.4375)


def functions(json: Json = False) -> None:
    """List the functions that have a name.

    Example: attnc functions
    """
    from attnc.functions import meaning, names, signature

    rows = [(name, signature(name), meaning(name), kinks(name)) for name in names()]
    if json:
        keys = ("name", "signature", "formula", "kinks")
        print_json({"functions": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        cells = [(call, formula, ", ".join(at)) for _, call, formula, at in rows]
        typer.echo(table(("function", "formula", "kinks"), cells))


def kinks(name: str) -> list[str]:
    """The points where the function is not analytic, in terms of its parameters.

    >>> kinks("relu"), kinks("clip"), kinks("soft_threshold"), kinks("tanh")
    (['0'], ['a', 'b'], ['-lam', 'lam'], [])
    """
    from attnc.functions import get, signature

    _, _, inside = signature(name).removesuffix(")").partition("(")
    parameters = [part.split("=")[0].strip() for part in inside.split(",") if part]
    values = dict(zip(_PROBES, parameters, strict=False))
    names = values | {-value: f"-{parameter}" for value, parameter in values.items()}
    f = get(f"{name}({','.join(str(value) for value in values)})")
    return [names.get(kink, f"{kink:g}") for kink in f.kinks]
