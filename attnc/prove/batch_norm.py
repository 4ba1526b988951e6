"""The error of a scale, or of a batch norm that is executed by itself, scale∘x + shift:

e' = |â|e + |â - a||x| + |ĉ - c| + γ_2(|â||x̂| + |ĉ|) + underflow"""

from __future__ import annotations

import numpy as np

from attnc.domain import Array
from attnc.program import BatchNorm, Scale
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, narrowed, unless_overflow
from attnc.prove.exact_affine import scaling
from attnc.prove.forms import mapped
from attnc.prove.outward import above, below, gamma, times, total
from attnc.records.layers import Layer


def batch_norm_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of a∘x + c with a = gain/√(variance + ε) and c = shift - a·mean."""
    (x,), layer, step, a = at.values, at.layer, at.step, at.arithmetic
    assert isinstance(step, BatchNorm | Scale)
    scale, shift = scaling(step)
    stored, constant = (layer.tensor(name).astype(np.float64) for name in ("scale", "shift"))
    passing = total(times(np.abs(stored), x.executed), np.abs(constant))
    error = total(
        times(np.abs(stored), x.error),
        times(total(above(np.abs(stored - scale.number)), scale.radius), x.size),
        total(above(np.abs(constant - shift.number)), shift.radius),
        times(gamma(2, a.unit), passing),
        times(4 * a.tiny, total(1.0, np.abs(stored), x.executed)),
    )
    ends = np.stack([x.lo * scale.number, x.hi * scale.number])
    sizes = total(times(scale.size, x.size), shift.size)
    lost = total(times(scale.radius, x.size), shift.radius, times(2.0**-50, sizes))
    lo, hi = below(ends.min(0) + shift.number - lost), above(ends.max(0) + shift.number + lost)
    form = None if x.form is None else mapped(x.form, scale.number, shift.number, lost)
    carried = batch_norm_carried(layer, [x.approximation], {})
    return narrowed(ValueBounds(lo, hi, carried, unless_overflow(error, passing, a), form))


def batch_norm_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """|â| e: what errors of the input become in exact arithmetic."""
    return times(np.abs(layer.tensor("scale").astype(np.float64)), errors[0])
