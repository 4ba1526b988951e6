"""Taylor models of a lattice network: one softmax over the points of a product of axes.

The stored scores are key_k·(x - o) + offset_k, and key_k has one of g_j numbers s on axis j. With offset_k = Σ_j offset_{k_j} +
δ_k (any choice of the summands is exact, δ_k being what is left) and a cell x = c + h∘t,

    w = softmax(s (c_j - o_j) + offset)        μ = Σ w s        a = (s - μ) h_j        on each axis
    network = N/D,    N = Σ_k e^{δ_k} v_k Π_j w_{k_j} e^{a_{k_j} t_j},    D = Σ_k e^{δ_k} Π_j w_{k_j} e^{a_{k_j} t_j}

Without the δ, D is the product of D_j = Σ w e^{a t_j}, and D_j >= e^{Σ w a t_j} = 1 by Jensen's inequality. So

    |network - f| <= e^{max|δ|} |N - f D|

for all t, without a division. The tables w a^i/i! come from ball arithmetic. Terms of total degree above m are bounded by
Σ_k |v_k| Π w e^{λ|a|} / λ^{m+1}, for the best λ >= 1 of a few."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from flint import arb

from attnc.domain import Array
from attnc.functions.balls import upper, working
from attnc.prove.lookup import axes_of
from attnc.prove.taylor import GROW, TINY, Index, Model, Monomials, U
from attnc.prove.taylor_functions import scalars
from attnc.records.layers import Layer

BITS = 160
DOUBLINGS = 7  # λ = 1, 2, 4, …
_NEAR = 1e-30  # absolute error of a in the tables
_SHIFT = 2.0**-36  # above it, δ gets its own sum in the denominator


class NoLatticeError(Exception):
    """The keys of a layer are not those of a product of axes."""


@dataclass(frozen=True, eq=False)
class Table:
    """An axis on intervals c ± h: w a^i/i! (intervals, g, m + 1), |a| and e^|a| rounded up (intervals, g)."""

    e: Array
    size: Array
    grown: Array


@dataclass(frozen=True, eq=False)
class LatticeNetwork:
    """The stored numbers of a lattice layer as a product of axes."""

    centre: Array  # o, (d,)
    slopes: tuple[Array, ...]  # s, (g_j,) each
    offsets: tuple[Array, ...]
    values: Array  # e^δ v, then e^δ if `shifted`: (g_1, …, g_d, channels)
    absolute: Array  # at least |values| of any channel, (g_1, …, g_d)
    outputs: int
    delta: float  # at least |δ|
    shifted: bool
    _tables: dict[tuple[int, float, float, int], tuple[Array, Array, Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, layer: Layer) -> LatticeNetwork:
        """Raises `NoLatticeError` unless the keys are a product of axes in order."""
        key, offset, values = (layer.tensor(name).astype(np.float64) for name in ("key", "offset", "values"))
        axes = axes_of(key)
        if axes is None:
            raise NoLatticeError
        counts = tuple(len(axis) for axis in axes)
        grid = offset.reshape(counts)
        base = tuple(n // 2 for n in counts)
        parts = []
        for j in range(len(counts)):
            others = base[:j] + base[j + 1 :]
            line = np.moveaxis(grid, j, -1)[others]
            parts.append(line - (grid[base] if j else 0.0))
        delta, grown = _deltas(grid, parts)
        most = float(np.abs(delta).max()) * GROW + TINY
        shifted = most > _SHIFT
        folded = values.reshape(*counts, -1) * grown[..., None]
        stacked = np.concatenate([folded, grown[..., None]], -1) if shifted else folded
        centre = layer.tensor("centre").astype(np.float64)
        size = np.abs(stacked).max(-1) * (1 + 8 * U)
        return cls(centre, tuple(axes), tuple(parts), stacked, size, values.shape[1], most, shifted)

    @property
    def counts(self) -> tuple[int, ...]:
        return self.values.shape[:-1]

    def table(self, j: int, centre: Array, half: Array, m: int) -> Table:
        """The numbers of an axis on intervals; those that were computed before are kept."""
        found = []
        for c, h in zip(centre.tolist(), half.tolist(), strict=True):
            entry = self._tables.get((j, c, h, m))
            if entry is None:
                entry = self._tables[j, c, h, m] = self._entry(j, c, h, m)
            found.append(entry)
        return Table(*(np.stack(part) for part in zip(*found, strict=True)))

    def _entry(self, j: int, c: float, h: float, m: int) -> tuple[Array, Array, Array]:
        """Relative errors are at most (4i + 6)u and 10⁻²⁹ w in absolute terms; infinite where balls are not that sharp."""
        slopes, offsets = self.slopes[j].tolist(), self.offsets[j].tolist()
        with working(BITS):
            at, half = arb(c) - arb(float(self.centre[j])), arb(h)
            scores = [arb(s) * at + arb(b) for s, b in zip(slopes, offsets, strict=True)]
            top = max(scores, key=lambda z: float(z.mid()))
            raw = [(z - top).exp() for z in scores]
            total = sum(raw, arb(0))
            w = [x / total for x in raw]
            mu = sum((x * arb(s) for x, s in zip(w, slopes, strict=True)), arb(0))
            a = [(arb(s) - mu) * half for s in slopes]
            sharp = all(float(x.rad()) <= _NEAR + 2.0**-60 * abs(float(x.mid())) for x in a)
            grown = np.array([upper(abs(x).exp()) for x in a])
            weights, steps = (np.array([float(x.mid()) for x in row]) for row in (w, a))
        e = np.empty((len(slopes), m + 1))
        e[:, 0] = weights if sharp else np.inf
        for i in range(1, m + 1):
            e[:, i] = e[:, i - 1] * steps / i
        return e, np.abs(steps) * GROW + _NEAR, grown

    def contracted(self, parts: list[Array]) -> Array:
        """At least Σ_k |v_k| Π_j parts_j[k_j] for each cell; parts_j is (M, g_j) and not negative."""
        found = parts[0] @ self.absolute.reshape(self.counts[0], -1)
        for part in parts[1:]:
            found = np.matmul(part[:, None, :], found.reshape(len(part), part.shape[1], -1))[:, 0]
        return found.reshape(len(parts[0])) * (1 + 4 * sum(self.counts) * U) * GROW

    def rows(self, table: int) -> int:
        """See `lattice_bound.Approximation`."""
        return (table + 1) * max(1, math.prod(self.counts[1:])) * int(self.values.shape[-1])

    def errors(self, found: list[Model], x: Monomials, centre: Array, half: Array, m: int) -> list[Model]:
        """e^δ (N - f D), output by output."""
        above, below = self.models(x, centre, half, m)
        pairs = zip(found, above, strict=True)
        return [(n - f * below).scaled(1 + 4 * self.delta) for f, n in pairs]

    def models(self, x: Monomials, centre: Array, half: Array, m: int) -> tuple[list[Model], Model]:
        """Models of N, output by output, and of D on cells centre ± half, (M, d); m >= x.n is the degree of the tables."""
        d, cells = x.d, len(centre)
        tables, back = [], []
        for j in range(d):
            unique, at = np.unique(np.stack([centre[:, j], half[:, j]], 1), axis=0, return_inverse=True)
            tables.append(self.table(j, unique[:, 0], unique[:, 1], m))
            back.append(at.ravel())
        with np.errstate(all="ignore"):
            found, names = self._numerators(tables, back, m)
            radius = self._radius(tables, back, m)
            chosen = np.array([names[tuple(e)] for e in x.exponents.tolist()])
            rest = np.setdiff1d(np.arange(len(names)), chosen)
            beyond = np.abs(found[rest]).sum(0) * GROW  # (channels, M)
            channels = [
                Model(x, found[chosen, o], (beyond[o] + radius) * GROW) for o in range(found.shape[1])
            ]
            if self.shifted:
                return channels[:-1], channels[-1]
            return channels, self._denominator(x, tables, back, m, cells)

    def _radius(self, tables: list[Table], back: list[Index], m: int) -> Array:
        """What is cut off above degree m, and what rounding loses: in tables, in the folded values, in sums."""
        i = np.arange(m + 1)
        sizes = [np.abs(t.e).sum(-1) * GROW for t in tables]
        lost = [
            ((4 * i + 6) * U * np.abs(t.e)).sum(-1) * GROW + (m + 1) * 1e-29 * t.e[..., 0] for t in tables
        ]
        cut = np.full(len(back[0]), np.inf)
        grown = [t.grown for t in tables]
        for doubling in range(DOUBLINGS + 1):
            whole = self.contracted(
                [(t.e[..., 0] * g * GROW)[b] for t, g, b in zip(tables, grown, back, strict=True)]
            )
            cut = np.fmin(cut, whole / 2.0 ** (doubling * (m + 1)))
            grown = [g * g * GROW for g in grown]
        own = (
            (sum(self.counts) + 4 * len(self.counts) + 16)
            * U
            * self.contracted([s[b] for s, b in zip(sizes, back, strict=True)])
        )
        for j in range(len(tables)):
            parts = [(lost if i == j else sizes)[i][b] for i, b in enumerate(back)]
            own = own + self.contracted(parts) * GROW
        return np.asarray((cut + own) * GROW + TINY)

    def _numerators(
        self, tables: list[Table], back: list[Index], m: int
    ) -> tuple[Array, dict[tuple[int, ...], int]]:
        """Coefficients (monomials of degree <= m, channels, M), and where each monomial is."""
        cells, channels = len(back[0]), self.values.shape[-1]
        first = np.tensordot(tables[0].e, self.values, axes=(1, 0))  # (intervals, m + 1, g_2, …, channels)
        found = first.reshape(len(first), -1).T[:, back[0]].reshape(m + 1, -1, cells)
        for (limits, places, total), table, at in zip(self._plan(m)[0], tables[1:], back[1:], strict=True):
            e = np.ascontiguousarray(table.e.transpose(1, 2, 0)[..., at])  # (g, m + 1, M)
            parts = found.reshape(len(found), len(e), -1, cells)
            made = np.empty((total, parts.shape[2], cells))
            for i in range(m + 1):
                sums = parts[: limits[i], 0] * e[0, i]
                for k in range(1, len(e)):
                    sums += parts[: limits[i], k] * e[k, i]
                made[places[i]] = sums
            found = made
        return found.reshape(len(found), channels, cells), self._plan(m)[1]

    @cached_property
    def _plans(
        self,
    ) -> dict[int, tuple[list[tuple[list[int], list[Index], int]], dict[tuple[int, ...], int]]]:
        return {}

    def _plan(self, m: int) -> tuple[list[tuple[list[int], list[Index], int]], dict[tuple[int, ...], int]]:
        """For each further axis: how many of the monomials so far remain within degree m when multiplied with t^i, where the
        products go, and how many there are."""
        if m not in self._plans:
            names: list[tuple[int, ...]] = [(i,) for i in range(m + 1)]
            steps: list[tuple[list[int], list[Index], int]] = []
            for _ in self.counts[1:]:
                limits = [sum(sum(e) <= m - i for e in names) for i in range(m + 1)]
                made = sorted(
                    ((*e, i) for i in range(m + 1) for e in names[: limits[i]]), key=lambda e: (sum(e), e)
                )
                place = {e: k for k, e in enumerate(made)}
                made_by = [[(*e, i) for e in names[: limits[i]]] for i in range(m + 1)]
                places = [np.array([place[e] for e in row]) for row in made_by]
                steps.append((limits, places, len(made)))
                names = made
            self._plans[m] = steps, {e: k for k, e in enumerate(names)}
        return self._plans[m]

    def _denominator(self, x: Monomials, tables: list[Table], back: list[Index], m: int, cells: int) -> Model:
        """Π_j D_j, and what the δ change at most: (e^δ - 1) D."""
        found = x.constant(1.0, cells)
        for j, (table, at) in enumerate(zip(tables, back, strict=True)):
            sums, sizes = table.e.sum(1), np.abs(table.e).sum(1)  # (intervals, m + 1)
            c = np.zeros((len(x.exponents), cells))
            for i in range(x.n + 1):
                c[x.place[tuple(i * (axis == j) for axis in range(x.d))]] = sums[at, i]
            lost = ((4 * np.arange(m + 1) + 8 + table.e.shape[1]) * U * sizes).sum(1) + 1e-28
            cut = table.e[..., 0] * table.grown
            for i in range(1, m + 2):
                cut = cut * (table.size / i)
            r = (sizes[:, x.n + 1 :].sum(1) + lost + cut.sum(1)) * GROW * GROW + TINY
            found = found * Model(x, c, r[at])
        return Model(x, found.c, (found.r + 2 * self.delta * found.size) * GROW)


def _deltas(grid: Array, parts: list[Array]) -> tuple[Array, Array]:
    """δ and e^δ for each anchor, to relative errors of 4u."""
    total = grid * 0.0
    rough = grid - sum(
        part.reshape([-1 if i == j else 1 for i in range(grid.ndim)]) for j, part in enumerate(parts)
    )
    if not np.abs(rough).max() < 1:
        raise NoLatticeError
    index = np.indices(grid.shape).reshape(grid.ndim, -1).T.tolist()
    flat, left = total.ravel(), grid.ravel().tolist()
    with working(BITS):
        for k, at in enumerate(index):
            exact = arb(left[k])
            for part, i in zip(parts, at, strict=True):
                exact = exact - arb(float(part[i]))
            flat[k] = float(exact.mid())
    delta = flat.reshape(grid.shape)
    return delta, scalars(arb.exp, delta)
