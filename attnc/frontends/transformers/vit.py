"""ViT and its kin: layernorm_after → fc1 → activation → fc2."""

from __future__ import annotations

from torch import nn

from attnc.frontends.transformers.activations import of_transformers
from attnc.frontends.transformers.found import Site, site

_LAYERS = {"ViTLayer": "vit", "DeiTLayer": "deit", "ViTMAELayer": "vit_mae", "ViTMSNLayer": "vit_msn"}


def find_vit(name: str, layer: nn.Module) -> Site | None:
    """`layernorm_after` makes the block's input. transformers 4 has the two maps in two modules, as BERT has them."""
    family = _LAYERS.get(type(layer).__name__)
    if family is None or not of_transformers(layer):
        return None
    norm = "layernorm_after"
    if hasattr(layer, "intermediate"):
        return site(
            name, layer, family, activation="intermediate.intermediate_act_fn", first="intermediate.dense",
            second="output.dense", norm=norm, through=("output",),
        )  # fmt: skip
    return site(
        name, layer, family, activation="mlp.activation_fn", first="mlp.fc1", second="mlp.fc2", norm=norm
    )
