"""OPT: the layer itself holds fc1, the activation and fc2."""

from __future__ import annotations

from torch import nn

from attnc.frontends.transformers.activations import of_transformers
from attnc.frontends.transformers.found import Site, site


def find_opt(name: str, layer: nn.Module) -> Site | None:
    """`final_layer_norm` stands in front of the block, or, in the 350m model, `self_attn_layer_norm` behind the attention."""
    if type(layer).__name__ != "OPTDecoderLayer" or not of_transformers(layer):
        return None
    norm = "final_layer_norm" if getattr(layer, "do_layer_norm_before", True) else "self_attn_layer_norm"
    return site(name, layer, "opt", activation="activation_fn", first="fc1", second="fc2", norm=norm)
