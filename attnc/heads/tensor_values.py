"""The values of a tensor lattice: the 1-D pseudo-inverse along every axis, then Lawson's weights for the largest error.

On a grid of sample points the weights of the lattice are the Kronecker product of those of its axes, W = W_1 ⊗ … ⊗ W_m, and so is
its pseudo-inverse. All operations work axis by axis and never form W."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attnc.heads.tensor_axis import Axis, factors, nodes, weights_of
from attnc.records.numbers import Array

MOST_SAMPLES = 2**20
_OVER = {1: 12.0, 2: 5.0}  # sample points for each anchor and axis, by the number of axes; 3 for more axes
_ROUNDS, _PATIENCE, _STEPS = (
    24,
    6,
    6,
)  # of Lawson's weights, without progress, and of conjugate gradients in each
_LEAST = 1e-2  # of a sample point's weight, so that conjugate gradients converge


@dataclass(frozen=True)
class Sampled:
    """f on a grid of sample points of the box, and the factors of the weights there."""

    points: tuple[Array, ...]  # of each axis
    f: Array  # (s_1, …, s_m, outputs)
    weights: tuple[Array, ...]  # (s_j, g_j)
    q: tuple[Array, ...]
    r: tuple[Array, ...]


def along(matrices: Sequence[Array], tensor: Array) -> Array:
    """(M_1 ⊗ … ⊗ M_m) applied to the leading axes of a tensor."""
    for j, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, (1, j)), 0, j)
    return tensor


def sample(
    f: Callable[[Array], Array], axes: tuple[Axis, ...], lo: Array, hi: Array, ridge: float
) -> Sampled:
    """f on a grid with several points for each anchor along every axis, fewer if the grid would be too large."""
    over = _OVER.get(len(axes), 3.0)
    while over > 1.25 and math.prod(_points(axis, over) for axis in axes) > MOST_SAMPLES:
        over -= 0.125
    points = []
    for axis, a, b in zip(axes, lo, hi, strict=True):
        points.append(np.clip(a / 2 + b / 2 + (b / 2 - a / 2) * nodes(_points(axis, over)), a, b))
    grid = np.stack(np.meshgrid(*points, indexing="ij"), -1)
    answers = f(grid.reshape(-1, len(axes)))
    weights = tuple(weights_of(axis, x) for axis, x in zip(axes, points, strict=True))
    q, r = zip(*(factors(w, ridge) for w in weights), strict=True)
    return Sampled(tuple(points), answers.reshape(*grid.shape[:-1], -1), weights, q, r)


def _points(axis: Axis, over: float) -> int:
    return 3 if axis.count == 1 else max(5, math.ceil(over * axis.count))


def solved(data: Sampled, allowed: float) -> Array:
    """Values (g_1, …, g_m, outputs): least squares, then Lawson's weights if these miss `allowed` by less than a factor of four.

    Values are solved for f minus the middle of its range, as weights add up to one.
    """
    dims = tuple(range(len(data.q)))
    middle = (data.f.max(axis=dims) + data.f.min(axis=dims)) / 2
    goal = data.f - middle
    z = along([q.T for q in data.q], goal)
    error = float(np.abs(goal - along(data.q, z)).max())
    if 0.7 * allowed < error < 4 * allowed:
        z = _lawson(data.q, goal, z, 0.7 * allowed)
    back: list[Array] = [np.linalg.inv(r).astype(np.float64) for r in data.r]
    found: Array = along(back, z) + middle
    return found


def _lawson(q: tuple[Array, ...], goal: Array, z: Array, enough: float) -> Array:
    """Lawson's iteration for min max |goal - Q z|, output by output: weighted least squares, weights grow with the error.

    Q has nearly orthonormal columns, so a few steps of conjugate gradients on Qᵀ E Q dz = Qᵀ E (goal - Q z) do.
    """
    dims, back = tuple(range(len(q))), [m.T for m in q]
    emphasis, best, least, since = np.ones_like(goal), z, np.inf, 0
    for _ in range(_ROUNDS):
        left = goal - along(q, z)
        size = np.abs(left)
        if float(size.max()) < least:
            since = 0 if float(size.max()) < 0.99 * least else since
            best, least = z, float(size.max())
        since += 1
        if least <= enough or since > _PATIENCE:
            break
        emphasis *= np.sqrt(size / (size.max(axis=dims) + 1e-300) + 1e-3)
        emphasis /= emphasis.mean(axis=dims)
        heavy = np.maximum(emphasis, _LEAST)
        gradient = along(back, heavy * left)
        step, norm = gradient, (gradient**2).sum(axis=dims)
        for _ in range(_STEPS):
            image = along(back, heavy * along(q, step))
            length = norm / ((step * image).sum(axis=dims) + 1e-300)
            z, gradient = z + length * step, gradient - length * image
            fresh = (gradient**2).sum(axis=dims)
            step, norm = gradient + fresh / (norm + 1e-300) * step, fresh
    return best
