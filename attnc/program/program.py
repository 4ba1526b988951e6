"""A program: steps in order, each on values made before it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from attnc.errors import InputError
from attnc.functions.function import label_of
from attnc.program.steps import Affine, Lookup, Opaque, Pointwise, Shape, Step

MOST_FORM_WORK, MOST_FORM_SIZE = (
    2**34,
    2**23,
)  # multiplications, numbers; beyond, values are bounded by plain intervals alone


@dataclass(frozen=True, eq=False)
class Program:
    """What a network means in exact arithmetic: a map from the input's shape (tokens …, features) to the last value.

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
            raise InputError(f"the input of a program has a shape of positive numbers: got {self.shape}")
        object.__setattr__(self, "steps", tuple(self.steps))
        for i, step in enumerate(self.steps):
            if not all(type(value) is int and 0 <= value <= i for value in step.inputs):
                raise InputError(
                    f"step {i} ({step.kind}) reads the values {step.inputs}: made so far are 0 to {i}"
                )
        _ = self.shapes

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of each value, the input's first."""
        found: list[Shape] = [self.shape]
        for i, step in enumerate(self.steps):
            try:
                found.append(step.shape(*(found[value] for value in step.inputs)))
            except InputError as problem:
                raise InputError(f"step {i} ({step.name or step.kind}) does not fit: {problem}") from None
        return tuple(found)

    @property
    def layers(self) -> tuple[int, ...]:
        """The steps that become attention: those with a function that is not affine."""
        return tuple(i for i, step in enumerate(self.steps) if isinstance(step, Pointwise | Lookup | Opaque))

    @property
    def parameters(self) -> int:
        """How many numbers the source has."""
        return sum(a.size for step in self.steps for a in step.tensors().values())

    def readers(self, value: int) -> list[int]:
        """The steps that read a value."""
        return [i for i, step in enumerate(self.steps) if value in step.inputs]

    @property
    def form_work(self) -> int:
        """How many multiplications it takes to carry every value as an affine function of the input."""
        return math.prod(self.shape) * sum(
            step.weight.size * math.prod(self.shapes[step.input][:-1])
            for step in self.steps
            if isinstance(step, Affine) and step.input != 0
        )

    def digest(self) -> str:
        """The SHA-256 of everything the program says: steps, functions, numbers in their dtypes."""
        text = hashlib.sha256(repr(self.shape).encode())
        for step in self.steps:
            text.update(repr((step.kind, describe(step))).encode())
            for name, array in step.tensors().items():
                text.update(f"{name} {array.dtype.name} {array.shape} ".encode())
                text.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
        return text.hexdigest()


def describe(step: Step) -> dict[str, object]:
    """The fields of a step that are not tensors; a function is named by its label."""
    found: dict[str, object] = {}
    for field in fields(step):
        value = getattr(step, field.name)
        if field.name in ("kind", "name") or isinstance(value, np.ndarray) or value is None:
            continue
        found[field.name] = label_of(value) if field.name == "function" else value
    return found
