"""BERT and its kin: norm(attention + x) → dense → activation → dense."""

from __future__ import annotations

from torch import nn

from attnc.frontends.transformers.activations import of_transformers
from attnc.frontends.transformers.found import Site, site

_KIN = ("Bert", "Roberta", "Electra", "Camembert", "XLMRoberta", "Data2VecText", "Ernie")
_LAYERS = {f"{kin}Layer": kin for kin in _KIN}
_TWO_NORMS = "has cross-attention: its input comes from one norm or another, and nothing is proved of it"


def find_bert(name: str, layer: nn.Module) -> Site | None:
    """`attention.output.LayerNorm` makes the block's input, except where cross-attention may come between."""
    kin = _LAYERS.get(type(layer).__name__)
    if kin is None or not of_transformers(layer):
        return None
    crossed = hasattr(layer, "crossattention")
    return site(
        name, layer, kin.lower(), activation="intermediate.intermediate_act_fn", first="intermediate.dense",
        second="output.dense", norm=None if crossed else "attention.output.LayerNorm",
        through=("attention", "attention.output", "output"), remarks=(_TWO_NORMS,) if crossed else (),
    )  # fmt: skip


def find_distilbert(name: str, layer: nn.Module) -> Site | None:
    """`sa_layer_norm` makes the block's input."""
    named = type(layer).__name__ == "TransformerBlock"
    if not named or not type(layer).__module__.startswith("transformers.models.distilbert."):
        return None
    return site(
        name, layer, "distilbert", activation="ffn.activation", first="ffn.lin1", second="ffn.lin2", norm="sa_layer_norm"
    )  # fmt: skip
