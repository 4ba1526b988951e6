"""How many states the rules of the checker will list, counted before any rule is applied.

On which variables a coordinate depends follows from the embeddings, from which rows of the matrices are not 0 and from the roles
of the heads, without any value. So a network with too many states is refused at once, not after its first layers were proved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnc.check.token_pairs import check_pairs, pair_variables
from attnc.check.token_states import Stream, Variable
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.program.tokens import Get, Selection
from attnc.records.tokens import TokenLayer

Variables = frozenset[Variable]


def check_counts(stream: Stream, layers: Sequence[TokenLayer], unembedding: Array) -> None:
    """Raise if the states of a head, of all heads or of the output are more than are checked. The counts are those of
    `HeadChecker`, or less; what is wrong with a head otherwise is left to it."""
    count = _Count(stream)
    for i, layer in enumerate(layers):
        written: dict[int, Variables] = {}
        for h, role in enumerate(layer.roles):
            try:
                own = count.head(role.kind, role.node, layer.query[h], layer.key[h])
            except CheckError as problem:
                raise CheckError(f"layer {i}, head {h} ({role.name}): {problem}") from None
            written |= dict.fromkeys(np.flatnonzero(layer.output[h].any(0)).tolist(), own)
        count.columns |= written
    program = stream.meaning.program
    stream.meaning.check_count(count.read(unembedding) | stream.meaning.variables(program.output))


class _Count:
    """The variables of every coordinate, and the pairs of states so far."""

    def __init__(self, stream: Stream) -> None:
        self.meaning, self.pairs = stream.meaning, 0
        self.columns: dict[int, Variables] = {c: frozenset(x.variables) for c, x in stream.columns.items()}

    def read(self, matrix: Array) -> Variables:
        """The variables that the rows of a matrix read."""
        rows = np.flatnonzero(matrix.any(1)).tolist()
        return frozenset(v for c in rows for v in self.columns.get(c, ()))

    def head(self, kind: str, node: int | None, query: Array, key: Array) -> Variables:
        """Count the states of a head; the variables of what it writes."""
        known = self.meaning.program.nodes
        if kind in ("step", "anchor") or node is None or not 0 <= node < len(known):
            self.meaning.check_count(self.read(query))
            return self.read(query)
        selection = known[node]
        if isinstance(selection, Selection):
            self._count(selection, self.read(key), self.read(query))
        return frozenset(self.meaning.own_variables(node))

    def _count(self, node: Selection, key: Variables, query: Variables) -> None:
        """The pairs of a selection: an index below each length, and one length at a time."""
        meaning, domains = self.meaning, self.meaning.program.domains
        if isinstance(node, Get):
            if node.default is None or len(domains[node.value]) > 1:
                key |= {"index"}
            key |= meaning.variables(node.prefer)
            if node.default is None:
                query |= {"index"} if meaning.program.causal else {"length"}
        key, query, lengths = pair_variables(meaning, node, key, query)
        for length in lengths:
            self.pairs += self._states(key, length) * self._states(query, length)
        check_pairs(self.pairs)

    def _states(self, variables: Variables, length: int | None) -> int:
        """How many assignments `Meaning.states` lists."""
        self.meaning.check_count(variables)
        fixed: dict[Any, int] = {} if length is None else {"length": 1, "index": length}
        return math.prod(int(fixed.get(v, self.meaning.size(v))) for v in variables)
