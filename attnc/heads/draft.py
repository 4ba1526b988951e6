"""A draft: keys and values in exact coordinates, before they are rounded to a dtype."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attnc.heads import patience
from attnc.heads.chain import Chain, softmax_weights
from attnc.heads.target import Target
from attnc.records.numbers import Array


@dataclass(frozen=True)
class Draft:
    """H heads in the coordinate x. `own` marks the keys of the token itself, whose values are multiples of s."""

    design: str
    keys: Array  # (H, p, 2)
    values: Array  # (H, p): constants, or the factor of s where `own`
    own: Array  # (H, p) of bool
    emphasis: Array  # (N,) least-squares weights of the sample points
    refit: bool = True  # whether values may be solved again for rounded keys
    chain: Chain | None = field(default=None, repr=False)

    @property
    def anchors_per_head(self) -> int:
        return int(self.keys.shape[1])


def one_head(
    design: str,
    chain: Chain,
    values: Array,
    target: Target,
    emphasis: Array | None = None,
    refit: bool = True,
) -> Draft:
    """A draft of a single head without a key of its own."""
    weights = np.ones_like(target.x) if emphasis is None else emphasis
    own = np.zeros((1, chain.size), dtype=bool)
    return Draft(design, chain.keys()[None], values[None], own, weights, refit, chain)


def padded(draft: Draft, p: int) -> Draft:
    """The same head with p keys: keys are repeated, and copies share the weight of the original."""
    times = [
        p // draft.anchors_per_head + (k < p % draft.anchors_per_head) for k in range(draft.anchors_per_head)
    ]
    keys = np.repeat(draft.keys, times, axis=1)
    keys[..., 1] -= np.repeat(np.log(times), times)
    values, own = np.repeat(draft.values, times, axis=1), np.repeat(draft.own, times, axis=1)
    return Draft(draft.design, keys, values, own, draft.emphasis, draft.refit)


def columns(keys: Array, own: Array, target: Target, x: Array) -> Array:
    """The linear model Σ_h Σ_k columns·values: attention weights, times s for the token's own key. (len(x),
    H·p)."""
    parts = []
    for h in range(len(keys)):
        weights = softmax_weights(keys[h], x)
        parts.append(np.where(own[h], weights * target.to_s(x)[:, None], weights))
    return np.concatenate(parts, axis=1)


def solve_values(matrix: Array, y: Array, ridge: float, emphasis: Array | None = None) -> Array:
    """argmin Σ e_i² (matrix v - y)_i² + N ridge² |v|²."""
    n, p = matrix.shape
    if emphasis is not None:
        matrix, y = matrix * emphasis[:, None], y * emphasis
    tall = np.concatenate([matrix, ridge * np.sqrt(n) * np.eye(p)])
    return least_squares(tall, np.concatenate([y, np.zeros(p)]))[1]


def least_squares(tall: Array, goal: Array) -> tuple[Array, Array]:
    """Q of the matrix and the solution: by QR, or by singular values if the triangular factor is singular."""
    orthogonal, triangle = np.linalg.qr(tall)
    along = orthogonal.T @ goal
    try:
        solution = np.linalg.solve(triangle, along)
    except np.linalg.LinAlgError:
        solution = np.full(len(along), np.nan)
    if not np.isfinite(solution).all():
        solution = np.linalg.lstsq(triangle, along, rcond=None)[0]
    return orthogonal, solution


def reweighted(matrix: Array, y: Array, ridge: float, rounds: int) -> tuple[Array, Array, float]:
    """Values that nearly minimise the largest error: Lawson's reweighted least squares; the best round is kept."""
    emphasis = np.ones(len(y))
    best = (np.zeros(matrix.shape[1]), emphasis, np.inf)
    for _ in range(rounds + 1):
        patience.check()
        values = solve_values(matrix, y, ridge, emphasis)
        error = np.abs(matrix @ values - y)
        if error.max() < best[2]:
            best = (values, emphasis, float(error.max()))
        emphasis = lawson_step(emphasis, error)
    return best


def lawson_step(emphasis: Array, error: Array) -> Array:
    """Increase the weight of points with large errors."""
    if not error.max() > 0:
        return emphasis
    heavier: Array = emphasis * np.sqrt(error / error.max() + 1e-3)
    heavier /= np.sqrt((heavier**2).mean())
    return heavier
