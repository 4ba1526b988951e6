"""The linear layers: affine maps, sums and reshapes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from attnc.network.altered import as_made
from attnc.network.layer import LayerModule
from attnc.network.running import precise
from attnc.records.layers import Layer


@as_made
class AffineLayer(LayerModule):
    """x ↦ W x + b."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        if "bias" not in layer.tensors:
            self.register_parameter("bias", None)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]} → {self.weight.shape[0]}"


@as_made
class ScaleLayer(LayerModule):
    """x ↦ a∘x + c: a normalisation with stored statistics."""

    scale: nn.Parameter
    shift: nn.Parameter

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


@as_made
class CombineLayer(LayerModule):
    """(x_1, …) ↦ Σ c_i x_i."""

    def forward(self, *xs: Tensor) -> Tensor:
        first, *others = [
            x if c == 1 else x * c for x, c in zip(xs, self.settings["coefficients"], strict=True)
        ]
        for term in others:
            first = first + term
        return first

    def extra_repr(self) -> str:
        terms = zip(self.settings["coefficients"], self.inputs, strict=True)
        return " + ".join(f"{c:g}·v{i}" for c, i in terms)


@as_made
class ReshapeLayer(LayerModule):
    """The numbers of x, row by row, in another shape."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.settings["to"])

    def extra_repr(self) -> str:
        return f"→ {self.settings['to']}"
