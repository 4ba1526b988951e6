"""The paper's head: softmax picks the nearest of p uniform anchors, the value is f there.

Theorem. Let f have Lipschitz constant K, c = bΔ² >= 1/2. For every s between the first and the last anchor

    |g(s) - f(s)| <= K Δ C(c),     C(c) = 1/2 + Σ_{j>=1} ( j e^{-c j²} + (j + 1/2)/2 · e^{-c j(j+1)} ).

Proof. |g - f| <= K Σ w_k |L_k - s|. In units of Δ let the nearest anchor be at distance d <= 1/2 with weight
w_1, the next, on the other side, at 1 - d with w_2 <= w_1. They give w_1 d + w_2 (1 - d) = (w_1 + w_2)/2 -
(w_1 - w_2)(1/2 - d) <= 1/2. The anchors behind the nearest are at d + j with weights w_1 e^{-c(j² + 2jd)},
those behind the next at 1 - d + j with w_2 e^{-c(j² + 2j(1-d))}. (j + d) e^{-2cjd} falls in d for c >= 1/2,
so with w_1 <= 1, w_2 <= 1/2 and 1 - d >= 1/2 they add at most the series. ∎

C(4) = 0.5188: Δ/2 but for 4 %. The paper's line is (b - a)/(2(p - 1)) = Δ/2 for f = Range, where the error is
far smaller still.
"""

from __future__ import annotations

import math

import numpy as np

from attnc.heads.chain import lattice
from attnc.heads.draft import Draft, one_head
from attnc.heads.target import Target

SHARPNESS = 4.0


def nearest(target: Target, p: int) -> Draft:
    """p uniform anchors over the part of the interval where f is not constant."""
    first = target.kinks[0] if target.flat_below else -1.0
    last = target.kinks[-1] if target.flat_above else 1.0
    if not first < last:
        first, last = -1.0, 1.0
    step = (last - first) / (p - 1)
    anchors = [first + step * k for k in range(p - 1)] + [last]
    return one_head(
        "nearest", lattice(first, last, p, SHARPNESS), target.at(np.array(anchors)), target, refit=False
    )


def nearest_constant(sharpness: float = SHARPNESS) -> float:
    """C(c) of the theorem, rounded up.

    >>> 0.5 < nearest_constant() < 0.519
    True
    """
    if not sharpness >= 0.5:
        raise ValueError("the theorem needs c >= 1/2")
    terms = [
        j * math.exp(-sharpness * j * j) + (j + 0.5) / 2 * math.exp(-sharpness * j * (j + 1))
        for j in range(1, 60)
    ]
    return (0.5 + math.fsum(terms)) * (1 + 1e-12)
