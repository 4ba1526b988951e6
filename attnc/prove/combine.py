"""The error of Σ c_i x_i: e' = Σ|ĉ|e + |ĉ - c||x| + γ(Σ|ĉ||x̂|) + underflow."""

from __future__ import annotations

import numpy as np

from attnc.domain import Array
from attnc.program import Combine
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, narrowed, unless_overflow
from attnc.prove.forms import combined
from attnc.prove.outward import above, below, gamma, times, total
from attnc.records.layers import Layer


def combine_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of a linear combination of values."""
    layer, inputs, step, a = at.layer, at.values, at.step, at.arithmetic
    assert isinstance(step, Combine)
    exact, stored, n = step.coefficients, layer.settings["coefficients"], len(inputs)
    passing = total(*(times(abs(c), x.executed) for c, x in zip(stored, inputs, strict=True)))
    gaps = [float(above(np.float64(abs(c - d)))) for c, d in zip(stored, exact, strict=True)]
    error = total(
        combine_carried(layer, [x.error for x in inputs], {}),
        *(times(gap, x.size) for gap, x in zip(gaps, inputs, strict=True)),
        times(gamma(n + 1, a.unit), passing),
        times(4 * n * a.tiny, total(1.0, *map(abs, stored), *(x.executed for x in inputs))),
    )
    ends = [np.stack([c * x.lo, c * x.hi]) for c, x in zip(exact, inputs, strict=True)]
    sizes = total(*(times(abs(c), x.size) for c, x in zip(exact, inputs, strict=True)))
    lost = times(2.0**-50, sizes, n)
    lo, hi = below(sum(e.min(0) for e in ends) - lost), above(sum(e.max(0) for e in ends) + lost)
    forms = [x.form for x in inputs if x.form is not None]
    form = combined(forms, exact) if len(forms) == n else None
    carried = combine_carried(layer, [x.approximation for x in inputs], {})
    return narrowed(ValueBounds(lo, hi, carried, unless_overflow(error, passing, a), form))


def combine_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """Σ|ĉ| e: what errors of the inputs become in exact arithmetic."""
    return total(*(times(abs(c), e) for c, e in zip(layer.settings["coefficients"], errors, strict=True)))
