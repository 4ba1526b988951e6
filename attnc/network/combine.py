"""Sums of values."""

from __future__ import annotations

from torch import Tensor

from attnc.network.altered import as_made
from attnc.network.layer import LayerModule


@as_made
class CombineLayer(LayerModule):
    """(x_1, …) ↦ Σ c_i x_i."""

    def forward(self, *xs: Tensor) -> Tensor:
        terms = [x if c == 1 else x * c for x, c in zip(xs, self.settings["coefficients"], strict=True)]
        found = terms[0]
        for term in terms[1:]:
            found = found + term
        return found

    def extra_repr(self) -> str:
        terms = zip(self.settings["coefficients"], self.inputs, strict=True)
        return " + ".join(f"{c:g}·v{i}" for c, i in terms)
