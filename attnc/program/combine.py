"""y = Σ c_i x_i."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Shape, Step


@dataclass(frozen=True, eq=False)
class Combine(Step):
    """y = Σ c_i x_i of values of one shape: a residual connection, a difference, a multiple."""

    inputs: tuple[int, ...]
    coefficients: tuple[float, ...]
    kind = "combine"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))
        if not self.inputs or len(self.inputs) != len(self.coefficients):
            sizes = f"{len(self.inputs)} values and {len(self.coefficients)} coefficients"
            raise InputError(f"{self.label}: there are {sizes}, expected one coefficient for each value")
        if not all(map(math.isfinite, self.coefficients)):
            raise InputError(f"{self.label}: coefficients {self.coefficients} must be finite")

    def shape(self, *given: Shape) -> Shape:
        if len(set(given)) != 1:
            raise InputError(f"it adds values of one shape: got {', '.join(map(str, given))}")
        return given[0]

    def exact(self, *x: Balls) -> Balls:
        terms = [v * arb(c) for v, c in zip(x, self.coefficients, strict=True)]
        return np.asarray(sum(terms[1:], terms[0]), dtype=object)

    def approximate(self, *x: Tensor) -> Tensor:
        return torch.stack([c * v for c, v in zip(self.coefficients, x, strict=True)]).sum(0)

    def magnitude(self, *x: Tensor) -> Tensor:
        return torch.stack([abs(c) * v for c, v in zip(self.coefficients, x, strict=True)]).sum(0)
