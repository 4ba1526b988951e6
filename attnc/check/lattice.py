"""A lattice network over many cells: its numerator and denominator at Chebyshev nodes, and how far their interpolants may be off.

The stored scores are κ_k·(x - o) + c_k. Keys must be a product: κ_k = (κ_{1,k_1}, …, κ_{d,k_d}); offsets a sum up to small parts,
c_k = Σ_j c_{j,k_j} + δ_k. On a cell with the centre m and half-widths h, with any numbers ζ_j and μ_j,

    e_{j,k}(t) = exp(κ_{j,k}(m_j - o_j) + c_{j,k} - ζ_j + (κ_{j,k} - μ_j) h_j t_j)
    N = Σ_k v_k e^{δ_k} Π_j e_{j,k_j}        D = Σ_k e^{δ_k} Π_j e_{j,k_j}        network = N/D

Jensen's inequality: with w_k = e_{j,k}(0), Σ_k e_{j,k}(t) >= Σ w · exp(-|Σ_k w_k (κ_{j,k} - μ_j) h_j|/Σ w) for |t| <= 1, and D is
at least the product of these over the axes times e^{-max|δ|}. ζ and μ are chosen so that it is nearly 1.

The Chebyshev series of e^{at} has the coefficients 2 I_i(a) <= 2 (a/2)^i/i! e^{a²/(4(i+1))}, so that its interpolant at n + 1
nodes errs by at most 4 Σ_{i>n} I_i(|a|), and by at most (2 + 2/π log(n+1)) e^{|a|} in any case. Scores are pairs of float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from flint import arb

from attnc.check.cell_values import RADII, exp_above, up
from attnc.check.real_functions import U, exp
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.functions.balls import working
from attnc.records.layers import Layer

_MOST_DELTA = 0.25
_MOST_SCORE = 2.0**24
_FLOOR = 2.0**-940
_TABLE = (
    8 * U
)  # relative error of an entry e_{j,k}: 5u of exp (see `real_functions`), 2u of the factor 1 + z, and the score
_LESS = 1 - 2.0**-44
_ZERO = np.zeros((1, 1))
Pair = tuple[Array, Array]  # a number as the sum of two


def two_sum(a: Array, b: Array) -> Pair:
    """a + b = found + lost, exactly."""
    found = a + b
    part = found - a
    return found, (a - (found - part)) + (b - part)


def two_product(a: Array, b: Array) -> Pair:
    """a·b = found + lost, exactly unless numbers are beyond 2^±900: halves of 26 bits are multiplied without rounding."""
    found = a * b
    x, y = 134217729.0 * a, 134217729.0 * b
    a1, b1 = x - (x - a), y - (y - b)
    a2, b2 = a - a1, b - b1
    return found, ((a1 * b1 - found) + a1 * b2 + a2 * b1) + a2 * b2


def pair_sum(a: Pair, b: Pair) -> Pair:
    """a + b, with an error of at most 2^-98 (|a| + |b|)."""
    high, low = two_sum(a[0], b[0])
    return two_sum(high, low + (a[1] + b[1]))


def pair_product(a: Pair, b: Pair) -> Pair:
    """a·b, with an error of at most 2^-98 |a||b|."""
    high, low = two_product(a[0], b[0])
    return two_sum(high, low + (a[0] * b[1] + a[1] * b[0]))


@cache
def chebyshev(degree: int) -> tuple[Array, Array, Array]:
    """The n + 1 nodes cos((i + ½)π/(n + 1)) as pairs, and the matrix that takes values there to coefficients."""
    with working(160):
        n = degree + 1
        points = [(arb.pi() * (2 * i + 1) / (2 * n)).cos() for i in range(n)]
        high = [float(p.mid()) for p in points]
        low = [float((p - arb(h)).mid()) for p, h in zip(points, high, strict=True)]
        matrix = [
            [
                float(((arb.pi() * m * (2 * i + 1) / (2 * n)).cos() * (2 if m else 1) / n).mid())
                for i in range(n)
            ]
            for m in range(n)
        ]
    return np.array(high), np.array(low), np.array(matrix)


def lebesgue(degree: int) -> float:
    """At least the Lebesgue constant of the nodes: 1 + 2/π log(n + 1)."""
    return 1 + 0.6367 * math.log(degree + 1) * (1 + 2.0**-40)


def interpolant_size(value: Array, degree: int) -> tuple[Array, Array]:
    """Of the polynomials with these values (M, n+1, …, n+1) at the nodes: at least their size on the cell (M,), the sum of the
    absolute values of their Chebyshev coefficients; and these absolute values."""
    cells, axes, n = len(value), value.ndim - 1, degree + 1
    most, matrix = np.abs(value).reshape(cells, -1).max(1), chebyshev(degree)[2]
    for _ in range(axes):
        value = np.tensordot(value, matrix, axes=([1], [1]))
    spectrum = np.abs(value)
    lost = (
        n**axes * 2**axes * axes * (n + 8) * 2 * U
    )  # each axis: n products and sums of numbers up to 2^j·most
    return up(spectrum.reshape(cells, -1).sum(1) * (1 + 2.0**-30) + lost * most), spectrum


@dataclass(frozen=True, eq=False)
class AxisTable:
    """Of the distinct intervals (I) of an axis with its anchors (g): w_k and |a_k| as said above."""

    score: Pair  # κ_k (m - o) + c_k - ζ, (I, g)
    slope: Pair  # (κ_k - μ) h
    least: Array  # (I,): at most Σ_k e_k(t)
    top: Array  # (I, g): at least e_k(t) for |t| <= 1
    reach: Array  # (radii, I): at least Σ_k |e_k(t)| for |t| <= R

    def at_nodes(self, degree: int) -> Array:
        """e_k at the nodes, (I, n+1, g); each number errs by at most `_TABLE` of `top`."""
        high, low, _ = chebyshev(degree)
        node = high[None, :, None], low[None, :, None]
        moved = pair_product((self.slope[0][:, None], self.slope[1][:, None]), node)
        z = pair_sum((self.score[0][:, None], self.score[1][:, None]), moved)
        return np.asarray(exp(z[0]) * (1 + z[1]))

    def remainder(self, degree: int) -> Array:
        """At least |e_k - its interpolant| on the cell, (I, g)."""
        a, i = up(np.abs(self.slope[0]) * (1 + 2.0**-40)), degree + 1
        close = a <= i
        inside = np.where(close, a, 0.0)
        factor = 4 / (1 - inside / (2 * (i + 1)))
        for m in range(1, i + 1):
            factor = factor * (inside / (2 * m))  # (a/2)^i/i!
        series = up(factor * exp_above(self.score[0] + inside**2 / (4 * (i + 1)) + 2.0**-30) * (1 + 2.0**-30))
        plain = up((1 + lebesgue(degree)) * self.top)
        return np.where(close, np.minimum(series, plain), plain)


class Lattice:
    """The numbers of a lattice network, as products over its axes."""

    def __init__(self, layer: Layer) -> None:
        """Raises `CheckError` if the stored keys are not those of a lattice."""
        self.centre, key, offset, values = (
            layer.tensors[name].astype(np.float64) for name in ("centre", "key", "offset", "values")
        )
        self.key = _axes(key)
        self.counts = tuple(map(len, self.key))
        self.offset, delta = _split(offset.reshape(self.counts))
        self.delta = float(np.abs(delta).max()) * (1 + 2.0**-40)
        if not self.delta <= _MOST_DELTA:
            raise CheckError("its offsets are not sums over the axes")
        factor = exp(delta.ravel())  # its error is in `rounding`
        numbers = np.concatenate([values.T * factor, factor[None]])  # outputs, then D
        self.numbers = np.ascontiguousarray(numbers).reshape(-1, *self.counts)
        self.sizes = np.abs(np.concatenate([values.T, np.ones((1, len(factor)))]))
        self.sizes = up(self.sizes * exp_above(np.array([self.delta]))).reshape(-1, *self.counts)

    @cached_property
    def rounding(self) -> float:
        """Relative to Σ |terms|: v e^δ, the entries of d tables, and sums of g_1, …, g_d terms in any order."""
        d = len(self.counts)
        terms = (sum(self.counts) + 2 * d) * U
        factors = 12 * U if self.delta else 0.0  # e^0 is exact
        return (factors + d * _TABLE + terms / (1 - terms)) * (1 + 2.0**-20)

    def axis(self, j: int, low: Array, high: Array) -> AxisTable:
        """The table of an axis for intervals [low, high] (I,)."""
        key, offset = self.key[j][None], self.offset[j][None]
        middle, half = two_sum(low / 2, high / 2), two_sum(high / 2, -low / 2)
        away = pair_sum((middle[0][:, None], middle[1][:, None]), (np.full((1, 1), -self.centre[j]), _ZERO))
        score = pair_sum(pair_product((key, 0 * key), away), (offset, 0 * offset))
        top = score[0].max(1, keepdims=True)
        weight = exp(score[0] - top)
        zeta = top[:, 0] + np.log(weight.sum(1))
        mean = (weight * key).sum(1) / weight.sum(1)
        score = pair_sum(score, (-zeta[:, None], _ZERO))
        slope = two_sum(key, -mean[:, None])
        slope = pair_product(slope, (half[0][:, None], half[1][:, None]))
        size = up(np.abs(slope[0]) * (1 + 2.0**-40))
        weight = exp(score[0]) * (1 + score[1])
        lost = (len(key[0]) + 40) * U
        total = weight.sum(1) * (1 - 2 * lost)
        tilt = up(np.abs((weight * slope[0]).sum(1)) + 2 * lost * (weight * size).sum(1))
        least = np.maximum(total * _LESS - tilt * (1 + 2.0**-20), 0.0)  # W e^{-s/W} >= W - s
        safe = score[0] + 2.0**-40 * np.abs(score[0])
        parts = (score[0], zeta, slope[0], key * away[0], offset)
        if not all(float(np.abs(part).max()) < _MOST_SCORE for part in parts):
            raise CheckError("its scores are too large to be checked")
        reach = np.stack([up(exp_above(safe + r * size).sum(1)) for r in RADII.tolist()])
        return AxisTable(score, slope, least, exp_above(safe + size) + _FLOOR, reach)


def _axes(key: Array) -> list[Array]:
    """The keys of each axis; raises `CheckError` unless key k is their combination k, the last axis running fastest."""
    axes = key.shape[1]
    counts = [len(np.unique(column)) for column in key.T]
    if math.prod(counts) == len(key):
        grid = key.reshape(*counts, axes)
        found = [grid[(0,) * j + (slice(None),) + (0,) * (axes - j - 1)][:, j] for j in range(axes)]
        if np.array_equal(np.stack(np.meshgrid(*found, indexing="ij"), -1), grid):
            return found
    raise CheckError("its keys are not those of a lattice")


def _split(offset: Array) -> tuple[list[Array], Array]:
    """Offsets c_{j,k} of each axis, any numbers, and what is left of the stored offsets: sums of few numbers, rounded once."""
    middle = tuple(count // 2 for count in offset.shape)
    found = []
    for j in range(offset.ndim):
        at = (*middle[:j], slice(None), *middle[j + 1 :])
        line = offset[at]
        found.append(line - offset[middle] if j else line)
    grids = [grid.ravel().tolist() for grid in np.meshgrid(*found, indexing="ij")]
    rows = zip(offset.ravel().tolist(), *grids, strict=True)
    left = [math.fsum([whole, *(-part for part in parts)]) for whole, *parts in rows]
    return found, np.array(left).reshape(offset.shape)


def contract(numbers: Array, tables: list[Array], index: Array) -> Array:
    """Σ_k numbers[o, k_1, …, k_d] Π_j tables_j[index[i, j], r_j, k_j]: (cells, outputs, r_1, …, r_d).

    Cells that agree in their first intervals share the sums over the first axes."""
    outputs, cells = len(numbers), len(index)
    state, group = numbers.reshape(1, outputs, numbers.shape[1], -1), np.zeros(cells, int)
    for j, table in enumerate(tables):
        codes, group = np.unique(group * len(table) + index[:, j], return_inverse=True)
        before, own = np.divmod(codes, len(table))
        entering, entries = state[before], table[own]  # (P, A, g, rest) and (P, r, g)
        if j == len(tables) - 1:
            state = entering[..., 0] @ entries.transpose(0, 2, 1)
        else:
            made = entries[:, None] @ entering
            state = made.reshape(len(codes), -1, numbers.shape[j + 2], made.shape[-1] // numbers.shape[j + 2])
    return state[group].reshape(cells, outputs, *(table.shape[1] for table in tables))
