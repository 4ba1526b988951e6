"""How the domain of a head is cut for the theorem about its executed error.

Nothing here is part of the proof: a plan that is wrong makes coqc fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from flint import arb
from numpy.typing import NDArray

from attnc.arithmetic import ARITHMETIC
from attnc.functions import Function
from attnc.functions.balls import upper, working
from attnc.records.numbers import HeadNumbers

Wide = NDArray[np.longdouble]
_DEEPEST = 7  # halvings of the domain
_EVEN, _NEAR = 32, 46  # samples of a stretch: evenly spread, and ever closer to its ends
_LEAST_TOP = 2.0**-20
_GONE = 45.0  # a key whose score is this far below the largest has a weight of at most 3e-20
_BITS = 160


@dataclass(frozen=True)
class Turn:
    """A part of a stretch on which one key is the reference: no executed score exceeds its exact one by more than `top`.

    The exponentials are evaluated relative to that of the pivot."""

    lo: float
    hi: float
    reference: int
    pivot: int
    top: float


@dataclass(frozen=True)
class Share:
    """A stretch, and how the bound is divided there: `rounding` for execution, `approximation` for exact arithmetic."""

    lo: float
    hi: float
    rounding: float
    approximation: float
    turns: tuple[Turn, ...]


class RoundingPlan:
    """The rounding bound of AttncRounding.v at points, in floating point, and stretches on which both terms fit the bound."""

    def __init__(self, numbers: HeadNumbers, f: Function | None = None) -> None:
        self.numbers, self.f = numbers, f
        self.gain, self.offset = numbers.query[0]
        self.key, self.value = (np.asarray(x[0], np.longdouble) for x in (numbers.key, numbers.value))
        a = ARITHMETIC[numbers.dtype]
        self.unit, self.exp_error = np.longdouble(a.unit), a.exp_units * np.longdouble(a.unit)
        p = len(self.key)
        roundings = p + a.division_units + (2 if numbers.gated else 0)
        self.factor = (roundings + p) * self.unit * (1 + (roundings + p) * self.unit)

    def shares(self, lo: float, hi: float, bound: float, depth: int = 0) -> list[Share]:
        """Stretches of [lo, hi]; halved until the largest values of both terms fit together about as well as anywhere."""
        s = self._points(lo, hi)
        rounding = self.rounding_at(s)
        error = np.array([self._error(x) for x in s], np.longdouble)
        margin = bound - float(rounding.max() + error.max())
        middle = lo / 2 + hi / 2
        if margin < 0.4 * (bound - float((rounding + error).max())) and depth < _DEEPEST and lo < middle < hi:
            return self.shares(lo, middle, bound, depth + 1) + self.shares(middle, hi, bound, depth + 1)
        part = float(rounding.max()) + max(margin, bound * 1e-9) / 3
        return [Share(lo, hi, part, math.nextafter(bound - part, 0.0), self.turns(lo, hi))]

    def turns(self, lo: float, hi: float) -> tuple[Turn, ...]:
        """[lo, hi], cut where the largest score changes hands, and where a score that falls steeply ceases to matter."""
        return tuple(self._turn(a, b) for a, b in pairwise(self._marks(lo, hi)))

    def _marks(self, lo: float, hi: float) -> list[float]:
        marks = {lo, hi}
        slope = self.key[:, 0] * self.gain
        level = self.key[:, 0] * self.offset + self.key[:, 1]
        for a, b in pairwise([lo, *self._switches(lo, hi), hi]):
            marks |= {a, b}
            winner = int(np.argmax(slope * np.longdouble(a / 2 + b / 2) + level))
            for k in np.flatnonzero(abs(slope - slope[winner]) * (b - a) > 4 * _GONE):
                x = float((level[winner] - _GONE - level[k]) / (slope[k] - slope[winner]))
                marks |= {x} if a < x < b else set()
        return sorted(marks)

    def _turn(self, a: float, b: float) -> Turn:
        s = np.linspace(a, b, 9, dtype=np.longdouble)
        scores, errors = self._scores(s), self._score_errors(s)
        reference = int(np.argmax(scores[:, 4]))
        ahead = np.maximum(scores - scores[reference], 0) + errors
        weight = np.exp(scores - scores.max(axis=0))
        weight /= weight.sum(axis=0)
        own, constant = self.value.T[:, :, None]
        size = abs(own * s + constant) + abs((weight * (own * s + constant)).sum(axis=0))
        slope = self.key[:, 0]
        noise = [float((weight * size * abs(slope - k)[:, None]).sum(axis=0).max()) for k in slope]
        return Turn(
            a, b, reference, int(np.argmin(noise)), _few_bits(max(1.5 * float(ahead.max()), _LEAST_TOP))
        )

    def rounding_at(self, points: Sequence[float]) -> Wide:
        """`spread` of AttncRounding.v, without what underflow adds."""
        s = np.array(points, np.longdouble)
        lead = self._scores(s)
        lead = lead - lead.max(axis=0)
        eta = self._score_errors(s)
        shift = eta + self.unit * (abs(lead) + eta + _LEAST_TOP)
        swing = (shift + 2 * shift**2) * (1 + self.exp_error) + self.exp_error
        weight = np.exp(lead)
        weight /= weight.sum(axis=0)
        own, constant = self.value.T[:, :, None]
        value, size = own * s + constant, abs(own * s) + abs(constant)
        output = (weight * value).sum(axis=0)
        terms = weight * (swing * abs(value - output) + self.factor * (1 + swing) * size)
        result: Wide = terms.sum(axis=0) / (1 - (weight * swing).sum(axis=0))
        return result

    def _scores(self, s: Wide) -> Wide:
        slope, intercept = self.key.T[:, :, None]
        scores: Wide = slope * (self.gain * s + self.offset) + intercept
        return scores

    def _score_errors(self, s: Wide) -> Wide:
        """η, as `affine_error` of AttncRounding.v has it."""
        slope, intercept = self.key.T[:, :, None]
        x, u = self.gain * s + self.offset, self.unit
        entering = (0 if _scales(self.gain) else u) * abs(self.gain * s)
        entering = entering + (0 if self.offset == 0 else u) * (abs(x) + entering)
        entered = abs(slope) * entering
        exact = np.array([_scales(float(k)) for k in slope[:, 0]])[:, None]
        product = entered + np.where(exact, 0, u) * (abs(slope * x) + entered)
        errors: Wide = product + np.where(intercept == 0, 0, u) * (abs(slope * x + intercept) + product)
        return errors

    def _switches(self, lo: float, hi: float) -> list[float]:
        """The corners of the upper envelope of the scores between lo and hi."""
        slope = self.key[:, 0] * self.gain
        level = self.key[:, 0] * self.offset + self.key[:, 1]
        found: list[float] = []
        at = np.longdouble(lo)
        ahead = max(range(len(slope)), key=lambda k: (slope[k] * at + level[k], slope[k]))
        while True:
            later = [k for k in range(len(slope)) if slope[k] > slope[ahead]]
            crossings = [((level[ahead] - level[k]) / (slope[k] - slope[ahead]), -slope[k], k) for k in later]
            if not crossings or min(crossings)[0] >= hi:
                return sorted({x for x in found if lo < x < hi})
            at, _, ahead = min(crossings)
            found.append(float(at))

    def _points(self, lo: float, hi: float) -> list[float]:
        kinks = () if self.f is None else self.f.kinks
        marks = sorted({lo, hi, *(k for k in kinks if lo < k < hi), *self._switches(lo, hi)})
        found: set[float] = set()
        for a, b in pairwise(marks):
            width = b - a
            found |= {a + width * i / _EVEN for i in range(_EVEN)} | {b}
            found |= {x for j in range(6, _NEAR, 2) for x in (a + width * 2.0**-j, b - width * 2.0**-j)}
        return sorted(found)

    def _error(self, s: float) -> float:
        """|exact head - f| at s."""
        if self.f is None:
            return 0.0
        with working(_BITS, 2):
            x = arb(self.gain) * arb(s) + arb(self.offset)
            key, value = self.numbers.key[0], self.numbers.value[0]
            scores = [arb(k) * x + arb(c) for k, c in key]
            top = max(scores, key=lambda z: float(z.mid()))
            weights = [(z - top).exp() for z in scores]
            terms = (w * (arb(o) * arb(s) + arb(c)) for w, (o, c) in zip(weights, value, strict=True))
            return upper(abs(sum(terms, arb(0)) / sum(weights, arb(0)) - self.f.value(s)))


def _scales(k: float) -> bool:
    """Whether k is 0 or a power of two."""
    return abs(math.frexp(k)[0]) in (0.0, 0.5)


def _few_bits(x: float) -> float:
    """A number of eight bits that is at least x.

    >>> _few_bits(0.1) >= 0.1, (_few_bits(0.1) * 2**11).is_integer()
    (True, True)
    """
    mantissa, exponent = math.frexp(x)
    return math.ldexp(math.ceil(mantissa * 256), exponent - 8)
