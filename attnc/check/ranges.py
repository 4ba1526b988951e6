"""The checker's bounds of |f'| and |f| on many intervals at once: cells that are cut where intervals end, each with its series.

With middle m and half width h, |f'| <= |f'(m)| + h|f''(m)| + h² sup|f'''|/2 and |f| <= |f(m)| + h|f'(m)| + h² sup|f''|/2."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from flint import arb
from numpy.typing import NDArray

from attnc.domain import Array
from attnc.functions import Function
from attnc.functions.balls import ball, magnitude, variable, working
from attnc.functions.function import Branch

Index = NDArray[np.intp]
_ENDS, _EVEN, _NEAR = 2048, 384, 8.0


def slope_and_size(f: Function, lo: Array, hi: Array) -> tuple[Array, Array]:
    """At least |f'| and |f| on each interval [lo, hi]; inf where nothing is known.

    >>> from attnc import functions
    >>> slope, size = slope_and_size(functions.gelu(), np.array([-9.0, -1.0]), np.array([9.0, 0.5]))
    >>> slope.round(2), size.round(2)
    (array([1.13, 0.87]), array([9.  , 0.35]))
    """
    a, b = math.nextafter(float(lo.min()), -math.inf), math.nextafter(float(hi.max()), math.inf)
    rows: list[tuple[float, ...]] = []
    cuts = _cuts(lo, hi, a, b)
    with working(80, 4):
        for piece in f.pieces(a, b):
            inner = cuts[(cuts > piece.lo) & (cuts < piece.hi)].tolist()
            rows += [_row(piece.branch, x, y) for x, y in pairwise([piece.lo, *inner, piece.hi])]
    left, right, slope, size = np.array(rows).T
    first = np.searchsorted(right, lo, side="right")
    last = np.maximum(np.searchsorted(left, hi, side="left") - 1, first)
    return _largest(slope, first, last), _largest(size, first, last)


def _cuts(lo: Array, hi: Array, a: float, b: float) -> Array:
    """Ends of intervals, some of them where they are many; and even cuts over the whole and over what is near 0."""
    ends = np.unique(np.concatenate([lo, hi]))
    ends = ends[:: max(1, len(ends) // _ENDS)]
    near = np.linspace(max(a, -_NEAR), min(b, _NEAR), _EVEN) if a < _NEAR and b > -_NEAR else ends
    return np.unique(np.concatenate([ends, near, np.linspace(a, b, _EVEN)]))


def _row(branch: Branch, a: float, b: float) -> tuple[float, ...]:
    middle = min(b, max(a, a / 2 + b / 2))
    h = (arb(b) - arb(middle)).max(arb(middle) - arb(a)).upper()
    try:
        point, cell = branch(variable(arb(middle))), branch(variable(ball(a, b)))
    except (ValueError, ZeroDivisionError):
        return a, b, math.inf, math.inf
    slope = abs(point[1]) + 2 * h * abs(point[2]) + 3 * h * h * abs(cell[3])
    size = abs(point[0]) + h * abs(point[1]) + h * h * abs(cell[2])
    return a, b, min(magnitude(slope), magnitude(cell[1])), min(magnitude(size), magnitude(cell[0]))


def _largest(values: Array, first: Index, last: Index) -> Array:
    """The largest of values[first], …, values[last], for each pair: of two runs whose lengths are a power of two."""
    power = np.frexp((last - first + 1).astype(np.float64))[1] - 1
    found, run = np.empty(len(first)), values
    for k in range(int(power.max()) + 1):
        at = power == k
        found[at] = np.maximum(run[first[at]], run[last[at] - (1 << k) + 1])
        run = np.maximum(run[: -(1 << k)], run[1 << k :]) if len(run) > 1 << k else run
    return found
