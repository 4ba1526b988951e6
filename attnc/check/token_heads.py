"""The rules by which the checker derives what a head of a token network writes, from its matrices.

A head is softmax(q·k) over BOS and the positions with data. T is the distance from which exp returns 0 (assumption 7).

    step    keys with data score exactly 0 and have the value 0: a score s >= T of BOS gives the value of BOS, s <= -T gives 0
    anchor  keys and values depend on the index alone: the key with the largest score is one that the query sees, and beats all
            others by T (`check/token_anchors.py`)
    count   keys score exactly as BOS does if they are selected, else at least T less: BOS gets the weight 1/(1 + count)
    mean    selected keys score the same, at least T above BOS, others at least T below BOS
    get     the same with one selected key: it is the only one, or the order of scores is that of `prefer` and `tie`, by
            distances of at least T; or all values are 0, whose mean is 0

In each case the keys that are selected, by their scores, are compared with the predicates of the program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnc.check.token_anchors import anchor_keys, reads_index_alone, seen_at_least, winners
from attnc.check.token_floats import enclosed, signs
from attnc.check.token_pairs import (
    Bits,
    Pairs,
    check_exists,
    check_order,
    check_pairs,
    check_ties,
    extreme,
    number,
    one_index,
    pair_variables,
)
from attnc.check.token_states import (
    Column,
    Exact,
    Forms,
    Meaning,
    States,
    Stream,
    Variable,
    chunks,
    copies,
    whole_product,
)
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.program.tokens import Count, Get, Mean, Predicate, Selection
from attnc.records.tokens import HeadRole

_PAIRS = 1 << 22  # pairs of states held at once
Written = list[tuple[int, Column, int]]  # coordinate, its column, its number at BOS


@dataclass(frozen=True)
class HeadMatrices:
    """The matrices of one head."""

    query: Array  # (d, r)
    key: Array  # (d, r)
    value: Array  # (d, w)
    output: Array  # (w, d)


class HeadChecker:
    """Applies the rules to one head after another; `pairs` counts what was checked."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.meaning = stream, stream.meaning
        self.program, self.gap = self.meaning.program, int(stream.arithmetic.vanish)
        self.pairs = 0
        self._tables: dict[int, Bits] = {}  # by the identity of a predicate of the program

    def check(self, role: HeadRole, head: HeadMatrices) -> Written:
        """What the head writes; raises `CheckError` unless that is proved."""
        own = self.stream.read_bos(head.value)
        if own.errors is not None:
            raise CheckError("the value at BOS is not whole")
        result = self._output(own.values, head.output)[0]
        if role.kind in ("step", "anchor") and role.node is not None:
            raise CheckError(f"a {role.kind} computes no node: it names node {role.node}")
        if role.kind == "anchor":
            return self._anchor(head, result)
        self._check_bos(head)
        if role.kind == "step":
            return self._step(head, result)
        if role.node is None or not 0 <= role.node < len(self.program.nodes):
            raise CheckError(f"it has the role {role.kind!r} of no node")
        node = self.program.nodes[role.node]
        if role.kind != type(node).__name__.lower() or not isinstance(node, (Count, Mean, Get)):
            raise CheckError(f"it has the role {role.kind!r}, the node is a {type(node).__name__.lower()}")
        if isinstance(node, Count):
            return self._count(role.node, node, head, result)
        if isinstance(node, Mean):
            return self._mean(role.node, node, head, result)
        return self._get(role.node, node, head, result)

    def _output(self, v: Exact, output: Array) -> Exact:
        columns = np.flatnonzero(output.any(0))
        found = self.stream.product(v, None, output[:, columns])
        if found.errors is not None:
            raise CheckError("the output matrix or the values are not whole numbers")
        every = np.zeros((len(v), output.shape[1]), found.values.dtype)
        every[:, columns] = found.values
        return every

    def _keys(self, head: HeadMatrices, states: States) -> Exact:
        found = self.stream.read(head.key, states)
        if found.errors is not None:
            raise CheckError("keys read coordinates that are not exact whole numbers")
        return found.values

    def _check_bos(self, head: HeadMatrices) -> None:
        """BOS attends to itself alone, so that its stream is the same for every sequence.

        A causal mask hides all other keys from it; then its score must be finite, and the weight is exactly 1."""
        q, k = self.stream.read_bos(head.query), self.stream.read_bos(head.key)
        if k.errors is not None:
            raise CheckError("the key at BOS is not whole")
        own = self._scores(q, k.values)  # raises if it may overflow
        if self.program.causal:
            return
        states = self.meaning.states(self.stream.variables(head.key))
        scores = self._scores(q, self._keys(head, states))
        if not bool(np.all(own.lo - scores.hi >= self.gap)):
            raise CheckError("BOS does not attend to itself alone")
        self.pairs += states.count

    def _scores(self, q: Forms, k: Exact) -> Forms:
        if q.errors is None and q.values.dtype == np.int64 and k.dtype == np.int64:
            most = np.abs(q.values).max(initial=0) * 1.0 * np.abs(k).max(initial=0) * k.shape[1]
            if most < 2.0**62:
                sizes = (
                    whole_product(np.abs(q.values), np.abs(k).T)
                    if most >= self.stream.limit
                    else q.values[:0]
                )
                if sizes.max(initial=0) >= self.stream.limit:
                    raise CheckError(
                        f"scores reach 1/u = {self.stream.limit:,}: use float64, or smaller domains"
                    )
                return Forms(whole_product(q.values, k.T))
        wide, errors = q.values.astype(object), q.errors
        if errors is None:
            errors = np.full(wide.shape, Fraction(0), dtype=object)
        sizes = (abs(wide) + errors) @ abs(k).T
        return Forms(wide @ k.T, errors @ abs(k).T + self.stream.rounding(sizes, k.shape[1]))

    def _step(self, head: HeadMatrices, result: Exact) -> Written:
        """[s >= 0] times the result, where s is the score of BOS and never near 0."""
        states = self.meaning.states(self.stream.variables(head.key) | self.stream.variables(head.value))
        v = self.stream.read(head.value, states)
        if self._keys(head, states).any() or v.errors is not None or v.values.any():
            raise CheckError("a step needs keys and values of 0 at positions with data")
        names = tuple(sorted(self.stream.variables(head.query), key=str))
        states = self.meaning.states(names)
        bos = self.stream.read_bos(head.key)
        if bos.errors is not None:
            raise CheckError("the key at BOS is not whole")
        up, down = self._decided(head.query, bos.values, states)
        left = np.flatnonzero(~(up | down))
        if left.size:
            up[left] = self._signs(
                head.query, bos.values, States({v: p[left] for v, p in states.places.items()}, left.size)
            )
        self.pairs += states.count
        bits = self.meaning.dense(states, names, up.astype(np.int64))
        return [(c, Column(names, bits * result[c]), int(result[c])) for c in _columns(head)]

    def _decided(self, query: Array, key: Exact, states: States) -> tuple[Bits, Bits]:
        """Where float64 decides that the score of a step is at least T, or at most -T."""
        q = enclosed(self.stream, query, states)
        none = np.zeros(states.count, bool)
        if q is None or key.dtype != np.int64 or np.abs(key).max() >= self.stream.limit:
            return none, none.copy()
        return signs(q.times(self.stream, key[0].astype(np.float64)), self.gap)

    def _signs(self, query: Array, key: Exact, states: States) -> Bits:
        """Whether the score of a step is at least T; raises unless it is, or is at most -T."""
        states, back = self.stream.distinct(query, states)
        s = self._scores(self.stream.read(query, states), key)
        up, down = np.asarray(s.lo[:, 0] >= self.gap, bool), np.asarray(s.hi[:, 0] <= -self.gap, bool)
        if not (up | down).all():
            raise CheckError(
                f"the score of a step may be within {self.gap} of 0: {number(s.values[~(up | down)][0, 0])}"
            )
        found: Bits = up[back]
        return found

    def _anchor(self, head: HeadMatrices, result: Exact) -> Written:
        """The value of the key that wins, for every state of the query; BOS attends to itself."""
        places = self.meaning.states({"index"})
        v = self.stream.read(head.value, places) if reads_index_alone(self.stream, head.value) else None
        if v is None or v.errors is not None:
            raise CheckError("the values of anchors must be whole numbers that depend on the index alone")
        outputs = np.concatenate([result[None], self._output(v.values, head.output)])
        keys = anchor_keys(self.stream, head.key)
        if winners(self.stream, self.stream.read_bos(head.query, rounded=True), keys)[0] != 0:
            raise CheckError("BOS does not attend to itself alone")
        names = tuple(sorted(self.stream.variables(head.query), key=str))
        states, back = self.stream.distinct(head.query, self.meaning.states(names))
        best = winners(self.stream, self.stream.read(head.query, states, rounded=True), keys)[back]
        states = self.meaning.states(names)
        if (best > seen_at_least(self.meaning, states)).any():
            raise CheckError(
                "the anchor with the largest score may be a position that the query does not see"
            )
        self.pairs += len(keys) * int(back.max() + 1)
        table = outputs[best]
        return [
            (c, Column(names, self.meaning.dense(states, names, table[:, c])), int(result[c]))
            for c in _columns(head)
        ]

    def _pairs_of(
        self, node: Selection, head: HeadMatrices, key: frozenset[Variable], query: frozenset[Variable]
    ) -> Iterator[Pairs]:
        """All pairs of a query's state and a key's state; `key` and `query` are variables to include."""
        key, query = key | self.stream.variables(head.key), query | self.stream.variables(head.query)
        key, query, lengths = pair_variables(self.meaning, node, key, query)
        for length in lengths:
            keys, queries = self.meaning.states(key, length), self.meaning.states(query, length)
            self.pairs += keys.count * queries.count
            check_pairs(self.pairs)
            k = self._keys(head, keys)
            bos = self.stream.read_bos(head.key)
            if bos.errors is not None:
                raise CheckError("the key at BOS is not whole")
            for part in chunks(queries, max(1, _PAIRS // max(1, keys.count))):
                q = self.stream.read(head.query, part)
                hits, valid = self._relation(node, part, keys)
                yield Pairs(part, keys, self._scores(q, k), self._scores(q, bos.values), hits & valid, valid)

    def _relation(self, node: Selection, query: States, key: States) -> tuple[Bits, Bits]:
        hits = np.ones((query.count, key.count), bool)
        for p in node.where:
            rows = np.zeros(query.count, np.int64) if p.query is None else self.meaning.place(p.query, query)
            columns = np.zeros(key.count, np.int64) if p.key is None else self.meaning.place(p.key, key)
            hits &= self._table(p)[rows[:, None], columns[None, :]]
        valid = np.ones_like(hits)
        if self.program.causal and "index" in key.places and "index" in query.places:
            valid = query.places["index"][:, None] >= key.places["index"][None, :]
        return hits, valid

    def _table(self, p: Predicate) -> Bits:
        """The table of a predicate of the program as an array, made once."""
        if id(p) not in self._tables:
            self._tables[id(p)] = np.array(p.table, bool)
        return self._tables[id(p)]

    def _count(self, at: int, node: Count, head: HeadMatrices, result: Exact) -> Written:
        """The weight of BOS is 1/(1 + count), up to three roundings; its value is 1, all others are 0."""
        states = self.meaning.states(self.stream.variables(head.value))
        v = self.stream.read(head.value, states)
        if (
            v.errors is not None
            or v.values.any()
            or not copies(self.stream.read_bos(head.value), head.output)
        ):
            raise CheckError("the value of a count must be 1 at BOS and 0 elsewhere")
        for pairs in self._pairs_of(node, head, frozenset(), frozenset()):
            if pairs.scores.errors is not None or pairs.bos.errors is not None:
                raise CheckError("the scores of a count must be whole numbers: ties are not exact otherwise")
            if ((pairs.scores.values != pairs.bos.values) & pairs.hits).any():
                raise CheckError("a selected key does not have the score of BOS")
            missed = pairs.valid & ~pairs.hits
            pairs.margin(pairs.bos.lo, pairs.scores.hi, missed, self.gap, "a key that is not selected")
        counts = np.array([int(c) for c in self.program.domains[at]], dtype=np.int64)
        shares = np.empty(len(counts), dtype=object)
        shares[:] = [Fraction(1, 1 + int(c)) for c in counts]
        return self._scalar(at, head, result, shares, shares * self.stream.gamma(3))

    def _scalar(self, at: int, head: HeadMatrices, result: Exact, known: Exact, errors: Exact) -> Written:
        """Coordinates that hold a number for each value of the node; `errors` bounds how far the executed one may be from it."""
        places, names = self.meaning.own_places(at), self.meaning.own_variables(at)
        column = Column(names, known[places], errors[places], places)
        return [(c, column, int(result[c])) for c in _columns(head)]

    def _mean(self, at: int, node: Mean, head: HeadMatrices, result: Exact) -> Written:
        """Σ weight·value over m <= n keys that tie: three roundings of a weight, m + 1 of the sum."""
        variables = self.stream.variables(head.value) | self.meaning.variables(node.value)
        states = self.meaning.states(variables)
        v = self.stream.read(head.value, states)
        expected = self.meaning.number(node.value, states)
        used = head.output.any(1)
        if v.errors is not None or used.sum() != 1 or not np.isin(head.output, (0.0, 1.0)).all():
            raise CheckError("a mean is one number, written as it is")
        if not bool(np.all(v.values[:, used][:, 0] == expected)):
            raise CheckError("the values are not those of the program")
        columns = _columns(head)
        if any(int(result[c]) != node.default for c in columns):
            raise CheckError("the value at BOS is not the default")
        for pairs in self._pairs_of(node, head, frozenset(), frozenset()):
            if pairs.scores.errors is not None or pairs.bos.errors is not None:
                raise CheckError("the scores of a mean must be whole numbers: ties are not exact otherwise")
            pairs.margin(pairs.scores.lo, pairs.bos.hi, pairs.hits, self.gap, "a selected key")
            missed = pairs.valid & ~pairs.hits
            pairs.margin(pairs.bos.lo, pairs.scores.hi, missed, self.gap, "a key that is not selected")
            check_ties(pairs)
        size = max(abs(Fraction(x)) for x in (*expected.tolist(), node.default))
        known = np.empty(len(self.program.domains[at]), dtype=object)
        known[:] = [Fraction(x) for x in self.program.domains[at]]
        error = size * self.stream.gamma(self.program.length + 4)
        return self._scalar(at, head, result, known, np.full(len(known), error, dtype=object))

    def _get(self, at: int, node: Get, head: HeadMatrices, result: Exact) -> Written:
        self._check_selected(node, head)
        return self._encoded(at, node, head, result)

    def _check_selected(self, node: Get, head: HeadMatrices) -> None:
        """Exactly one key is selected, or BOS if there is none; or several, if all values are 0."""
        states = self.meaning.states(self.stream.variables(head.value))
        zero = not self.stream.read(head.value, states).values.any()
        zero = zero and len(self.program.domains[node.value]) == 1
        key, query = frozenset[Variable](), frozenset[Variable]()
        if not zero or node.default is None:
            key |= {"index"}
        if node.prefer is not None:
            key |= self.meaning.variables(node.prefer)
        if node.default is None:
            query |= {"index"} if self.program.causal else {"length"}
        for pairs in self._pairs_of(node, head, key, query):
            missed = pairs.valid & ~pairs.hits
            if node.default is None:
                check_exists(pairs, self.program.causal)
                self._check_best(pairs, missed)
            else:
                pairs.margin(pairs.scores.lo, pairs.bos.hi, pairs.hits, self.gap, "a selected key")
                pairs.margin(pairs.bos.lo, pairs.scores.hi, missed, self.gap, "a key that is not selected")
            if not zero and not one_index(pairs):
                self._check_order(node, pairs)

    def _check_best(self, pairs: Pairs, missed: Bits) -> None:
        """Each selected key beats BOS and every key that is not selected."""
        lowest = extreme(pairs.scores.lo, pairs.hits, np.minimum)
        highest = np.maximum(
            extreme(pairs.scores.hi, missed, np.maximum, pairs.bos.hi[:, 0]), pairs.bos.hi[:, 0]
        )
        if not bool(np.all(lowest - highest >= self.gap)):
            raise CheckError("a selected key does not beat the others")

    def _check_order(self, node: Get, pairs: Pairs) -> None:
        """Of two keys that are both selected, the one that the program prefers scores higher by T."""
        if node.tie is None:
            raise CheckError(
                "two keys with different values may be selected: make the selection unique, or give tie='first' or tie='last'"
            )
        index = pairs.key.places["index"] * (1 if node.tie == "last" else -1)
        first = np.zeros_like(index) if node.prefer is None else self._by_size(node.prefer, pairs.key)
        _, rank = np.unique(np.stack([first, index], 1), axis=0, return_inverse=True)
        check_order(pairs, rank.reshape(-1), self.gap)

    def _by_size(self, at: int, states: States) -> NDArray[np.int64]:
        """The rank of a node's number among those of its domain: vocabularies are not sorted."""
        domain = self.program.domains[at]
        ranks = np.empty(len(domain), np.int64)
        ranks[sorted(range(len(domain)), key=lambda i: Fraction(domain[i]))] = np.arange(len(domain))
        found: NDArray[np.int64] = ranks[self.meaning.place(at, states)]
        return found

    def _encoded(self, at: int, node: Get, head: HeadMatrices, result: Exact) -> Written:
        """The coordinates as functions of the value, which the output of every key must agree with."""
        states = self.meaning.states(self.stream.variables(head.value) | self.meaning.variables(node.value))
        domain = self.program.domains[at]
        to_own = np.array([self.program.places[at].get(x, -1) for x in self.program.domains[node.value]])
        few, _ = self.stream.distinct(head.value, states, self.meaning.place(node.value, states))
        v = self.stream.read(head.value, few)
        if v.errors is not None:
            raise CheckError("values read coordinates that are not exact whole numbers")
        outputs, places = self._output(v.values, head.output), to_own[self.meaning.place(node.value, few)]
        encoding = np.zeros((len(domain), outputs.shape[1]), outputs.dtype)
        known = np.zeros(len(domain), bool)
        if node.default is not None and node.default in domain:  # a positional node may never need it
            encoding[self.program.places[at][node.default]] = result
            known[self.program.places[at][node.default]] = True
        for place in np.unique(places[places >= 0]).tolist():
            rows = outputs[places == place]
            first = encoding[place] if known[place] else rows[0]
            if (rows != first).any():
                raise CheckError("its values are not a function of the node that it copies")
            encoding[place], known[place] = first, True
        own, names = self.meaning.own_places(at), self.meaning.own_variables(at)
        return [(c, Column(names, encoding[own, c], None, own), int(result[c])) for c in _columns(head)]


def _columns(head: HeadMatrices) -> list[int]:
    return [int(c) for c in np.flatnonzero(head.output.any(0))]


__all__ = ["HeadChecker", "HeadMatrices", "Meaning", "Written"]
