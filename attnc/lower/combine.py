"""A linear combination becomes itself, its coefficients rounded to the dtype."""

from __future__ import annotations

import numpy as np

from attnc.lower.affine import rounded
from attnc.program import Combine
from attnc.program.program import Program
from attnc.records.layers import Layer


def lower_combine(program: Program, value: int, dtype: str) -> Layer:
    """The layer Σ c_i x_i."""
    step = program.steps[value - 1]
    assert isinstance(step, Combine)
    coefficients = rounded(np.array(step.coefficients), dtype, step.label)
    return Layer("combine", step.inputs, value, {}, {"coefficients": tuple(map(float, coefficients))})
