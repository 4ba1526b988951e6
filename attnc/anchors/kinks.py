"""Looking for kinks that nobody declared: zoom in where second differences do not shrink as they would for a
smooth function."""

from __future__ import annotations

import numpy as np

from attnc.anchors.target import evaluate
from attnc.domain import Interval
from attnc.functions import Function

_ZOOMS = 9


def find_kink(f: Function, domain: Interval, candidates: int = 6) -> float | None:
    """A point where f has a kink or a jump that is not declared, or None.

    J(h) = |f(s-h) - 2f(s) + f(s+h)|/h falls like h for a smooth f, tends to the jump of the slope at a kink,
    and grows at a jump."""
    grid = np.linspace(domain.lo, domain.hi, 2051)
    step = grid[1] - grid[0]
    y = evaluate(f, grid)
    bend = np.abs(np.diff(y, 2))
    scale = float(np.abs(y).max()) + 1e-300
    for i in np.argsort(bend)[::-1][:candidates]:
        found = _zoom(f, domain, float(grid[i]), float(grid[i + 2]), float(step), scale)
        if found is not None and all(abs(found - k) > 2 * step for k in f.kinks):
            return found
    return None


def _zoom(f: Function, domain: Interval, a: float, b: float, step: float, scale: float) -> float | None:
    first: float | None = None
    for _ in range(_ZOOMS):
        points = np.linspace(max(a - (b - a) / 4, domain.lo), min(b + (b - a) / 4, domain.hi), 33)
        h = points[1] - points[0]
        bend = np.abs(np.diff(evaluate(f, points), 2))
        i = int(np.argmax(bend))
        noise = 64 * 2.0**-53 * (scale + abs(a) + abs(b))
        if bend[i] < noise or not h > 0:
            return None
        ratio = float(bend[i] / h)
        first = ratio if first is None else first
        if ratio < 0.25 * first:
            return None
        a, b = float(points[i]), float(points[i + 2])
    return (a + b) / 2
