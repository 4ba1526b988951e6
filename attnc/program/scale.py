"""y = factor∘x + shift with constant arrays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Numbers, OneInput, Shape, balls, freeze, wide


@dataclass(frozen=True, eq=False)
class Scale(OneInput):
    """y = factor∘x + shift, the same for every token (d,) or one row for each (n, d): rotary angles, positions."""

    factor: Numbers
    shift: Numbers
    kind = "scale"

    def __post_init__(self) -> None:
        freeze(self, "factor", "shift")
        if self.factor.ndim not in (1, 2) or not self.factor.size or self.shift.shape != self.factor.shape:
            shapes = f"{self.factor.shape} and {self.shift.shape}"
            raise InputError(f"{self.label}: factor and shift have shapes {shapes}, expected (d,) or (n, d)")

    def shape(self, *given: Shape) -> Shape:
        if given[0] != self.factor.shape and given[0][-1:] != self.factor.shape:
            raise InputError(f"its numbers have the shape {self.factor.shape}, but its input {given[0]}")
        return given[0]

    def exact(self, *x: Balls) -> Balls:
        y: Balls = x[0] * balls(self.factor) + balls(self.shift)
        return y

    def approximate(self, *x: Tensor) -> Tensor:
        return x[0] * wide(self.factor) + wide(self.shift)

    def magnitude(self, *x: Tensor) -> Tensor:
        return x[0] * wide(self.factor).abs() + wide(self.shift).abs()
