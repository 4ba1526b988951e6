"""The same numbers in another shape."""

from __future__ import annotations

from torch import Tensor

from attnc.network.altered import as_made
from attnc.network.layer import LayerModule


@as_made
class ReshapeLayer(LayerModule):
    """The numbers of x, row by row, in another shape."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.settings["to"])

    def extra_repr(self) -> str:
        return f"→ {self.settings['to']}"
