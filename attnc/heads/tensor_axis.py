"""One axis of a tensor lattice: g anchors L_k = first + k·step, weights w_k(x) ∝ exp(-b (x - L_k)²)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnc.records.numbers import Array

LADDER = (*range(1, 25), 26, 28, 30, 33, 36, 40, 44, 48, 56, 64, 80, 96, 128, 160, 192, 256)
_FINE = 64  # every sharpness is tried up to this many anchors


@dataclass(frozen=True)
class Axis:
    """Anchors first, first + step, …; `sharpness` is b of the score 2 b x L - b L²."""

    first: float
    step: float
    count: int
    sharpness: float

    @property
    def points(self) -> Array:
        """The anchors' coordinates, (count,)."""
        return self.first + self.step * np.arange(self.count, dtype=np.float64)


@dataclass(frozen=True)
class Shape:
    """An axis in the coordinate of [-1, 1]: c = bΔ² and how far the anchors reach beyond the ends, in steps."""

    count: int
    sharpness: float = 0.0
    beyond: float = 0.0

    def on(self, lo: float, hi: float) -> Axis:
        """The axis for the interval [lo, hi]; a single anchor is in its middle."""
        middle, half = lo / 2 + hi / 2, hi / 2 - lo / 2
        if self.count == 1 or half == 0:
            return Axis(middle, 0.0, self.count, 0.0)
        step = 2 * half / (self.count - 1 - 2 * self.beyond)
        return Axis(lo - self.beyond * step, step, self.count, self.sharpness / step**2)


def softmax_rows(scores: Array) -> Array:
    weights: Array = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights


def weights_of(axis: Axis, x: Array) -> Array:
    """w_k(x_i), (len(x), count)."""
    return softmax_rows(-axis.sharpness * (x[:, None] - axis.points) ** 2)


def shapes(count: int) -> Iterator[Shape]:
    """The sharpnesses and margins to try for this many anchors.

    Two anchors give a sigmoid of any steepness; few anchors of small sharpness approximate polynomials; many anchors need
    some beyond the ends for smooth functions, and none for functions with kinks.
    """
    if count == 1:
        yield Shape(1)
        return
    sharpnesses: tuple[float, ...] = (1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)
    beyond: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.5)
    if count == 2:
        sharpnesses, beyond = (16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.2, 0.05, 0.01, 1e-3, 1e-4), (0.0,)
    elif count <= 6:
        sharpnesses, beyond = (2.0, 1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 1e-3), (0.0, 0.5, 1.0)
    elif count > _FINE:
        sharpnesses, beyond = (0.7, 0.35, 0.2), (0.0, 2.0)
    for out in beyond:
        if count - 1 - 2 * out >= 1:
            for sharpness in sharpnesses:
                yield Shape(count, sharpness, out)


def factors(weights: Array, ridge: float) -> tuple[Array, Array]:
    """Q (n, g) and R (g, g) with v = R⁻¹ Qᵀ y = argmin |W v - y|² + n·ridge²·|v|², and W = Q R."""
    n, g = weights.shape
    orthogonal, triangle = np.linalg.qr(np.concatenate([weights, ridge * np.sqrt(n) * np.eye(g)]))
    return orthogonal[:n], triangle


def fit(shape: Shape, x: Array, slices: list[Array], ridge: float) -> list[tuple[float, float]]:
    """For each group of slices (len(x), columns) of a function on [-1, 1]: the largest error of values that are least squares at
    every other point, and the largest value."""
    weights = weights_of(shape.on(-1.0, 1.0), x)
    q, r = factors(weights[::2], ridge)
    found = []
    for columns in slices:
        values = np.linalg.solve(r, q.T @ columns[::2])
        error = float(np.abs(weights @ values - columns).max())
        found.append((error, float(np.abs(values).max())) if np.isfinite(error) else (np.inf, np.inf))
    return found


def nodes(count: int) -> Array:
    """Sample points of [-1, 1], ends included, somewhat denser towards them."""
    t = np.linspace(-1.0, 1.0, count)
    found: Array = (t + np.sin(np.pi / 2 * t)) / 2
    return found
