"""The error of a lookup: a head that selects points of a lattice, compared with every function that the step describes.

With points L_k = first + k·Δ on every axis, and scores -Σ_j b_j (x_j - L_kj)² up to a common function of x and a residue D,

    |Σ_k w_k v_k - f(x)| <= e^{2D} (max|v_k - f(L_k)| + K √(Σ_j Δ_j² C₂(b_j Δ_j²)))
    |executed - f(x)|    <= ρ (|v - f| + K …) + σ|f(x)| + γ_{K+1}(1 + σ)|v| + what is flushed

docs/arithmetic.md ("Black-box functions") proves both."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.functions.balls import upper, working
from attnc.program import Lookup, Traced
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, unbounded
from attnc.prove.outward import U, above, below, gamma, product, times, total
from attnc.records.layers import Layer

HARD = 1.1  # c must exceed ln 3
BEYOND = {"float32": 104.0, "float64": 746.0}  # exp of minus this is below the smallest normal number


def lookup_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of a lookup whose input has no error; nothing is proved if its points are not a lattice."""
    (x,), layer, step = at.values, at.layer, at.step
    if isinstance(step, Traced) and not x.error.any():
        return _traced_bounds(at)
    axes = axes_of(step.points) if isinstance(step, Lookup) and not x.error.any() else None
    if axes is None:
        return unbounded((layer.tensor("values").shape[1],))
    assert isinstance(step, Lookup)
    lattice = [_Axis.of(points, column) for points, column in zip(axes, layer.tensor("key").T, strict=True)]
    ends = zip(lattice, x.lo.tolist(), x.hi.tolist(), strict=True)
    spreads = [axis.spread(low, high) for axis, low, high in ends]
    uneven = [axis.uneven(points) for axis, points in zip(lattice, axes, strict=True)]
    off = times(step.lipschitz, _length(spreads, uneven))
    return _executed(step, layer, lattice, (x.lo, x.hi), float(off), at.arithmetic)


def _traced_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of a traced function from what is proved of its lattice; unbounded if nothing is."""
    stored, heads = at.layer.tensor("values").astype(np.float64), at.heads
    if not np.all(np.asarray(heads.error) > 0):
        return unbounded((stored.shape[1],))
    approximation, error = (
        np.broadcast_to(e, stored.shape[1:]).astype(float) for e in (heads.approximation, heads.error)
    )
    # the network's exact output lies between its values
    lo, hi = below(below(stored.min(0)) - approximation), above(above(stored.max(0)) + approximation)
    return ValueBounds(lo, hi, approximation, error)


def lookup_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """The input of a lookup has no error."""
    return np.zeros(layer.tensor("values").shape[1])


def axes_of(points: Array) -> list[Array] | None:
    """The axes whose product the points are, row by row; None if they are not such a product."""
    wide = points.astype(np.float64)
    axes = [np.unique(column) for column in wide.T]
    if np.prod([float(len(axis)) for axis in axes]) != len(wide):
        return None
    grid = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
    return axes if np.array_equal(grid, wide) else None


@dataclass(frozen=True)
class _Axis:
    """Points first + k·step, k < count, and the sharpness b of the scores along them."""

    first: float
    step: float
    count: int
    sharpness: float

    @classmethod
    def of(cls, points: Array, column: Array) -> _Axis:
        """The even lattice nearest to the points of an axis, with the sharpness of the keys. Any numbers are sound, because every
        deviation from them is counted as an error."""
        count, width = len(points), float(points[-1] - points[0])
        if count == 1:
            return cls(float(points[0]), 0.0, 1, 0.0)
        keys = column.astype(np.float64)
        return cls(float(points[0]), width / (count - 1), count, float(keys[-1] - keys[0]) / (2 * width))

    def spread(self, lo: float, hi: float) -> float:
        """At least Σ_k W_k (x - L_k)² for every x of [lo, hi]."""
        with working(96):
            first, step = arb(self.first), arb(self.step)
            last = first + (self.count - 1) * step
            out = [upper(first - arb(lo)), upper(arb(hi) - last)]
            if self.count == 1:
                return max(upper(abs(first - arb(lo)) ** 2), upper(abs(arb(hi) - first) ** 2))
            c = arb(self.sharpness) * step**2
            if not c > HARD:
                return math.inf
            over = max(0.0, *(upper(arb(o) / step) for o in out))
            nearest = max(0.25, upper(arb(over) ** 2))
            return upper(step**2 * (arb(nearest) + tails(c)))

    def uneven(self, points: Array) -> float:
        """At least |points_k - L_k|."""
        k = np.arange(self.count)
        rough = np.abs(points - (self.first + k * self.step))
        return float((rough + 8 * U * (np.abs(points) + abs(self.first) + k * abs(self.step))).max())


def tails(c: arb) -> arb:
    """Σ_{j>=1} ( j² e^{-cj²} + ½(j + ½)² e^{-cj(j+1)} ) for c > 1, from above: behind the 30th, terms more than halve."""
    terms = [
        j * j * (-c * j * j).exp() + (arb(j) + arb(0.5)) ** 2 / 2 * (-c * j * (j + 1)).exp()
        for j in range(1, 31)
    ]
    return sum(terms, arb(0)) + 2 * terms[-1]


def _length(squares: list[float], sides: list[float]) -> float:
    """At least √(Σ squares) + √(Σ sides²)."""
    if not np.isfinite(squares).all():
        return math.inf
    with working(96):
        spread, uneven = sum(map(arb, squares), arb(0)), sum((arb(side) ** 2 for side in sides), arb(0))
        return float(total(upper(spread.sqrt()), upper(uneven.sqrt())))


def _residues(layer: Layer, lattice: list[_Axis], reach: Array) -> float:
    """D: at least |stored score - score of the lattice|, up to a common function of x; `reach` is at least |x - o|."""
    centre = layer.tensor("centre").astype(np.float64)
    key, offset = layer.tensor("key").astype(np.float64), layer.tensor("offset").astype(np.float64)
    index = np.unravel_index(np.arange(len(offset)), [axis.count for axis in lattice])
    along, height, size = np.zeros(len(offset)), np.zeros(len(offset)), np.zeros(len(offset))
    for j, (axis, k) in enumerate(zip(lattice, index, strict=True)):
        gone = k * axis.step  # L_k - first
        slope = 2 * axis.sharpness * gone
        rough = np.abs(key[:, j] - key[0, j] - slope)
        lost = 8 * U * (np.abs(key[:, j]) + abs(key[0, j]) + np.abs(slope))
        along = along + (rough + lost) * reach[j]
        start = axis.first - centre[j]
        height = height + axis.sharpness * gone * (2 * start + gone)  # b ((L_k - o)² - (first - o)²)
        size = size + abs(axis.sharpness) * np.abs(gone) * (2 * abs(start) + np.abs(gone))
    rough = np.abs(offset - offset[0] + height)
    lost = 8 * (len(lattice) + 2) * U * (np.abs(offset) + abs(offset[0]) + size)
    return float(total(along, rough, lost).max()) * (1 + 8 * (len(lattice) + 8) * U)


def _executed(
    step: Lookup, layer: Layer, lattice: list[_Axis], box: tuple[Array, Array], off: float, a: Arithmetic
) -> ValueBounds:
    """The bound of the module's docstring, output by output; `off` is at least K Σ_k W_k |x - points_k|."""
    anchors, m = layer.tensor("key").shape
    known, stored = step.values.astype(np.float64), np.abs(layer.tensor("values").astype(np.float64))
    moved = above(np.abs(layer.tensor("values").astype(np.float64) - known)).max(0)
    centre = layer.tensor("centre").astype(np.float64)
    reach = above(np.maximum(np.abs(box[0] - centre), np.abs(box[1] - centre)))
    keys, offsets = (np.abs(layer.tensor(name).astype(np.float64)) for name in ("key", "offset"))
    passing = total(product(keys, reach), offsets)
    flushed = 4 * a.tiny * total(float(reach.sum()), keys.sum(1), 3.0 * (m + 2))
    residue = _residues(layer, lattice, reach)
    score = float(total(residue, times(gamma(m + 2, a.unit), passing), flushed).max())
    factor, sum_off = _weights(anchors, score, a)
    far = 1.01 * float(np.sqrt(np.square(np.abs(step.points - centre).max(0) + reach).sum()))
    single = total(moved, step.noise, off)  # at least Σ_k W_k |v_k - f(x)|
    size = total(np.abs(known).max(0), step.noise, off)
    largest = stored.max(0)
    error = total(
        times(factor, single),
        times(sum_off, size),
        times(gamma(anchors + 1, a.unit), 1 + sum_off, largest),
        times(8 * a.tiny * anchors, total(moved, step.noise, step.lipschitz * far, largest, 8.0)),
    )
    fine = score <= 0.5 and float(passing.max()) < a.largest and float(largest.max()) < a.largest
    error = np.where(np.isnan(error) | (not fine), np.inf, error)
    apart = total(step.noise, off)
    with working(96):
        own = float(times(upper(arb(2 * residue).exp()), apart)) if fine else math.inf
    lo, hi = below(known.min(0) - apart), above(known.max(0) + apart)
    return ValueBounds(lo, hi, np.minimum(own, error), error)


def _weights(k: int, score: float, a: Arithmetic) -> tuple[float, float]:
    """(ρ, σ): an executed weight is at most ρW_k + 8τ, and all k of them add up to 1 ± σ."""
    u = a.unit
    if not (score <= 0.5 and k * u < 0.25):
        return math.inf, math.inf
    with working(96):
        unit, tiny, eps = arb(u), arb(a.tiny), arb(a.exp_units) * arb(u)
        swing = (unit * arb(BEYOND[a.dtype]) + 2 * tiny).exp()
        most, least = swing * (1 + eps), (1 - eps) / swing - 3 * k * tiny
        divided = (1 + unit) ** a.division_units / (1 - k * unit / (1 - k * unit))
        factor = divided * most / least * (2 * arb(score)).exp()
        return upper(factor), upper(divided - 1 + 8 * k * tiny)
