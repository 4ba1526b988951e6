"""program → stages: what will run, before its heads are known. A normalisation is folded into the affine map before it."""

from __future__ import annotations

import numpy as np

from attnc.errors import PrecisionError
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Reshape
from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.prove.exact_affine import folded, scaling
from attnc.records.network_numbers import Attention, Linear, Reorder, Scale, Stage, Sum


def skeleton(program: Program, dtype: str) -> tuple[Stage, ...]:
    """The stages in order, their numbers rounded to the dtype; layers of attention have no heads yet."""
    stages: list[Stage] = []
    for i, step in enumerate(program.steps):
        value = i + 1
        match step:
            case Affine():
                if not _folds(program, value):
                    bias = None if step.bias is None else _rounded(step.bias, dtype, step.name)
                    stages.append(Linear(step.input, value, _rounded(step.weight, dtype, step.name), bias))
            case BatchNorm():
                stages.append(_normalise(program, step, value, dtype))
            case Pointwise():
                stages.append(Attention(step.input, value, ()))
            case Combine():
                rounded = _rounded(np.array(step.coefficients), dtype, step.name)
                stages.append(Sum(step.inputs, value, tuple(map(float, rounded))))
            case Reshape():
                stages.append(Reorder(step.input, value, step.to))
    return tuple(stages)


def _folds(program: Program, value: int) -> bool:
    """Whether a normalisation is all that reads the value."""
    readers = program.readers(value)
    return (
        value != len(program.steps) and len(readers) == 1 and isinstance(program.steps[readers[0]], BatchNorm)
    )


def _normalise(program: Program, step: BatchNorm, value: int, dtype: str) -> Linear | Scale:
    before = program.steps[step.input - 1] if step.input > 0 else None
    if isinstance(before, Affine) and _folds(program, step.input):
        weight, bias = folded(before, step)
        return Linear(
            before.input,
            value,
            _rounded(weight.number, dtype, step.name),
            _rounded(bias.number, dtype, step.name),
        )
    scale, shift = scaling(step)
    return Scale(
        step.input, value, _rounded(scale.number, dtype, step.name), _rounded(shift.number, dtype, step.name)
    )


def _rounded(numbers: Numbers, dtype: str, name: str) -> Numbers:
    with np.errstate(over="ignore"):
        found: Numbers = np.ascontiguousarray(numbers.astype(dtype))
    if not np.isfinite(found).all():
        raise PrecisionError(
            f"{name or 'an affine map'} has numbers too large for {dtype}: use dtype=torch.float64"
        )
    return found
