"""Numbers of the stream as outputs: logits that are lines, and functions made of linear pieces."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from attnc.lower.token_reads import Read, Scalar, StreamPlan, constant
from attnc.program.tokens import Value


def lines(
    read: Read, points: Sequence[Fraction], labels: Sequence[Value], domain: Sequence[Value]
) -> Read | None:
    """Logits l_j = c(j·s - θ_1 - … - θ_j) for labels that follow each other along s, label j between θ_j and θ_{j+1}; no head.

    Line j is the largest exactly there. With c the distance to the others is at least 1. None if a label comes twice."""
    groups: list[tuple[Value, Fraction, Fraction]] = []
    for point, label in zip(points, labels, strict=True):
        if groups and groups[-1][0] == label:
            groups[-1] = (label, groups[-1][1], point)
        else:
            groups.append((label, point, point))
    seen = [label for label, _, _ in groups]
    if len(set(seen)) != len(seen) or len(seen) != len(domain):
        return None
    places, total, least = {label: j for j, (label, _, _) in enumerate(groups)}, Fraction(0), Fraction(1)
    falls = [Fraction(0)]
    for (_, _, lo), (_, hi, _) in itertools.pairwise(groups):
        total, least = total + (lo + hi) / 2, min(least, (hi - lo) / 2)
        falls.append(total)
    scale = 1.0
    while scale * least < 1:
        scale *= 2
    order = [places[label] for label in domain]
    slopes = np.array([[scale * j for j in order]])
    return read.times(slopes).plus(constant(*(-scale * float(falls[j]) for j in order)))


def anchored(plan: StreamPlan, scalar: Scalar, width: int) -> bool:
    """Whether a function of a count is smaller as one head over anchors with `width` coordinates than by steps.

    A step has one column in each of its four matrices, a head over anchors two in Q and K, `width` in V and O; each writes as
    many coordinates."""
    return bool(scalar.count) and 4 + 3 * width < 5 * plan.changes(scalar)


def pieces(plan: StreamPlan, scalar: Scalar, length: int) -> Read:
    """A function of whole numbers as a·s + c + Σ [s >= s_j]·jump_j, with the slope a that needs the fewest steps.

    s mod V for s < 2V, for instance, is s - V·[s >= V]: one step. A function of a long count is one head over anchors."""
    if anchored(plan, scalar, 1):
        values = scalar.by_count(length, {y: [float(y)] for y in scalar.labels})
        return plan.anchors(scalar, values, [scalar.count])
    y = [Fraction(v) for v in scalar.labels]
    s = list(scalar.points)
    slope = Fraction(0)
    rises = [(y[j] - y[j - 1]) / (s[j] - s[j - 1]) for j in range(1, len(s))]
    if scalar.read.exact and rises:
        whole = Counter(rise for rise in rises if rise.denominator == 1)
        slope = max(whole, key=lambda rise: (whole[rise], rise == 0), default=slope)
        slope = slope if whole[slope] > whole[Fraction(0)] else Fraction(0)
    total = scalar.read.times(np.array([[float(slope)]])).plus(constant(float(y[0] - slope * s[0])))
    if not slope:
        total = constant(float(y[0]))
    jumps = [y[j] - y[j - 1] - slope * (s[j] - s[j - 1]) for j in range(1, len(s))]
    plan.reserve(sum(map(bool, jumps)))
    for j, jump in enumerate(jumps, 1):
        if jump:
            bit = plan.step(scalar, s[j - 1], s[j])
            total = total.plus(bit.times(np.array([[float(jump)]])))
    return total
