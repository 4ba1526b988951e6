"""Alterations of the parts around an activation: dropouts, norms, wiring, shared blocks, parameters, operations between."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from attacks.alter_acts import HONEST
from attacks.layouts import Model
from attacks.registry import ALL, DROPPED, GATED, HELD, NAMES, OWNED, act_module, altered, disguised
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

PRE_NORM = ("gpt2", "llama", "t5", "t5 gated", "opt", "gpt_neox", "vit", "encoder first")


class Scaled(nn.Identity):
    """Not the identity."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.1


class Twice(nn.Module):
    """A module, and an operation behind it."""

    def __init__(self, inner: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.change(self.inner(x))
        return y


DROPOUTS: dict[str, Callable[[], nn.Module]] = {
    "Hardtanh": lambda: nn.Hardtanh(-0.1, 0.1),
    "LayerNorm": lambda: nn.LayerNorm(24),
    "a scaling Identity": Scaled,
    "ReLU": nn.ReLU,
    "Softmax": lambda: nn.Softmax(-1),
    "Tanh": nn.Tanh,
    "Threshold": lambda: nn.Threshold(0.5, 0.0),
    "a Dropout in disguise": lambda: _with_class(nn.Dropout(0.1), lambda self, x: x.clamp(-0.1, 0.1)),
    "Sequential": lambda: nn.Sequential(nn.Dropout(0.1), nn.Hardtanh(-0.5, 0.5)),
    "Linear": lambda: nn.Linear(24, 24),
    "RMSNorm": lambda: nn.RMSNorm(24),
    "BatchNorm1d": lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(24), nn.Unflatten(0, (-1, 12))),
    "Identity": nn.Identity,
    "AlphaDropout": nn.AlphaDropout,
}


def _with_class(module: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    module.__class__ = disguised(type(module), forward=forward)
    return module


def _dropouts() -> None:
    for name, make in DROPOUTS.items():

        def alter(m: Model, make: Any = make) -> None:
            assert m.layout.inner is not None
            torch.manual_seed(3)
            m.put(m.layout.inner, make().to(m.dtype).eval())

        altered(f"dropout replaced by {name}", DROPPED)(alter)

    @altered("hook on the dropout", DROPPED)
    def _(m: Model) -> None:
        m.part(m.layout.inner or "").register_forward_hook(lambda _, args, out: out.clamp(-0.1, 0.1))

    @altered("dropout with a forward of its own", DROPPED)
    def _(m: Model) -> None:
        m.part(m.layout.inner or "").forward = lambda x: x * 0.9

    @altered("dropout that is in training mode", DROPPED)
    def _(m: Model) -> None:
        m.part(m.layout.inner or "").train()


_dropouts()

NORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "Identity": lambda old: nn.Identity(),
    "BatchNorm1d over tokens": lambda old: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(16), nn.Unflatten(0, (-1, 12))),
    "GroupNorm-like two halves": lambda old: Twice(nn.LayerNorm(16), lambda y: torch.cat([3 * y[..., :8], y[..., 8:]], -1)),
    "itself, scaled": lambda old: Twice(old, lambda y: 4.0 * y),
    "itself, twice": lambda old: nn.Sequential(old, copy.deepcopy(old)),
    "itself, clamped": lambda old: Twice(old, lambda y: y.clamp(-1, 1)),
    "Tanh": lambda old: nn.Tanh(),
    "a namesake": lambda old: _with_class(copy.deepcopy(old), lambda self, x: 3.0 * x),
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


@altered("block that is used elsewhere without a norm", ("gpt2", "llama", "vit", "gpt_neox", "distilbert", "t5"), narrow=True)
def _(m: Model) -> None:
    """The block runs a second time, on ten times its input, and the sum leaves the layer."""
    layer, path = m.layer, m.layout.entry[len(m.layout.layer) + 1 :]

    def hook(_: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
        x = out[0] if isinstance(out, tuple) else out
        y = x + 0.1 * layer.get_submodule(path)(10 * x)
        return (y, *out[1:]) if isinstance(out, tuple) else y

    layer.register_forward_hook(hook, with_kwargs=True)


@altered("tied layers with different norms", ("gpt2", "llama", "vit", "gpt_neox", "bert", "opt"), narrow=True)
def _(m: Model) -> None:
    layers = m.part(m.layout.layer.rpartition(".")[0])
    second = copy.deepcopy(m.layer)
    block = m.layout.entry[len(m.layout.layer) + 1 :]
    setattr(second, block.split(".")[0], getattr(m.layer, block.split(".")[0]))
    with torch.no_grad():
        second.get_submodule(m.layout.norm[len(m.layout.layer) + 1 :]).weight.mul_(6.0)
    layers.append(second)


@altered("a map that is shared with the head of the model", ("gpt2", "llama", "bert"))
def _(m: Model) -> None:
    m.module.extra = m.first


def _between() -> None:
    """The block's own forward, in a class in disguise, with one more operation between its maps."""
    operations: dict[str, Callable[[Tensor], Tensor]] = {
        "a scale": lambda h: h * 3.0,
        "a clamp": lambda h: h.clamp(-1, 1),
        "noise": lambda h: h + 0.01 * torch.randn_like(h),
        "a cast to half and back": lambda h: h.half().to(h.dtype),
        "an index_fill": lambda h: h.index_fill(-1, torch.tensor([0, 7]), 0.0),
        "a rounding": lambda h: (h * 8).round() / 8,
        "a softmax": lambda h: h.softmax(-1),
        "a residual connection": lambda h: h + 0.1 * h.flip(-1),
        "a norm": lambda h: h / (1 + h.pow(2).mean(-1, keepdim=True)).sqrt(),
        "a threshold at 5": lambda h: torch.where(h > 5, 5.0, h),
        "an in-place write": lambda h: h.mul_(0.9),
        "autocast": lambda h: _autocast(h),
        "a square": lambda h: h * h,
    }
    for i, (name, change) in enumerate(operations.items()):

        def on_owner(m: Model, change: Any = change) -> None:
            second = m.second
            kept = second.forward
            second.__class__ = disguised(type(second), forward=lambda self, h: kept(change(h)))

        def on_first(m: Model, change: Any = change) -> None:
            kind = type(m.first)
            m.first.__class__ = disguised(kind, forward=lambda self, x: change(kind.forward(self, x)))

        def in_front(m: Model, change: Any = change) -> None:
            kind = type(m.owner)
            m.owner.__class__ = disguised(kind, forward=lambda self, x, *a: kind.forward(self, change(3 * x), *a))

        altered(f"{name} in front of the second map", tuple(f for j, f in enumerate(ALL) if (i + j) % 2 == 0))(on_owner)
        altered(f"{name} behind the first map", tuple(f for j, f in enumerate(ALL) if (i + j) % 3 == 0))(on_first)
        altered(f"{name} in front of the block", tuple(f for j, f in enumerate(OWNED) if (i + j) % 3 == 0))(in_front)


def _autocast(h: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (h.float() @ torch.eye(h.shape[-1])).to(h.dtype)


_between()


@altered("activation applied twice", OWNED)
def _(m: Model) -> None:
    f = HONEST[NAMES[m.layout.family]]
    m.second.register_forward_pre_hook(lambda _, args: (f(args[0]),))


@altered("gate and up exchanged", GATED)
def _(m: Model) -> None:
    owner, first, up = m.owner, m.layout.first.rpartition(".")[2], (m.layout.up or "").rpartition(".")[2]
    a, b, act, second = getattr(owner, first), getattr(owner, up), m.act, m.second
    kind = type(owner)

    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = second(act(b(x)) * a(x))
        return y

    owner.__class__ = disguised(kind, forward=forward)


@altered("gate added instead of multiplied", GATED)
def _(m: Model) -> None:
    owner, first, up = m.owner, m.first, m.part(m.layout.up or "")
    owner.forward = types.MethodType(lambda self, x: m.second(m.act(first(x)) + up(x)), owner)


def _parameters() -> None:
    def weight_norm(part: nn.Module) -> None:
        parametrizations.weight_norm(part)
        with torch.no_grad():
            part.parametrizations.weight.original0.mul_(2.0)  # type: ignore[union-attr, index, operator]

    class Tripled(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return 5.0 * w

    changes: dict[str, Callable[[nn.Module], Any]] = {
        "weight_norm": weight_norm,
        "spectral_norm": parametrizations.spectral_norm,
        "a parametrization": lambda p: parametrize.register_parametrization(p, "weight", Tripled()),
        "pruning": lambda p: prune.l1_unstructured(p, "weight", amount=0.3),
        "a weight as a plain attribute": _plain_weight,
        "a weight that is a view": _expanded,
        "a transposed weight": lambda p: setattr(p, "weight", nn.Parameter(p.weight.detach().T.contiguous().T)),
        "a tensor subclass": _subclass,
        "a bias behind a property": _hidden_bias,
    }
    for name, change in changes.items():
        altered(f"{name} on the first map", ALL)(lambda m, c=change: c(m.first))
        altered(f"{name} on the second map", ALL)(lambda m, c=change: c(m.second))
    for name in ("a parametrization", "a tensor subclass"):
        altered(f"{name} on the norm", ALL, eps=1e-2)(lambda m, c=changes[name]: c(m.norm))


def _plain_weight(part: Any) -> None:
    weight = part.weight.detach().clone()
    del part.weight
    part.weight = weight


def _expanded(part: Any) -> None:
    part.weight = nn.Parameter(part.weight.detach()[:1].expand_as(part.weight))


class Louder(Tensor):
    """A tensor whose products come out larger than its numbers say."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if func.__name__ in ("linear", "addmm", "layer_norm", "mul", "__mul__", "__rmul__") and isinstance(out, Tensor):
            return out.as_subclass(Tensor) * 1.5
        return out


def _subclass(part: Any) -> None:
    part.weight = nn.Parameter(part.weight.detach().as_subclass(Louder))


def _hidden_bias(part: Any) -> None:
    kind, d = type(part), part.weight.shape[1 if type(part).__name__ == "Conv1D" else 0]
    hidden = torch.linspace(-20, 20, d, dtype=part.weight.dtype)
    part.__class__ = disguised(kind, forward=lambda self, x: kind.forward(self, x) + hidden)


_parameters()


@altered("norm_first turned over", ("encoder", "encoder first"))
def _(m: Model) -> None:
    m.layer.norm_first = not m.layer.norm_first


@altered("a fast path of another activation", ("encoder first",))
def _(m: Model) -> None:
    """In eval mode and without gradients the fused operation takes relu for the layer's gelu."""
    act_module(m)
    m.layer.activation_relu_or_gelu = 1


@altered("weights on the scale of 1e6", ALL, eps=1e3)
def _(m: Model) -> None:
    with torch.no_grad():
        m.second.weight.mul_(1e6)


@altered("weights that are not finite", ALL)
def _(m: Model) -> None:
    with torch.no_grad():
        m.first.weight.view(-1)[0] = float("inf")
