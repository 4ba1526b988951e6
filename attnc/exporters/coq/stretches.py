"""How the domain of a head is cut for the proof: stretches on which one tactic call suffices.

Nothing here is part of the proof. A stretch that is planned badly makes coqc slow, or makes it fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from flint import arb, fmpq

from attnc.functions import Function
from attnc.functions.balls import upper, working
from attnc.records.numbers import HeadNumbers

_LEAD = 6.0  # how far the score of an anchor may exceed that of the reference
_SAMPLES = 24  # points of a stretch at which its error is sampled, besides those near its ends
_BITS = 160  # of the samples
_NOISE = 32.0  # interval arithmetic errs by at most this many times what an execution may err by
_NATIVE = 53
_FEW = 8  # anchors that are worth no further cut
_CUTS = 6  # of one stretch, where anchors fade


@dataclass(frozen=True)
class Line:
    """The score of an anchor as a function of s, and its value."""

    slope: Fraction
    offset: Fraction
    gate: Fraction
    value: Fraction

    def at(self, s: Fraction) -> Fraction:
        return self.slope * s + self.offset


@dataclass(frozen=True)
class Part:
    """One head on one stretch: the reference, the anchors that are kept, the centre, and how far below 0 the others are."""

    reference: int
    kept: tuple[int, ...]
    anchors: int
    centre: float
    gap: int


@dataclass(frozen=True)
class Stretch:
    """An interval, how each head is written on it, and what the tactic needs."""

    lo: float
    hi: float
    branch: int  # of f
    parts: tuple[Part, ...]
    allowed: float  # what the kept anchors may err by
    precision: int  # bits; 53: machine floats
    depth: int
    error: float  # sampled

    @property
    def middle(self) -> float:
        return self.lo / 2 + self.hi / 2

    @property
    def centre(self) -> float:
        return self.parts[0].centre


def lines_of(numbers: HeadNumbers) -> list[list[Line]]:
    """The scores as functions of s, exactly: for each head, for each anchor."""
    found = []
    for query, key, value in zip(numbers.query, numbers.key, numbers.value, strict=True):
        a, b = map(Fraction, query.tolist())
        rows = [tuple(map(Fraction, (*k, *v))) for k, v in zip(key.tolist(), value.tolist(), strict=True)]
        found.append([Line(k0 * a, k0 * b + k1, v0, v1) for k0, k1, v0, v1 in rows])
    return found


class Planner:
    """Cuts the domain: at the kinks of f, at `cuts`, and where no anchor can be the reference of what lies on both sides."""

    def __init__(self, numbers: HeadNumbers, f: Function, eps: float, cuts: Sequence[float] = ()) -> None:
        self.heads = lines_of(numbers)
        self.outputs = [Fraction(o) for o in numbers.output.tolist()]
        self.f, self.eps, self.cuts = f, eps, cuts

    def stretches(self, lo: float, hi: float) -> list[Stretch]:
        """The plan for [lo, hi]."""
        kinks = [k for k in self.f.kinks if lo < k < hi]
        between = [a / 2 + b / 2 for a, b in pairwise(kinks)]  # so that each stretch has one sharp end
        marks = sorted({lo, hi, *kinks, *between, *(c for c in self.cuts if lo < c < hi)})
        found = []
        with working(_BITS, 2):
            for a, b in pairwise(marks):
                for c, d in pairwise(self._referable(a, b)):
                    found += self._fewer(c, d)
        return found

    def _referable(self, a: float, b: float) -> list[float]:
        """Cuts of [a, b]: between two of them each head has a reference."""
        switches = {a, b}
        for lines in self.heads:
            switches |= {_short(x, a, b) for x in _switches(lines, Fraction(a), Fraction(b)) if a < x < b}
        marks = sorted(switches)
        cuts, start = [a], 0
        for i in range(1, len(marks)):
            last = i + 1 == len(marks)
            if last or not self._has_references(marks[start], marks[i + 1]):
                cuts.append(marks[i])
                start = i
        return cuts

    def _has_references(self, a: float, b: float) -> bool:
        return all(_reference(lines, a, b)[1] <= _LEAD for lines in self.heads)

    def _fewer(self, a: float, b: float, cuts: int = _CUTS) -> list[Stretch]:
        """[a, b] as one stretch, or as several that need fewer anchors."""
        whole = self._stretch(a, b)
        x = self._fading(whole) if cuts else None
        if x is not None:
            return self._fewer(a, x, cuts - 1) + self._fewer(x, b, cuts - 1)
        middle = a / 2 + b / 2
        count = _cost(whole)
        if not a < middle < b or count <= _FEW * len(self.heads):
            return [whole]
        halves = [self._stretch(a, middle), self._stretch(middle, b)]
        if sum(map(_cost, halves)) <= 1.4 * count:
            return self._fewer(a, middle, cuts) + self._fewer(middle, b, cuts)
        return [whole]

    def _fading(self, stretch: Stretch) -> float | None:
        """Where an anchor fades that matters near one end of the stretch only: on less than half of it."""
        a, b = stretch.lo, stretch.hi
        found = []
        for lines, part in zip(self.heads, stretch.parts, strict=True):
            r = lines[part.reference]
            for k in part.kept:
                slope, offset = lines[k].slope - r.slope, lines[k].offset - r.offset
                if slope == 0:
                    continue
                x = float(
                    (-part.gap - 2 - offset) / slope
                )  # its score is far enough below that of the reference
                active = (b - x if slope > 0 else x - a) / (b - a)
                if a < x < b and active < 0.5:
                    found.append((active, x))
        return min(found)[1] if found else None

    def _stretch(self, a: float, b: float) -> Stretch:
        references = [_reference(lines, a, b)[0] for lines in self.heads]
        points = _points(a, b)
        error = max(self._error(s) for s in points)
        margin = max(self.eps - error, self.eps * 1e-6)
        share = margin / 16 / len(self.heads)
        found = [self._part(i, r, a, b, share) for i, r in enumerate(references)]
        dropped = any(len(part.kept) < part.anchors for part in found)
        allowed = self.eps - margin / 8 if dropped else self.eps
        centre, noise = self._centre(found, points, a, b)
        parts = [replace(part, centre=centre) for part in found]
        bits = _NATIVE + math.log2(max(_NOISE * noise / (margin / 4), 2.0**-40))
        precision = _NATIVE if bits <= _NATIVE else max(60, math.ceil(bits) + 4)
        steep = max(
            abs(float(lines[k].slope - lines[p.reference].slope)) * (b - a)
            for lines, p in zip(self.heads, parts, strict=True)
            for k in p.kept
        )
        depth = min(60, max(15, 12 + math.ceil(math.log2(max(steep, 1.0)))))
        branch = sum(k <= a for k in self.f.kinks)
        return Stretch(a, b, branch, tuple(parts), allowed, precision, depth, error)

    def _part(self, head: int, reference: int, a: float, b: float, share: float) -> Part:
        """Keep what can contribute more than `share`, as one run of anchors."""
        lines = self.heads[head]
        r, lo, hi = lines[reference], Fraction(a), Fraction(b)
        reach = abs(lo) + abs(hi)
        size = float(sum(abs(line.gate) * reach + abs(line.value) for line in lines))
        scale = abs(float(self.outputs[head])) * len(lines) * size / share
        gap = math.ceil(math.log(max(scale, 1.0))) + 1
        most = [max(line.at(lo) - r.at(lo), line.at(hi) - r.at(hi)) for line in lines]
        active = [k for k, z in enumerate(most) if z > -gap or k == reference]
        run = tuple(range(active[0], active[-1] + 1))
        return Part(reference, run if len(run) <= 1.2 * len(active) else tuple(active), len(lines), 0.0, gap)

    def _centre(self, parts: list[Part], points: list[float], a: float, b: float) -> tuple[float, float]:
        """The centre around which rounding errors of the scores matter least, and what they amount to."""
        noises = {
            c: max(sum(self._noise(i, part, s, c) for i, part in enumerate(parts)) for s in points)
            for c in (0.0, a, b, a / 2 + b / 2)
        }
        centre = min(noises, key=lambda c: (noises[c] > 1.5 * min(noises.values()), abs(c)))
        return centre, noises[centre] * 2.0**-_NATIVE

    def _noise(self, head: int, part: Part, s: float, centre: float) -> float:
        """What rounding of the scores at s may change, in units of 2^-53."""
        lines, at, c = self.heads[head], Fraction(s), Fraction(centre)
        r = lines[part.reference]
        weights = [math.exp(min(700.0, float(lines[k].at(at) - r.at(at)))) for k in part.kept]
        values = [float(lines[k].gate * at + lines[k].value) for k in part.kept]
        total = sum(weights)
        mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total
        noise = abs(mean)
        for k, w, v in zip(part.kept, weights, values, strict=True):
            slope, level = abs(float(lines[k].slope - r.slope)), abs(float(lines[k].at(c) - r.at(c)))
            score = slope * abs(s - centre) + level + 2  # numerator and denominator err apart
            noise += w / total * (abs(v) + abs(mean)) * score
        return noise * abs(float(self.outputs[head]))

    def _error(self, s: float) -> float:
        """|head - f| at s."""
        at, total = Fraction(s), arb(0)
        for output, lines in zip(self.outputs, self.heads, strict=True):
            top = max(line.at(at) for line in lines)
            weights = [_ball(line.at(at) - top).exp() for line in lines]
            values = [_ball(line.gate * at + line.value) for line in lines]
            mean = sum((w * v for w, v in zip(weights, values, strict=True)), arb(0)) / sum(weights, arb(0))
            total += mean * _ball(output)
        return upper(abs(total - self.f.value(s)))


def _ball(q: Fraction) -> arb:
    return arb(fmpq(q.numerator, q.denominator))


def _cost(stretch: Stretch) -> int:
    return sum(len(part.kept) for part in stretch.parts)


def _points(a: float, b: float) -> list[float]:
    """Points of [a, b]: evenly spread, and ever closer to its ends."""
    width = b - a
    found = {a + width * i / _SAMPLES for i in range(_SAMPLES)} | {a, b}
    for j in range(5, 46, 2):
        found |= {a + width * 2.0**-j, b - width * 2.0**-j}
    return sorted(s for s in found if a <= s <= b)


def _short(x: float, a: float, b: float) -> float:
    """A number of few digits near x, between a and b.

    >>> _short(0.1234567, 0.0, 1.0), _short(2e-17, -4.0, 4.0)
    (0.123046875, 0.0)
    """
    unit = 2.0 ** (math.frexp(min(x - a, b - x))[1] - 6)
    short = round(x / unit) * unit
    return short if a < short < b else x


def _switches(lines: list[Line], a: Fraction, b: Fraction) -> list[float]:
    """Where the largest score changes hands: the corners of the upper envelope between a and b."""
    found: list[float] = []
    at = a
    ahead = max(lines, key=lambda line: (line.at(a), line.slope))
    while True:
        steeper = [line for line in lines if line.slope > ahead.slope]
        crossings = [((ahead.offset - line.offset) / (line.slope - ahead.slope), line) for line in steeper]
        crossings = [(x, line) for x, line in crossings if x < b]
        if not crossings:
            return found
        first = min(x for x, _ in crossings)
        at = max(at, first)
        ahead = max((line for x, line in crossings if x == first), key=lambda line: line.slope)
        found.append(float(at))


def _reference(lines: list[Line], a: float, b: float) -> tuple[int, float]:
    """The anchor that the others exceed least on [a, b], and by how much."""
    lo, hi = Fraction(a), Fraction(b)
    at_lo, at_hi = [line.at(lo) for line in lines], [line.at(hi) for line in lines]
    top_lo, top_hi = max(at_lo), max(at_hi)
    leads = [max(top_lo - x, top_hi - y) for x, y in zip(at_lo, at_hi, strict=True)]
    best = min(range(len(lines)), key=leads.__getitem__)
    return best, float(leads[best])
