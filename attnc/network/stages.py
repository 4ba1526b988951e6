"""The stages of a network as torch modules: affine maps, and attention over anchors. Each gives back its numbers."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnc.network.altered import as_made
from attnc.network.pointwise import Pointwise
from attnc.network.running import PreciseModule, precise
from attnc.program.step import Numbers, Shape
from attnc.records import network_numbers as numbers


def _parameter(array: Numbers) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.array(array)), requires_grad=False)


def _array(tensor: Tensor) -> Numbers:
    found: Numbers = tensor.detach().cpu().numpy().copy()
    return found


@as_made
class AffineMap(PreciseModule):
    """x ↦ W x + b."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, stage: numbers.Linear) -> None:
        super().__init__()
        self.inputs, self.value = (stage.input,), stage.value
        self.weight = _parameter(stage.weight)
        self.bias = None if stage.bias is None else _parameter(stage.bias)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def numbers(self) -> numbers.Linear:
        bias = None if self.bias is None else _array(self.bias)
        return numbers.Linear(self.inputs[0], self.value, _array(self.weight), bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} → {self.weight.shape[0]}"


@as_made
class Scaling(PreciseModule):
    """x ↦ a∘x + c."""

    scale: nn.Parameter
    shift: nn.Parameter

    def __init__(self, stage: numbers.Scale) -> None:
        super().__init__()
        self.inputs, self.value = (stage.input,), stage.value
        self.scale, self.shift = _parameter(stage.scale), _parameter(stage.shift)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift

    def numbers(self) -> numbers.Scale:
        return numbers.Scale(self.inputs[0], self.value, _array(self.scale), _array(self.shift))


@as_made
class Selection(PreciseModule):
    """x ↦ Σ_k softmax_k(key·(x - centre) + offset) values_k: one head whose anchors are points of the whole input."""

    centre: nn.Parameter  # (m,)
    key: nn.Parameter  # (K, m)
    offset: nn.Parameter  # (K,)
    values: nn.Parameter  # (K, outputs)

    def __init__(self, stage: numbers.Selection, name: str = "lookup") -> None:
        super().__init__()
        self.inputs, self.value, self.name = (stage.input,), stage.value, name
        for tensor, array in stage.tensors().items():
            setattr(self, tensor, _parameter(array))

    @precise
    def weights(self, x: Tensor) -> Tensor:
        """The attention weights, (…, K)."""
        return torch.softmax(F.linear(x - self.centre, self.key, self.offset), -1)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return self.weights(x) @ self.values

    @property
    def anchors(self) -> int:
        return len(self.key)

    def numbers(self) -> numbers.Selection:
        arrays = [_array(t) for t in (self.centre, self.key, self.offset, self.values)]
        return numbers.Selection(self.inputs[0], self.value, *arrays)

    def extra_repr(self) -> str:
        return f"{self.key.shape[1]} → {self.values.shape[1]}, {self.anchors} anchors"


@as_made
class Combination(PreciseModule):
    """(x_1, …) ↦ Σ c_i x_i."""

    def __init__(self, stage: numbers.Sum) -> None:
        super().__init__()
        self.inputs, self.value, self.coefficients = stage.inputs, stage.value, stage.coefficients

    def forward(self, *xs: Tensor) -> Tensor:
        terms = [x if c == 1 else x * c for x, c in zip(xs, self.coefficients, strict=True)]
        found = terms[0]
        for term in terms[1:]:
            found = found + term
        return found

    def numbers(self) -> numbers.Sum:
        return numbers.Sum(self.inputs, self.value, self.coefficients)

    def extra_repr(self) -> str:
        return " + ".join(f"{c:g}·v{i}" for c, i in zip(self.coefficients, self.inputs, strict=True))


@as_made
class Reordering(PreciseModule):
    """The same numbers, row by row, in another shape."""

    def __init__(self, stage: numbers.Reorder) -> None:
        super().__init__()
        self.inputs, self.value, self.shape = (stage.input,), stage.value, stage.shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)

    def numbers(self) -> numbers.Reorder:
        return numbers.Reorder(self.inputs[0], self.value, self.shape)

    def extra_repr(self) -> str:
        return f"→ {self.shape}"


StageModule = AffineMap | Scaling | Pointwise | Selection | Combination | Reordering
__all__ = [
    "AffineMap", "Combination", "Pointwise", "Reordering", "Scaling", "Selection", "Shape", "StageModule",
]  # fmt: skip
