"""T5, plain (wi, activation, wo) and gated (act(wi_0)·wi_1, wo), behind an rms norm."""

from __future__ import annotations

from torch import nn

from attnc.frontends.transformers.activations import of_transformers
from attnc.frontends.transformers.found import Site, site

_LAYERS = {"T5LayerFF": "t5", "MT5LayerFF": "mt5", "UMT5LayerFF": "umt5"}


def find_t5(name: str, layer: nn.Module) -> Site | None:
    """`layer_norm` makes the block's input."""
    family = _LAYERS.get(type(layer).__name__)
    if family is None or not of_transformers(layer):
        return None
    block = "DenseReluDense"
    gated = hasattr(getattr(layer, block, None), "wi_1")
    return site(
        name, layer, family, activation=f"{block}.act", first=f"{block}.{'wi_0' if gated else 'wi'}", second=f"{block}.wo",
        up=f"{block}.wi_1" if gated else None, norm="layer_norm",
    )  # fmt: skip
