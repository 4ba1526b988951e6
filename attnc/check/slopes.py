"""The checker's own view of a function on cells: slopes and values, as intervals of floats rounded step by step.

Cells are even over the hull, and even in ratio towards zero, cut at the kinks; where the slope varies most they are halved. On a
cell with middle m and half width h the slope is enclosed by f' over the cell and by f'(m) ± 2h sup|f''/2|, the function by
f(m) ± h sup|f'|."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from flint import arb
from numpy.typing import NDArray

from attnc.domain import Array
from attnc.functions import Function
from attnc.functions.balls import ball, lower, upper, variable, working
from attnc.functions.function import Branch

EVEN, OCTAVES, PER_OCTAVE, ROUNDS, ENDS = 256, 20, 4, 5, 2048


def _down(x: Array | float) -> Array:
    return np.nextafter(x, -np.inf)


def _up(x: Array | float) -> Array:
    return np.nextafter(x, np.inf)


class CellTable:
    """Cells over [a, b]: their ends, f in the middle, and the slope, each from below and above."""

    def __init__(self, f: Function, a: float, b: float, ends: Array | None = None) -> None:
        a, b = (a, b) if a < b else (math.nextafter(a, -math.inf), math.nextafter(b, math.inf))
        edges, rows = _edges(a, b, np.empty(0) if ends is None else ends), []
        with working(80, 3):
            for piece in f.pieces(a, b):
                inner = [x for x in edges if piece.lo < x < piece.hi]
                rows += _cells(piece.branch, [piece.lo, *inner, piece.hi])
        self.left, self.right, self.middle, _, self.f_lo, self.f_hi, self.s_lo, self.s_hi = np.array(rows).T

    def steepest(self, lo: Array, hi: Array) -> Array:
        """For each interval, at least |f'| on it."""
        size = np.maximum(np.abs(self.s_lo), np.abs(self.s_hi))
        return np.array([float(size[part].max()) for part in self._parts(lo, hi)])

    def line(self, lo: Array, hi: Array, slope: Array) -> tuple[Array, Array]:
        """For each interval, from below and above, f(s) - slope·s on it."""
        parts = self._parts(lo, hi)
        if len(lo) > 1 and (slope == slope[0]).all():
            return self._lines(parts, lo, hi, float(slope[0]))
        rows = zip(parts, lo.tolist(), hi.tolist(), slope.tolist(), strict=True)
        low, high = np.array([self._line(*row) for row in rows]).T
        return low, high

    def _lines(self, parts: list[slice], lo: Array, hi: Array, k: float) -> tuple[Array, Array]:
        """The same for one slope: of the cells of an interval only the first and the last are cut."""
        last = len(self.left) - 1
        first, end, _ = np.array([part.indices(last + 1) for part in parts]).T
        low, high = self._ranges(first, lo, hi, k)
        other_low, other_high = self._ranges(end - 1, lo, hi, k)
        low, high = np.minimum(low, other_low), np.maximum(high, other_high)
        whole_low, whole_high = self._ranges(np.arange(last + 1), self.left, self.right, k)
        inner = np.flatnonzero(end - first > 2)
        if inner.size:
            between = np.stack([first[inner] + 1, end[inner] - 1], 1).ravel()  # [start, stop) of each
            low[inner] = np.minimum(low[inner], np.minimum.reduceat(whole_low, between)[::2])
            high[inner] = np.maximum(high[inner], np.maximum.reduceat(whole_high, between)[::2])
        return low, high

    def chord(self, lo: Array, hi: Array) -> Array:
        """Roughly the slope of the chord: any number would do."""
        f = (self.f_lo + self.f_hi) / 2
        ends = [(part.start, part.stop - 1) for part in self._parts(lo, hi)]
        rise = np.array([f[j] - f[i] for i, j in ends])
        run = np.array([self.middle[j] - self.middle[i] for i, j in ends])
        with np.errstate(all="ignore"):
            found = np.where(run > 0, rise / run, 0.0)
        return np.where(np.isfinite(found), found, 0.0)

    def _parts(self, lo: Array, hi: Array) -> list[slice]:
        """The cells that overlap each interval, and not only touch it."""
        first = np.searchsorted(self.right, lo, side="right").tolist()
        last = np.searchsorted(self.left, hi, side="left")
        most = len(self.left) - 1
        return [slice(min(i, most), max(j, i + 1)) for i, j in zip(first, last.tolist(), strict=True)]

    def _line(self, part: slice, lo: float, hi: float, k: float) -> tuple[float, float]:
        low, high = self._ranges(np.arange(len(self.left))[part], lo, hi, k)
        return float(low.min()), float(high.max())

    def _ranges(
        self, cells: NDArray[np.int64], lo: Array | float, hi: Array | float, k: float
    ) -> tuple[Array, Array]:
        """f(m) - km plus tilt times distance from m, each cell cut at lo and hi."""
        m = self.middle[cells]
        left, right = _up(m - np.maximum(self.left[cells], lo)), _up(np.minimum(self.right[cells], hi) - m)
        tilt_lo, tilt_hi = _down(self.s_lo[cells] - k), _up(self.s_hi[cells] - k)
        low, high = _down(self.f_lo[cells] - _up(k * m)), _up(self.f_hi[cells] - _down(k * m))
        with np.errstate(invalid="ignore"):
            ways = np.stack([tilt_lo * right, tilt_hi * right, -tilt_lo * left, -tilt_hi * left])
        ways = np.where(np.isnan(ways), 0.0, ways)
        return _down(low + _down(ways.min(0))), _up(high + _up(ways.max(0)))


def _edges(a: float, b: float, ends: Array) -> list[float]:
    """Even cuts, cuts in ratio towards 0, and the ends of intervals, of many some."""
    far, ends = max(abs(a), abs(b)), np.unique(ends)
    ends = ends[:: max(1, len(ends) // ENDS)]
    even = np.linspace(a, b, EVEN + 1)[1:-1]
    ratio = far * 2.0 ** (-np.arange(1, OCTAVES * PER_OCTAVE) / PER_OCTAVE)
    return [float(x) for x in np.unique(np.concatenate([even, ratio, -ratio, ends]))]


def _cells(branch: Branch, edges: list[float]) -> list[tuple[float, ...]]:
    """Rounds of halving the quarter of the cells on which slope × width varies most."""
    rows = [_row(branch, x, y) for x, y in pairwise(edges)]
    for _ in range(ROUNDS):
        loose = [(row[7] - row[6]) * row[3] for row in rows]
        limit = sorted(loose)[-max(1, len(rows) // 4)]
        halves: list[tuple[float, ...]] = []
        for row, size in zip(rows, loose, strict=True):
            split = size >= limit and size > 0 and row[0] < row[2] < row[1]
            halves += [_row(branch, row[0], row[2]), _row(branch, row[2], row[1])] if split else [row]
        rows = halves
    return rows


def _row(branch: Branch, a: float, b: float) -> tuple[float, ...]:
    middle = min(b, max(a, a + (b - a) / 2))
    half = float(_up(max(_up(middle - a), _up(b - middle))))
    try:
        point, cell = branch(variable(arb(middle))), branch(variable(ball(a, b)))
    except (ValueError, ZeroDivisionError):
        return a, b, middle, half, -math.inf, math.inf, -math.inf, math.inf
    bend = point[1] + 2 * cell[2] * arb(0, half)
    slope = (max(lower(cell[1]), lower(bend)), min(upper(cell[1]), upper(bend)))
    return a, b, middle, half, lower(point[0]), upper(point[0]), *slope
