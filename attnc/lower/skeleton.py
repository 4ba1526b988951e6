"""program → stages: what will run, before its heads are known. A normalisation is folded into the affine map before it."""

from __future__ import annotations

import numpy as np

from attnc.errors import PrecisionError
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Reshape
from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.prove.exact_affine import folded, scaling
from attnc.records.layers import Layer, pointwise_layer


def skeleton(program: Program, dtype: str) -> tuple[Layer, ...]:
    """The stages in order, their numbers rounded to the dtype; layers of attention have no heads yet."""
    stages: list[Layer] = []
    for i, step in enumerate(program.steps):
        value = i + 1
        match step:
            case Affine():
                if not _folds(program, value):
                    tensors = _all_rounded(step.tensors(), dtype, step.name)
                    stages.append(Layer("affine", step.inputs, value, tensors))
            case BatchNorm():
                stages.append(_normalise(program, step, value, dtype))
            case Pointwise():
                stages.append(pointwise_layer(step.input, value, []))
            case Combine():
                rounded = _rounded(np.array(step.coefficients), dtype, step.name)
                settings = {"coefficients": tuple(map(float, rounded))}
                stages.append(Layer("combine", step.inputs, value, {}, settings))
            case Reshape():
                stages.append(Layer("reshape", step.inputs, value, {}, {"to": step.to}))
    return tuple(stages)


def _folds(program: Program, value: int) -> bool:
    """Whether a normalisation is all that reads the value."""
    readers = program.readers(value)
    return (
        value != len(program.steps) and len(readers) == 1 and isinstance(program.steps[readers[0]], BatchNorm)
    )


def _normalise(program: Program, step: BatchNorm, value: int, dtype: str) -> Layer:
    before = program.steps[step.input - 1] if step.input > 0 else None
    if isinstance(before, Affine) and _folds(program, step.input):
        weight, bias = folded(before, step)
        tensors = {"weight": weight.number, "bias": bias.number}
        return Layer("affine", before.inputs, value, _all_rounded(tensors, dtype, step.name))
    scale, shift = scaling(step)
    tensors = {"scale": scale.number, "shift": shift.number}
    return Layer("batch_norm", step.inputs, value, _all_rounded(tensors, dtype, step.name))


def _all_rounded(tensors: dict[str, Numbers], dtype: str, name: str) -> dict[str, Numbers]:
    return {key: _rounded(array, dtype, name) for key, array in tensors.items()}


def _rounded(numbers: Numbers, dtype: str, name: str) -> Numbers:
    with np.errstate(over="ignore"):
        found: Numbers = np.ascontiguousarray(numbers.astype(dtype))
    if not np.isfinite(found).all():
        raise PrecisionError(
            f"{name or 'an affine map'} has numbers too large for {dtype}: use dtype=torch.float64"
        )
    return found
