"""torch's own nn.TransformerEncoderLayer and nn.TransformerDecoderLayer."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from attnc.frontends.transformers.found import Site, site

_PADDING = "torch's nested tensors are switched off: at padded places the output is no longer 0, and still means nothing"


def find_encoder_layer(name: str, layer: nn.Module) -> Site | None:
    """With `norm_first` the layer's last norm makes the block's input, else the last but one.

    In eval mode an encoder layer may run as one fused operation, which computes the activation itself: `settings` tells the
    layer that its activation is neither relu nor gelu, and the operation is not used.
    """
    if type(layer) is nn.TransformerEncoderLayer:
        family, norms = "encoder_layer", ("norm1", "norm2")
    elif type(layer) is nn.TransformerDecoderLayer:
        family, norms = "decoder_layer", ("norm2", "norm3")
    else:
        return None
    fused = hasattr(layer, "activation_relu_or_gelu")
    return site(
        name, layer, family, activation="activation", first="linear1", second="linear2", norm=norms[bool(layer.norm_first)],
        settings=((layer, "activation_relu_or_gelu", 0),) if fused else (),
    )  # fmt: skip


def without_nesting(found: Site, model: nn.Module) -> Site:
    """The site, with the switch of the nn.TransformerEncoder around it: nested tensors are for the fused operation only."""
    if found.family != "encoder_layer":
        return found
    around = [
        m for m in model.modules()
        if isinstance(m, nn.TransformerEncoder) and m.use_nested_tensor and any(layer is found.parent for layer in m.layers)
    ]  # fmt: skip
    if not around:
        return found
    settings = (*found.settings, *((encoder, "use_nested_tensor", False) for encoder in around))
    return replace(found, settings=settings, remarks=(*found.remarks, _PADDING))
