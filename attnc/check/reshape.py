"""A reshape moves numbers and changes none."""

from __future__ import annotations

from dataclasses import replace

from attnc.check.values import Passing, Value
from attnc.program import Reshape


def bound(at: Passing) -> Value:
    (x,), step = at.inputs, at.step
    assert isinstance(step, Reshape)
    shape = (-1, step.to[-1])
    names = ("lo", "hi", "error", "approximation", "size")
    moved = {name: getattr(x, name).reshape(shape) for name in names}
    form = x.form and replace(
        x.form,
        matrix=x.form.matrix.reshape(*shape, x.form.matrix.shape[-1]),
        centre=x.form.centre.reshape(shape),
        off=x.form.off.reshape(shape),
    )
    return replace(x, **moved, form=form, normed=None)
