"""Parts of converted models as self-attention: a norm, an activation, a gated feed-forward block, each over n data tokens.

The matrices are those of the engine "softmax". A converted model has one certificate for all of its parts, so these literal forms
have no certified source of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from attnc.arguments import checked_count
from attnc.domain import Interval
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.network.literal.layers import Layers
from attnc.network.literal.network import SelfAttentionNetwork
from attnc.network.literal.steps import Input
from attnc.program.step import Numbers
from attnc.records.layers import NORM_HEADS, Layer, pointwise_layer
from attnc.records.numbers import TENSORS

if TYPE_CHECKING:
    from attnc.network.norm import Norm
    from attnc.network.pointwise import Pointwise
    from attnc.network.product import GatedBlock

Named = Sequence[tuple[str, Layer]]


def literal_norm(norm: Norm, n: int) -> SelfAttentionNetwork:
    """A norm: inputs and outputs (…, n, d)."""
    heads, gain = norm.heads.numbers(), norm.gain()
    ones, dtype = torch.ones(heads.dim), heads.dtype
    numbers = [heads.slope, heads.intercept, heads.value, _array(ones if gain is None else gain, dtype)]
    numbers.append(_array(0 * ones if norm.bias is None else norm.bias, dtype))
    tensors = dict(zip((*NORM_HEADS, "gain", "shift"), numbers, strict=True))
    layer = Layer("norm", (0,), 1, tensors, {"centred": norm.centred})
    return _literal("norm", [("norm", layer)], n, [heads.dim] * 2, dtype, norm.heads.slope.device, {})


def literal_activation(
    activation: Pointwise, n: int, neurons: int | None, maps: tuple[nn.Module, nn.Module] | None
) -> SelfAttentionNetwork:
    """An activation, inputs and outputs (…, n, neurons); or a block second(activation(first(x))), if its two maps are given."""
    key = activation.groups[0][1].key
    dtype = str(key.dtype).removeprefix("torch.")
    if maps is not None:
        first, second = (linear_map(m, f"maps[{i}]", dtype) for i, m in enumerate(maps))
        neurons = len(first["weight"]) if neurons is None else neurons
    known = activation.neurons
    if neurons is None and known is None:
        raise InputError(
            "this activation serves any number of neurons: give neurons=… or maps=(first, second)"
        )
    width = checked_count("neurons", known if neurons is None else neurons, why="the width of a token")
    if known not in (None, width) or (maps is not None and len(first["weight"]) != width):
        raise InputError(f"the activation has {known or width} neurons: neurons={neurons} does not fit")
    if maps is None:
        layer, domains = _activation(activation, 0, 1)
        return _literal(
            "activation", [("activation", layer)], n, [width] * 2, dtype, key.device, {1: domains}
        )
    layer, domains = _activation(activation, 1, 2)
    named = [
        ("first", Layer("affine", (0,), 1, first)), ("activation", layer), ("second", Layer("affine", (2,), 3, second)),
    ]  # fmt: skip
    widths = [first["weight"].shape[1], width, width, len(second["weight"])]
    return _literal("block", named, n, widths, dtype, key.device, {2: domains})


def literal_block(block: GatedBlock, n: int) -> SelfAttentionNetwork:
    """A gated feed-forward block: inputs and outputs (…, n, d)."""
    ((_, square),) = block.product.square.groups
    dtype = str(square.key.dtype).removeprefix("torch.")
    if len(block.roles) != 3:
        raise UnsupportedError(
            "the gated block has no literal form",
            [Problem(block.roles[0], "is a fused gate: one map for both factors")],
        )
    first, up, second = (linear_map(block.get_submodule(name), name, dtype) for name in block.roles)
    activation, domains = _activation(block.activation, 1, 2)
    powers = {name: getattr(block.product, name).cpu().numpy() for name in ("scale", "radius")}
    parts = square.numbers().tensors()
    product = Layer("product", (2, 3), 4, powers | {f"square.0.{name}": parts[name] for name in TENSORS})
    names = block.roles[0], "activation", block.roles[1], "product", block.roles[2]
    layers = [
        Layer("affine", (0,), 1, first), activation, Layer("affine", (0,), 3, up), product, Layer("affine", (4,), 5, second),
    ]  # fmt: skip
    (hidden, features), outputs = first["weight"].shape, len(second["weight"])
    widths = [features, hidden, hidden, hidden, hidden, outputs]
    named = list(zip(names, layers, strict=True))
    return _literal("gated block", named, n, widths, dtype, square.key.device, {2: domains})


def linear_map(module: nn.Module, name: str, dtype: str) -> dict[str, Numbers]:
    """Weight and bias of a linear map, a row for each output. Some classes store the weight transposed: the module is run to find
    out."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    stored = [weight, weight.mT] if isinstance(weight, Tensor) and weight.ndim == 2 else []
    for W in stored:
        if type(module) is nn.Linear or _computes(module, W, bias):
            given = {"weight": W} if bias is None else {"weight": W, "bias": bias}
            return {key: _array(tensor, dtype) for key, tensor in given.items()}
    raise InputError(f"{name}: a {type(module).__name__} is not a linear map with a weight and a bias")


@torch.no_grad()
def _computes(module: nn.Module, W: Tensor, bias: Tensor | None) -> bool:
    """Whether the module computes W x + bias for some vector x."""
    x = torch.rand(W.shape[1], generator=torch.Generator().manual_seed(0)).to(W.device, W.dtype)
    room = 4 * W.shape[1] * torch.finfo(W.dtype).eps
    try:
        wanted, found = nn.functional.linear(x, W, bias), module(x[None])[0]
    except RuntimeError:  # the other shape
        return False
    size = W.abs() @ x + wanted.abs()
    return found.shape == wanted.shape and bool(((found - wanted).abs() <= room * size).all())


def _activation(activation: Pointwise, input: int, value: int) -> tuple[Layer, list[Interval | None]]:
    groups = [(None if g is None else g.cpu().numpy(), head.numbers()) for g, head in activation.groups]
    return pointwise_layer(input, value, groups), [head.domain for _, head in activation.groups]


def _array(tensor: Tensor, dtype: str) -> Numbers:
    found: Numbers = tensor.detach().cpu().to(getattr(torch, dtype)).numpy()
    return np.ascontiguousarray(found)


def _literal(
    form: str, named: Named, n: int, widths: Sequence[int], dtype: str, device: torch.device,
    domains: Mapping[int, Sequence[Interval | None]],
) -> SelfAttentionNetwork:  # fmt: skip
    checked_count("n", n, why="the number of data tokens")
    names, layers = zip(*named, strict=True)
    shapes = [(n, width) for width in widths]
    build = Layers(layers, names, shapes, dtype, domains)
    return build.network(form, Input("x", shapes[0], widths[0]), ("y", shapes[-1])).to(device)
