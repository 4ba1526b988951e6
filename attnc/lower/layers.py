"""program → layers: one lowering for each kind of step. Layers of attention have no heads yet."""

from __future__ import annotations

from collections.abc import Callable

from attnc.errors import Problem, UnsupportedError
from attnc.lower.affine import lower_affine, lower_batch_norm, lower_combine, lower_reshape
from attnc.lower.pointwise import lower_pointwise
from attnc.lower.product import lower_product
from attnc.program.program import Program
from attnc.records.layers import Layer

LOWERINGS: dict[str, Callable[[Program, int, str], Layer | None]] = {
    "affine": lower_affine,
    "batch_norm": lower_batch_norm,
    "pointwise": lower_pointwise,
    "product": lower_product,
    "combine": lower_combine,
    "reshape": lower_reshape,
}
COMPILED = tuple(kind for kind in LOWERINGS if kind != "product")  # products run in converted blocks only


def lower_steps(program: Program, dtype: str) -> tuple[Layer, ...]:
    """The layers in order, their numbers rounded to the dtype."""
    layers = [LOWERINGS[step.kind](program, i + 1, dtype) for i, step in enumerate(program.steps)]
    return tuple(layer for layer in layers if layer is not None)


def check_supported(program: Program) -> None:
    """Raise `UnsupportedError` with every step that `compile` cannot lower."""
    problems = [
        *program.problems(),
        *(
            Problem(
                step.name or f"step {i} ({step.kind})", f"steps of kind {step.kind!r} cannot be compiled yet"
            )
            for i, step in enumerate(program.steps)
            if step.kind not in COMPILED
        ),
    ]
    if problems:
        raise UnsupportedError("the model cannot be compiled", problems)
