"""Attention between the tokens of a sequence, as a layer of a network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnc.network.altered import as_made
from attnc.network.layer import LayerModule
from attnc.network.running import constant, precise
from attnc.records.layers import Layer


@as_made
class AttendLayer(LayerModule):
    """(q, k, v) ↦ softmax(scale·q kᵀ + bias) v where the mask is 1, in each head.

    Every engine executes it in this way: it is softmax already."""

    name = "attend"
    mask: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer)
        for part in ("mask", "bias"):
            if part not in layer.tensors:
                self.register_parameter(part, None)

    @precise
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """The attention weights, (…, heads, n, m)."""
        heads, slices, scale = self.settings["split"]
        queries, keys = torch.stack(q.chunk(heads, -1), -3), torch.stack(k.chunk(slices, -1), -3)
        products = queries @ keys.repeat_interleave(heads // slices, -3).mT
        scores: Tensor = products * constant(scale, products)
        if self.bias is not None:
            scores = scores + self.bias
        if self.mask is not None:
            scores = scores.masked_fill(self.mask == 0, -torch.inf)
        return torch.softmax(scores, -1)

    @precise
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, slices, _ = self.settings["split"]
        values = torch.stack(v.chunk(slices, -1), -3).repeat_interleave(heads // slices, -3)
        return torch.cat((self.weights(q, k) @ values).unbind(-3), -1)

    def extra_repr(self) -> str:
        heads, slices, scale = self.settings["split"]
        shared = "" if slices == heads else f" on {slices} of keys"
        return f"{heads} heads{shared}, scale {scale:g}{', masked' if self.mask is not None else ''}"
