"""Neurons that share keys and values: all of a layer, or those whose inputs reach equally far."""

from __future__ import annotations

import numpy as np

from attnc.domain import Array
from attnc.records.layers import Index

Neurons = Index | None  # None: all of the layer


def by_reach(lo: Array, hi: Array) -> list[Neurons]:
    """Groups of neurons whose inputs reach within a factor of four of one another, the farthest first; at most four.

    >>> by_reach(np.array([-1.0, -100.0, -1.5]), np.array([1.0, 90.0, 1.5]))
    [array([1]), array([0, 2])]
    """
    tokens = tuple(range(lo.ndim - 1))
    reach = np.maximum(np.abs(lo), np.abs(hi)).max(axis=tokens)
    farthest = max(float(reach.max()), 2.0**-1000)
    ring = np.minimum(3, np.floor(np.log2(farthest / np.maximum(reach, farthest * 2.0**-40)) / 2)).astype(int)
    found = [np.flatnonzero(ring == r) for r in range(4) if (ring == r).any()]
    return [None] if len(found) == 1 else list(found)
