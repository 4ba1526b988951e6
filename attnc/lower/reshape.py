"""A reshape becomes itself."""

from __future__ import annotations

from attnc.program import Reshape
from attnc.program.program import Program
from attnc.records.network_numbers import Reorder


def lower_reshape(program: Program, value: int, dtype: str) -> Reorder:
    """The layer that gives the numbers of its input another shape."""
    step = program.steps[value - 1]
    assert isinstance(step, Reshape)
    return Reorder(step.input, value, step.to)
