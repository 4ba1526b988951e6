"""The steps of a theorem's network: an affine map of the sequence, attention (`LiteralAttention`), softmax over columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network import literal
from attnc.network.altered import as_made
from attnc.network.running import PreciseModule, precise
from attnc.records.layers import Index

Size = tuple[int, int]  # tokens, coordinates


@as_made
class SequenceMap(PreciseModule):
    """X ↦ A·vec(X) + B: an affine map of the whole sequence, (n, d) → (m, e).

    Most of A is zero. Stored is what is not: A[rows, columns] = core where `core` is a matrix; where every row of A has at most
    one number, `core` is the list of them, A[rows[i], columns[i]] = core[i]. `matrix` is A, (m·e, n·d), and `bias` B, (m·e,).

    >>> import numpy as np
    >>> double = SequenceMap("double", 2 * np.eye(4), np.ones(4), (2, 2), (4, 1), "float64")
    >>> double(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype=torch.float64))[0, :, 0].tolist()
    [3.0, 5.0, 7.0, 9.0]
    """

    core: nn.Parameter  # (r, c) or (r,)
    bias: nn.Parameter  # (m·e,)
    rows: Tensor  # (r,)
    columns: Tensor  # (c,) or (r,)

    def __init__(
        self,
        name: str,
        weight: NDArray[Any],
        bias: NDArray[Any],
        in_shape: Size,
        out_shape: Size,
        dtype: str,
        at: tuple[Index, Index] | None = None,
    ) -> None:
        """`weight` is A; or, with `at` = (rows, columns), its core."""
        super().__init__()
        self.name, self.in_shape, self.out_shape = name, in_shape, out_shape
        inputs, outputs = math.prod(in_shape), math.prod(out_shape)
        if at is None:
            if weight.shape != (outputs, inputs):
                raise InputError(
                    f"{name}: a map {in_shape} → {out_shape} has a matrix of shape {(outputs, inputs)}: got {weight.shape}"
                )
            at = np.flatnonzero(weight.any(1)), np.flatnonzero(weight.any(0))
            weight = weight[np.ix_(*at)]
        if bias.shape != (outputs,) or weight.shape not in (tuple(map(len, at)), (len(at[0]),)):
            raise InputError(
                f"{name}: a map to {out_shape} has a bias of {outputs} numbers and a core of {tuple(map(len, at))}: got "
                f"{bias.shape} and {weight.shape}"
            )
        self.core, self.bias = parameter(weight, dtype), parameter(bias, dtype)
        for key, index in (("rows", at[0]), ("columns", at[1])):
            self.register_buffer(key, torch.from_numpy(np.ascontiguousarray(index, np.int64)))

    @precise
    def forward(self, x: Tensor) -> Tensor:
        picked = x.reshape(x.shape[0], math.prod(self.in_shape)).index_select(-1, self.columns)
        made = picked * self.core if self.core.ndim == 1 else picked @ self.core.T
        outputs = torch.zeros(x.shape[0], len(self.bias), dtype=x.dtype, device=x.device)
        out = outputs.index_copy(-1, self.rows, made) + self.bias
        return out.reshape(x.shape[0], *self.out_shape)

    @property
    def matrix(self) -> Tensor:
        """A, (m·e, n·d): the numbers stored, and zeros."""
        shape = (math.prod(self.out_shape), math.prod(self.in_shape))
        if math.prod(shape) > literal.LARGEST:
            raise InputError(
                f"{self.name} has a matrix of {shape[0]:,} × {shape[1]:,}, up to {literal.LARGEST:,} numbers are shown: "
                "look at rows, columns and core, outside of which it is zero"
            )
        found = torch.zeros(shape, dtype=self.core.dtype, device=self.core.device)
        across = self.columns if self.core.ndim == 1 else self.columns[None, :]
        found[self.rows if self.core.ndim == 1 else self.rows[:, None], across] = self.core
        return found

    def extra_repr(self) -> str:
        return f"{self.name}: {self.in_shape} → {self.out_shape}"


@as_made
class ColumnSoftmax(PreciseModule):
    """Z ↦ softmax of every column of a matrix: over the rows, which are anchors."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @precise
    def forward(self, z: Tensor) -> Tensor:
        return torch.softmax(z, -2)

    def extra_repr(self) -> str:
        return f"{self.name}: over rows"


def parameter(array: NDArray[Any], dtype: str) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.ascontiguousarray(array, dtype)), requires_grad=False)


Step = SequenceMap | literal.LiteralAttention | ColumnSoftmax
