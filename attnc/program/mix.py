"""y = M x over the tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Numbers, OneInput, Shape, balls, freeze, wide


@dataclass(frozen=True, eq=False)
class Mix(OneInput):
    """y_i = Σ_j M_ij x_j for tokens x_j: a mean over the tokens, or some of them in another order."""

    matrix: Numbers  # (m, n)
    kind = "mix"

    def __post_init__(self) -> None:
        freeze(self, "matrix")
        if self.matrix.ndim != 2 or 0 in self.matrix.shape:
            raise InputError(f"{self.label}: the matrix has the shape {self.matrix.shape}, expected (m, n)")

    def shape(self, *given: Shape) -> Shape:
        if len(given[0]) != 2 or given[0][0] != self.matrix.shape[1]:
            raise InputError(f"it takes {self.matrix.shape[1]} tokens, but its input has shape {given[0]}")
        return (self.matrix.shape[0], given[0][1])

    def work(self, *given: Shape) -> int:
        return self.matrix.size * math.prod(given[0][1:])

    def exact(self, *x: Balls) -> Balls:
        rows = [[(j, float(m)) for j, m in enumerate(row) if m] for row in self.matrix]
        none = balls(np.zeros(x[0][:, 0].shape))
        found = [sum((x[0][:, j] * balls(np.array(m)) for j, m in row), none) for row in rows]
        return np.stack(found, 1)

    def approximate(self, *x: Tensor) -> Tensor:
        return wide(self.matrix) @ x[0]

    def magnitude(self, *x: Tensor) -> Tensor:
        return wide(self.matrix).abs() @ x[0]
