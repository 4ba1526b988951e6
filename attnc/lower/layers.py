"""program → layers: one lowering for each kind of step. Layers of attention have no heads yet.

Linear steps become themselves, their numbers rounded to the dtype; a batch norm is folded into the affine map before it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnc.domain import Box, Tokens
from attnc.errors import InputError, PrecisionError, Problem, UnsupportedError
from attnc.lower.norm import lower_norm
from attnc.lower.pointwise import lower_pointwise
from attnc.lower.product import lower_product
from attnc.program import Affine, Attend, BatchNorm, Combine, Embed, Mix, Reshape, Scale
from attnc.program.program import Program
from attnc.program.step import Numbers
from attnc.prove.exact_affine import folded, scaling
from attnc.records.layers import Layer


def lower_affine(program: Program, value: int, dtype: str) -> Layer | None:
    """The layer W x + b; None if the batch norm that follows contains it."""
    step = program.steps[value - 1]
    assert isinstance(step, Affine)
    if _folds(program, value):
        return None
    tensors = {name: _rounded(array, dtype, step.label) for name, array in step.tensors().items()}
    return Layer("affine", step.inputs, value, tensors)


def lower_batch_norm(program: Program, value: int, dtype: str) -> Layer:
    """diag(a) W x + a∘b + c if an affine map stands in front that nothing else reads, else a∘x + c."""
    step = program.steps[value - 1]
    assert isinstance(step, BatchNorm)
    before = program.steps[step.input - 1] if step.input > 0 else None
    if isinstance(before, Affine) and _folds(program, step.input):
        weight, bias = (_rounded(n.number, dtype, step.label) for n in folded(before, step))
        return Layer("affine", before.inputs, value, {"weight": weight, "bias": bias})
    scale, shift = (_rounded(n.number, dtype, step.label) for n in scaling(step))
    return Layer("batch_norm", step.inputs, value, {"scale": scale, "shift": shift})


def lower_combine(program: Program, value: int, dtype: str) -> Layer:
    """The layer Σ c_i x_i."""
    step = program.steps[value - 1]
    assert isinstance(step, Combine)
    coefficients = _rounded(np.array(step.coefficients), dtype, step.label)
    return Layer("combine", step.inputs, value, {}, {"coefficients": tuple(map(float, coefficients))})


def lower_reshape(program: Program, value: int, dtype: str) -> Layer:
    """The layer that gives the numbers of its input another shape."""
    step = program.steps[value - 1]
    assert isinstance(step, Reshape)
    return Layer("reshape", step.inputs, value, {}, {"to": step.to})


def lower_tensors(program: Program, value: int, dtype: str) -> Layer:
    """The layer of a scale, a mixture of tokens or a table, whose numbers are those of the step."""
    step = program.steps[value - 1]
    assert isinstance(step, Scale | Mix | Embed)
    names = {"factor": "scale"}
    tensors = {names.get(n, n): _rounded(array, dtype, step.label) for n, array in step.tensors().items()}
    return Layer(step.kind, step.inputs, value, tensors)


def lower_attend(program: Program, value: int, dtype: str) -> Layer:
    """Attention between tokens, which is softmax already."""
    step = program.steps[value - 1]
    assert isinstance(step, Attend)
    tensors = {name: _rounded(array, dtype, step.label) for name, array in step.tensors().items()}
    scale = float(_rounded(np.array([step.scale]), dtype, step.label)[0])
    return Layer("attend", step.inputs, value, tensors, {"split": (step.heads, step.slices, scale)})


def _folds(program: Program, value: int) -> bool:
    """Whether a single batch norm is all that reads the value of an affine step."""
    readers = program.readers(value)
    alone = value != len(program.steps) and len(readers) == 1
    return alone and isinstance(program.steps[readers[0]], BatchNorm)


def _rounded(numbers: Numbers, dtype: str, name: str) -> Numbers:
    with np.errstate(over="ignore"):
        array: Numbers = np.ascontiguousarray(numbers.astype(dtype))
    if not np.isfinite(array).all():
        raise PrecisionError(f"{name} has numbers that exceed the range of {dtype}: use dtype=torch.float64")
    return array


LOWERINGS: dict[str, Callable[[Program, int, str], Layer | None]] = {
    "affine": lower_affine,
    "batch_norm": lower_batch_norm,
    "pointwise": lower_pointwise,
    "product": lower_product,
    "combine": lower_combine,
    "reshape": lower_reshape,
    "norm": lower_norm,
    "attend": lower_attend,
    "embed": lower_tensors,
    "scale": lower_tensors,
    "mix": lower_tensors,
}
COMPILED = tuple(LOWERINGS)


def lower_steps(program: Program, dtype: str) -> tuple[Layer, ...]:
    """The layers in order, their numbers rounded to the dtype."""
    layers = [LOWERINGS[step.kind](program, i + 1, dtype) for i, step in enumerate(program.steps)]
    return tuple(layer for layer in layers if layer is not None)


def check_supported(program: Program) -> None:
    """Raise `UnsupportedError` with every step that `compile` cannot lower."""
    unsupported = [(i, step) for i, step in enumerate(program.steps) if step.kind not in COMPILED]
    problems = list(program.problems())
    for i, step in unsupported:
        reason = f"steps of kind {step.kind!r} cannot be compiled yet"
        problems.append(Problem(step.name or f"step {i} ({step.kind})", reason))
    if problems:
        raise UnsupportedError("the model cannot be compiled", problems)


def check_ids(program: Program, domain: Box) -> None:
    """Raise `InputError` unless token ids, and nothing else, enter the tables of the program."""
    tables = [step for step in program.steps if isinstance(step, Embed)]
    readers = [program.steps[i] for i in program.readers(0)]
    ids = isinstance(domain, Tokens)
    if ids != bool(tables) or (ids and not all(isinstance(step, Embed) for step in readers)):
        raise InputError(
            "a program that starts with tables of embeddings takes domain=attnc.Tokens(…), and only such a program"
        )
    for step in tables:
        if isinstance(domain, Tokens) and (step.input != 0 or domain.vocabulary > len(step.table)):
            raise InputError(f"{step.label}: a table of {len(step.table)} rows cannot be read by {domain}")
