"""The layers of a network: a module that is made from stored numbers and returns them; linear layers, and the lookup."""

from __future__ import annotations

from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.altered import as_made
from attnc.network.running import PreciseModule, constant, precise
from attnc.program.step import Numbers
from attnc.records.layers import Layer


@as_made
class LayerModule(PreciseModule):
    """The tensors of a layer as parameters of the same names, which require no gradient.

    The layer reads the values `inputs` of the program and computes the value `value`."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.kind, self.inputs, self.value = layer.kind, layer.inputs, layer.value
        self.settings = dict(layer.settings)
        for name, array in layer.tensors.items():
            tensor = torch.from_numpy(np.array(array))
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def numbers(self) -> Layer:
        """The numbers as they are stored now."""
        if self._buffers or self._modules:
            raise InputError(f"the {self.kind} layer has parts that it was not made with")
        tensors = {name: to_array(p) for name, p in self._parameters.items() if p is not None}
        return Layer(self.kind, self.inputs, self.value, tensors, dict(self.settings))

    def extra_repr(self) -> str:
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items() if p is not None}
        return ", ".join(f"{name}={value}" for name, value in (shapes | self.settings).items())


@as_made
class AffineLayer(LayerModule):
    """x ↦ W x + b."""

    weight: nn.Parameter

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self._parameters.get("bias"))


@as_made
class ScaleLayer(LayerModule):
    """x ↦ a∘x + c: a scale, or a normalisation with stored statistics."""

    scale: nn.Parameter
    shift: nn.Parameter

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


@as_made
class EmbedLayer(LayerModule):
    """ids ↦ the rows of the table."""

    table: nn.Parameter

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids.long(), self.table)

    def extra_repr(self) -> str:
        return f"{self.table.shape[0]} rows of {self.table.shape[1]}"


@as_made
class MixLayer(LayerModule):
    """x ↦ M x over the tokens."""

    matrix: nn.Parameter

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return self.matrix @ x


@as_made
class CombineLayer(LayerModule):
    """(x_1, …) ↦ Σ c_i x_i."""

    def forward(self, *xs: Tensor) -> Tensor:
        pairs = zip(xs, self.settings["coefficients"], strict=True)
        return reduce(torch.add, [x if c == 1 else x * constant(c, x) for x, c in pairs])


@as_made
class ReshapeLayer(LayerModule):
    """The numbers of x, row by row, in another shape."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.settings["to"])


@as_made
class LookupLayer(LayerModule):
    """x ↦ Σ_k softmax_k(key·(x - centre) + offset) values_k."""

    name = "lookup"
    centre: nn.Parameter  # (m,)
    key: nn.Parameter  # (K, m)
    offset: nn.Parameter  # (K,)
    values: nn.Parameter  # (K, outputs)

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


def to_array(tensor: Tensor) -> Numbers:
    """A copy of a tensor's numbers."""
    found: Numbers = tensor.detach().cpu().numpy().copy()
    return found
