"""The error of a layer of heads: if the executed head is within δ of f wherever its input may be,

    e' = min(L e, spread of f) + δ        L, spread: of f on [lo - e, hi + e]

It is f that carries the executed input to the exact one, so f's own Lipschitz constant is needed, not the head's. Exact values
are the source's: where its function deviates from f (torch's softplus beyond its threshold), intervals, forms and e' grow by
the deviation."""

from __future__ import annotations

import numpy as np

from attnc.domain import Array
from attnc.program import Pointwise
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, narrowed, unbounded
from attnc.prove.forms import Form, mapped
from attnc.prove.outward import above, below, times, total
from attnc.prove.slopes import Slopes, slopes
from attnc.records.layers import Layer


def pointwise_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of f(x) with heads that are within `heads` of f on the reach of x."""
    (x,), step, heads = at.values, at.step, at.heads
    assert isinstance(step, Pointwise)
    reach, flat = x.reach, np.zeros_like(x.lo)
    if not all(np.isfinite(end).all() for end in reach):
        return unbounded(x.lo.shape)
    table = slopes(step.function, float(reach[0].min()), float(reach[1].max()), x.lo.size)
    steepest = table.lipschitz(*reach)
    low, high = table.band(*reach, flat)
    spread, off = above(high - low), deviation(step, x)

    def carried(error: Array, own: Array | float) -> Array:
        moved = np.where(error > 0, np.fmin(times(steepest, error), spread), 0.0)
        return total(moved, np.broadcast_to(own, flat.shape), off)

    lo, hi = table.band(x.lo, x.hi, flat)
    return narrowed(
        ValueBounds(
            below(lo - off),
            above(hi + off),
            carried(x.approximation, heads.approximation),
            carried(x.error, heads.error),
            None if x.form is None else _beside(table, x, x.form, off),
            steepest,
            total(np.maximum(np.abs(low), np.abs(high)), np.broadcast_to(heads.error, flat.shape)),
        )
    )


def pointwise_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """L e: what errors of the input become in exact arithmetic."""
    slope = known[layer.value].slope
    return errors[0] if slope is None else np.where(errors[0] > 0, times(slope, errors[0]), 0.0)


def deviation(step: Pointwise, x: ValueBounds) -> Array:
    """At least |source's own function - f|, where its input may be."""
    return np.where(x.hi > step.beyond, step.deviation, 0.0)


def _beside(table: Slopes, x: ValueBounds, form: Form, off: Array) -> Form:
    """f(v) = λv + μ ± ρ with λ the slope of the chord; the source's own function differs from f by up to `off`."""
    chord = table.chord(x.lo, x.hi)
    low, high = table.band(x.lo, x.hi, chord)
    middle = low / 2 + high / 2
    distance = above(np.maximum(above(high - middle), above(middle - low)))
    return mapped(form, chord, middle, total(distance, off))
