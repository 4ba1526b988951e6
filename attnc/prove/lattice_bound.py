"""A bound of |network - f| on a box, for a lattice network, or one that was fitted, and a traced function: adaptive cells.

On a cell, a Taylor model E with |network - f| <= |E| <= Σ|coefficients| + r is known: e^δ (N - f D) for a lattice (`lattice`),
and the difference itself for a fitted network (`fitted`). If that exceeds the target and r is small, the polynomial is halved
along every variable (its coefficients change, r stays); else the cell is split and E is computed again. A middle of a cell where
|E| - r exceeds the target refutes it, since D = 1 there."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attnc.domain import Array
from attnc.program.traced import Traced
from attnc.prove.taylor import GROW, TINY, Model, Monomials, U, monomials, rows_of
from attnc.prove.taylor_functions import models

_SHARE = 0.3  # of the target: polynomials with a larger radius are not halved
_DEPTH = 6  # halvings of a polynomial
_SMALLEST = 2.0**-26  # of a side of the box: smaller cells are not split
_SINGULAR = 2.0**-20  # of a side: a cell so small on which f is not bounded is reported
_MEMORY = 12_000_000  # numbers of the largest array
_MOST_CELLS = 1024  # at once
_FIRST = 12  # the part of the time after which the pace is known

Progress = Callable[[str], None]
Cells = NDArray[np.bool_]  # a choice of cells


@dataclass(frozen=True)
class Effort:
    """The degree of f, that of the tables of the network, cells along each axis at first, and the time allowed.

    `overrun`: a proof that would take more than so many times its time, at the pace of its first twelfth, is given up."""

    degree: int
    table: int
    cells: int
    seconds: float = math.inf
    overrun: float = math.inf

    def is_over(self, elapsed: float, waiting: float) -> bool:
        """Whether a proof ends now, with this share of the box waiting."""
        hopeless = elapsed > self.seconds / _FIRST and elapsed > self.overrun * self.seconds * (1 - waiting)
        return elapsed > self.seconds or hopeless

    @classmethod
    def for_target(cls, d: int, relative: float, kinks: bool, seconds: float = math.inf) -> Effort:
        """`relative` is the target over the size of f. High degrees pay off for smooth functions and small targets."""
        if kinks:
            return cls(*{1: (4, 8, 16), 2: (3, 6, 16), 3: (3, 6, 4)}.get(d, (3, 5, 2)), seconds)
        fine = relative < (1e-7 if d <= 2 else 1e-5)
        degree = {1: (10, 14), 2: (8, 12), 3: (8, 10)}.get(d, (8, 8))[fine]
        return cls(degree, degree + (6 if d <= 2 else 4 if fine else 2), 4 if d <= 2 else 2, seconds)


@dataclass(frozen=True, eq=False)
class LatticeBound:
    """`bound` is at least |network - f| in exact arithmetic, for every output on the whole box. `finished`: it is at most the
    target. Otherwise `refuted` is a value that |network - f| exceeds at the point `where`, or the time was up."""

    bound: float
    finished: bool
    cells: int
    halvings: int
    low: Array  # f is at least this, output by output
    high: Array
    refuted: float | None = None
    where: Array | None = None


class Approximation(Protocol):
    """A network whose distance to f is bounded on cells."""

    def rows(self, table: int) -> int:
        """Numbers that a cell takes while `errors` runs."""
        ...

    def errors(self, found: list[Model], x: Monomials, centre: Array, half: Array, m: int) -> list[Model]:
        """Models E with |network - f| <= |E| on cells centre ± half, and equality at their centres up to 2⁻¹² of it, from those
        of f; output by output. m >= x.n is the degree of tables."""
        ...


class SingularError(Exception):
    """f is not bounded, or not defined, on the cell [lo, hi]."""

    def __init__(self, lo: Array, hi: Array) -> None:
        super().__init__(f"between {lo.tolist()} and {hi.tolist()}")
        self.lo, self.hi = lo, hi


def grid(lo: Array, hi: Array, count: int) -> tuple[Array, Array]:
    """Centres and half sides, (M, d), of cells that cover the box, `count` along each side."""
    axes, halves = [], []
    for a, b in zip(lo.tolist(), hi.tolist(), strict=True):
        pieces = count if b > a else 1
        ends = np.linspace(a, b, pieces + 1)
        ends[0], ends[-1] = a, b
        centre = ends[:-1] / 2 + ends[1:] / 2
        axes.append(centre)
        halves.append(padded(centre, np.maximum(ends[1:] - centre, centre - ends[:-1])))
    mesh = (np.stack([g.ravel() for g in np.meshgrid(*part, indexing="ij")], 1) for part in (axes, halves))
    centre, half = mesh
    return centre, half


def padded(centre: Array, half: Array) -> Array:
    """A little more than half, so that neighbours overlap although centres are rounded."""
    return half * (1 + 2.0**-50) + 2.0**-50 * np.abs(centre)


def split(centre: Array, half: Array) -> tuple[Array, Array]:
    """The 2^d halves of cells; sides of length 0 stay."""
    d = centre.shape[1]
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=d)))
    flat = ~(half > 2.0**-40 * np.abs(centre)).any(0)
    if flat.any():
        signs = np.unique(np.where(flat, 0.0, signs), axis=0)
    moved = centre[None] + signs[:, None] * (half / 2)
    smaller = padded(moved, np.broadcast_to(half / 2 + 2 * U * (np.abs(centre) + half), moved.shape))
    return moved.reshape(-1, d), np.where(flat, np.broadcast_to(half, moved.shape), smaller).reshape(-1, d)


def check_defined(f: Traced, lo: Array, hi: Array) -> None:
    """Raise `SingularError` unless f is proved to be defined and bounded on the box; its small cells, if it has a singularity."""
    x = monomials(len(lo), 2)
    centre, half = grid(lo, hi, 4 if len(lo) <= 2 else 2)
    while len(centre):
        part, rest = slice(0, _MOST_CELLS), slice(_MOST_CELLS, None)
        sizes = [model.size for model in models(f, x, centre[part], half[part])]
        endless = np.asarray(~np.isfinite(sizes).all(0))
        _check_tiny(endless, centre[part], half[part], hi - lo)
        made = split(centre[part][endless], half[part][endless])
        centre, half = (np.concatenate(pair) for pair in zip(made, (centre[rest], half[rest]), strict=True))


def _check_tiny(endless: Cells, centre: Array, half: Array, sides: Array) -> None:
    tiny = endless & (half <= _SINGULAR * sides + 2.0**-40 * np.abs(centre)).all(1)
    if tiny.any():
        at = int(np.flatnonzero(tiny)[0])
        raise SingularError(centre[at] - half[at], centre[at] + half[at])


class _Search:
    """The state of a proof: cells to be done, the largest bound so far, the time."""

    def __init__(
        self, f: Traced, network: Approximation, lo: Array, hi: Array, target: float, effort: Effort
    ) -> None:
        self.f, self.network, self.target, self.effort = f, network, target, effort
        self.x = monomials(len(lo), effort.degree)
        self.sides = hi - lo
        self.worst, self.cells, self.halvings = 0.0, 0, 0
        self.low, self.high = np.full(len(f.returned), np.inf), np.full(len(f.returned), -np.inf)
        self.refuted, self.where = 0.0, lo

    def errors(self, centre: Array, half: Array) -> tuple[list[Model], Cells]:
        """E of each output on cells; and where f is bounded."""
        found = models(self.f, self.x, centre, half)
        bounded = np.ones(len(centre), dtype=bool)
        with np.errstate(all="ignore"):
            results = self.network.errors(found, self.x, centre, half, self.effort.table)
            for o, f in enumerate(found):
                bounded &= np.isfinite(f.size)
                low, high = f.range
                good = np.isfinite(f.size)
                self.low[o] = min(self.low[o], low[good].min(initial=np.inf))
                self.high[o] = max(self.high[o], high[good].max(initial=-np.inf))
        return results, bounded

    def advance(self, centre: Array, half: Array) -> tuple[Array, Array, Array]:
        """The cells that must be split, and their bounds so far."""
        results, bounded = self.errors(centre, half)
        self.cells += len(centre)
        again = ~bounded
        _check_tiny(again, centre, half, self.sides)
        sizes = np.zeros(len(centre))
        for e in results:
            with np.errstate(all="ignore"):
                size = np.where(np.isfinite(e.size), e.size, np.inf)
                sizes = np.maximum(sizes, size)
                sure = np.where(np.isfinite(e.r), np.abs(e.c[0]) - e.r * GROW, 0.0) * (1 - 2.0**-12)
            if sure.max() > self.refuted:
                self.refuted, self.where = float(sure.max()), centre[int(sure.argmax())]
            self._halved(e, again)
        return centre[again], half[again], sizes[again]

    def _halved(self, e: Model, again: Cells) -> None:
        """Marks the cells whose bound is above the target also after their polynomial was halved."""
        x, target = self.x, self.target
        owner = np.flatnonzero(~again)
        p, r = rows_of(e, len(x.exponents))[:, owner], e.r[owner]
        for depth in range(_DEPTH + 1):
            with np.errstate(all="ignore"):
                bound = (np.abs(p).sum(0) + r) * GROW
                high = ~(bound <= target)
                hopeless = high & ~((r <= _SHARE * target) & (np.abs(p[0]) + r <= target))
            self.halvings += len(owner)
            if (~high).any():
                self.worst = max(self.worst, float(bound[~high].max()))
            again[owner[hopeless if depth < _DEPTH else high]] = True
            left = high & ~again[owner]
            if not left.any():
                return
            q = p[:, left]
            lost = (len(x.exponents) + 3) * U * np.abs(q).sum(0)
            p = np.concatenate([half @ q for half in x.halves], 1)
            r = np.tile((r[left] + lost) * GROW + TINY, len(x.halves))
            owner = np.tile(owner[left], len(x.halves))


def lattice_bound(
    f: Traced,
    network: Approximation,
    lo: Array,
    hi: Array,
    target: float,
    effort: Effort,
    progress: Progress = lambda _: None,
) -> LatticeBound:
    """Prove |network - f| <= target on the box [lo, hi], in exact arithmetic. Raises `SingularError` where f is not bounded."""
    search, started = _Search(f, network, lo, hi, target, effort), time.process_time()
    centre, half = grid(lo, hi, effort.cells)
    pending = [(centre, half, np.full(len(centre), np.inf))]
    rows = network.rows(effort.table)
    most = max(16, min(_MOST_CELLS, _MEMORY // max(rows, 8 * len(search.x.exponents))))

    wide = search.sides > 0

    def share(half: Array) -> float:
        return float((2 * half[:, wide] / search.sides[wide]).prod(1).sum())

    def result(finished: bool, bound: float) -> LatticeBound:
        found = search.refuted if search.refuted > target else None
        return LatticeBound(
            bound, finished, search.cells, search.halvings, search.low, search.high, found, search.where
        )

    while pending:
        centre, half, sizes = pending.pop()
        if len(centre) > most:
            pending.append((centre[most:], half[most:], sizes[most:]))
            centre, half, sizes = centre[:most], half[:most], sizes[:most]
        waiting = sum(share(part[1]) for part in (*pending, (centre, half)))
        late = effort.is_over(time.process_time() - started, waiting)
        if late or search.refuted > target or (half <= _SMALLEST * search.sides).all(1).any():
            left = max(float(part[2].max()) for part in (*pending, (centre, half, sizes)))
            return result(False, max(left, search.worst))
        again_centre, again_half, again_sizes = search.advance(centre, half)
        if len(again_centre):
            made = split(again_centre, again_half)
            copies = len(made[0]) // len(again_centre)
            pending.append((*made, np.tile(again_sizes, copies)))
        cells = sum(len(part[0]) for part in pending)
        progress(f"proving: {search.cells:,} cells done, {cells:,} waiting, bound so far {search.worst:.3g}")
    return result(True, search.worst)
