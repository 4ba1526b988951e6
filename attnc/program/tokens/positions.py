"""The values of nodes that depend on positions alone, for every index and length at once.

The interpreter would evaluate such a node for each of n lengths, n² pairs of positions each. Here a length takes a few array
operations, and a causal program, in which a position does not depend on the length, takes one length in place of n."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError
from attnc.program.tokens.nodes import Count, Get, Index, Linear, Map, Mean, Selection, Value, references

if TYPE_CHECKING:
    from attnc.program.tokens.program import TokenProgram

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class ByPosition:
    """values[codes[i, length - 1]] is the value at index i of a sequence of this length, i < length; other codes are -1."""

    values: tuple[Value, ...]
    codes: Codes


class UndefinedError(InputError):
    """A selection has no value at some position; the interpreter says why."""


def by_position(
    program: TokenProgram, at: int, domains: Sequence[tuple[Value, ...]], known: Mapping[int, ByPosition]
) -> ByPosition:
    """The values of a node at all positions, from those of the nodes that it reads; `domains` are those of earlier nodes."""
    n, reader = program.length, Reader(program, at, domains, known)
    if program.causal:
        column, values = reader.evaluated(n)
        codes = np.where(np.tri(n, dtype=bool).T, column[:, None], -1)
        return ByPosition(values, codes)
    codes = np.full((n, n), -1)
    place: dict[tuple[type, Value], int] = {}
    for length in range(1, n + 1):
        column, values = reader.evaluated(length)
        new = np.array([place.setdefault(_key(v), len(place)) for v in values], np.int64)
        codes[:length, length - 1] = new[column]
    return ByPosition(tuple(value for _, value in place), codes)


def _key(value: Value) -> tuple[type, Value]:
    return type(value), value  # True == 1


class Reader:
    """Evaluates one node for one length after another."""

    def __init__(
        self,
        program: TokenProgram,
        at: int,
        domains: Sequence[tuple[Value, ...]],
        known: Mapping[int, ByPosition],
    ) -> None:
        self.node, self.causal, self.domains = program.nodes[at], program.causal, domains
        self._codes: dict[int, Codes] = {}  # places in the domain, [index, length - 1]
        self._fixed: dict[int, bool] = {}
        self._sums: dict[tuple[int, ...], Value] = {}
        for n in references(self.node):
            order = {_key(v): i for i, v in enumerate(domains[n])}
            table = np.array([order[_key(v)] for v in known[n].values], np.int64)
            self._codes[n] = table[known[n].codes]
        self._tables = [np.array(p.table, bool) for p in getattr(self.node, "where", ())]
        self._longest: NDArray[np.bool_] | None = None  # what is selected in the longest sequence

    def evaluated(self, length: int) -> tuple[Codes, tuple[Value, ...]]:
        """The value at each position of a sequence of one length, as places in a list of values."""
        node = self.node
        if isinstance(node, Index):
            return np.arange(length), tuple(range(length))
        if isinstance(node, Map):
            place = np.zeros(length, np.int64)
            for arg in node.args:
                place = place * len(self.domains[arg]) + self._places(arg, length)
            return _listed(place, node.table.__getitem__)
        if isinstance(node, Linear):
            rows = np.zeros((length, len(node.args)), np.int64)
            for j, arg in enumerate(node.args):
                rows[:, j] = self._places(arg, length)
            distinct, back = np.unique(rows, axis=0, return_inverse=True)
            return back.reshape(-1), tuple(self._sum(node, tuple(row)) for row in distinct.tolist())
        assert isinstance(node, (Count, Mean, Get))
        hits = self._selected(node, length)
        if isinstance(node, Count):
            return _listed(hits.sum(1), int)
        if isinstance(node, Mean):
            return _means(node, hits, self.domains[node.value], self._places(node.value, length))
        return self._got(node, hits)

    def _sum(self, node: Linear, row: tuple[int, ...]) -> Value:
        """The value of a sum; most rows occur in sequences of many lengths."""
        if row not in self._sums:
            terms = (
                c * _number(self.domains[arg][i])
                for arg, c, i in zip(node.args, node.coefficients, row, strict=True)
            )
            total = sum(terms, node.constant)
            self._sums[row] = total if isinstance(total, int) else _whole(total)
        return self._sums[row]

    def _places(self, n: int, length: int) -> Codes:
        """The places of the values of an argument in its domain."""
        return self._codes[n][:length, length - 1]

    def _selected(self, node: Selection, length: int) -> NDArray[np.bool_]:
        """Which keys (columns) each query (row) selects. Where no argument depends on the length, a shorter sequence has the
        first rows and columns of the longest one."""
        read = {n for p in node.where for n in (p.key, p.query) if n is not None}
        longest = len(next(iter(self._codes.values()))) if self._codes else length
        if length == longest or not all(self._is_fixed(n) for n in read):
            return self._hits(node, length)
        if self._longest is None:
            self._longest = self._hits(node, longest)
        return self._longest[:length, :length]

    def _is_fixed(self, n: int) -> bool:
        """Whether a node has the same values in sequences of every length."""
        if n not in self._fixed:
            codes = self._codes[n]
            there = np.tri(len(codes), dtype=bool).T  # index < length
            self._fixed[n] = bool((codes == codes[:, -1:])[there].all())
        return self._fixed[n]

    def _hits(self, node: Selection, length: int) -> NDArray[np.bool_]:
        found = np.tri(length, dtype=bool) if self.causal else np.ones((length, length), bool)
        for p, table in zip(node.where, self._tables, strict=True):
            rows = np.zeros(length, np.int64) if p.query is None else self._places(p.query, length)
            columns = np.zeros(length, np.int64) if p.key is None else self._places(p.key, length)
            found &= table[rows[:, None], columns]
        return found

    def _got(self, node: Get, hits: NDArray[np.bool_]) -> tuple[Codes, tuple[Value, ...]]:
        """The value at the chosen key; raises `UndefinedError` if there is none and no default, or if two values are chosen."""
        length, domains = len(hits), self.domains
        if node.prefer is not None:
            domain = domains[node.prefer]
            ranks = np.empty(len(domain), np.int64)
            ranks[sorted(range(len(domain)), key=lambda i: Fraction(domain[i]))] = np.arange(len(domain))
            rank = np.where(hits, ranks[self._places(node.prefer, length)], -1)
            hits = hits & (rank == rank.max(1, keepdims=True))
        values, exists = self._places(node.value, length), hits.any(1)
        first, last = hits.argmax(1), length - 1 - hits[:, ::-1].argmax(1)
        chosen = values[last if node.tie == "last" else first]
        if node.tie is None and (hits & (values != chosen[:, None])).any():
            raise UndefinedError("a selection has no value")
        if node.default is None and not exists.all():
            raise UndefinedError("a selection has no value")
        given = [*domains[node.value], *([] if node.default is None else [node.default])]
        return _listed(np.where(exists, chosen, len(domains[node.value])), given.__getitem__)


def _listed(column: Codes, value: Callable[[int], Value]) -> tuple[Codes, tuple[Value, ...]]:
    distinct, back = np.unique(column, return_inverse=True)
    return back.reshape(-1), tuple(value(i) for i in distinct.tolist())


def _number(value: Value) -> int | Fraction:
    return value if isinstance(value, Fraction) else int(value)


def _whole(x: Fraction) -> Value:
    return x.numerator if x.denominator == 1 else x


def _means(
    node: Mean, hits: NDArray[np.bool_], domain: tuple[Value, ...], places: Codes
) -> tuple[Codes, tuple[Value, ...]]:
    """Sums of whole numbers: exact in int64 if they fit, else as Python's."""
    numbers = [int(v) for v in domain]
    small = max(map(abs, numbers)) * len(hits) < 2**62
    values = np.array(numbers, np.int64 if small else object)[places]
    totals = (hits * values).sum(1).tolist()
    pairs = list(zip(totals, hits.sum(1).tolist(), strict=True))
    distinct = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    means = tuple(_whole(Fraction(total, count)) if count else node.default for total, count in distinct)
    return np.array([distinct[pair] for pair in pairs], np.int64), means
