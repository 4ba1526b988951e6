"""A traced function over many cells at once, as an analytic function plus a bounded rest.

On a cell {c + h t : t in [-1, 1]^d} every value of a traced function is written v = A + δ. A is analytic on the complex polydiscs
{c + h z : |z_j| <= R} for the radii R of `RADII` (those where the fields below are finite), and real for real arguments:

    |A - centre| <= radius[i]     on the polydisc with R = RADII[i]
    |v - A| <= rest               on the cell; 0 unless a kink, or a root at 0, is in the cell
    low <= v <= high              on the cell
    |nodes - A| <= error          at the cell's nodes

Discs have real centres since A is real there: |A B - a b| <= |a|r_B + |b|r_A + r_A r_B, and for an analytic g the majorant of its
derivative gives |g(A) - g(a)|. Kinks: on [l, m] with l < 0 < m the convex |v| lies between λv and the chord, |v| = αv + β ± β.

Bounds are float64. A formula of at most 64 sums, products, quotients and roots of numbers that are not negative is below
`up(formula)`; ends of intervals are rounded outwards after each operation. A NaN is a bound that is not known: it ends as
infinity (`made`), as does an operation that may not be defined on the cell (`Cells.defined`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.check import real_functions as real
from attnc.check.real_functions import LEAST, U
from attnc.check.values import CheckError
from attnc.domain import Array

RADII = np.array([1.0, 1.3, 1.7, 2.3, 3.2, 4.5, 6.5, 9.5, 14.0])
_ROOM = 1 + 2.0**-44


def up(x: Array) -> Array:
    """At least the exact value of a short formula of numbers that are not negative."""
    return np.asarray(x * _ROOM + LEAST)


def below(x: Array) -> Array:
    """At most a number that was rounded once."""
    return np.asarray(np.nextafter(x, -np.inf))


def above(x: Array) -> Array:
    return np.asarray(np.nextafter(x, np.inf))


def exp_above(x: Array) -> Array:
    """At least e^x."""
    return up(real.exp(x))


Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class CellValue:
    """One value over M cells; the module's docstring says what holds. Arrays may have 1 in place of M."""

    centre: Array  # (M,)
    radius: Array  # (radii, M)
    low: Array  # (M,)
    high: Array
    rest: Array
    nodes: Array | None = None  # (M, nodes of axis 1, …, nodes of axis d), each number possibly 1
    error: Array = field(default_factory=lambda: np.zeros(1))

    @property
    def size(self) -> Array:
        """At least |v| and |A| on the cell."""
        return up(np.maximum(np.abs(self.low), np.abs(self.high)) + self.rest)

    @property
    def reach(self) -> tuple[Array, Array]:
        """An interval of v, of A, and of what stands at the nodes."""
        more = up(self.rest + self.error)
        return below(self.low - more), above(self.high + more)


def column(x: NDArray[Any], nodes: Array) -> NDArray[Any]:
    """Numbers of cells (M,) beside numbers of nodes (M, …)."""
    return x.reshape(-1, *(1,) * (nodes.ndim - 1))


def made(
    centre: Array,
    radius: Array,
    ends: tuple[Array, Array],
    rest: Array,
    nodes: Array | None,
    error: Array,
) -> CellValue:
    """A value from the formulas of its fields. The rounding of the centre joins the radius; v also lies in the disc of A with
    R = 1, up to `rest`."""
    radius = up(radius + 4 * U * np.abs(centre))
    radius = np.where(np.isfinite(radius), radius, np.inf)
    wide = up(radius[0] + rest)
    low, high = np.fmax(ends[0], below(centre - wide)), np.fmin(ends[1], above(centre + wide))
    bad = ~(np.isfinite(low) & np.isfinite(high) & (low <= high))
    low, high = np.where(bad, -np.inf, low), np.where(bad, np.inf, high)
    return CellValue(
        np.where(np.isfinite(centre), centre, 0.0), np.where(np.isfinite(centre), radius, np.inf), low, high,
        np.where(np.isnan(rest), np.inf, rest), nodes, np.where(np.isnan(error), np.inf, error),
    )  # fmt: skip


def carried(formula: Array, *given: CellValue) -> Array:
    """At least a formula for the rest of a value that has none if those it is computed from have none."""
    none = given[0].rest == 0
    for other in given[1:]:
        none = none & (other.rest == 0)
    return np.where(none, 0.0, up(formula))


def relative_radius(a: CellValue) -> Array:
    """q = r/c where the disc is in the right half plane, else NaN."""
    q = up(a.radius / np.where(a.centre > 0, a.centre, np.nan))
    return np.where(q < 1, q, np.nan)


def chosen(where: Mask, a: CellValue, b: CellValue) -> CellValue:
    """a on some cells, b on the others."""
    nodes = None
    if a.nodes is not None and b.nodes is not None:
        nodes = np.where(column(where, a.nodes), a.nodes, b.nodes)
    pairs = (
        (getattr(a, name), getattr(b, name)) for name in ("centre", "radius", "low", "high", "rest", "error")
    )
    centre, radius, low, high, rest, error = (np.where(where, x, y) for x, y in pairs)
    return CellValue(centre, radius, low, high, rest, nodes, error)


def grid(low: Array, high: Array, count: int) -> tuple[Array, Array]:
    """The box cut into so many intervals along each axis."""
    edges = []
    for a, b in zip(low.tolist(), high.tolist(), strict=True):
        edge = np.linspace(a, b, count + 1) if a < b else np.array([a, b])
        edge[0], edge[-1] = a, b
        edges.append(edge)
    starts = np.meshgrid(*(e[:-1] for e in edges), indexing="ij")
    ends = np.meshgrid(*(e[1:] for e in edges), indexing="ij")
    return tuple(np.stack(side, -1).reshape(-1, len(edges)) for side in (starts, ends))  # type: ignore[return-value]


def halved(low: Array, high: Array, axis: Array) -> tuple[Array, Array]:
    """Both halves of every cell, cut along an axis of its own. Raises `CheckError` where float64 has no number between."""
    rows = np.arange(len(low))
    middle = low[rows, axis] / 2 + high[rows, axis] / 2
    if not ((low[rows, axis] < middle) & (middle < high[rows, axis])).all():
        raise CheckError("a cell of the box is too small to be halved")
    left, right = high.copy(), low.copy()
    left[rows, axis], right[rows, axis] = middle, middle
    return np.concatenate([low, right]), np.concatenate([left, high])
