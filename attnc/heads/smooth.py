"""Smooth heads: a lattice whose weights overlap, values by least squares, exponential convergence.

The weights are a sampled Gaussian of width σ = 1/sqrt(2b); by Poisson summation their mean is x up to
exp(-2π²σ²/Δ²), and with free values the head approximates smooth functions with an error that decreases
exponentially in p."""

from __future__ import annotations

import numpy as np

from attnc.heads import patience
from attnc.heads.chain import lattice, softmax_weights
from attnc.heads.draft import Draft, one_head, reweighted, solve_values
from attnc.heads.target import Target

SHARPNESSES = (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.13, 0.1, 0.07)
BEYOND = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)  # anchors beyond each end


def smooth(target: Target, p: int) -> Draft:
    """The best lattice of p anchors over sharpnesses and margins, then Lawson's weights for the largest error."""
    best, best_error = lattice(-1.0, 1.0, p, 1.0), np.inf
    stride = 1 if p <= 64 else 2
    for beyond in BEYOND[::stride]:
        if 2 * beyond >= p - 1:
            continue
        margin = 2 * beyond / (p - 1 - 2 * beyond)
        for sharpness in SHARPNESSES[::stride]:
            patience.check()
            chain = lattice(-1 - margin, 1 + margin, p, sharpness)
            weights = softmax_weights(chain.keys(), target.x)
            values = solve_values(weights, target.y, target.ridge)
            error = np.abs(weights @ values - target.y).max() + 4 * target.ridge * np.abs(values).max()
            if error < best_error:
                best, best_error = chain, error
    values, emphasis, _ = reweighted(
        softmax_weights(best.keys(), target.x), target.y, target.ridge, rounds=12
    )
    return one_head("smooth", best, values, target, emphasis)
