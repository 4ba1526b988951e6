"""Token networks in words: their layers, heads and coordinates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from attnc.errors import UnknownNameError
from attnc.program.tokens import TokenProgram
from attnc.records.tokens import HeadRole, TokenNumbers

_T = TypeVar("_T")
WORDS = {
    "get": "copies the value of the selected position; if there is none, attends to BOS, which holds the default",
    "exists": "writes 1 if no position is selected, by attending to BOS, else 0",
    "count": "gives BOS the weight 1/(1 + number of selected positions), and the same weight to each of these",
    "mean": "averages over the selected positions; if there are none, attends to BOS, which holds the default",
    "anchor": "attends to the position that stands for the number, BOS for 0, and copies its value",
    "step": "writes 1 if the condition holds, by attending to BOS, else 0; at BOS always 1",
}
AT_BOS = "At BOS every step is 1. Later heads rely on this: their weights of the coordinate bos cancel it."


def description(numbers: TokenNumbers, program: TokenProgram) -> str:
    """A few lines of facts, then one line for each head."""
    heads = [len(layer.roles) for layer in numbers.layers]
    size = f"{len(program.vocabulary)} tokens, 1 to {program.length} positions"
    lines = [
        f"sequences:   {size}, {'causal' if program.causal else 'not causal'}, {numbers.dtype}",
        f"layers:      {len(heads)} of {heads} heads" if heads else "layers:      0",
        f"stream:      {len(numbers.coordinates)} coordinates: {', '.join(blocks(numbers))}",
    ]
    lines += [f"{place:<12} {text}" for place, text in head_lines(numbers)]
    steps = any(role.kind == "step" for layer in numbers.layers for role in layer.roles)
    return "\n".join([*lines, AT_BOS] if steps else lines)


def head_lines(numbers: TokenNumbers) -> list[tuple[str, str]]:
    """The place and the description of each head."""
    found, layout = [], _layout(numbers)
    for i, layer in enumerate(numbers.layers):
        for h, role in enumerate(layer.roles):
            found.append((f"head {i}.{h}", f"{role.kind} {role.name}: {what_it_does(role, layout)}"))
    return found


class ByHead(dict[str, _T]):
    """A value for each head, by its name "1.0 induction"; "induction" alone is accepted where one head has this name.

    >>> found = ByHead({"0.0 previous": 1, "1.0 x": 2, "1.1 x": 3})
    >>> found["previous"], found["1.1 x"]
    (1, 3)
    """

    def __missing__(self, name: object) -> _T:
        named = [known for known in self if known.split(" ", 1)[1] == name]
        if len(named) == 1:
            return self[named[0]]
        if named:
            raise UnknownNameError(
                f"{len(named)} heads have the name {name!r}: give one of {', '.join(named)}"
            )
        raise UnknownNameError(f"no head has the name {name!r}: the heads are {', '.join(self) or 'none'}")


class Layout(dict[str, slice]):
    """The slice of each group of coordinates by its name."""

    def __missing__(self, name: object) -> slice:
        raise UnknownNameError(f"no group of coordinates is {name!r}: the groups are {', '.join(self)}")


def what_it_does(role: HeadRole, layout: Mapping[str, slice]) -> str:
    """What a head does, and what BOS is for in it. One that tells whether a position is selected has no group of its name: it
    writes "name=False"."""
    return WORDS["exists" if role.kind == "get" and role.name not in layout else role.kind]


def blocks(numbers: TokenNumbers) -> list[str]:
    """The groups of coordinates, with their sizes; steps of one number are one group."""
    sizes: dict[str, list[str]] = {}
    steps = {role.name for layer in numbers.layers for role in layer.roles if role.kind == "step"}
    for name, at in _layout(numbers).items():
        group = f"{name.rsplit(' >= ', 1)[0]} >= …" if name in steps and " >= " in name else name
        sizes.setdefault(group, []).extend([name] * (at.stop - at.start))
    return [f"{group} × {len(names)}" if len(names) > 1 else names[0] for group, names in sizes.items()]


def _layout(numbers: TokenNumbers) -> dict[str, slice]:
    return layout_of(numbers.coordinates, [role.name for layer in numbers.layers for role in layer.roles])


def layout_of(coordinates: Sequence[str], heads: Collection[str]) -> dict[str, slice]:
    """Groups of coordinates: those of one variable, "name=value", are neighbours; others are alone. A head that writes one
    coordinate "name=value" stores whether the variable has this value: the group has the name of the coordinate.

    >>> layout_of(("one", "token=a", "token==", "x=1=a", "x=1=b", "y=False"), ["x=1", "y"])
    {'one': slice(0, 1, None), 'token': slice(1, 3, None), 'x=1': slice(3, 5, None), 'y=False': slice(5, 6, None)}
    """
    known = sorted({"token", "index", *heads}, key=len, reverse=True)
    found: dict[str, slice] = {}
    for at, name in enumerate(coordinates):
        alone = name in heads
        group = name if alone else next((known for known in known if name.startswith(f"{known}=")), name)
        before = found.get(group, slice(at, at))
        found[group] = slice(before.start, at + 1) if before.stop == at else before
    single = {name for name, at in found.items() if name in heads and at.stop - at.start == 1}
    return Layout({coordinates[at.start] if name in single else name: at for name, at in found.items()})
