"""The same numbers, row by row, in another shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, OneInput, Shape


@dataclass(frozen=True, eq=False)
class Reshape(OneInput):
    """The same numbers, row by row, in another shape: tokens joined into one, or one split into tokens."""

    to: Shape
    kind = "reshape"

    def __post_init__(self) -> None:
        if not self.to or not all(type(n) is int and n > 0 for n in self.to):
            raise InputError(f"{self.label}: to={self.to} must be a shape of positive whole numbers")

    def shape(self, *given: Shape) -> Shape:
        if math.prod(given[0]) != math.prod(self.to):
            raise InputError(f"it reshapes to {self.to}, but its input has shape {given[0]}")
        return self.to

    def exact(self, *x: Balls) -> Balls:
        return x[0].reshape(len(x[0]), *self.to)

    def approximate(self, *x: Tensor) -> Tensor:
        return x[0].reshape(len(x[0]), *self.to)

    def magnitude(self, *x: Tensor) -> Tensor:
        return x[0].reshape(len(x[0]), *self.to)
