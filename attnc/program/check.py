"""What stands in the way of compiling a program: every part, before any work begins."""

from __future__ import annotations

import numpy as np

from attnc.errors import Problem
from attnc.program.program import Program
from attnc.program.steps import Affine, Lookup, Opaque, Pointwise


def problems(program: Program) -> list[Problem]:
    """Every step that cannot be compiled, with its reason; empty where all can.

    >>> import torch
    >>> from attnc import function
    >>> bare = Pointwise(0, function(torch.erf, name="my_erf"))
    >>> [p.where for p in problems(Program((2,), (bare,)))]
    ['step 0 (pointwise)', 'the program']
    """
    found = []
    for i, step in enumerate(program.steps):
        where = step.name or f"step {i} ({step.kind})"
        if isinstance(step, Pointwise) and not step.function.provable:
            reason = f"{step.function.label!r} has no enclosure, so nothing can be proved: attnc.function(..., enclosure=...)"
            found.append(Problem(where, reason))
        for name, array in step.tensors().items():
            if not np.isfinite(array).all():
                found.append(
                    Problem(where, f"its {name} holds a NaN or an infinity: finite numbers are accepted")
                )
    if not any(isinstance(step, Affine | Lookup | Opaque) for step in program.steps):
        found.append(Problem("the program", "it has no affine map: for a function alone use attnc.head(...)"))
    return found
