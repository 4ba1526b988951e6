"""The bound of a lookup, in ball arithmetic: the constant of the lattice is derived from cells, not from a formula.

In units of Δ let x be d from its nearest point and t = 1 - 2d;
where both neighbours are there, Σ_k W_k (x - L_k)² is at most

    (d² + (1-d)²E + Σ_j (j+d)² e^{-c(j²+2jd)} + E Σ_j (j+1-d)² e^{-c(j²+2j(1-d))}) / (1 + E),    E = e^{-ct},

and beyond the first or the last point d² + Σ_j (j+d)² e^{-c(j²+2jd)}."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from attnc.arithmetic import Arithmetic
from attnc.check.values import CheckError, Errors, Passing, TracedErrors, Value, floats, long
from attnc.functions.balls import ball, lower, upper, working
from attnc.program import Lookup, Traced
from attnc.records.layers import Layer

Balls = list[arb]
CELLS, NEAR, PRECISION = 8192, 4, 96
_CHUNK = 1 << 22  # numbers held at once


@dataclass(frozen=True)
class _Axis:
    points: list[float]
    step: arb
    sharpness: arb

    @property
    def places(self) -> Balls:
        return [arb(self.points[0]) + k * self.step for k in range(len(self.points))]


def bound(at: Passing) -> Value:
    (x,), step = at.inputs, at.step
    if isinstance(step, Traced):
        return _traced(x, at.errors)
    if not isinstance(step, Lookup) or x.error.any():
        raise CheckError("nothing is known of the function, or its inputs have an error")
    with working(PRECISION):
        ends = (end.ravel().tolist() for end in floats(x.lo, x.hi))
        given = [ball(*pair) for pair in zip(*ends, strict=True)]
        exact, errors, approximation = bounds(step, at.layer, given, at.arithmetic)
        lo, hi = (long([[end(b) for b in exact]]) for end in (lower, upper))
        error = long([[upper(e) for e in errors]])
    return Value.of(lo, hi, error, np.full_like(error, upper(approximation)))


def _traced(x: Value, errors: Errors) -> Value:
    """What was proved of a lattice network for a traced function, if its inputs are in the box of the proof."""
    if not isinstance(errors, TracedErrors) or x.error.any():
        raise CheckError("nothing is proved of the function, or its inputs have an error")
    if not ((long(errors.low) <= x.lo).all() and (x.hi <= long(errors.high)).all()):
        raise CheckError("its inputs may be outside the box for which it is proved")
    error, approximation = (
        np.full((1, len(errors.least)), np.longdouble(e)) for e in (errors.executed, errors.approximation)
    )
    return Value.of(long(errors.least)[None], long(errors.most)[None], error, approximation)


def bounds(step: Lookup, layer: Layer, x: Balls, a: Arithmetic) -> tuple[Balls, Balls, arb]:
    """For inputs in the balls x, of the outputs: f, |executed - f|, and what of it exact arithmetic would leave.

    Raises `CheckError` where nothing is proved. Within `working`."""
    axes = _axes(step.points.astype(np.float64), layer.tensors["key"].astype(np.float64))
    empty = contradiction(step)
    if empty is not None:
        raise CheckError(empty)
    spread = sum((_spread(axis, s) for axis, s in zip(axes, x, strict=True)), arb(0))
    uneven = sum((_farthest(axis.points, axis.places) ** 2 for axis in axes), arb(0)).sqrt()
    off = arb(step.lipschitz) * (spread.sqrt() + uneven)
    centre, values = layer.tensors["centre"], layer.tensors["values"]
    reach = [abs(s - arb(float(o))).upper() for s, o in zip(x, centre, strict=True)]
    residue, score, passing = _scores(layer, axes, reach, a)
    if not (score < 1 and passing < a.largest and float(np.abs(values).max()) < a.largest):
        raise CheckError("its scores are too large for the dtype")
    return _executed(step, layer, off.upper(), residue, score, reach, a)


def contradiction(step: Lookup) -> str | None:
    """None if there is a function with these values and this constant: |v_k - v_l| <= K|g_k - g_l| + 2·noise for every pair.

    McShane: the lower envelope is one. Pairs are compared in float64 with room for its rounding; those that are too close to call
    are compared in balls."""
    points, values = step.points.astype(np.float64), step.values.astype(np.float64)
    rows = max(1, _CHUNK // (len(points) * (points.shape[1] + values.shape[1])))
    noise, room = 2 * step.noise * (1 - 2.0**-50), 1 - 2.0**-44
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(points), rows):
            here, there = slice(start, start + rows), slice(start, None)
            apart = np.sqrt(np.square(points[here, None] - points[None, there]).sum(-1))
            change = np.abs(values[here, None] - values[None, there]).max(-1)
            unclear = np.argwhere(~(change <= (step.lipschitz * apart + noise) * room))
            for i, j in unclear + start:
                if i != j and not _consistent(step, int(i), int(j)):
                    return f"no function has its values and its Lipschitz constant: points {i} and {j} contradict it"
    return None


def _consistent(step: Lookup, i: int, j: int) -> bool:
    apart = arb(0)
    for p, q in zip(step.points[i].tolist(), step.points[j].tolist(), strict=True):
        apart = apart + (arb(p) - arb(q)) ** 2
    reach = arb(step.lipschitz) * apart.sqrt() + 2 * arb(step.noise)
    pairs = zip(step.values[i].tolist(), step.values[j].tolist(), strict=True)
    return all(abs(arb(v) - arb(w)) <= reach for v, w in pairs)


def _axes(points: np.ndarray, key: np.ndarray) -> list[_Axis]:
    columns = [sorted(set(column)) for column in points.T.tolist()]
    lattice = zip(map(tuple, points.tolist()), itertools.product(*columns), strict=False)
    if math.prod(map(len, columns)) != len(points) or any(row != wanted for row, wanted in lattice):
        raise CheckError("its points are not a lattice")
    made = []
    for j, column in enumerate(columns):
        if len(column) == 1:
            made.append(_Axis(column, arb(0), arb(0)))
            continue
        width = arb(column[-1]) - arb(column[0])
        rise = arb(float(key[-1, j])) - arb(float(key[0, j]))
        made.append(_Axis(column, width / (len(column) - 1), rise / (2 * width)))
    return made


def _spread(axis: _Axis, x: arb) -> arb:
    """At least Σ_k W_k (x - L_k)² over the ball x; raises `CheckError` where the lattice is too soft."""
    first, last = axis.places[0], axis.places[-1]
    if len(axis.points) == 1:
        return (abs(x - first).upper() ** 2).upper()
    c = axis.sharpness * axis.step**2
    if not c > 1:
        raise CheckError("its scores are not sharp enough to select a point")
    beyond = max(0.0, upper((first - x) / axis.step), upper((x - last) / axis.step))
    worst = 0.0
    for cell in range(CELLS):
        t = (arb(2 * cell + 1) + arb(0, 1)) / (2 * CELLS)
        d, e = (1 - t) / 2, (-c * t).exp()
        inner = (d**2 + _behind(d, c) + e * ((1 - d) ** 2 + _behind(1 - d, c))) / (1 + e)
        worst = max(worst, upper(inner))
    reach, steps = arb(max(0.5, beyond)), 512
    for cell in range(steps):
        d = reach * (arb(2 * cell + 1) + arb(0, 1)) / (2 * steps)
        worst = max(worst, upper(d.upper() ** 2 + _behind(d, c)))
    return (arb(worst) * axis.step**2).upper()


def _farthest(numbers: list[float], balls: Balls) -> arb:
    """At least every |number - ball|."""
    worst = arb(0)
    for x, y in zip(numbers, balls, strict=True):
        worst = worst.max(abs(arb(x) - y).upper())
    return worst


def _behind(d: arb, c: arb) -> arb:
    """Σ_{j>=1} (j + d)² e^{-c(j² + 2jd)} for c > 1: a few terms, and behind them each is less than half of the one before."""
    terms = [(j + d) ** 2 * (-c * (j * j + 2 * j * d)).exp() for j in range(1, NEAR + 1)]
    return sum(terms, arb(0)) + arb(upper(2 * terms[-1]))


def _scores(layer: Layer, axes: list[_Axis], reach: Balls, a: Arithmetic) -> tuple[arb, arb, arb]:
    """The largest residue of the stored scores, residue and rounding together, and what passes through a sum.

    `reach` is at least |x - o|; a score passes m + 1 roundings, and one for x - o."""
    slopes, downs = [], []
    for axis, centre in zip(axes, layer.tensors["centre"].tolist(), strict=True):
        origin = axis.places[0] - arb(float(centre))
        gone = [place - axis.places[0] for place in axis.places]
        slopes.append([2 * axis.sharpness * g for g in gone])
        downs.append([axis.sharpness * g * (2 * origin + g) for g in gone])
    m, tau = len(axes), arb(a.tiny)
    gamma = (m + 2) * arb(a.unit) / (1 - (m + 2) * arb(a.unit))
    entering = sum(reach, arb(0))
    residue = score = passing = arb(0)
    keys, offsets = (layer.tensors[name].astype(np.float64).tolist() for name in ("key", "offset"))
    lowest = [arb(k) for k in keys[0]]
    index = itertools.product(*(range(len(axis.points)) for axis in axes))
    for key, offset, place in zip(keys, offsets, index, strict=True):
        own, through, size = arb(0), abs(arb(offset)), arb(0)
        height = arb(offset) - arb(offsets[0])
        for j, (kappa, i) in enumerate(zip(key, place, strict=True)):
            stored = arb(kappa)
            own = own + abs(stored - lowest[j] - slopes[j][i]) * reach[j]
            height = height + downs[j][i]
            through, size = through + abs(stored) * reach[j], size + abs(stored)
        own = (own + abs(height)).upper()
        rounded = gamma * through + 4 * tau * (entering + size + 3 * (m + 2))
        residue, score = residue.max(own), score.max((own + rounded).upper())
        passing = passing.max(through.upper())
    return residue, score, passing


def _executed(
    step: Lookup, layer: Layer, off: arb, residue: arb, score: arb, reach: Balls, a: Arithmetic
) -> tuple[Balls, Balls, arb]:
    k, u, tau = len(layer.tensors["offset"]), arb(a.unit), arb(a.tiny)
    if not k * u < arb(0.25):
        raise CheckError("it has too many anchors for the dtype")
    gamma = [n * u / (1 - n * u) for n in (k, k + 1)]
    swing = (u * ((-tau.log()).upper() + 20)).exp()  # beyond that distance exp is below τ, with room
    unsure = arb(a.exp_units) * u
    divided = (1 + u) ** a.division_units / (1 - gamma[0])
    factor = divided * swing**2 * (1 + unsure) / ((1 - unsure) - 4 * k * tau * swing) * (2 * score).exp()
    sum_off = divided - 1 + 8 * k * tau
    far = arb(0)
    for column, o, r in zip(step.points.T, layer.tensors["centre"].tolist(), reach, strict=True):
        ends = [abs(arb(float(end)) - arb(float(o))) for end in (column.min(), column.max())]
        far = far + (ends[0].max(ends[1]) + r) ** 2
    far = far.sqrt()
    apart = arb(step.noise) + off
    exact, error = [], []
    for known, stored in zip(step.values.T.tolist(), layer.tensors["values"].T.tolist(), strict=True):
        moved = _farthest(known, [arb(w) for w in stored])
        low, high = arb(min(known)) - apart, arb(max(known)) + apart
        size, largest = max(upper(abs(low)), upper(abs(high))), max(map(abs, stored))
        flushed = 8 * tau * k * (moved + arb(step.noise) + arb(step.lipschitz) * far + largest + 8)
        total = factor * (moved + apart) + sum_off * size + gamma[1] * (1 + sum_off) * largest + flushed
        error.append(total.upper() if total.is_finite() else arb("inf"))
        exact.append(low.union(high))
    return exact, error, ((2 * residue).exp() * apart).upper()
