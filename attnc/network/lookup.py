"""One head whose anchors are points of the whole input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnc.network.altered import as_made
from attnc.network.layer import LayerModule
from attnc.network.running import precise


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

    def extra_repr(self) -> str:
        return f"{self.key.shape[1]} → {self.values.shape[1]}, {self.anchors} anchors"
