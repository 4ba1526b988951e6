"""The error of the rows of a table: what its numbers lost when they were stored."""

from __future__ import annotations

import numpy as np

from attnc.domain import Array
from attnc.program import Embed
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, unbounded
from attnc.prove.outward import above
from attnc.records.layers import Layer


def embed_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of any row of the table for ids that are whole numbers; nothing if an id may exceed it."""
    (ids,), step, shape = at.values, at.step, at.program.shapes[at.layer.value]
    assert isinstance(step, Embed)
    if not (ids.lo.min() >= 0 and ids.hi.max() <= len(step.table) - 1):
        return unbounded(shape)
    exact, stored = step.table.astype(np.float64), at.layer.tensor("table").astype(np.float64)
    gap = np.zeros(exact.shape) if np.array_equal(exact, stored) else above(np.abs(exact - stored))
    lo, hi = (np.broadcast_to(end, shape) for end in (exact.min(0), exact.max(0)))
    return ValueBounds(lo, hi, np.zeros(shape), np.array(np.broadcast_to(gap.max(0), shape)))


def embed_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """Ids have no errors."""
    return np.zeros(known[layer.value].lo.shape)
