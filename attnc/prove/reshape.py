"""A reshape moves bounds with their values."""

from __future__ import annotations

import numpy as np

from attnc.domain import Array
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds
from attnc.prove.forms import reshaped
from attnc.records.layers import Layer


def reshape_bounds(at: LayerInputs) -> ValueBounds:
    """The same numbers in another shape."""
    (x,), to = at.values, at.layer.settings["to"]
    lo, hi, approximation, error = (v.reshape(to) for v in (x.lo, x.hi, x.approximation, x.error))
    return ValueBounds(lo, hi, approximation, error, None if x.form is None else reshaped(x.form, to))


def reshape_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    return np.reshape(errors[0], layer.settings["to"])
