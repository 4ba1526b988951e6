"""Alterations of the norm in front of a block, and of the way from it to the block."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attacks.layouts import Model
from attacks.registry import ALL, HELD, altered, disguised


class Twice(nn.Module):
    """A module, and an operation behind it."""

    def __init__(self, inner: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.change(self.inner(x))
        return y


def with_class(module: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    module.__class__ = disguised(type(module), forward=forward)
    return module


NORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "Identity": lambda old: nn.Identity(),
    "BatchNorm1d over tokens": lambda old: nn.Sequential(
        nn.Flatten(0, 1), nn.BatchNorm1d(16), nn.Unflatten(0, (-1, 12))
    ),
    "GroupNorm-like two halves": lambda old: Twice(
        nn.LayerNorm(16), lambda y: torch.cat([3 * y[..., :8], y[..., 8:]], -1)
    ),
    "itself, scaled": lambda old: Twice(old, lambda y: 4.0 * y),
    "itself, twice": lambda old: nn.Sequential(old, copy.deepcopy(old)),
    "itself, clamped": lambda old: Twice(old, lambda y: y.clamp(-1, 1)),
    "Tanh": lambda old: nn.Tanh(),
    "a namesake": lambda old: with_class(copy.deepcopy(old), lambda self, x: 3.0 * x),
    "Softmax": lambda old: nn.Softmax(-1),
    "RMSNorm": lambda old: nn.RMSNorm(16),
    "LayerNorm without numbers": lambda old: nn.LayerNorm(16, elementwise_affine=False),
    "LayerNorm over two axes": lambda old: nn.LayerNorm((1, 16)),
}


def _norms() -> None:
    for name, make in NORMS.items():

        def alter(m: Model, make: Any = make) -> None:
            m.put(m.layout.norm, make(m.norm).to(m.dtype).eval())

        altered(f"norm replaced by {name}", ALL)(alter)


_norms()


def _eps_of(norm: nn.Module) -> str:
    return "eps" if hasattr(norm, "eps") else "variance_epsilon"


def _norm_numbers() -> None:
    for value in (1e-2, 1e-14, 1e-30, 0.0, -0.5, "1e-5", float("nan")):
        altered(f"norm with eps {value}", ALL)(lambda m, v=value: setattr(m.norm, _eps_of(m.norm), v))

    @altered("norm's weight is replaced by a larger one", ALL, eps=1e-2)
    def _(m: Model) -> None:
        m.norm.weight = nn.Parameter(m.norm.weight.detach() * 5)

    @altered("norm's weight is a plain attribute", ALL, eps=1e-2)
    def _(m: Model) -> None:
        weight = m.norm.weight.detach() * 5
        del m.norm.weight
        m.norm.weight = weight

    @altered("norm's weight is a buffer", ALL, eps=1e-2)
    def _(m: Model) -> None:
        weight = m.norm.weight.detach() * 5
        del m.norm.weight
        m.norm.register_buffer("weight", weight)

    @altered("norm's weight is hidden behind a property", ALL, eps=1e-2)
    def _(m: Model) -> None:
        kind = type(m.norm)
        inner = kind.forward

        def forward(self: Any, x: Tensor) -> Tensor:
            y: Tensor = inner(self, x) * 3.0
            return y

        m.norm.__class__ = disguised(kind, forward=forward)

    @altered("norm of another normalized_shape", ALL)
    def _(m: Model) -> None:
        if isinstance(m.norm, nn.LayerNorm):
            m.norm.normalized_shape = (8,)
            m.norm.weight = nn.Parameter(m.norm.weight.detach()[:8])
            m.norm.bias = nn.Parameter(m.norm.bias.detach()[:8])
        else:
            m.norm.weight = nn.Parameter(m.norm.weight.detach()[:1])


_norm_numbers()


@altered("norm is passed over by its layer", HELD, narrow=True)
def _(m: Model) -> None:
    """The layer's forward is that of its class, with the norm replaced by the identity while it runs."""
    layer, path = m.layer, m.layout.norm[len(m.layout.layer) + 1 :]
    kept = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        norm = layer.get_submodule(path)
        norm.forward = lambda x: x * 1.0
        try:
            return kept(*args, **kwargs)
        finally:
            del norm.forward

    layer.forward = forward


@altered("norm is passed over by a layer in disguise", HELD, narrow=True)
def _(m: Model) -> None:
    layer, path = m.layer, m.layout.norm[len(m.layout.layer) + 1 :]
    kept = type(layer).forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        norm = self.get_submodule(path)
        norm.forward = lambda x: x * 1.0
        try:
            return kept(self, *args, **kwargs)
        finally:
            del norm.forward

    layer.__class__ = disguised(type(layer), forward=forward)


class Behind(nn.Module):
    """A parent that takes the block of a layer, and leaves its norm: x + mlp(x)."""

    def __init__(self, layer: Any, name: str) -> None:
        super().__init__()
        self.layer, self.name = layer, name

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Any:
        y = x + getattr(self.layer, self.name)(x)
        return y


@altered("parent that calls the block without its norm", ("gpt2", "llama", "vit", "gpt_neox"), narrow=True)
def _(m: Model) -> None:
    layers = m.part(m.layout.layer.rpartition(".")[0])
    layers.append(Behind(m.layer, "mlp").to(m.dtype))
    m.module.config.num_hidden_layers = len(layers)  # some models run as many layers as their config says


@altered(
    "block that is used elsewhere without a norm",
    ("gpt2", "llama", "vit", "gpt_neox", "distilbert", "t5"),
    narrow=True,
)
def _(m: Model) -> None:
    """The block runs a second time, on ten times its input, and the sum leaves the layer."""
    layer, path = m.layer, m.layout.entry[len(m.layout.layer) + 1 :]

    def hook(_: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
        x = out[0] if isinstance(out, tuple) else out
        y = x + 0.1 * layer.get_submodule(path)(10 * x)
        return (y, *out[1:]) if isinstance(out, tuple) else y

    layer.register_forward_hook(hook, with_kwargs=True)
