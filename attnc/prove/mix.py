"""The error of y = M x over the tokens: that of an affine map of the columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnc.domain import Array
from attnc.program import Mix
from attnc.prove.affine import linear_bounds
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds
from attnc.prove.exact_affine import Enclosed
from attnc.prove.forms import Form
from attnc.prove.outward import weighed
from attnc.records.layers import Layer


def mix_bounds(at: LayerInputs) -> ValueBounds:
    (x,), step, stored = at.values, at.step, at.layer.tensor("matrix")
    assert isinstance(step, Mix)
    exact, none = Enclosed(step.matrix.astype(np.float64)), np.zeros(len(stored))
    found = linear_bounds(_turned(x), (exact, Enclosed(none)), stored, none, at.arithmetic)
    return replace(_turned(found), approximation=mix_carried(at.layer, [x.approximation], {}))


def mix_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """|M̂| e: what errors of the input become in exact arithmetic."""
    moved: Array = weighed(layer.tensor("matrix"), errors[0].T).T
    return moved


def _turned(x: ValueBounds) -> ValueBounds:
    """Features in the place of tokens."""
    form = x.form and Form(np.swapaxes(x.form.matrix, 0, 1), x.form.centre.T, x.form.radius.T, x.form.half)
    largest = None if x.largest is None else x.largest.T
    return ValueBounds(x.lo.T, x.hi.T, x.approximation.T, x.error.T, form, largest=largest)
