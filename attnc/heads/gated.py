"""Gated heads: one key belongs to the token itself, and its value is a multiple of s.

    {anchor: 0, itself: B s} gives s·sigmoid(Bs): SiLU exactly at B = 1, ReLU up to 0.28/B as B grows.
    {anchor a: -B(s - a), itself: 0, anchor b: B(s - b)} gives Range_[a,b] up to 0.28/B at each kink.

A token attends to itself and to anchors; a positional flag masks the other tokens.
"""

from __future__ import annotations

import numpy as np

from attnc.heads.chain import Chain, lattice
from attnc.heads.draft import Draft
from attnc.heads.finish import finish
from attnc.heads.target import Target
from attnc.heads.tuned import tune


def gated(target: Target, p: int, enough: float = 0.0) -> Draft:
    """The best head with the token's own key in the middle, last or first, after tuning the keys."""
    best, best_error = None, np.inf
    for place in dict.fromkeys((p // 2, p - 1, 0)):
        own = np.zeros(p, dtype=bool)
        own[place] = True
        draft = tune(target, _starts(target, p), own, "gated", enough)
        error = finish(draft, target).estimate
        if best is None or error < best_error:
            best, best_error = draft, error
        if error <= enough:
            break
    assert best is not None
    return best


def _starts(target: Target, p: int) -> list[Chain]:
    """Lattices, and switches at the kinks if their number fits."""
    starts = [lattice(-1.0, 1.0, p, 1.0), lattice(-1.0, 1.0, p, 0.3)]
    if len(target.kinks) == p - 1:
        starts = [Chain(np.full(p - 1, sharp), np.array(target.kinks)) for sharp in (1e4, 1e2)] + starts
    return starts
