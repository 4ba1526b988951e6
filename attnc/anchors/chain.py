"""A chain of keys: neighbours i and i+1 tie at the breakpoint t_i and the switch between them has sharpness
λ_i.

    κ_{i+1} - κ_i = λ_i,   c_{i+1} - c_i = -λ_i t_i:   w_{i+1}/w_i = exp(λ_i (x - t_i))

Every head whose slopes differ is such a chain; a uniform lattice of anchors L_k with temperature b is the
chain with λ = 2bΔ and the midpoints for breakpoints (score 2b x L_k - b L_k²)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnc.certify.numbers import Array


@dataclass(frozen=True)
class Chain:
    sharpness: Array  # (p-1,), positive
    breakpoints: Array  # (p-1,)

    @property
    def size(self) -> int:
        return len(self.sharpness) + 1

    def keys(self) -> Array:
        """(p, 2): slope and intercept of each key's score, the middle key's slope being 0 and the top score
        at x = 0 being 0."""
        slope = np.concatenate([[0.0], np.cumsum(self.sharpness)])
        slope -= slope[len(slope) // 2]
        intercept = np.concatenate([[0.0], -np.cumsum(self.sharpness * self.breakpoints)])
        return np.stack([slope, intercept - intercept.max()], axis=-1)


def lattice(first: float, last: float, p: int, temperature: float) -> Chain:
    """p uniform anchors on [first, last]; `temperature` is c = bΔ², so w_k ∝ exp(-c (x - L_k)²/Δ²)."""
    step = (last - first) / (p - 1)
    anchors = first + step * np.arange(p)
    return Chain(np.full(p - 1, 2 * temperature / step), (anchors[1:] + anchors[:-1]) / 2)


def softmax_weights(keys: Array, x: Array) -> Array:
    """(len(x), p) attention weights in float64."""
    z = x[:, None] * keys[:, 0] + keys[:, 1]
    e = np.exp(z - z.max(axis=1, keepdims=True))
    weights: Array = e / e.sum(axis=1, keepdims=True)
    return weights


def anchor_positions(keys: Array) -> Array:
    """Where each anchor stands: the middle of the stretch in which its score wins, the outer two mirrored at
    their breakpoint.

    For a lattice these are the L_k. A key that never wins stands where it would tie with its neighbours on
    average."""
    order = np.argsort(keys[:, 0], kind="stable")
    slope, intercept = keys[order, 0], keys[order, 1]
    with np.errstate(all="ignore"):
        ties = -np.diff(intercept) / np.diff(slope)
    inner = (ties[1:] + ties[:-1]) / 2
    if len(ties) == 1:
        sorted_positions = np.array(
            [ties[0] - 1 / (slope[1] - slope[0]), ties[0] + 1 / (slope[1] - slope[0])]
        )
    elif len(ties) == 0:
        sorted_positions = np.zeros(1)
    else:
        sorted_positions = np.concatenate([[2 * ties[0] - inner[0]], inner, [2 * ties[-1] - inner[-1]]])
    positions = np.empty_like(sorted_positions)
    positions[order] = sorted_positions
    return positions
