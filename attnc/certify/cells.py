"""One head on one cell [a, b]: its Taylor series around the middle, its range, and its rounding error.

With κ̄ any common slope, g(m + t) = Σ v_k e^{z_k + ρ_k t} / Σ e^{z_k + ρ_k t}, z_k = Z_k(m) - Z_r(m), ρ_k =
gain (κ_k - κ̄): the common factor cancels at every t. Keys whose score stays `distance` below the winner's on
the whole cell leave the series: they carry at most n e^-distance of the weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_series

from attnc.certify.arithmetic import Arithmetic
from attnc.certify.numbers import Array, HeadNumbers
from attnc.certify.rounding import Keys, head_rounding, query_error

_U64 = 2.0**-53


@dataclass(frozen=True)
class Cell:
    """[a, b], as a midpoint and a radius that reaches both ends."""

    a: float
    b: float

    @property
    def middle(self) -> float:
        return self.a / 2 + self.b / 2

    def radius(self) -> arb:
        m = arb(self.middle)
        return (arb(self.b) - m).max(m - arb(self.a)).upper()

    def divisible(self) -> bool:
        return self.a < self.middle < self.b

    def halves(self) -> tuple[Cell, Cell]:
        return Cell(self.a, self.middle), Cell(self.middle, self.b)


@dataclass(frozen=True)
class HeadOnCell:
    """`series` around the middle and `last` the order-n coefficient over the cell, both without the far keys;
    `far` bounds those."""

    series: arb_series
    last: arb
    far: arb
    keys: Keys
    far_keys: int
    far_value: arb
    distance: int
    value: arb  # the range of g on the cell


def head_on_cell(numbers: HeadNumbers, h: int, cell: Cell, order: int, a: Arithmetic) -> HeadOnCell | None:
    """The Taylor model of head h on the cell, None where the cell is too wide for one.

    The working series length must be order + 1.
    """
    query, key, value = numbers.query[h], numbers.key[h], numbers.value[h]
    distance = _distance(value, cell)
    winner, near = _near_keys(query, key, cell, distance, a)
    mean_slope = arb(_mean_slope(query, key, cell.middle))
    gain, offset, m, r = arb(query[0]), arb(query[1]), arb(cell.middle), cell.radius()
    x, t = gain * m + offset, arb(0, r)
    s_point, s_cell = arb_series([m, 1]), arb_series([m + t, 1])
    k_r, c_r = arb(key[winner, 0]), arb(key[winner, 1])
    top = bottom = top_cell = bottom_cell = arb_series([0])
    exps, slopes, leads, owns, constants = [], [], [], [], []
    for k in near:
        slope, c, own, v = arb(key[k, 0]), arb(key[k, 1]), arb(value[k, 0]), arb(value[k, 1])
        lead, rate = (slope - k_r) * x + (c - c_r), gain * (slope - mean_slope)
        e, e_cell = arb_series([lead, rate]).exp(), arb_series([lead + rate * t, rate]).exp()
        bottom, bottom_cell = bottom + e, bottom_cell + e_cell
        if own == 0:
            top, top_cell = top + e * v, top_cell + e_cell * v
        else:
            top, top_cell = top + e * (own * s_point + v), top_cell + e_cell * (own * s_cell + v)
        exps.append(e_cell[0])
        slopes.append(slope)
        leads.append(lead + (slope - k_r) * gain * t)
        owns.append(own)
        constants.append(v)
    if not (bottom[0] > 0 and bottom_cell[0] > 0):
        return None
    series, over_cell = top / bottom, top_cell / bottom_cell
    last = over_cell[order]
    value_range = _range(series, last, r, order)
    far_count = len(key) - len(near)
    far_value = _far_value(value, near, cell) if far_count else arb(0)
    far = far_count * (-arb(distance)).exp() * (far_value + abs(value_range))
    x_cell = x + gain * t
    scores = [slope * x_cell + arb(key[k, 1]) for slope, k in zip(slopes, near, strict=True)]
    weights = [e / bottom_cell[0] for e in exps]
    keys = Keys(slopes, scores, leads, weights, owns, constants)
    return HeadOnCell(
        series, last, far, keys, far_count, far_value, distance, value_range + arb(0, far.upper())
    )


def rounding_on_cell(numbers: HeadNumbers, h: int, cell: Cell, model: HeadOnCell, a: Arithmetic) -> arb:
    """The rounding error of head h on the cell."""
    gain, offset = arb(numbers.query[h, 0]), arb(numbers.query[h, 1])
    s = arb(cell.middle) + arb(0, cell.radius())
    x_error = query_error(a, s, gain, offset)
    return head_rounding(
        a,
        model.keys,
        s,
        gain * s + offset,
        x_error,
        model.value,
        numbers.anchors_per_head,
        model.far_keys,
        model.far_value,
        model.distance,
    )


def overflows(numbers: HeadNumbers, lo: float, hi: float, a: Arithmetic) -> bool:
    """Whether a score or a sum might overflow on [lo, hi]: then nothing is claimed."""
    s = arb(max(abs(lo), abs(hi)))
    limit = arb(a.largest) / 16
    for query, keys, values in zip(numbers.query, numbers.key, numbers.value, strict=True):
        x = abs(arb(query[0])) * s + abs(arb(query[1]))
        scores = [abs(arb(k)) * x + abs(arb(c)) for k, c in keys]
        total = sum((abs(arb(own)) * s + abs(arb(v)) for own, v in values), arb(0))
        if not all(score < limit for score in [x, total, *scores]):
            return True
    return not sum((abs(arb(w)) for w in numbers.output), arb(0)) * s < limit


def _near_keys(query: Array, key: Array, cell: Cell, distance: int, a: Arithmetic) -> tuple[int, list[int]]:
    """The winner at the middle, and every key that is not provably `distance` below it on the cell, rounding
    included.

    Leads are affine in s, so their maximum is at an end. `doubt` bounds the float64 rounding of `lead` here
    (at most eight operations), `eta` the score error of the head's own dtype; an infinity or a NaN keeps the
    key."""
    gain, offset = query
    slope, c = key[:, 0], key[:, 1]
    with np.errstate(all="ignore"):
        winner = int(np.argmax(slope * (gain * cell.middle + offset) + c))
        reach = abs(gain) * max(abs(cell.a), abs(cell.b)) + abs(offset)
        size = (np.abs(slope) + abs(slope[winner])) * reach + np.abs(c) + abs(c[winner])
        doubt = 16 * _U64 * size
        eta = 6 * a.unit * (np.abs(slope) * reach + np.abs(c)) + 16 * a.tiny * (1 + np.abs(slope))
        leads = [(slope - slope[winner]) * (gain * s + offset) + (c - c[winner]) for s in (cell.a, cell.b)]
        far = np.maximum(*leads) + doubt + 2 * eta < -(distance + 1)
    far[winner] = False
    return winner, [int(k) for k in np.flatnonzero(~far)]


def _distance(value: Array, cell: Cell) -> int:
    """So far below the winner that what a key could add is below 1e-26, however large its value. Any choice is sound."""
    largest = float(np.abs(value[:, 0]).max() * max(abs(cell.a), abs(cell.b)) + np.abs(value[:, 1]).max())
    return 60 + math.ceil(math.log1p(min(largest, 1e300)))


def _mean_slope(query: Array, key: Array, s: float) -> float:
    """Σ W_k κ_k at s, roughly: any number is sound, this one keeps the series' coefficients small."""
    with np.errstate(all="ignore"):
        z = key[:, 0] * (query[0] * s + query[1]) + key[:, 1]
        w = np.exp(z - z.max())
        mean = float((w * key[:, 0]).sum() / w.sum())
    return mean if np.isfinite(mean) else 0.0


def _range(series: arb_series, last: arb, r: arb, order: int) -> arb:
    spread = sum((abs(series[j]) * r**j for j in range(1, order)), arb(0)) + abs(last) * r**order
    return series[0] + arb(0, spread.upper())


def _far_value(value: Array, near: list[int], cell: Cell) -> arb:
    mask = np.ones(len(value), dtype=bool)
    mask[near] = False
    reach = arb(max(abs(cell.a), abs(cell.b)))
    own, constant = np.abs(value[mask]).max(axis=0)
    return arb(own) * reach + arb(constant)
