"""y = W x + b."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from attnc.errors import InputError
from attnc.program.integer_product import ball_product
from attnc.program.step import Balls, Numbers, OneInput, Shape, balls, freeze, wide


@dataclass(frozen=True, eq=False)
class Affine(OneInput):
    """y = W x + b on the features of every token."""

    weight: Numbers  # (out, in)
    bias: Numbers | None = None  # (out,)
    kind = "affine"

    def __post_init__(self) -> None:
        freeze(self, "weight", "bias")
        w, b = self.weight.shape, None if self.bias is None else self.bias.shape
        if len(w) != 2 or 0 in w or b not in (None, w[:1]):
            raise InputError(f"{self.label}: expected shapes (out, in) and (out,), got {w} and {b}")

    def shape(self, *given: Shape) -> Shape:
        self.check_features(given[0], self.weight.shape[1])
        return (*given[0][:-1], self.weight.shape[0])

    def work(self, *given: Shape) -> int:
        return self.weight.size * math.prod(given[0][:-1])

    def exact(self, *x: Balls) -> Balls:
        rows = x[0].reshape(-1, x[0].shape[-1])
        y = ball_product(rows, self.weight)
        if self.bias is not None:
            y = y + balls(self.bias)
        return y.reshape(*x[0].shape[:-1], len(self.weight))

    def approximate(self, *x: Tensor) -> Tensor:
        y = x[0] @ wide(self.weight).T
        return y if self.bias is None else y + wide(self.bias)

    def magnitude(self, *x: Tensor) -> Tensor:
        y = x[0] @ wide(self.weight).abs().T
        return y if self.bias is None else y + wide(self.bias).abs()
