"""Alterations of the parts around an activation: dropouts, shared blocks, parameters, operations between."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from attacks.alter_acts import HONEST
from attacks.alter_norms import with_class
from attacks.layouts import Model
from attacks.registry import ALL, DROPPED, GATED, NAMES, OWNED, act_module, altered, disguised


class Scaled(nn.Identity):
    """Not the identity."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.1


DROPOUTS: dict[str, Callable[[], nn.Module]] = {
    "Hardtanh": lambda: nn.Hardtanh(-0.1, 0.1),
    "LayerNorm": lambda: nn.LayerNorm(24),
    "a scaling Identity": Scaled,
    "ReLU": nn.ReLU,
    "Softmax": lambda: nn.Softmax(-1),
    "Tanh": nn.Tanh,
    "Threshold": lambda: nn.Threshold(0.5, 0.0),
    "a Dropout in disguise": lambda: with_class(nn.Dropout(0.1), lambda self, x: x.clamp(-0.1, 0.1)),
    "Sequential": lambda: nn.Sequential(nn.Dropout(0.1), nn.Hardtanh(-0.5, 0.5)),
    "Linear": lambda: nn.Linear(24, 24),
    "RMSNorm": lambda: nn.RMSNorm(24),
    "BatchNorm1d": lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(24), nn.Unflatten(0, (-1, 12))),
    "Identity": nn.Identity,
    "AlphaDropout": nn.AlphaDropout,
}


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
            m.owner.__class__ = disguised(
                kind, forward=lambda self, x, *a: kind.forward(self, change(3 * x), *a)
            )

        altered(
            f"{name} in front of the second map", tuple(f for j, f in enumerate(ALL) if (i + j) % 2 == 0)
        )(on_owner)
        altered(f"{name} behind the first map", tuple(f for j, f in enumerate(ALL) if (i + j) % 3 == 0))(
            on_first
        )
        altered(f"{name} in front of the block", tuple(f for j, f in enumerate(OWNED) if (i + j) % 3 == 0))(
            in_front
        )


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
        "a transposed weight": lambda p: setattr(
            p, "weight", nn.Parameter(p.weight.detach().T.contiguous().T)
        ),
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
        if func.__name__ in ("linear", "addmm", "layer_norm", "mul", "__mul__", "__rmul__") and isinstance(
            out, Tensor
        ):
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


@altered("a fast path of another activation", ("encoder first",), wide=True)
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
