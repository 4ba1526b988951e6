"""The meaning of token programs: an interpreter in plain Python, position by position.

Nothing here knows about attention. Every test of a compiled network compares with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from attnc.errors import InputError
from attnc.program.tokens.nodes import Count, Get, Index, Linear, Map, Mean, Predicate, Token, Value
from attnc.program.tokens.program import TokenProgram, whole

Columns = list[list[Value]]


def run(program: TokenProgram, sequence: Sequence[str | int]) -> list[Value]:
    """The output at every position of a sequence of tokens.

    >>> from attnc.program.tokens import Count, Predicate, Token
    >>> same = Predicate(0, 0, ((True, False), (False, True)))
    >>> counts = TokenProgram(("a", "b"), 4, False, (Token(), Count((same,))), ("t", "count"), 1)
    >>> run(counts, "aab")
    [2, 2, 1]
    """
    sequence = program.sequence(sequence)
    if not 1 <= len(sequence) <= program.length:
        raise InputError(f"a sequence of {len(sequence)} tokens: the program takes 1 to {program.length}")
    return columns(program, sequence, program.output, program.places)[program.output]


def columns(
    program: TokenProgram, sequence: Sequence[str | int], last: int, places: Sequence[Mapping[Value, int]]
) -> Columns:
    """The values of a node, and of the nodes that it reads, at every position; other nodes have none.

    `places` are those of the values in the domains before `last`."""
    found: Columns = []
    needed = program.closure(last)
    for at in range(last + 1):
        node = program.nodes[at]
        if at not in needed:
            found.append([])
        elif isinstance(node, Token):
            found.append(list(sequence))
        elif isinstance(node, Index):
            found.append(list(range(len(sequence))))
        elif isinstance(node, Map):
            found.append([_mapped(node, found, i, places) for i in range(len(sequence))])
        elif isinstance(node, Linear):
            found.append([_sum(node, found, i) for i in range(len(sequence))])
        else:
            found.append(
                [_selected(program, at, found, i, len(sequence), places) for i in range(len(sequence))]
            )
    return found


def _mapped(node: Map, found: Columns, i: int, places: Sequence[Mapping[Value, int]]) -> Value:
    place = 0
    for n in node.args:
        place = place * len(places[n]) + places[n][found[n][i]]
    return node.table[place]


def _sum(node: Linear, found: Columns, i: int) -> Value:
    terms = (c * Fraction(found[n][i]) for n, c in zip(node.args, node.coefficients, strict=True))
    return whole(node.constant + sum(terms, Fraction(0)))


def _holds(p: Predicate, found: Columns, key: int, query: int, places: Sequence[Mapping[Value, int]]) -> bool:
    row = 0 if p.query is None else places[p.query][found[p.query][query]]
    column = 0 if p.key is None else places[p.key][found[p.key][key]]
    return p.table[row][column]


def _selected(
    program: TokenProgram,
    at: int,
    found: Columns,
    query: int,
    length: int,
    places: Sequence[Mapping[Value, int]],
) -> Value:
    """The value of a selection at one query."""
    node, last = program.nodes[at], query + 1 if program.causal else length
    assert isinstance(node, (Count, Mean, Get))
    keys = [k for k in range(last) if all(_holds(p, found, k, query, places) for p in node.where)]
    if isinstance(node, Count):
        return len(keys)
    if isinstance(node, Get):
        return _got(program, at, node, found, keys)
    if not keys:
        return node.default
    return whole(sum((Fraction(found[node.value][k]) for k in keys), Fraction(0)) / len(keys))


def _got(program: TokenProgram, at: int, node: Get, found: Columns, keys: list[int]) -> Value:
    if node.prefer is not None and keys:
        ranks = {k: Fraction(found[node.prefer][k]) for k in keys}
        keys = [k for k in keys if ranks[k] == max(ranks.values())]
    if node.tie is not None:
        keys = keys[:1] if node.tie == "first" else keys[-1:]
    values = {found[node.value][k] for k in keys}
    if len(values) > 1:
        raise InputError(
            f"{program.title(at)} selects keys with the values {sorted(values, key=repr)[:4]}: give tie='first' or tie='last'"
        )
    if values:
        return values.pop()
    if node.default is None:
        raise InputError(f"{program.title(at)} selects no key: give it a default")
    return node.default
