"""Llama and its kin: rms norm → act(gate_proj)·up_proj → down_proj."""

from __future__ import annotations

from torch import nn

from attnc.frontends.transformers.activations import CONVERTED, of_transformers
from attnc.frontends.transformers.found import Site, site

_KIN = ("Llama", "Mistral", "Ministral", "Qwen2", "Qwen3", "SmolLM3", "Gemma")
_TWO_NORMS = ("Gemma2", "Gemma3")  # one before and one behind attention and block alike
_LAYERS = {
    **{f"{kin}DecoderLayer": (kin, "post_attention_layernorm") for kin in _KIN},
    **{f"{kin}DecoderLayer": (kin, "pre_feedforward_layernorm") for kin in _TWO_NORMS},
}


def find_llama(name: str, layer: nn.Module) -> Site | None:
    """`post_attention_layernorm` makes the block's input; in Gemma 2 and 3 it is `pre_feedforward_layernorm`."""
    kin, norm = _LAYERS.get(type(layer).__name__, ("", ""))
    kinds = (f"{kin}MLP", *CONVERTED)
    if not kin or not of_transformers(layer) or type(getattr(layer, "mlp", None)).__name__ not in kinds:
        return None
    return site(
        name, layer, kin.lower(), activation="mlp.act_fn", first="mlp.gate_proj", up="mlp.up_proj", second="mlp.down_proj",
        norm=norm,
    )  # fmt: skip
