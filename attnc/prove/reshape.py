"""A reshape moves bounds with their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.forms import reshaped
from attnc.records.network_numbers import Reorder


def reshape_bounds(
    program: Program, layer: Reorder, inputs: Sequence[ValueBounds], a: Arithmetic, heads: HeadErrors
) -> ValueBounds:
    """The same numbers in another shape."""
    (x,) = inputs
    lo, hi, approximation, error = (v.reshape(layer.shape) for v in (x.lo, x.hi, x.approximation, x.error))
    form = None if x.form is None else reshaped(x.form, layer.shape)
    return ValueBounds(lo, hi, approximation, error, form)


def reshape_carried(layer: Reorder, errors: Sequence[Array], known: Mapping[int, ValueBounds]) -> Array:
    return errors[0].reshape(layer.shape)
