"""A table of a function: on each cell its value in the middle and the range of its slope, enclosed once for all neurons.

On a cell with middle m and half width r, with the slope of f within [s⁻, s⁺]:

    f(s) - λs  lies within  f(m) - λm + [s⁻ - λ, s⁺ - λ]·(s - m)                      for any λ

which gives the range of f (λ = 0), a line near f with its distance, and a Lipschitz constant for every interval from
the cells that it touches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnc.domain import Array, Interval, covering
from attnc.functions import Function
from attnc.functions.balls import working
from attnc.functions.function import SlopeCell, is_builtin
from attnc.prove.outward import above, below

CELLS, FIRST = 1024, 160  # a quarter of them if there are many neurons
_ROWS = 1 << 18  # neurons × cells in memory at once


@dataclass(frozen=True)
class Slopes:
    """Cells from left to right; `edges` has one number more than the rest."""

    edges: Array
    middle: Array
    value_lo: Array
    value_hi: Array
    slope_lo: Array
    slope_hi: Array

    def lipschitz(self, lo: Array, hi: Array) -> Array:
        """For each interval, the largest |slope| on the cells it touches."""
        steepest = np.maximum(np.abs(self.slope_lo), np.abs(self.slope_hi))
        found = np.empty(lo.shape)
        for part, touched in self._touched(lo, hi):
            found.reshape(-1)[part] = np.where(touched, steepest, 0.0).max(1)
        return found

    def band(self, lo: Array, hi: Array, slope: Array) -> tuple[Array, Array]:
        """For each interval, (low, high) with low <= f(s) - slope·s <= high on it."""
        low, high = np.empty(lo.shape), np.empty(lo.shape)
        for part, touched in self._touched(lo, hi):
            bottom, top = self._extremes(*(x.reshape(-1, 1)[part] for x in (lo, hi, slope)))
            low.reshape(-1)[part] = np.where(touched, bottom, np.inf).min(1)
            high.reshape(-1)[part] = np.where(touched, top, -np.inf).max(1)
        return low, high

    def chord(self, lo: Array, hi: Array) -> Array:
        """The approximate slopes of the chords: the proof does not rest on them."""
        f = self.value_lo / 2 + self.value_hi / 2
        with np.errstate(all="ignore"):
            rise = np.interp(hi, self.middle, f) - np.interp(lo, self.middle, f)
            found = np.where(hi > lo, rise / (hi - lo), 0.0)
        return np.where(np.isfinite(found), found, 0.0)

    def _extremes(self, lo: Array, hi: Array, k: Array) -> tuple[Array, Array]:
        """f(m) - km + (slope - k)(s - m) over the part of each cell that lies in [lo, hi], every step rounded outwards."""
        left, right = np.maximum(lo, self.edges[:-1]), np.minimum(hi, self.edges[1:])
        steps = (below(left - self.middle), above(right - self.middle))
        tilts = (below(self.slope_lo - k), above(self.slope_hi - k))
        products = [np.nan_to_num(t * d, posinf=np.inf, neginf=-np.inf) for t in tilts for d in steps]
        down, up = np.minimum.reduce(products), np.maximum.reduce(products)
        taken = k * self.middle
        low, high = below(self.value_lo - above(taken)), above(self.value_hi - below(taken))
        return below(low + below(down)), above(high + above(up))

    def _touched(self, lo: Array, hi: Array) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
        """Which cells each interval touches, some neurons at a time."""
        flat_lo, flat_hi = lo.reshape(-1, 1), hi.reshape(-1, 1)
        rows = max(1, _ROWS // len(self.middle))
        for at in range(0, lo.size, rows):
            part = slice(at, at + rows)
            yield part, (self.edges[:-1] <= flat_hi[part]) & (self.edges[1:] >= flat_lo[part])


def slopes(f: Function, lo: float, hi: float, neurons: int = 1) -> Slopes:
    """The cells of f over an interval that contains [lo, hi]; those with the widest range of slopes are halved."""
    build = _kept if is_builtin(f) else _slopes
    return build(f, covering(lo, hi), CELLS if neurons <= 512 else CELLS // 4)


def _slopes(f: Function, domain: Interval, count: int) -> Slopes:
    reach = max(abs(domain.lo), abs(domain.hi))
    near_zero = [sign * reach * 2.0**-k for k in range(1, 24) for sign in (-1, 1)]
    inner = np.concatenate([np.linspace(domain.lo, domain.hi, FIRST + 1), near_zero])
    with working(96, 3):
        cells = []
        for piece in f.pieces(domain.lo, domain.hi):
            edges = np.unique([piece.lo, *np.clip(inner, piece.lo, piece.hi), piece.hi])
            cells += [SlopeCell(piece.branch, float(x), float(y)) for x, y in pairwise(edges)]
        refined = True
        while refined and len(cells) < count:
            cells, refined = _refined(cells)
    cells.sort(key=lambda c: c.a)
    rows = np.array([(c.middle, *c.value, *c.slope) for c in cells])
    return Slopes(np.array([c.a for c in cells] + [cells[-1].b]), *rows.T)


_kept = lru_cache(64)(_slopes)  # of built-in functions: a user's function may change what it does


def _refined(cells: list[SlopeCell]) -> tuple[list[SlopeCell], bool]:
    """Halve the worst eighth of the cells; nothing changes if f is affine on all of them."""
    order = sorted(cells, key=lambda c: -_spread(c))
    count = len(cells) // 8 + 1
    halved = [c for c in order[:count] if _spread(c) > 0 and c.a < c.middle < c.b]
    kept = [c for c in order[:count] if c not in halved] + order[count:]
    return kept + [half for c in halved for half in c.halves()], bool(halved)


def _spread(cell: SlopeCell) -> float:
    spread = (cell.slope[1] - cell.slope[0]) * cell.half
    return spread if math.isfinite(spread) else math.inf
