"""The stream of a token network while it is built: named coordinates, linear reads of them, and heads that write them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.errors import InputError
from attnc.program.tokens import Value
from attnc.records.tokens import HeadRole, TokenLayer

ONE, BOS = 0, 1  # coordinates: 1 everywhere; 1 at BOS alone
LARGEST = 1 << 27  # numbers in all matrices together


@dataclass(frozen=True)
class Read:
    """k linear functions of the stream after `layer`: coordinate → k coefficients. If `exact`, their values are whole numbers."""

    rows: Mapping[int, Array]
    width: int
    layer: int = 0
    exact: bool = True

    def times(self, matrix: Array) -> Read:
        """The read followed by a (k, m) matrix."""
        rows = {c: row @ matrix for c, row in self.rows.items()}
        kept = {c: row for c, row in rows.items() if row.any()}
        return Read(kept, matrix.shape[1], self.layer, self.exact)

    def plus(self, other: Read) -> Read:
        """The sum of two reads of the same width."""
        rows = dict(self.rows)
        for c, row in other.rows.items():
            rows[c] = rows.get(c, np.zeros(self.width)) + row
        return Read(rows, self.width, max(self.layer, other.layer), self.exact and other.exact)

    def matrix(self, d: int) -> Array:
        found = np.zeros((d, self.width))
        for c, row in self.rows.items():
            found[c] = row
        return found


def constant(*numbers: float) -> Read:
    """The same numbers at every position."""
    return Read({ONE: np.array(numbers, np.float64)}, len(numbers))


def beside(reads: Sequence[Read]) -> Read:
    """Several reads as one: their functions side by side."""
    width, at = sum(read.width for read in reads), 0
    found = Read({}, width)
    for read in reads:
        place = np.zeros((read.width, width))
        place[:, at : at + read.width] = np.eye(read.width)
        found, at = found.plus(read.times(place)), at + read.width
    return found


@dataclass(frozen=True)
class Scalar:
    """A number of the stream and what it stands for: at points[i] it has labels[i]. `of` identifies it.

    `count` names the function that the labels are if the points are 1/(1 + c) for counts c, else it is empty. `shown`, if there
    is one, is the name of a variable that grows with the number, and its value at each point: steps are named by it."""

    of: object
    name: str
    read: Read
    points: tuple[Fraction, ...]
    labels: tuple[Value, ...]
    count: str = ""
    shown: tuple[str, Mapping[Fraction, Fraction]] | None = None

    def step_name(self, lo: Fraction, hi: Fraction) -> str:
        """The condition s >= hi for an s that is never between lo and hi."""
        if self.shown is not None and self.shown[1][lo] < self.shown[1][hi]:
            return f"{self.shown[0]} >= {_short(self.shown[1][hi])}"
        return f"{self.name} >= {_short(hi)}"

    def ordered(self) -> Scalar:
        """The same with its points in order of size."""
        pairs = sorted(zip(self.points, self.labels, strict=True), key=lambda pair: pair[0])
        return replace(self, points=tuple(p for p, _ in pairs), labels=tuple(y for _, y in pairs))

    def by_count(self, length: int, values: Mapping[Value, Sequence[float]]) -> Array:
        """The numbers of the label for each count up to a length; 0 for counts that do not occur."""
        found = np.zeros((length + 1, len(next(iter(values.values())))))
        for point, label in zip(self.points, self.labels, strict=True):
            found[int(1 / point) - 1] = values[label]
        return found


@dataclass(frozen=True)
class PlannedHead:
    """A head as reads. At BOS its query is `bos_query` and its key is `bos_key`; its value there is `default`."""

    role: HeadRole
    query: Read
    key: Read
    value: Read
    out: tuple[int, ...]  # the coordinates that it writes
    default: tuple[float, ...]
    bos_query: tuple[float, ...]
    bos_key: tuple[float, ...]


@dataclass
class StreamPlan:
    """The coordinates and heads of a network, as they are added."""

    arithmetic: Arithmetic
    names: list[str] = field(default_factory=lambda: ["one", "bos"])
    layers: list[list[PlannedHead]] = field(default_factory=list)
    steps: dict[tuple[object, Fraction], Read] = field(default_factory=dict)
    lookups: dict[tuple[object, bytes], Read] = field(default_factory=dict)
    indices: Read = field(default_factory=lambda: Read({}, 0))  # one-hot
    taken: set[str | tuple[str, str]] = field(
        default_factory=lambda: {"one", "bos"}
    )  # names; kinds and names of heads

    @property
    def gap(self) -> float:
        """The distance between scores: exp of less is 0."""
        return self.arithmetic.vanish

    def block(self, *names: str) -> tuple[int, ...]:
        """New coordinates."""
        self.names += names
        self.taken.update(names)
        return tuple(range(len(self.names) - len(names), len(self.names)))

    def identity(self, coordinates: Sequence[int], layer: int, exact: bool = True) -> Read:
        """The coordinates themselves."""
        eye = np.eye(len(coordinates))
        rows = {c: eye[i] for i, c in enumerate(coordinates)}
        return Read(rows, len(coordinates), layer, exact)

    def head(
        self,
        role: HeadRole,
        scores: tuple[Read, Read],
        level: float,
        value: Read,
        names: Sequence[str],
        default: Sequence[float],
    ) -> Read:
        """Add a head with these scores, to the first layer after all that it reads. BOS has the score `level`.

        One more dimension carries the score of BOS: its key is 1 at BOS and 0 elsewhere, its query `level`, and 2·gap at BOS,
        so that BOS attends to itself."""
        query, key = beside([scores[0], constant(level)]), beside([scores[1], Read({BOS: np.ones(1)}, 1)])
        return self.add(role, query, key, value, names, default)

    def add(
        self,
        role: HeadRole,
        query: Read,
        key: Read,
        value: Read,
        names: Sequence[str],
        default: Sequence[float],
    ) -> Read:
        """Add a head whose last dimension of scores is that of BOS."""
        layer, (role, names) = self._place(query, key, value), self._distinct(role, names)
        out, zeros = self.block(*names), (0.0,) * (query.width - 1)
        ends = (*zeros, 2 * self.gap), (*zeros, 1.0)
        self.layers[layer].append(PlannedHead(role, query, key, value, out, tuple(default), *ends))
        return self.identity(out, layer + 1)

    def _distinct(self, role: HeadRole, names: Sequence[str]) -> tuple[HeadRole, Sequence[str]]:
        """A head and its coordinates, numbered in their names if a head of its kind, or a coordinate, has the name already."""
        for number in itertools.count(1):
            name = role.name if number == 1 else f"{role.name} ({number})"
            new = [text.replace(role.name, name, 1) for text in names] if role.name else list(names)
            if self.taken.isdisjoint([(role.kind, name), *new]):
                self.taken.add((role.kind, name))
                return replace(role, name=name), new
        raise AssertionError("unreachable")

    def _place(self, *reads: Read) -> int:
        """The first layer in which all reads are known."""
        layer = max(read.layer for read in reads)
        while len(self.layers) <= layer:
            self.layers.append([])
        return layer

    def step(self, scalar: Scalar, lo: Fraction, hi: Fraction) -> Read:
        """The bit [s >= hi] for the number s of a scalar that is never between lo and hi: one head whose query is
        Λ(s - θ), with θ in the middle.

        BOS has the score Λ(s - θ) and the value 1, all other keys score 0 and have the value 0. With half the distance h and
        Λ >= 5/4·gap/h the weight of BOS is exactly 1 or 0. Steps of the same s at the same place are shared (`of` says whose)."""
        of, middle = scalar.of, (lo + hi) / 2
        if (of, middle) not in self.steps:
            sharpness = 2.0
            while sharpness * float(hi - lo) / 2 < 1.25 * self.gap:
                sharpness *= 2
            q = scalar.read.times(np.array([[sharpness]])).plus(constant(-sharpness * float(middle)))
            flag = Read({BOS: np.ones(1)}, 1)
            label = scalar.step_name(lo, hi)
            self.steps[of, middle] = self.add(HeadRole(label, "step"), q, flag, flag, [label], [1.0])
        return self.steps[of, middle]

    def reserve(self, steps: int) -> None:
        """Raise if so many more step heads make the network too large: they are counted before the first one is built.

        A step writes a coordinate, and its matrices have 6 columns or rows of all coordinates."""
        heads, d = sum(map(len, self.layers)) + steps, len(self.names) + steps
        _check_size(heads, d, 6 * heads * d)

    def changes(self, scalar: Scalar) -> int:
        """How many step heads the labels along an ordered scalar still need."""
        pairs = zip(itertools.pairwise(scalar.points), itertools.pairwise(scalar.labels), strict=True)
        return sum(a != b and (scalar.of, (lo + hi) / 2) not in self.steps for (lo, hi), (a, b) in pairs)

    def anchors(self, scalar: Scalar, values: Array, names: Sequence[str]) -> Read:
        """values[c] for s = 1/(1 + c), of a count c: one head in which BOS and the positions are anchors, that of index j for the
        count j + 1. With κ = 1/(1 + c) at anchor c the scores are

            Λ(2sκ - κ²) = Λs² - Λ(s - κ)²,        query (2Λs, -Λ), key (κ, κ²),

        so the nearest anchor wins. A query sees its anchor: there are at least c positions if it counts c."""
        asked = (scalar.of, values.tobytes())
        if asked not in self.lookups:
            n = len(values) - 1
            sharpness = 2.0
            while sharpness < 8 * self.gap * (n * (n + 1)) ** 2:
                sharpness *= 2
            rounded = np.dtype(self.arithmetic.dtype)
            kappa = (1 / (1 + np.arange(n + 1.0))).astype(rounded).astype(np.float64)
            keys = np.stack([kappa, kappa**2], 1)
            query = beside([scalar.read.times(np.array([[2 * sharpness]])), constant(-sharpness)])
            key, value = (self.indices.times(table[1:]) for table in (keys, values))
            role, names = self._distinct(HeadRole(scalar.count, "anchor"), names)
            layer, out = self._place(query, key, value), self.block(*names)
            ends = (2 * sharpness, -sharpness), tuple(keys[0])
            self.layers[layer].append(PlannedHead(role, query, key, value, out, tuple(values[0]), *ends))
            self.lookups[asked] = self.identity(out, layer + 1)
        return self.lookups[asked]

    def finished(self) -> tuple[TokenLayer, ...]:
        """The matrices of all layers. The row of BOS corrects what a head reads there: it attends to itself, so its stream is
        known."""
        d, rounded = len(self.names), np.dtype(self.arithmetic.dtype)
        bos = np.zeros(d)
        bos[[ONE, BOS]] = 1
        found = []
        sizes = [
            (max(head.query.width for head in heads), max(head.value.width for head in heads))
            for heads in self.layers
        ]
        columns = sum(2 * len(heads) * (r + w) for heads, (r, w) in zip(self.layers, sizes, strict=True))
        _check_size(sum(map(len, self.layers)), d, columns * d)
        for heads, (r, w) in zip(self.layers, sizes, strict=True):
            matrices = [np.zeros((len(heads), *shape)) for shape in ((d, r), (d, r), (d, w), (w, d))]
            added = np.zeros(d)
            for h, head in enumerate(heads):
                reads = (head.query, head.bos_query), (head.key, head.bos_key), (head.value, head.default)
                for into, (read, target) in zip(matrices, reads, strict=False):
                    own = read.matrix(d)
                    own[BOS] += np.array(target) - bos @ own
                    into[h][:, : read.width] = own
                matrices[3][h][np.arange(head.value.width), list(head.out)] = 1
                added[list(head.out)] = head.default
            bos += added
            with np.errstate(over="ignore"):  # TokenNumbers refuses infinities
                q, k, v, o = (m.astype(rounded).astype(np.float64) for m in matrices)
            found.append(TokenLayer(q, k, v, o, tuple(head.role for head in heads)))
        return tuple(found)


def _check_size(heads: int, d: int, numbers: int) -> None:
    if numbers > LARGEST:
        raise InputError(
            f"the network needs {heads:,} heads and {d:,} coordinates, {numbers:,} numbers in its matrices, over {LARGEST:,}: a "
            "map or a condition takes one head for each change of its value, so use smaller domains, or a map with fewer changes"
        )


def _short(x: Fraction) -> str:
    return str(x.numerator) if x.denominator == 1 else f"{x.numerator}/{x.denominator}"
