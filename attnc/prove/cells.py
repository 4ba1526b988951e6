"""One head on one cell [a, b]: its Taylor series around the middle, its range, and its rounding error.

With κ̄ any common slope, g(m + t) = Σ v_k e^{z_k + ρ_k t} / Σ e^{z_k + ρ_k t}, z_k = Z_k(m) - Z_r(m), ρ_k =
gain (κ_k - κ̄): the common factor cancels at every t. Keys whose score is `distance` below the largest on the
whole cell are left out of the series: their weight is at most n e^-distance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_series

from attnc.arithmetic import Arithmetic
from attnc.prove.rounding import Keys, head_rounding, query_error
from attnc.records.numbers import TENSORS, Array, HeadNumbers

_NO_SUBNORMAL = 2.0**-100  # above every τ: covers an s that underflows to zero


@dataclass(frozen=True)
class Cell:
    """[a, b], with a midpoint and a radius that covers both ends."""

    a: float
    b: float

    @property
    def middle(self) -> float:
        return self.a / 2 + self.b / 2

    def radius(self) -> arb:
        m = arb(self.middle)
        return (arb(self.b) - m).max(m - arb(self.a)).upper()

    def ball(self) -> arb:
        return arb(self.middle) + arb(0, self.radius())

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
    value: arb  # the range of g on the cell


def head_on_cell(numbers: HeadNumbers, h: int, cell: Cell, order: int, a: Arithmetic) -> HeadOnCell | None:
    """The Taylor model of head h on the cell, or None if the cell is too wide.

    The working series length must be order + 1.
    """
    key, value, (gain, offset) = numbers.key[h], numbers.value[h], map(arb, numbers.query[h])
    distance = _distance(value, cell)
    winner, near = _near_keys(numbers.query[h], key, cell, distance, a)
    stored = np.concatenate([key, value], axis=1)[near]
    slope, intercept, own, constant = ([arb(x) for x in column] for column in stored.T)
    top_slope, top_intercept = map(arb, key[winner])
    rises = [(k - top_slope, c - top_intercept) for k, c in zip(slope, intercept, strict=True)]
    x_point, x = gain * arb(cell.middle) + offset, gain * cell.ball() + offset
    mean_slope = arb(_mean_slope(numbers.query[h], key, cell.middle))
    exponents = [(k * x_point + c, gain * (s - mean_slope)) for (k, c), s in zip(rises, slope, strict=True)]
    models = _quotients(cell, exponents, own, constant)
    if models is None:
        return None
    series, over_cell, weight = models
    value_range = _range(series, over_cell[order], cell.radius(), order)
    far_keys = len(key) - len(near)
    far_value = _far_value(value, near, cell) if far_keys else arb(0)
    far = far_keys * (-arb(distance)).exp() * (far_value + abs(value_range))
    score = [k * x + c for k, c in zip(slope, intercept, strict=True)]
    lead = [k * x + c for k, c in rises]
    keys = Keys(slope, intercept, score, lead, weight, own, constant, len(key), far_keys, far_value, distance)
    return HeadOnCell(series, over_cell[order], far, keys, value_range + arb(0, far.upper()))


def _quotients(
    cell: Cell, exponents: list[tuple[arb, arb]], own: list[arb], constant: list[arb]
) -> tuple[arb_series, arb_series, list[arb]] | None:
    """Σ v_k e^{z_k + ρ_k t} / Σ e^{z_k + ρ_k t} around the middle and around every point of the cell, and W_k over the cell."""
    s_point, s_cell = arb_series([arb(cell.middle), 1]), arb_series([cell.ball(), 1])
    t = arb(0, cell.radius())
    if len(own) == 1:
        return own[0] * s_point + constant[0], own[0] * s_cell + constant[0], [arb(1)]
    above = below = above_cell = below_cell = arb_series([0])
    exponentials = []
    for (lead, rate), o, c in zip(exponents, own, constant, strict=True):
        e, e_cell = arb_series([lead, rate]).exp(), arb_series([lead + rate * t, rate]).exp()
        below, below_cell = below + e, below_cell + e_cell
        above += e * c if o == 0 else e * (o * s_point + c)
        above_cell += e_cell * c if o == 0 else e_cell * (o * s_cell + c)
        exponentials.append(e_cell[0])
    if not (below[0] > 0 and below_cell[0] > 0):
        return None
    return above / below, above_cell / below_cell, [e / below_cell[0] for e in exponentials]


def rounding_on_cell(numbers: HeadNumbers, h: int, cell: Cell, model: HeadOnCell, a: Arithmetic) -> arb:
    """The rounding error of head h on the cell."""
    (gain, offset), s = map(arb, numbers.query[h]), cell.ball()
    return head_rounding(a, model.keys, s, gain * s + offset, query_error(a, s, gain, offset), model.value)


def leaves_the_range(numbers: HeadNumbers, lo: float, hi: float, a: Arithmetic) -> bool:
    """Whether a score or a sum might overflow on [lo, hi], or a stored number is subnormal: no bound is proved then.

    (A processor that replaces subnormal operands by zero errs by more than τ once they are multiplied.)
    """
    s, limit, outer = arb(max(abs(lo), abs(hi))), arb(a.largest) / 16, arb(0)
    for query, keys, values, w in zip(numbers.query, numbers.key, numbers.value, numbers.output, strict=True):
        x = abs(arb(query[0])) * s + abs(arb(query[1]))
        scores = [abs(arb(k)) * x + abs(arb(c)) for k, c in keys]
        total = sum((abs(arb(own)) * s + abs(arb(v)) for own, v in values), arb(0))
        outer += abs(arb(w)) * total
        if not all(size < limit for size in [x, total, outer, *scores]):
            return True
    stored = [np.abs(getattr(numbers, name)) for name in TENSORS]
    return any(((x > 0) & (x < a.tiny)).any() for x in stored)


def _near_keys(query: Array, key: Array, cell: Cell, distance: int, a: Arithmetic) -> tuple[int, list[int]]:
    """The key with the largest score at the middle, and every key that is not provably `distance` below it on the cell.

    Leads are affine in s, so their maximum is at an end. `doubt` bounds the float64 rounding of `lead` here (at most eight
    operations), `eta` the score error of the head's own dtype; keys with an infinity or a NaN are kept."""
    gain, offset = query
    slope, c = key[:, 0], key[:, 1]
    with np.errstate(all="ignore"):
        winner = int(np.argmax(slope * (gain * cell.middle + offset) + c))
        reach = abs(gain) * max(abs(cell.a), abs(cell.b)) + abs(offset)
        size = (np.abs(slope) + abs(slope[winner])) * reach + np.abs(c) + abs(c[winner])
        doubt = 16 * 2.0**-53 * size
        eta = 6 * a.unit * (np.abs(slope) * reach + np.abs(c)) + 16 * a.tiny * (1 + np.abs(slope))
        leads = [(slope - slope[winner]) * (gain * s + offset) + (c - c[winner]) for s in (cell.a, cell.b)]
        far = np.maximum(*leads) + doubt + 2 * eta < -(distance + 1)
    far[winner] = False
    return winner, [int(k) for k in np.flatnonzero(~far)]


def _distance(value: Array, cell: Cell) -> int:
    """A distance below the largest score such that a key contributes less than 1e-26. Any choice is sound."""
    largest = float(np.abs(value[:, 0]).max() * max(abs(cell.a), abs(cell.b)) + np.abs(value[:, 1]).max())
    return 60 + math.ceil(math.log1p(min(largest, 1e300)))


def _mean_slope(query: Array, key: Array, s: float) -> float:
    """Approximately Σ W_k κ_k at s: any number is sound, and this one keeps the coefficients of the series small."""
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
    reach = arb(max(abs(cell.a), abs(cell.b), _NO_SUBNORMAL))
    own, constant = np.abs(value[mask]).max(axis=0)
    return arb(own) * reach + arb(constant)
