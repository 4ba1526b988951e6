"""Token networks in words: their layers, heads and coordinates."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attnc.program.tokens import TokenProgram
from attnc.records.tokens import TokenNumbers

WORDS = {
    "get": "copies the value of the selected position",
    "count": "gives BOS the weight 1/(1 + number of selected positions)",
    "mean": "averages over the selected positions",
    "anchor": "attends to the position that stands for the number, and copies its value",
    "step": "is exactly 1 if the condition holds, else 0",
}
AT_BOS = "At BOS every step is 1. Later heads rely on this: their weights of the coordinate bos cancel it."


def description(numbers: TokenNumbers, program: TokenProgram) -> str:
    """A few lines of facts, then one line for each head."""
    heads = [len(layer.roles) for layer in numbers.layers]
    size = f"{len(program.vocabulary)} tokens, 1 to {program.length} positions"
    lines = [
        f"sequences:   {size}, {'causal' if program.causal else 'not causal'}, {numbers.dtype}",
        f"layers:      {len(heads)} of {heads} heads" if heads else "layers:      0",
        f"stream:      {len(numbers.coordinates)} coordinates: {shortened(numbers.coordinates)}",
    ]
    lines += [f"{place:<12} {text}" for place, text in head_lines(numbers)]
    steps = any(role.kind == "step" for layer in numbers.layers for role in layer.roles)
    return "\n".join([*lines, AT_BOS] if steps else lines)


def head_lines(numbers: TokenNumbers) -> list[tuple[str, str]]:
    """The place and the description of each head."""
    found = []
    for i, layer in enumerate(numbers.layers):
        for h, role in enumerate(layer.roles):
            found.append((f"head {i}.{h}", f"{role.kind} {role.name}: {WORDS[role.kind]}"))
    return found


def layout_of(coordinates: Sequence[str], heads: Collection[str]) -> dict[str, slice]:
    """Groups of coordinates: those of one variable, "name=value", are neighbours; others are alone.

    >>> layout_of(("one", "token=a", "token==", "x=1=a", "x=1=b", "x >= 1"), ["x=1", "x >= 1"])
    {'one': slice(0, 1, None), 'token': slice(1, 3, None), 'x=1': slice(3, 5, None), 'x >= 1': slice(5, 6, None)}
    """
    known = sorted({"token", "index", *heads}, key=len, reverse=True)
    found: dict[str, slice] = {}
    for at, name in enumerate(coordinates):
        alone = name in heads
        group = name if alone else next((known for known in known if name.startswith(f"{known}=")), name)
        before = found.get(group, slice(at, at))
        found[group] = slice(before.start, at + 1) if before.stop == at else before
    return found


def shortened(names: tuple[str, ...], most: int = 12) -> str:
    """The first names of a list.

    >>> shortened(("a", "b", "c"), 2)
    'a, b, …'
    """
    return ", ".join((*names[:most], "…") if len(names) > most else names)
