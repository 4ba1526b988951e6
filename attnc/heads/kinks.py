"""Detection of undeclared kinks: zoom in where fourth differences do not shrink as they do for a smooth function."""

from __future__ import annotations

import numpy as np

from attnc.domain import Interval
from attnc.functions import Function
from attnc.heads.target import evaluate

_ZOOMS, _PERSISTENT, _NOISE = 9, 3, 256 * 2.0**-53


def find_kink(f: Function, domain: Interval, candidates: int = 6) -> float | None:
    """A point where f has a kink or a jump that is not declared, or None.

    J(h) = |Δ⁴f|/h falls like h³ for a smooth f, stays at a kink, and grows at a jump.
    """
    grid = np.linspace(domain.lo, domain.hi, 2051)
    y = evaluate(f, grid)
    bend = np.abs(np.diff(y, 4))
    scale = float(np.abs(y).max())
    for i in np.argsort(bend)[::-1][:candidates]:
        found = _zoom(f, domain, float(grid[i]), float(grid[i + 4]), scale)
        if found is not None and all(abs(found - k) > 4 * (grid[1] - grid[0]) for k in f.kinks):
            return found
    return None


def _zoom(f: Function, domain: Interval, a: float, b: float, scale: float) -> float | None:
    """Follow the largest J into smaller and smaller intervals: a kink persists until rounding hides it."""
    first = 0.0
    for zoom in range(_ZOOMS):
        points = np.linspace(max(a - (b - a) / 4, domain.lo), min(b + (b - a) / 4, domain.hi), 41)
        h = float(points[1] - points[0])
        if not h > 0:  # the interval has no more floats
            return None
        y = evaluate(f, points)
        bend = np.abs(np.diff(y, 4))
        i = int(np.argmax(bend))
        slope = float(np.abs(np.diff(y)).max()) / h  # rounding of s itself moves f by slope·|s|u
        if bend[i] < _NOISE * (scale + (1 + slope) * (abs(a) + abs(b))):
            return (a + b) / 2 if zoom > _PERSISTENT else None
        ratio = float(bend[i]) / h
        first = first or ratio
        if ratio < 0.2 * first:
            return None
        a, b = float(points[i]), float(points[i + 4])
    return (a + b) / 2
