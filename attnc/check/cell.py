"""The error of a head on one cell.

    g - f = Σ_h o_h (Σ_k (v_k - f) E_k)/(Σ_k E_k) + (Σ_h o_h - 1) f,   E_k = exp(score_k - score of the key that wins at m)

as a power series around the middle m of the cell, its last coefficient over the whole cell.

A head is inactive on a cell if a key with value 0 wins by so much that no other counts. Then its contribution is within a bound
of 0, also on every part of the cell: of many heads that share a range, few are active anywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_series

from attnc.arithmetic import Arithmetic
from attnc.domain import Interval
from attnc.errors import AttncError
from attnc.functions.function import Branch
from attnc.records.numbers import Array, HeadNumbers

ORDER = 8
Series = tuple[arb_series, arb_series]  # around the centre of the cell, and around all its points


@dataclass(frozen=True)
class ActiveHeads:
    """The heads that may be active on a cell, and what the others add at most: to the exact sum, and to the rounding error."""

    heads: tuple[int, ...]
    size: arb
    rounding: arb


def all_active(numbers: HeadNumbers) -> ActiveHeads:
    return ActiveHeads(tuple(range(numbers.heads)), arb(0), arb(0))


def still_active(
    numbers: HeadNumbers, lo: float, hi: float, before: ActiveHeads, a: Arithmetic
) -> ActiveHeads:
    """Those of the heads before that are active on [lo, hi], a part of the cell on which the others were inactive."""
    if numbers.heads == 1:
        return before
    centre, half = _middle(lo, hi)
    zero, s = (arb_series([0]), arb_series([0])), centre + arb(0, half)
    growth = (1 + arb(a.unit)) ** numbers.heads
    heads, size, rounding = [], before.size, before.rounding
    for h in before.heads:
        drop = _drop_distance(numbers.value[h], centre)
        kept, _, top = _kept(numbers, h, float(centre), float(half.upper()), drop, a)
        if kept != [top] or numbers.value[h, top].any():
            heads.append(h)
            continue
        part, weight = _HeadCell(numbers, h, centre, half, zero, a), abs(arb(numbers.output[h]))
        largest = abs(part.output).upper()
        size = size + weight * largest
        rounding = rounding + weight * (growth * part.rounding(s) + (growth - 1) * largest)
    return ActiveHeads(tuple(heads), size, rounding)


def _middle(lo: float, hi: float) -> tuple[arb, arb]:
    centre = arb(lo / 2 + hi / 2)
    return centre, (arb(hi) - centre).max(centre - arb(lo)).upper()


def cell_error(
    numbers: HeadNumbers, lo: float, hi: float, branch: Branch, a: Arithmetic, active: ActiveHeads
) -> tuple[arb, arb] | None:
    """Upper bounds on [lo, hi] of |exact - f| and of |executed - exact|; None where the cell is too wide to say."""
    centre, half = _middle(lo, hi)
    s = centre + arb(0, half)
    try:
        f_point, f_cell = branch(arb_series([centre, 1])), branch(arb_series([s, 1]))
        if not all(f_cell[j].is_finite() for j in range(1, ORDER + 1)):  # f is known by its range alone
            f_point = f_cell = arb_series([f_cell[0]])  # any constant of that range, f(s) among them
        parts = [_HeadCell(numbers, h, centre, half, (f_point, f_cell), a) for h in active.heads]
    except AttncError:
        raise
    except (ValueError, ZeroDivisionError):
        return None
    weights = [arb(numbers.output[h]) for h in active.heads]
    surplus = sum(weights, arb(-1))
    point, last, dropped = surplus * f_point, surplus * f_cell[ORDER], active.size
    for w, part in zip(weights, parts, strict=True):
        point, last = point + w * part.point, last + w * part.cell[ORDER]
        dropped = dropped + abs(w) * part.dropped_error
    taylor = sum((abs(point[j]) * half**j for j in range(ORDER)), abs(last) * half**ORDER) + dropped
    rounding = _summed(numbers.heads, weights, parts, s, a) + active.rounding
    if not (taylor.is_finite() and rounding.is_finite()):
        return None
    return taylor.upper(), rounding.upper()


def _summed(heads: int, weights: list[arb], parts: list[_HeadCell], s: arb, a: Arithmetic) -> arb:
    """The rounding error of Σ_h o_h y_h over all heads, from the active ones."""
    if heads == 1 and weights[0] == 1:
        return parts[0].rounding(s)
    growth = (1 + arb(a.unit)) ** heads
    total = 6 * arb(a.tiny) * sum((abs(w) for w in weights), arb(heads))
    for w, part in zip(weights, parts, strict=True):
        total += abs(w) * (growth * part.rounding(s) + (growth - 1) * abs(part.output))
    return total


class _HeadCell:
    """One head on one cell: the series of Σ(v_k - f)E_k/ΣE_k at the centre and over the cell, and the head's
    rounding error."""

    def __init__(
        self, numbers: HeadNumbers, h: int, centre: arb, half: arb, f: Series, a: Arithmetic
    ) -> None:
        f_point, f_cell = f
        self.a, self.p = a, numbers.anchors_per_head
        self.gain, self.offset = arb(numbers.query[h, 0]), arb(numbers.query[h, 1])
        self.value = numbers.value[h]
        self.drop = _drop_distance(self.value, centre)
        kept, self.dropped, top = _kept(numbers, h, float(centre), float(half.upper()), self.drop, a)
        self.dropped_value = arb(0)
        if self.dropped:
            own, constant = np.abs(np.delete(self.value, kept, axis=0)).max(axis=0)
            reach = abs(centre) + half + arb(2) ** -100
            self.dropped_value = (arb(own) * reach + arb(constant)).upper()
        key = numbers.key[h]
        self.slopes, self.intercepts = ([arb(x) for x in column] for column in key[kept].T)
        self.own, self.constant = ([arb(x) for x in column] for column in self.value[kept].T)
        self.x, self.spread = self.gain * centre + self.offset, arb(0, half)
        lead_slope, lead_intercept = arb(key[top, 0]), arb(key[top, 1])
        stored = zip(self.slopes, self.intercepts, strict=True)
        self.leads = [(k - lead_slope) * self.x + (c - lead_intercept) for k, c in stored]
        self.lead_slopes = [(k - lead_slope) * self.gain for k in self.slopes]
        weights = np.exp(np.minimum([float(lead.mid()) for lead in self.leads], 0.0))
        shift = float(np.average([float(b.mid()) for b in self.lead_slopes], weights=weights))
        tilted = [b - arb(shift if math.isfinite(shift) else 0.0) for b in self.lead_slopes]
        self.point, _ = self._quotient(centre, arb(0), tilted, f_point)
        self.cell, self.exponentials = self._quotient(centre, self.spread, tilted, f_cell)
        gap, f_range = _range(self.point, self.cell, half), _range(f_point, f_cell, half)
        largest = self.dropped_value + abs(gap) + abs(f_range)
        self.dropped_error = self.dropped * (-arb(self.drop)).exp() * largest
        self.output = gap + f_range + arb(0, self.dropped_error.upper())

    def _quotient(
        self, centre: arb, t: arb, tilted: list[arb], f: arb_series
    ) -> tuple[arb_series, list[arb]]:
        s = arb_series([centre + t, 1])
        above, below, constants = arb_series([0]), arb_series([0]), []
        for lead, b, own, constant in zip(self.leads, tilted, self.own, self.constant, strict=True):
            e = arb_series([lead + b * t, b]).exp()
            above, below = above + (own * s + constant - f) * e, below + e
            constants.append(e[0])
        if not below[0] > 0:
            raise ValueError("the cell is too wide")
        return above / below, constants

    def rounding(self, s: arb) -> arb:
        """|executed - exact| of this head, as docs/arithmetic.md derives it."""
        u, tau, units = arb(self.a.unit), arb(self.a.tiny), self.a.exp_units
        product = abs(self.gain * s) * (0 if self.gain == 1 else u)
        off_offset = (0 if self.offset == 0 else u) * (abs(self.gain * s + self.offset) + product + tau)
        off_x = product + off_offset + 6 * (1 + abs(self.gain)) * tau
        x = self.x + self.gain * self.spread
        leads = [lead + b * self.spread for lead, b in zip(self.leads, self.lead_slopes, strict=True)]
        etas = []
        for k, c in zip(self.slopes, self.intercepts, strict=True):
            mantissa, _ = k.mid().man_exp()
            off_product = arb(0) if abs(int(mantissa)) < 2 else u  # 0 and powers of two scale exactly
            off_sum = arb(0) if c == 0 else u
            after_product = abs(k) * off_x * (1 + off_product) + off_product * abs(k * x) + 3 * tau
            etas.append((after_product * (1 + off_sum) + off_sum * abs(k * x + c) + 3 * tau).upper())
        highest = arb(0)
        for lead, eta in zip(leads, etas, strict=True):
            highest = highest.max(eta).max((lead + eta).upper())
        flushed = 4 * tau * highest.exp()  # what an exponential may be off absolutely
        denominator = sum(self.exponentials, arb(0))
        moved, lost, mass, sizes = arb(0), arb(0), arb(0), arb(0)
        rows = zip(leads, etas, self.exponentials, self.own, self.constant, strict=True)
        for lead, eta, e, own, constant in rows:
            weight = e / denominator
            factor = (eta + u * (abs(lead) + eta + highest) + 3 * tau).exp() * (1 + units * u) - 1
            change, size = weight * factor + flushed, abs(own * s) + abs(constant)
            moved += change * abs(own * s + constant - self.output)
            lost += change
            mass += (weight + change) * size
            sizes += size
        weight_dropped = (u * highest - arb(self.drop) * (1 - 2 * u)).exp() * (1 + units * u)
        dropped = self.dropped * (weight_dropped + flushed)
        moved += dropped * (self.dropped_value + abs(self.output))
        mass += (dropped + self.dropped * (-arb(self.drop)).exp()) * self.dropped_value
        left = 1 - lost - dropped
        if not (left > 0 and self.p * u < 1):
            return arb("inf")
        turns = self.p + self.a.division_units + (2 if self.value[:, 0].any() else 0)
        growth = (1 + u) ** turns / (1 - self.p * u) - 1
        own_sizes = arb(float(np.abs(self.value[:, 0]).sum()))
        underflow = 5 * tau * (sizes + 2 * own_sizes + self.dropped * self.dropped_value + self.p + 1)
        return ((moved + growth * mass) / left + underflow).upper()


def _drop_distance(value: Array, centre: arb) -> int:
    """How far below the winner a key has to be for its weight not to count."""
    largest = float(np.abs(value).max()) * (1 + abs(float(centre)))
    return 90 + math.ceil(math.log1p(min(1e300, largest)))


def _kept(
    numbers: HeadNumbers, h: int, centre: float, half: float, drop_distance: int, a: Arithmetic
) -> tuple[list[int], int, int]:
    """Keys that may come within the distance of the winner on the cell, how many do not, and the winner.

    Leads are affine, so |lead(s) - lead(centre)| <= |slope difference|·half; every float64 operation here
    errs by 2^-53 relative to `size`, of which 64 are allowed for. Twice the score error in the head's dtype
    is kept in reserve."""
    gain, offset = numbers.query[h]
    slope, intercept = numbers.key[h].T
    with np.errstate(all="ignore"):
        top = int(np.argmax(slope * (gain * centre + offset) + intercept))
        far_x = abs(gain) * (abs(centre) + half) + abs(offset)
        size = (np.abs(slope) + abs(slope[top])) * far_x + np.abs(intercept) + abs(intercept[top])
        lead = (slope - slope[top]) * (gain * centre + offset) + (intercept - intercept[top])
        lead = lead + np.abs(slope - slope[top]) * abs(gain) * half * 1.0000001
        eta = 8 * a.unit * (np.abs(slope) * far_x + np.abs(intercept)) + 32 * a.tiny * (1 + np.abs(slope))
        drop = lead + 64 * 2.0**-53 * size + 2 * eta < -(drop_distance + 1)
    drop[top] = False
    kept = [int(k) for k in np.flatnonzero(~drop)]
    return kept, len(slope) - len(kept), top


def _range(point: arb_series, cell: arb_series, half: arb) -> arb:
    """Every value on the cell, from the series around its centre."""
    spread = sum((abs(point[j]) * half**j for j in range(1, ORDER)), abs(cell[ORDER]) * half**ORDER)
    return point[0] + arb(0, spread.upper())


def in_range(numbers: HeadNumbers, domain: Interval, a: Arithmetic) -> bool:
    """Whether no score and no sum can overflow on the domain, and no stored number is subnormal."""
    s, limit = arb(max(abs(domain.lo), abs(domain.hi))), arb(a.largest) / 16
    together = arb(0)
    for h in range(numbers.heads):
        x = abs(arb(numbers.query[h, 0])) * s + abs(arb(numbers.query[h, 1]))
        size = sum((abs(arb(own)) * s + abs(arb(c)) for own, c in numbers.value[h]), arb(0))
        together += abs(arb(numbers.output[h])) * size
        if not (x < limit and size < limit and together < limit):
            return False
        if not all(abs(arb(k)) * x + abs(arb(c)) < limit for k, c in numbers.key[h]):
            return False
    flat = np.concatenate([numbers.query.ravel(), numbers.key.ravel(), numbers.value.ravel(), numbers.output])
    return not ((flat != 0) & (np.abs(flat) < a.tiny)).any()
