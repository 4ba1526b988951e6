"""A batch norm becomes scale∘x + shift, or is folded into the affine map in front of it."""

from __future__ import annotations

from attnc.lower.affine import folds, rounded
from attnc.program import Affine, BatchNorm
from attnc.program.program import Program
from attnc.prove.exact_affine import folded, scaling
from attnc.records.layers import Layer


def lower_batch_norm(program: Program, value: int, dtype: str) -> Layer:
    """diag(a) W x + a∘b + c if an affine map stands in front that nothing else reads, else a∘x + c."""
    step = program.steps[value - 1]
    assert isinstance(step, BatchNorm)
    before = program.steps[step.input - 1] if step.input > 0 else None
    if isinstance(before, Affine) and folds(program, step.input):
        weight, bias = (rounded(n.number, dtype, step.label) for n in folded(before, step))
        return Layer("affine", before.inputs, value, {"weight": weight, "bias": bias})
    scale, shift = (rounded(n.number, dtype, step.label) for n in scaling(step))
    return Layer("batch_norm", step.inputs, value, {"scale": scale, "shift": shift})
