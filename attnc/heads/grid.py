"""The Lipschitz grid: cells so small that f differs from its value at their centres by at most eps.

A cell of sides Δ_j has its centre at most ½√(ΣΔ_j²) from its points; softmax at sharpness c = bΔ² adds a part in a thousand
(`prove/lookup.py` has the proof). Equal sides are best because the Lipschitz constant multiplies |x - g|₂."""

from __future__ import annotations

import math

from attnc.heads.tensor_axis import Axis
from attnc.records.numbers import Array

SHARPNESS = 8.0  # C₂(8) = 1/4 + 3.4e-4
CONSTANT = 0.2504


def counts_for(lo: Array, hi: Array, lipschitz: float, eps: float) -> list[int]:
    """Cells on each axis with K √(Σ Δ_j² C₂) <= eps: equal sides, then one fewer where that suffices.

    >>> import numpy as np
    >>> counts_for(np.zeros(2), np.array([1.0, 2.0]), 1.0, 0.05)
    [14, 29]
    """
    sides = [float(side) for side in hi - lo]
    rate = lipschitz * math.sqrt(CONSTANT) / eps
    counts = [max(1, math.ceil(side * rate * math.sqrt(len(sides)))) for side in sides]
    for j in sorted(range(len(sides)), key=lambda j: counts[j]):
        fewer = [c - (i == j) for i, c in enumerate(counts)]
        if fewer[j] and rate * math.hypot(*(s / c for s, c in zip(sides, fewer, strict=True))) <= 1:
            counts = fewer
    return counts


def grid_axes(lo: Array, hi: Array, counts: list[int]) -> tuple[Axis, ...]:
    """An anchor in the middle of each cell."""
    return tuple(_axis(float(a), float(b - a), g) for a, b, g in zip(lo, hi, counts, strict=True))


def _axis(lo: float, side: float, count: int) -> Axis:
    if count == 1:
        return Axis(lo + side / 2, 0.0, 1, 0.0)
    step = side / count
    return Axis(lo + step / 2, step, count, SHARPNESS / step / step)
