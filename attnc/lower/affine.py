"""An affine map becomes itself, its numbers rounded to the dtype; a batch norm behind it is folded in."""

from __future__ import annotations

import numpy as np

from attnc.errors import PrecisionError
from attnc.program import Affine, BatchNorm
from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.records.layers import Layer


def lower_affine(program: Program, value: int, dtype: str) -> Layer | None:
    """The layer W x + b; None if the batch norm that follows contains it."""
    step = program.steps[value - 1]
    assert isinstance(step, Affine)
    if folds(program, value):
        return None
    tensors = {name: rounded(array, dtype, step.label) for name, array in step.tensors().items()}
    return Layer("affine", step.inputs, value, tensors)


def folds(program: Program, value: int) -> bool:
    """Whether a single batch norm is all that reads the value of an affine step."""
    readers = program.readers(value)
    return (
        value != len(program.steps) and len(readers) == 1 and isinstance(program.steps[readers[0]], BatchNorm)
    )


def rounded(numbers: Numbers, dtype: str, name: str) -> Numbers:
    """The numbers in the dtype."""
    with np.errstate(over="ignore"):
        array: Numbers = np.ascontiguousarray(numbers.astype(dtype))
    if not np.isfinite(array).all():
        raise PrecisionError(f"{name} has numbers that exceed the range of {dtype}: use dtype=torch.float64")
    return array
