"""A chain of keys: neighbours tie at the breakpoint t_i, and the switch between them has sharpness λ_i.

    κ_{i+1} - κ_i = λ_i,   c_{i+1} - c_i = -λ_i t_i:   w_{i+1}/w_i = exp(λ_i (x - t_i))

Every head whose slopes differ is such a chain; a uniform lattice of anchors L_k with sharpness b is the chain with λ = 2bΔ and
the midpoints for breakpoints (score 2b x L_k - b L_k²)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from attnc.records.numbers import Array


@dataclass(frozen=True)
class Chain:
    sharpness: Array  # (p-1,), positive
    breakpoints: Array  # (p-1,)

    @property
    def size(self) -> int:
        return len(self.sharpness) + 1

    def keys(self) -> Array:
        """(p, 2): slope and intercept of each score; the slope of the middle key and the top score at x = 0 are 0."""
        slope = np.concatenate([[0.0], np.cumsum(self.sharpness)])
        slope -= slope[len(slope) // 2]
        intercept = np.concatenate([[0.0], -np.cumsum(self.sharpness * self.breakpoints)])
        return np.stack([slope, intercept - intercept.max()], axis=-1)


def lattice(first: float, last: float, p: int, sharpness: float) -> Chain:
    """p uniform anchors on [first, last]; `sharpness` is c = bΔ², so w_k ∝ exp(-c (x - L_k)²/Δ²)."""
    step = (last - first) / (p - 1)
    anchors = first + step * np.arange(p)
    return Chain(np.full(p - 1, 2 * sharpness / step), (anchors[1:] + anchors[:-1]) / 2)


def overhanging(p: int, sharpness: float, beyond: float) -> Chain:
    """p uniform anchors that reach `beyond` steps out of [-1, 1] on either side."""
    margin = 2 * beyond / (p - 1 - 2 * beyond)
    return lattice(-1 - margin, 1 + margin, p, sharpness)


def softmax_weights(keys: Array, x: Array) -> Array:
    """(len(x), p) attention weights in float64."""
    return softmax_rows(x[:, None] * keys[:, 0] + keys[:, 1])


def softmax_rows(scores: Array) -> Array:
    weights: Array = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def anchor_positions(keys: Array) -> Array:
    """The position of each anchor: the middle of the stretch in which its score is the largest (the L_k of a lattice), the outer
    two mirrored at their tie. A key whose score is never the largest is placed where the mean slope Σ w_j κ_j equals its own."""
    if len(keys) == 1:
        return np.zeros(1)
    positions = np.full(len(keys), np.nan)
    winners = _winners(keys)
    ties = np.array([_tie(keys[i], keys[j]) for i, j in pairwise(winners)])
    if len(ties) == 1:
        reach = 1 / abs(keys[winners[1], 0] - keys[winners[0], 0])
        positions[winners] = [ties[0] - reach, ties[0] + reach]
    elif len(ties) > 1:
        middles = (ties[1:] + ties[:-1]) / 2
        positions[winners] = [2 * ties[0] - middles[0], *middles, 2 * ties[-1] - middles[-1]]
    for k in np.flatnonzero(np.isnan(positions)):
        positions[k] = _heaviest(keys, float(keys[k, 0]))
    return positions


def _tie(left: Array, right: Array) -> float:
    return float((left[1] - right[1]) / (right[0] - left[0]))


def _winners(keys: Array) -> list[int]:
    """The keys whose score is the largest somewhere, from left to right: the upper envelope of their lines."""
    hull: list[int] = []
    for k in np.lexsort((keys[:, 1], keys[:, 0])).tolist():
        if hull and keys[hull[-1], 0] == keys[k, 0]:
            hull.pop()
        while len(hull) > 1 and _tie(keys[hull[-2]], keys[k]) <= _tie(keys[hull[-2]], keys[hull[-1]]):
            hull.pop()
        hull.append(k)
    return hull


def _heaviest(keys: Array, slope: float) -> float:
    """Bisection for the x at which the mean slope, which increases with x, is `slope`."""
    gaps = np.diff(np.unique(keys[:, 0]))
    high = (np.ptp(keys[:, 1]) + 40.0) / gaps.min() if len(gaps) else 1.0
    low = -high
    for _ in range(200):
        x = (low + high) / 2
        mean = float(softmax_weights(keys, np.array([x]))[0] @ keys[:, 0])
        low, high = (x, high) if mean < slope else (low, x)
    return (low + high) / 2
