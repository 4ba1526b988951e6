"""A reshape moves numbers and changes none."""

from __future__ import annotations

from attnc.check.values import Form, Passing, Value
from attnc.program import Reshape


def bound(at: Passing) -> Value:
    (x,), step = at.inputs, at.step
    assert isinstance(step, Reshape)
    shape, form = (-1, step.to[-1]), x.form
    arrays = (x.lo, x.hi, x.error, x.approximation, x.size)
    lo, hi, error, approximation, size = (array.reshape(shape) for array in arrays)
    if form is not None:
        matrix = form.matrix.reshape(*shape, form.matrix.shape[-1])
        form = Form(matrix, form.centre.reshape(shape), form.off.reshape(shape), form.half)
    return Value(lo, hi, error, approximation, size, form)
