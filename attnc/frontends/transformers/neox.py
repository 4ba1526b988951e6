"""GPT-NeoX (Pythia): post_attention_layernorm → dense → activation → dense."""

from __future__ import annotations

from torch import nn

from attnc.frontends.transformers.activations import of_transformers
from attnc.frontends.transformers.found import Site, site


def find_neox(name: str, layer: nn.Module) -> Site | None:
    """`post_attention_layernorm` makes the block's input, whether the residual connections are parallel or not."""
    if type(layer).__name__ != "GPTNeoXLayer" or not of_transformers(layer):
        return None
    return site(
        name, layer, "gpt_neox", activation="mlp.act", first="mlp.dense_h_to_4h", second="mlp.dense_4h_to_h",
        norm="post_attention_layernorm",
    )  # fmt: skip
