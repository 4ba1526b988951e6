"""A reshape moves bounds with their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.forms import reshaped
from attnc.records.layers import Layer


def reshape_bounds(
    program: Program, layer: Layer, inputs: Sequence[ValueBounds], a: Arithmetic, heads: HeadErrors
) -> ValueBounds:
    """The same numbers in another shape."""
    (x,) = inputs
    lo, hi, approximation, error = (
        v.reshape(layer.settings["to"]) for v in (x.lo, x.hi, x.approximation, x.error)
    )
    form = None if x.form is None else reshaped(x.form, layer.settings["to"])
    return ValueBounds(lo, hi, approximation, error, form)


def reshape_carried(layer: Layer, errors: Sequence[Array], known: Mapping[int, ValueBounds]) -> Array:
    return np.reshape(errors[0], layer.settings["to"])
