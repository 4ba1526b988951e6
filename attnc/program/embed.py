"""y_i = table[id_i]: the rows of a table, a linear map of one-hot vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Numbers, OneInput, Shape, balls, freeze, wide


@dataclass(frozen=True, eq=False)
class Embed(OneInput):
    """y_i = table[id_i] for ids (n,), whole numbers from 0 to V - 1: the table times a one-hot vector."""

    table: Numbers  # (V, d)
    kind = "embed"

    def __post_init__(self) -> None:
        freeze(self, "table")
        if self.table.ndim != 2 or 0 in self.table.shape:
            raise InputError(f"{self.label}: the table has the shape {self.table.shape}, expected (V, d)")

    def shape(self, *given: Shape) -> Shape:
        if len(given[0]) != 1:
            raise InputError(f"it takes ids of the shape (n,): got {given[0]}")
        return (*given[0], self.table.shape[1])

    def exact(self, *x: Balls) -> Balls:
        ids = np.array([float(ball.mid()) for ball in x[0].flat]).reshape(x[0].shape)
        whole = (ids >= 0) & (ids < len(self.table)) & (ids == np.floor(ids))
        if not whole.all() or not all(ball.is_exact() for ball in x[0].flat):
            raise InputError(f"{self.label}: an id is not a whole number from 0 to {len(self.table) - 1}")
        rows, place = np.unique(ids.astype(np.int64), return_inverse=True)
        found: Balls = balls(self.table[rows])[place.reshape(ids.shape)]
        return found

    def approximate(self, *x: Tensor) -> Tensor:
        return wide(self.table)[x[0].long()]

    def magnitude(self, *x: Tensor) -> Tensor:
        return wide(self.table).abs()[x[0].long()]
