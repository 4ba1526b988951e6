"""A feed-forward block of a transformer, as numbers: what stands in front of it, its maps, its activation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Norm:
    """What makes the block's input x from any vector z: x = γ∘(z - mean z)/√(var z + ε) + β, or without the mean (rms)."""

    kind: str  # "layer" or "rms"
    gain: Numbers  # (d,)
    shift: Numbers  # (d,), zeros for rms


@dataclass(frozen=True, eq=False)
class FeedForward:
    """x ↦ W2 f(W1 x + b1) + b2; gated: x ↦ W2 (f(W1 x + b1) ∘ (U x + c)) + b2."""

    activation: str  # a name of attnc.functions
    W1: Numbers  # (m, d)
    b1: Numbers  # (m,)
    W2: Numbers  # (outputs, m)
    b2: Numbers  # (outputs,)
    U: Numbers | None = None  # (m, d) where gated
    c: Numbers | None = None
    norm: Norm | None = None  # None: nothing is known of x

    @property
    def gated(self) -> bool:
        return self.U is not None
