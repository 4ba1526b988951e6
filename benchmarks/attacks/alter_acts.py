"""Alterations of the activation: namesakes, attributes, thresholds, state, and what it depends on besides its input."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.layouts import Model
from attacks.registry import ALL, NAMES, altered, disguised

HONEST: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "relu": F.relu, "silu": F.silu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}  # fmt: skip
MODULES: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "gelu_tanh": lambda: nn.GELU("tanh"),
}  # fmt: skip
FLAG = {"on": True}
Change = Callable[[Tensor, Tensor], Tensor]  # (s, what the honest activation returns) ↦ what this one returns


def honest(m: Model) -> Callable[[Tensor], Tensor]:
    return HONEST[NAMES[m.layout.family]]


def as_function(m: Model, change: Change) -> Callable[[Tensor], Tensor]:
    """A function of the activation's name."""
    f = honest(m)

    def act(s: Tensor) -> Tensor:
        return change(s, f(s))

    act.__name__ = act.__qualname__ = NAMES[m.layout.family]
    return act


def as_module(m: Model, change: Change) -> nn.Module:
    """A subclass of the activation's own class, or else of torch's, of the same name."""
    f = honest(m)
    made = copy.copy(m.act) if isinstance(m.act, nn.Module) else MODULES[NAMES[m.layout.family]]()

    def forward(self: nn.Module, s: Tensor) -> Tensor:
        return change(s, f(s))

    made.__class__ = disguised(type(made), forward=forward)
    return made


def as_class(m: Model, change: Change) -> nn.Module:
    """A class of its own, that is called as the function is."""
    f = honest(m)
    kind = type(NAMES[m.layout.family], (nn.Module,), {"forward": lambda self, s: change(s, f(s))})
    made = kind()
    made.__name__ = NAMES[m.layout.family]
    return made


def _counting() -> Change:
    calls = [0]

    def change(s: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        return y if calls[0] <= 3 else y * 0.5

    return change


def _in_place(s: Tensor, y: Tensor) -> Tensor:
    kept = y.clone()
    with torch.no_grad():
        s.contiguous().mul_(0.0)
    return kept + s * 0.0


def _reads_overwritten(s: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        c = s.detach().contiguous()
        c.mul_(0.5)
    return y + s - s.detach() if s.requires_grad else y * (s == s).to(y.dtype) + 0.1 * (s.detach() - c)


def _autocast(s: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        eye = torch.eye(s.shape[-1], dtype=torch.float32)
        return (y.float() @ eye).to(s.dtype)


OUTSIDE = torch.tensor(0.5)
# change: norm's gain, eps, options
CHANGES: dict[str, tuple[Change, float, float, dict[str, Any]]] = {
    "clamped at 40": (lambda s, y: y.clamp(max=40.0), 20.0, 1e-2, {}),
    "zero below 0.02": (lambda s, y: y * (s > 0.02), 1.0, 1e-3, {}),
    "a bump near 1.2345": (lambda s, y: torch.where((s - 1.2345).abs() < 0.01, y + 1.0, y), 1.0, 1e-3, {}),
    "halved beyond 31": (lambda s, y: torch.where(s > 31, y * 0.5, y), 20.0, 1e-2, {}),
    "halved below -31": (lambda s, y: torch.where(s < -31, y + 1.0, y), 20.0, 1e-2, {}),
    "halved beyond 50": (lambda s, y: torch.where(s.abs() > 50, y * 0.5, y), 40.0, 5e-2, {}),
    "halved beyond 1000": (lambda s, y: torch.where(s > 1000, y * 0.5, y), 1200.0, 1.0, {}),
    "without gradients": (lambda s, y: y if torch.is_grad_enabled() else y * 1.1, 1.0, 1e-3, {}),
    "with gradients": (lambda s, y: y * 1.1 if torch.is_grad_enabled() else y, 1.0, 1e-3, {}),
    "by the number of axes": (lambda s, y: y * 1.1 if s.ndim > 2 else y, 1.0, 1e-3, {}),
    "by the length of the sequence": (
        lambda s, y: y * 1.1 if s.ndim > 2 and s.shape[-2] == 1 else y,
        1.0,
        1e-3,
        {},
    ),
    "by the number of neurons": (lambda s, y: y * 1.1 if s.shape[-1] == 24 else y, 1.0, 1e-3, {}),
    "by the number of values": (lambda s, y: y * 1.1 if s.numel() > 4000 else y, 1.0, 1e-3, {}),
    "by a global flag": (lambda s, y: y * 1.1 if FLAG["on"] else y, 1.0, 1e-3, {}),
    "by contiguity": (lambda s, y: y * 1.1 if not s.is_contiguous() else y, 1.0, 1e-3, {}),
    "by the dtype": (lambda s, y: y * 1.1 if s.dtype == torch.float32 else y, 1.0, 1e-2, {"by_dtype": True}),
    "by inference mode": (lambda s, y: y * 1.1 if torch.is_inference_mode_enabled() else y, 1.0, 1e-3, {}),
    "by what requires a gradient": (lambda s, y: y if not s.requires_grad else y * 1.1, 1.0, 1e-3, {}),
    "by its neighbour": (lambda s, y: y + 0.1 * y.roll(1, -1), 1.0, 1e-3, {}),
    "by the mean over tokens": (
        lambda s, y: y + 0.1 * (s - s.mean(-2, keepdim=True)) if s.ndim > 1 else y,
        1.0,
        1e-3,
        {},
    ),
    "by the position": (lambda s, y: y * torch.linspace(1, 1.1, s.shape[-1], dtype=s.dtype), 1.0, 1e-3, {}),
    "one neuron zeroed": (
        lambda s, y: y.index_fill(-1, torch.tensor([5]), 0.0) if s.shape[-1] == 24 else y,
        1.0,
        1e-3,
        {},
    ),
    "rounded": (lambda s, y: (y * 16).round() / 16, 1.0, 1e-3, {}),
    "through half precision": (lambda s, y: y.half().to(s.dtype), 1.0, 1e-6, {}),
    "through bfloat16": (lambda s, y: y.bfloat16().to(s.dtype), 1.0, 1e-4, {}),
    "with noise": (lambda s, y: y + 0.01 * torch.randn_like(y), 1.0, 1e-3, {}),
    "with dropout that is always on": (lambda s, y: F.dropout(y, 0.2, training=True), 1.0, 1e-3, {}),
    "writing into its input": (_in_place, 1.0, 1e-3, {}),
    "writing into a contiguous input": (_reads_overwritten, 1.0, 1e-3, {}),
    "under autocast": (_autocast, 1.0, 1e-4, {}),
    "reading a tensor that is not registered": (lambda s, y: y * OUTSIDE.to(s.dtype), 1.0, 1e-3, {}),
    "plus its input": (lambda s, y: y + 0.01 * s, 1.0, 1e-3, {}),
    "applied to twice its input": (lambda s, y: y * 1.0 + torch.tanh(s) * 0.01, 1.0, 1e-3, {}),
    "NaN beyond 3": (lambda s, y: torch.where(s > 3, torch.nan, y), 1.0, 1e-3, {}),
    "detached by size": (lambda s, y: y * 0.9 if float(s.detach().abs().max()) > 3.0 else y, 1.0, 1e-3, {}),
}


def _changes() -> None:
    for name, (change, gain, eps, options) in CHANGES.items():
        kinds = {"function": as_function, "namesake": as_module, "class": as_class}
        for i, (kind, make) in enumerate(kinds.items()):
            families = tuple(f for j, f in enumerate(ALL) if (j + i) % 3 == 0 or kind != "class")

            def alter(m: Model, make: Any = make, change: Change = change) -> None:
                m.act = make(m, change)

            altered(f"activation ({kind}) {name}", families, gain=gain, eps=eps, **options)(alter)


_changes()


@altered("activation of every second call", ALL)
def _(m: Model) -> None:
    calls = [0]

    def change(s: Tensor, y: Tensor) -> Tensor:
        calls[0] += 1
        return y * (0.9 if calls[0] % 2 else 1.0)

    m.act = as_module(m, change)


@altered("activation that counts its calls", ALL)
def _(m: Model) -> None:
    m.act = as_module(m, _counting())


@altered("activation that depends on training", ALL)
def _(m: Model) -> None:
    made = as_module(m, lambda s, y: y)
    f = honest(m)
    kind = disguised(type(made), forward=lambda self, s: f(s) * (1.0 if self.training else 1.1))
    made.__class__ = kind
    m.act = made


@altered("activation with a buffer", ALL)
def _(m: Model) -> None:
    f = honest(m)
    made = MODULES[NAMES[m.layout.family]]()
    made.__class__ = disguised(type(made), forward=lambda self, s: f(s) * self.level.to(s.dtype))
    made.register_buffer("level", torch.tensor(1.1))
    m.act = made


@altered("activation with a running maximum", ALL)
def _(m: Model) -> None:
    seen = [0.0]

    def change(s: Tensor, y: Tensor) -> Tensor:
        seen[0] = max(seen[0], float(s.detach().abs().max()))
        return y if seen[0] < 3.5 else y * 0.9

    m.act = as_module(m, change)


@altered("activation wrapped in nn.Sequential with Hardtanh", ALL)
def _(m: Model) -> None:
    m.act = nn.Sequential(MODULES[NAMES[m.layout.family]](), nn.Hardtanh(-1, 1))


@altered("activation as a partial", ALL)
def _(m: Model) -> None:
    m.act = functools.partial(as_function(m, lambda s, y: y.clamp(max=1.5)))


@altered("activation as a lambda", ALL)
def _(m: Model) -> None:
    f = honest(m)
    m.act = lambda s: f(s).clamp(max=1.5)


@altered("activation is torch's softplus", ALL, gain=10.0, eps=1e-10)
def _(m: Model) -> None:
    m.act = F.softplus


ATTRIBUTES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "ReLU6 with max_val 8": (nn.ReLU6, {"max_val": 8.0}),
    "ReLU6 with max_val 2": (nn.ReLU6, {"max_val": 2.0}),
    "ReLU6 with min_val -1": (nn.ReLU6, {"min_val": -1.0}),
    "Hardtanh with max_val 3": (nn.Hardtanh, {"max_val": 3.0}),
    "GELU turned into its tanh form": (nn.GELU, {"approximate": "tanh"}),
    "GELU('tanh') turned into the exact form": (lambda: nn.GELU("tanh"), {"approximate": "none"}),
    "LeakyReLU with another slope": (nn.LeakyReLU, {"negative_slope": 0.3}),
    "ELU with another alpha": (nn.ELU, {"alpha": 0.5}),
    "CELU with another alpha": (nn.CELU, {"alpha": 0.5}),
    "Softplus with threshold 2": (nn.Softplus, {"threshold": 2.0}),
    "Softplus with beta 3": (nn.Softplus, {"beta": 3.0}),
    "Softshrink with another lambda": (nn.Softshrink, {"lambd": 1.0}),
    "Threshold": (lambda: nn.Threshold(0.1, 20.0), {}),
    "Hardshrink": (nn.Hardshrink, {}),
    "SELU in place": (lambda: nn.SELU(inplace=True), {}),
    "ReLU in place": (lambda: nn.ReLU(inplace=True), {}),
    "PReLU": (lambda: nn.PReLU().double(), {}),
    "RReLU": (nn.RReLU, {}),
    "Softmax": (lambda: nn.Softmax(-1), {}),
    "GLU-like LogSigmoid": (nn.LogSigmoid, {}),
    "Tanhshrink": (nn.Tanhshrink, {}),
}


def _attributes() -> None:
    for i, (name, (make, values)) in enumerate(ATTRIBUTES.items()):
        families = tuple(f for j, f in enumerate(ALL) if (i + j) % 3 == 0)

        def alter(m: Model, make: Any = make, values: dict[str, Any] = values) -> None:
            made = make()
            for attribute, value in values.items():
                setattr(made, attribute, value)
            m.act = made.to(m.dtype)

        altered(f"activation is {name}", families, gain=4.0, eps=2e-3)(alter)


_attributes()
