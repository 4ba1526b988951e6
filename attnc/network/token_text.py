"""Token networks in words: their layers, heads and coordinates."""

from __future__ import annotations

from attnc.program.tokens import TokenProgram
from attnc.records.tokens import TokenNumbers

WORDS = {
    "get": "copies the value of the selected position",
    "count": "gives BOS the weight 1/(1 + number of selected positions)",
    "mean": "averages over the selected positions",
    "anchor": "attends to the position that stands for the number, and copies its value",
    "step": "is exactly 1 if the condition holds, else 0",
}


def description(numbers: TokenNumbers, program: TokenProgram) -> str:
    """A few lines of facts, then one line for each head."""
    heads = [len(layer.roles) for layer in numbers.layers]
    size = f"{len(program.vocabulary)} tokens, 1 to {program.length} positions"
    lines = [
        f"sequences:   {size}, {'causal' if program.causal else 'not causal'}, {numbers.dtype}",
        f"layers:      {len(heads)} of {heads} heads" if heads else "layers:      0",
        f"stream:      {len(numbers.coordinates)} coordinates: {shortened(numbers.coordinates)}",
    ]
    return "\n".join(lines + [f"{place:<12} {text}" for place, text in head_lines(numbers)])


def head_lines(numbers: TokenNumbers) -> list[tuple[str, str]]:
    """The place and the description of each head."""
    found = []
    for i, layer in enumerate(numbers.layers):
        for h, role in enumerate(layer.roles):
            found.append((f"head {i}.{h}", f"{role.kind} {role.name}: {WORDS[role.kind]}"))
    return found


def shortened(names: tuple[str, ...], most: int = 12) -> str:
    """The first names of a list.

    >>> shortened(("a", "b", "c"), 2)
    'a, b, …'
    """
    return ", ".join((*names[:most], "…") if len(names) > most else names)
