"""GPT-2 and GPT-Neo: ln_2 → c_fc → activation → c_proj."""

from __future__ import annotations

from torch import nn

from attnc.frontends.transformers.activations import of_transformers
from attnc.frontends.transformers.found import Site, site

_BLOCKS = {"GPT2Block": "gpt2", "GPTNeoBlock": "gpt_neo"}


def find_gpt2(name: str, layer: nn.Module) -> Site | None:
    """`ln_2` makes the block's input, behind cross-attention too."""
    family = _BLOCKS.get(type(layer).__name__)
    if family is None or not of_transformers(layer):
        return None
    return site(name, layer, family, activation="mlp.act", first="mlp.c_fc", second="mlp.c_proj", norm="ln_2")
