"""Token programs → matrices of an attention-only transformer.

    Token, Index, Get            one coordinate for each value: a one-hot block
    Map of such a variable       a linear read of the block: no head
    Linear                       a sum of reads: no head
    Count                        the coordinate 1/(1 + count): one head
    Mean                         one coordinate: one head
    Map of anything else         one step head for each change of the value along the number that is mapped; for a long count one
                                 head over anchors, if that is smaller

Scores are whole multiples of the gap G. With a conjunction of m predicates, A a predicate and P a preference of 0 to R:

    selected  A·m + G·P        BOS  A·m - G, or A·m for a count        not selected  <= A(m - 1) + G·R        A = (R + 2)·G"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array
from attnc.lower.token_outputs import anchored, lines, pieces
from attnc.lower.token_reads import ONE, Read, Scalar, StreamPlan, beside, constant
from attnc.program.tokens import (
    Count,
    Get,
    Index,
    Linear,
    Map,
    Mean,
    Predicate,
    Selection,
    Token,
    TokenProgram,
    Value,
)
from attnc.program.tokens.program import numbers
from attnc.records.tokens import HeadRole, TokenNumbers


class Lowering:
    """Reads of the nodes of a program; heads are added when a read needs them."""

    def __init__(self, program: TokenProgram, dtype: str) -> None:
        self.program, self.domains = program, program.domains
        self.plan = StreamPlan(ARITHMETIC[dtype])
        tokens = self.plan.block(*(f"token={x}" for x in program.vocabulary))
        indices = self.plan.block(*(f"index={i}" for i in range(program.length)))
        self._tokens, self._indices = self.plan.identity(tokens, 0), self.plan.identity(indices, 0)
        self.plan.indices = self._indices
        self._blocks: dict[int, Read] = {}
        self._raw: dict[int, Read] = {}
        self._sums: dict[int, Read] = {}

    def network(self) -> TokenNumbers:
        """All matrices."""
        logits = self.logits()
        program, layers = self.program, self.plan.finished()
        d = len(self.plan.names)
        tokens, positions = np.zeros((len(program.vocabulary) + 1, d)), np.zeros((program.length + 1, d))
        positions[:, ONE] = 1
        tokens[-1, 1] = 1
        tokens[:-1] = self._tokens.matrix(d).T
        positions[1:] += self._indices.matrix(d).T
        with np.errstate(over="ignore"):  # TokenNumbers refuses infinities
            unembedding = logits.matrix(d).astype(self.plan.arithmetic.dtype).astype(np.float64)
        names = tuple(self.plan.names)
        return TokenNumbers(tokens, positions, layers, unembedding, names, self.plan.arithmetic.dtype)

    def one_hot(self, at: int) -> Read:
        """One function for each value of a node: 1 at its value, 0 at the others."""
        if at not in self._blocks:
            self._blocks[at] = self._one_hot(at)
        return self._blocks[at]

    def _one_hot(self, at: int) -> Read:
        node = self.program.nodes[at]
        if isinstance(node, Token):
            return self._tokens
        if isinstance(node, Index):
            return self._indices
        if len(self.domains[at]) == 1:
            return constant(1)
        if isinstance(node, Get):
            return self._get(at, node)
        if self._is_table(at):
            (atom,) = self.program.atoms(at)
            return self.one_hot(atom).times(self._table(atom, at))
        return self._stepped(self._scalar(at), self.domains[at])

    def _is_table(self, at: int) -> bool:
        """Whether a node is a function of one variable that has a one-hot block."""
        atoms = self.program.atoms(at)
        return len(atoms) == 1 and isinstance(self.program.nodes[atoms[0]], (Token, Index, Get))

    def _table(self, atom: int, at: int) -> Array:
        """The one-hot value of a node for each value of its only atom."""
        values = self.program.along(atom, at)
        found = np.zeros((len(values), len(self.domains[at])))
        found[np.arange(len(values)), [self.program.places[at][v] for v in values]] = 1
        return found

    def number(self, at: int) -> Read:
        """The value of a node of numbers as one function."""
        node = self.program.nodes[at]
        if isinstance(node, Mean):
            return self._scalar(at).read
        if isinstance(node, Linear) and not self._is_table(at):
            if at not in self._sums:
                total = constant(node.constant)
                for arg, c in zip(node.args, node.coefficients, strict=True):
                    total = total.plus(self.number(arg).times(np.array([[float(c)]])))
                self._sums[at] = total
            return self._sums[at]
        if isinstance(node, (Map, Count)) and not self._is_table(at) and at not in self._blocks:
            return pieces(self.plan, self._scalar(at).ordered(), self.program.length)
        column = np.array([[float(x)] for x in numbers(self.domains[at])])
        return self.one_hot(at).times(column)

    def _scalar(self, at: int) -> Scalar:
        """A number that a node is a function of, and the value of the node at each of its points."""
        node, atoms = self.program.nodes[at], self.program.atoms(at)
        if len(atoms) == 1 and isinstance(self.program.nodes[atoms[0]], (Count, Mean)):
            return self._raw_scalar(atoms[0], at)
        if isinstance(node, Map) and len(node.args) > 1:
            return self._code(at, node)
        arg = node.args[0] if isinstance(node, Map) else at
        if isinstance(node, Map) and not all(isinstance(v, (int, Fraction)) for v in self.domains[arg]):
            return self._code(at, node)
        points = tuple(numbers(self.domains[arg]))
        labels = node.table if isinstance(node, Map) else self.domains[at]
        shown = self._shown(at, arg, points)
        return Scalar(arg, self._name(arg), self.number(arg), points, tuple(labels), shown=shown)

    def _shown(
        self, at: int, arg: int, points: Sequence[Fraction]
    ) -> tuple[str, Mapping[Fraction, Fraction]] | None:
        """The name of a map and its numbers, if it grows with a sum that has no name."""
        node, name = self.program.nodes[at], self.program.names[at]
        if self.program.names[arg] or not name or not isinstance(node, Map):
            return None
        if not all(type(v) in (int, Fraction) for v in node.table):
            return None
        values = dict(zip(points, numbers(node.table), strict=True))
        grows = all(values[a] <= values[b] for a, b in itertools.pairwise(sorted(points)))
        return (name, values) if grows else None

    def _raw_scalar(self, atom: int, at: int) -> Scalar:
        """A function of one count, by 1/(1 + count), or of one mean."""
        node = self.program.nodes[atom]
        assert isinstance(node, (Count, Mean))
        if atom not in self._raw:
            self._raw[atom] = self._count(atom, node) if isinstance(node, Count) else self._mean(atom, node)
        known = numbers(self.domains[atom])
        points = tuple(1 / (1 + x) for x in known) if isinstance(node, Count) else tuple(known)
        name = f"1/(1+{self._name(atom)})" if isinstance(node, Count) else self._name(atom)
        count = self._name(at) if isinstance(node, Count) else ""
        return Scalar(atom, name, self._raw[atom], points, tuple(self.program.along(atom, at)), count)

    def _code(self, at: int, node: Map) -> Scalar:
        """Several arguments as one number, the place in the table for one order of them: that with the fewest changes."""
        sizes = [len(self.domains[arg]) for arg in node.args]
        table = np.arange(len(node.table)).reshape(sizes)
        best: tuple[int, ...] = tuple(range(len(sizes)))
        if len(sizes) <= 4:
            best = min(
                itertools.permutations(best),
                key=lambda p: _changes([node.table[i] for i in table.transpose(p).ravel()]),
            )
        labels = tuple(node.table[i] for i in table.transpose(best).ravel())
        total, stride = constant(0), 1
        for axis in reversed(best):
            weights = stride * np.arange(sizes[axis], dtype=np.float64)
            total = total.plus(self.one_hot(node.args[axis]).times(weights[:, None]))
            stride *= sizes[axis]
        name = "(" + ", ".join(self._name(node.args[axis]) for axis in best) + ")"
        order = tuple(node.args[axis] for axis in best)
        return Scalar(order, name, total, tuple(Fraction(i) for i in range(stride)), labels)

    def _stepped(self, scalar: Scalar, domain: Sequence[Value]) -> Read:
        """The one-hot value: one step for each change along the scalar, or one head over anchors.

        onehot(y_0) + Σ [s >= s_j] (onehot(y_j) - onehot(y_{j-1}))"""
        scalar, places = scalar.ordered(), {value: i for i, value in enumerate(domain)}
        eye = np.eye(len(domain))
        if anchored(self.plan, scalar, len(domain)):
            values = scalar.by_count(self.program.length, {y: eye[i].tolist() for y, i in places.items()})
            return self.plan.anchors(scalar, values, [f"{scalar.count}={value}" for value in domain])
        self.plan.reserve(self.plan.changes(scalar))
        total = constant(*eye[places[scalar.labels[0]]])
        for j in range(1, len(scalar.points)):
            old, new = (places[label] for label in scalar.labels[j - 1 : j + 1])
            if old != new:
                lo, hi = scalar.points[j - 1 : j + 1]
                bit = self.plan.step(scalar, lo, hi)
                total = total.plus(bit.times((eye[new] - eye[old])[None]))
        return total

    def _name(self, at: int) -> str:
        return self.program.names[at] or f"{type(self.program.nodes[at]).__name__.lower()}{at}"

    def _scores(self, node: Selection, unit: float) -> list[tuple[Read, Read]]:
        """Pairs of query and key reads: each predicate contributes `unit` where it holds, else 0."""
        return [self._predicate(p, unit) for p in node.where]

    def _predicate(self, p: Predicate, unit: float) -> tuple[Read, Read]:
        table = np.array(p.table, np.float64)  # (query values, key values)
        query, table = self._side(p.query, table)
        key, transposed = self._side(p.key, table.T)
        table = transposed.T * unit
        if key.width <= query.width:
            return query.times(table), key
        return query.times(unit * np.eye(query.width)), key.times(table.T / unit)

    def _side(self, at: int | None, table: Array) -> tuple[Read, Array]:
        """One-hot classes of the values of a variable with equal rows in the table, and their rows: steps between values that no
        condition tells apart are not needed."""
        rows, of = _classes(table)
        if at is None or len(rows) == 1:
            return constant(1), rows
        if self._is_table(at) or at in self._blocks:
            return self.one_hot(at).times(np.eye(len(rows))[of]), rows
        scalar, places = self._scalar(at), self.program.places[at]
        labels = tuple(int(of[places[label]]) for label in scalar.labels)
        same = self.domains[at] == tuple(range(len(rows)))
        count = scalar.count if same or not scalar.count else f"class of {scalar.count}"
        return self._stepped(replace(scalar, labels=labels, count=count), range(len(rows))), rows

    def _count(self, at: int, node: Count) -> Read:
        unit, name = 2 * self.plan.gap, self._name(at)
        scores = _joined(self._scores(node, unit))
        flag = Read({1: np.ones(1)}, 1)
        role, level = HeadRole(name, "count", at), unit * len(node.where)
        read = self.plan.head(role, scores, level, flag, [f"1/(1+{name})"], [1.0])
        return Read(read.rows, 1, read.layer, exact=False)

    def _mean(self, at: int, node: Mean) -> Read:
        unit, name = 2 * self.plan.gap, self._name(at)
        scores, level = _joined(self._scores(node, unit)), unit * len(node.where) - self.plan.gap
        role = HeadRole(name, "mean", at)
        read = self.plan.head(role, scores, level, self.number(node.value), [name], [float(node.default)])
        return Read(read.rows, 1, read.layer, exact=False)

    def _get(self, at: int, node: Get) -> Read:
        """One-hot of the selected value. A single possible value is 0 and its default 1, so that any number of keys may tie."""
        name, domain, values = self._name(at), self.domains[at], self.domains[node.value]
        role, (scores, level) = HeadRole(name, "get", at), self._selected(node)
        if len(values) == 1 and node.default is not None:
            silent = Read({}, 1)
            other = self.plan.head(role, scores, level, silent, [f"{name}={node.default}"], [1.0])
            one_hot = np.array([[1.0 if v == node.default else -1.0 for v in domain]])
            return constant(*(float(v != node.default) for v in domain)).plus(other.times(one_hot))
        place = np.array([[float(v == x) for x in domain] for v in values])  # a positional node may lack some
        value = self.one_hot(node.value).times(place)
        default = [float(node.default is not None and v == node.default) for v in domain]
        return self.plan.head(role, scores, level, value, [f"{name}={v}" for v in domain], default)

    def _selected(self, node: Get) -> tuple[tuple[Read, Read], float]:
        """The scores of keys, and that of BOS."""
        nearest = self._nearest(node)
        if nearest is not None:
            return nearest, -2 * self.plan.gap
        n, gap = self.program.length, self.plan.gap
        order: Read | None = None
        most = 0
        if node.prefer is not None:
            known = numbers(self.domains[node.prefer])
            least, step = float(min(known)), float(n if node.tie else 1)
            order = self.number(node.prefer).plus(constant(-least)).times(np.array([[step]]))
            most = int((max(known) - min(known)) * int(step))
        if node.tie is not None:
            by_index = np.arange(n, dtype=np.float64)[:: 1 if node.tie == "last" else -1]
            index = self._indices.times(by_index[:, None].copy())
            order, most = index if order is None else order.plus(index), most + n - 1
        unit = (most + 2) * gap
        pairs = self._scores(node, unit)
        if order is not None:
            pairs.append((constant(gap), order))
        return _joined(pairs), unit * len(node.where) - gap

    def _nearest(self, node: Get) -> tuple[Read, Read] | None:
        """Equality of a key κ and a number s of the query that is always met, by Λ(2sκ - κ²) = Λs² - Λ(s - κ)²: no steps."""
        if node.default is not None or node.tie is not None or len(node.where) != 1:
            return None
        p = node.where[0]
        if p.key is None or p.query is None or not self._is_table(p.key) or self._is_table(p.query):
            return None
        keys, queries = self.domains[p.key], self.domains[p.query]
        if any(isinstance(v, (str, bool)) for v in (*keys, *queries)):
            return None
        if p.table != tuple(tuple(k == q for k in keys) for q in queries):
            return None
        known, sharpness = np.array([float(x) for x in numbers(keys)]), 2 * self.plan.gap
        query = beside([self.number(p.query).times(np.array([[2 * sharpness]])), constant(-sharpness)])
        return query, self.one_hot(p.key).times(np.stack([known, known**2], 1))

    def logits(self) -> Read:
        """One function for each output value; that of the program's output is the largest."""
        at = self.program.output
        if self._is_table(at) or len(self.domains[at]) == 1:
            return self.one_hot(at)
        scalar = self._scalar(at).ordered()
        read = lines(scalar.read, scalar.points, scalar.labels, self.domains[at])
        if read is not None:
            return read
        whole = not any(isinstance(v, str) for v in self.domains[at])
        if whole and isinstance(self.program.nodes[at], Map):
            y = pieces(self.plan, scalar, self.program.length)
            points = tuple(numbers(self.domains[at]))
            found = lines(y, points, self.domains[at], self.domains[at])
            if found is not None:
                return found
        return self.one_hot(at)


def _joined(pairs: Sequence[tuple[Read, Read]]) -> tuple[Read, Read]:
    """The sum of several bilinear scores: their dimensions side by side."""
    return beside([q for q, _ in pairs]), beside([k for _, k in pairs])


def _classes(table: Array) -> tuple[Array, NDArray[np.int64]]:
    """The distinct rows of a table in the order in which they come first, and which of them each row is."""
    _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return table[first[order]], rank[back.reshape(-1)]


def _changes(values: Sequence[Value]) -> int:
    return sum(a != b for a, b in itertools.pairwise(values))


def lower_tokens(program: TokenProgram, dtype: str) -> TokenNumbers:
    """The matrices of a network that computes a token program."""
    return Lowering(program, dtype).network()
