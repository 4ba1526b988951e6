"""The nodes of a token program: each is a variable with one value at every position of a sequence.

A node refers to earlier nodes by their numbers. All domains are finite, so a function is a table of its values."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

Value = str | int | bool | Fraction
Table = tuple[tuple[bool, ...], ...]


@dataclass(frozen=True)
class Predicate:
    """A condition on a key position and a query position: table[value of `query` at the query][value of `key` at the key].

    `key=None` has one column, `query=None` one row: the condition is on the other position alone."""

    key: int | None
    query: int | None
    table: Table


@dataclass(frozen=True)
class Token:
    """The token at the position."""


@dataclass(frozen=True)
class Index:
    """The index of the position, from 0."""


@dataclass(frozen=True)
class Map:
    """A function of the values of other nodes at the same position.

    `table` lists its values over the product of their domains, the last argument fastest."""

    args: tuple[int, ...]
    table: tuple[Value, ...]


@dataclass(frozen=True)
class Linear:
    """constant + Σ coefficient · argument, at the same position; all numbers are whole."""

    args: tuple[int, ...]
    coefficients: tuple[int, ...]
    constant: int = 0


@dataclass(frozen=True)
class Count:
    """How many keys satisfy all predicates."""

    where: tuple[Predicate, ...]


@dataclass(frozen=True)
class Mean:
    """The mean of `value` over the keys that satisfy all predicates; `default` if there are none."""

    where: tuple[Predicate, ...]
    value: int
    default: int = 0


@dataclass(frozen=True)
class Get:
    """The value at the key that satisfies all predicates.

    Of several keys, `prefer` chooses those with its largest value, then `tie` the "first" or the "last". If several remain, their
    values must be equal. `default` is the value if there is no key; without it there must be one."""

    where: tuple[Predicate, ...]
    value: int
    default: str | int | bool | None = None
    tie: str | None = None
    prefer: int | None = None


Selection = Count | Mean | Get
Node = Token | Index | Map | Linear | Count | Mean | Get
KINDS: dict[str, type] = {
    kind.__name__.lower(): kind for kind in (Token, Index, Map, Linear, Count, Mean, Get)
}


def arguments(node: Node) -> tuple[int, ...]:
    """The nodes that a node reads at its own position, for an elementwise node."""
    return node.args if isinstance(node, (Map, Linear)) else ()


def references(node: Node) -> tuple[int, ...]:
    """All nodes that a node reads, at any position."""
    if not isinstance(node, (Count, Mean, Get)):
        return arguments(node)
    found = [side for p in node.where for side in (p.key, p.query)]
    if not isinstance(node, Count):
        found.append(node.value)
    if isinstance(node, Get):
        found.append(node.prefer)
    return tuple(n for n in found if n is not None)
