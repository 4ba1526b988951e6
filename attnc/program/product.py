"""y = a∘b, the product of two values, element by element."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Shape, Step


@dataclass(frozen=True, eq=False)
class Product(Step):
    """y = a∘b of two values of one shape: the gate of a gated feed-forward block."""

    inputs: tuple[int, int]
    kind = "product"
    linear = False

    def shape(self, *given: Shape) -> Shape:
        if given[0] != given[1]:
            raise InputError(f"it multiplies values of one shape: got {given[0]} and {given[1]}")
        return given[0]

    def exact(self, *x: Balls) -> Balls:
        y: Balls = x[0] * x[1]
        return y

    def approximate(self, *x: Tensor) -> Tensor:
        return x[0] * x[1]

    def magnitude(self, *x: Tensor) -> Tensor:
        return x[0] * x[1]
