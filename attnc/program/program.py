"""A program: a list of steps, each of which reads values computed before it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnc.errors import InputError, Problem
from attnc.program.step import Shape, Step

# multiplications and numbers; above these, values are bounded by intervals alone
MOST_FORM_WORK, MOST_FORM_SIZE = 2**34, 2**23


@dataclass(frozen=True, eq=False)
class Program:
    """What a model computes in exact arithmetic: a map from inputs of one shape (tokens …, features) to the last value.

    >>> import numpy as np
    >>> from attnc import functions
    >>> from attnc.program import Affine, Pointwise
    >>> layer = Affine(0, np.array([[1.0, -1.0]]), np.array([0.5]))
    >>> Program((2,), (layer, Pointwise(1, functions.relu()))).shapes
    ((2,), (1,), (1,))
    """

    shape: Shape
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.shape or not all(type(n) is int and n > 0 for n in self.shape):
            raise InputError(f"shape={self.shape}: the shape of the input must be positive whole numbers")
        object.__setattr__(self, "steps", tuple(self.steps))
        for i, step in enumerate(self.steps):
            if not all(type(value) is int and 0 <= value <= i for value in step.inputs):
                raise InputError(f"step {i} ({step.kind}) reads values {step.inputs}: it can read 0 to {i}")
        _ = self.shapes

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of each value, the input's first."""
        found: list[Shape] = [self.shape]
        for i, step in enumerate(self.steps):
            try:
                found.append(step.shape(*(found[value] for value in step.inputs)))
            except InputError as problem:
                raise InputError(f"step {i} ({step.label}) does not fit: {problem}") from None
        return tuple(found)

    @property
    def layers(self) -> tuple[int, ...]:
        """The steps that are not linear and become attention."""
        return tuple(i for i, step in enumerate(self.steps) if not step.linear)

    @property
    def parameters(self) -> int:
        """How many numbers the source has."""
        return sum(a.size for step in self.steps for a in step.tensors().values())

    def readers(self, value: int) -> list[int]:
        """The steps that read a value."""
        return [i for i, step in enumerate(self.steps) if value in step.inputs]

    @property
    def form_work(self) -> int:
        """How many multiplications it takes to write every value as an affine function of the input."""
        return math.prod(self.shape) * sum(
            step.work(*(self.shapes[i] for i in step.inputs)) for step in self.steps if 0 not in step.inputs
        )

    def problems(self) -> list[Problem]:
        """Every step that cannot be compiled, with the reason; empty if all can.

        >>> import torch
        >>> from attnc import function
        >>> from attnc.program import Pointwise
        >>> bare = Pointwise(0, function(torch.erf, name="my_erf"))
        >>> [p.where for p in Program((2,), (bare,)).problems()]
        ['step 0 (pointwise)', 'the program']
        """
        found = []
        for i, step in enumerate(self.steps):
            where = step.name or f"step {i} ({step.kind})"
            if (reason := step.problem()) is not None:
                found.append(Problem(where, reason))
            for name, array in step.tensors().items():
                if not np.isfinite(array).all():
                    found.append(Problem(where, f"its {name} contains NaN or infinity: use finite numbers"))
        if not any(step.kind in ("affine", "lookup", "black_box", "traced") for step in self.steps):
            reason = "it has no affine map: for a single function use attnc.head(...)"
            found.append(Problem("the program", reason))
        return found

    def digest(self) -> str:
        """The SHA-256 of the whole program: steps, functions, and numbers in their dtypes."""
        text = hashlib.sha256(repr(self.shape).encode())
        for step in self.steps:
            text.update(repr((step.kind, step.settings())).encode())
            for name, array in step.tensors().items():
                text.update(f"{name} {array.dtype.name} {array.shape} ".encode())
                text.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
        return text.hexdigest()
