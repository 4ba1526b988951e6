"""Which function of `attnc.functions` an activation of a model is: by its class or its identity, and checked by its values."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnc import functions
from attnc.errors import AttncError

CONVERTED = ("AnchorActivation", "AnchorGate")
_POINTS = torch.linspace(-30, 30, 2001, dtype=torch.float64)
_AGREE = 1e-9  # far above rounding in float64, far below what two forms of one activation differ by

_TORCH: dict[type[nn.Module], Callable[..., str | None]] = {
    nn.ReLU: lambda a: "relu",
    nn.ReLU6: lambda a: "clip(0,6)",
    nn.GELU: lambda a: {"none": "gelu", "tanh": "gelu_tanh"}.get(a.approximate),
    nn.SiLU: lambda a: "silu",
    nn.Mish: lambda a: "mish",
    nn.Tanh: lambda a: "tanh",
    nn.Sigmoid: lambda a: "sigmoid",
    nn.Softsign: lambda a: "softsign",
    nn.LeakyReLU: lambda a: f"leaky_relu({a.negative_slope!r})",
    nn.ELU: lambda a: f"elu({a.alpha!r})",
    nn.CELU: lambda a: f"celu({a.alpha!r})",
    nn.SELU: lambda a: "selu",
    nn.Hardswish: lambda a: "hardswish",
    nn.Hardsigmoid: lambda a: "hardsigmoid",
    nn.Hardtanh: lambda a: f"hardtanh({a.min_val!r},{a.max_val!r})",
    nn.Softshrink: lambda a: f"soft_threshold({a.lambd!r})",
    nn.Softplus: lambda a: f"softplus({a.beta!r})" if a.threshold == math.inf else None,
}
_TRANSFORMERS = {
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "SiLUActivation": "silu",
    "MishActivation": "mish",
    "LinearActivation": "identity",
    "QuickGELUActivation": "quick_gelu",
    "FastGELUActivation": "gelu_fast",
    "ClippedGELUActivation": "gelu_10",
    "ReLUSquaredActivation": "relu2",
    "LaplaceActivation": "laplace",
    "SqrtSoftplusActivation": "sqrtsoftplus",
}
_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "relu": (F.relu, torch.relu),
    "gelu": (F.gelu,),
    "silu": (F.silu,),
    "mish": (F.mish,),
    "tanh": (F.tanh, torch.tanh),
    "sigmoid": (F.sigmoid, torch.sigmoid),
    "softsign": (F.softsign,),
    "leaky_relu": (F.leaky_relu,),
    "elu": (F.elu,),
    "celu": (F.celu,),
    "selu": (F.selu, torch.selu),
    "hardswish": (F.hardswish,),
    "hardsigmoid": (F.hardsigmoid,),
    "clip(0,6)": (F.relu6,),
}


@dataclass(frozen=True)
class Reading:
    """The name of the function that an activation is, as `attnc.functions.get` takes it; or what it would be called, and the
    reason why it cannot be taken."""

    name: str
    problem: str | None = None


def read(activation: object) -> Reading:
    """The function that an activation is: a module of torch or transformers, a torch function, or one that is registered.

    >>> read(nn.GELU(approximate="tanh")), read(F.silu)
    (Reading(name='gelu_tanh', problem=None), Reading(name='silu', problem=None))
    >>> print(read(nn.Hardshrink()).problem)
    has the activation Hardshrink, which attnc does not know: make it known by
    attnc.functions.register(attnc.function(..., name='Hardshrink'))
    """
    if type(activation).__name__ in CONVERTED:
        return Reading(
            "",
            "is converted already: convert the model as it was before, or leave this block out by filter_fn",
        )
    if isinstance(activation, nn.Module) and next(activation.parameters(), None) is not None:
        return Reading(
            _own_name(activation),
            f"has the activation {_own_name(activation)}, which has parameters of its own",
        )
    name = known(activation) or _own_name(activation)
    return Reading(name, _problem(activation, name))


def known(activation: object) -> str | None:
    """The name under which an activation is listed here; `read` says whether attnc has that function.

    >>> known(nn.LeakyReLU(0.2)), known(nn.Linear(1, 1)), known(torch.tanh)
    ('leaky_relu(0.2)', None, 'tanh')
    """
    if isinstance(activation, nn.Module):
        if type(activation) in _TORCH:
            return _TORCH[type(activation)](activation)
        return _TRANSFORMERS.get(type(activation).__name__) if of_transformers(activation) else None
    if isinstance(activation, functools.partial):
        tanh_form = (
            activation.func is F.gelu
            and not activation.args
            and activation.keywords == {"approximate": "tanh"}
        )
        return "gelu_tanh" if tanh_form else None
    return next((name for name, forms in _FUNCTIONS.items() if any(activation is f for f in forms)), None)


def of_transformers(module: nn.Module) -> bool:
    """Whether a module's class is Hugging Face's own, and not a namesake."""
    return type(module).__module__.startswith("transformers.")


def elementwise(activation: Callable[[Tensor], Tensor], example: Tensor) -> bool:
    """Whether, at an example (…, features), every output is made of the one input at its place."""
    try:
        with torch.no_grad():
            alone = activation(example.reshape(-1, 1).clone())
            return torch.equal(activation(example.clone()), alone.reshape(example.shape))
    except Exception:
        return False


def _own_name(activation: object) -> str:
    named = getattr(activation, "__name__", None)
    return named if isinstance(named, str) else type(activation).__name__


def _problem(activation: object, name: str) -> str | None:
    bare = name.partition("(")[0]
    shown = _own_name(activation)
    if bare not in functions.names():
        call = f"attnc.functions.register(attnc.function(..., name={bare!r}))"
        advice = (
            f"make it known by {call}" if bare.isidentifier() else "give the function a name, and register it"
        )
        return f"has the activation {shown}, which attnc does not know: {advice}"
    if not callable(activation):
        return f"has the activation {activation!r}: a module or a function is accepted"
    try:
        with torch.no_grad():
            theirs, ours = activation(_POINTS.clone()), functions.get(name)(_POINTS)
        gap = ((theirs - ours).abs() / (1 + ours.abs())).max().item()
    except AttncError as problem:
        return f"has the activation {shown}: {problem}"
    except Exception as problem:
        return f"has the activation {shown}, which fails on a tensor of float64: {type(problem).__name__}: {problem}"
    if not gap <= _AGREE:
        return (
            f"has the activation {shown}, which is not attnc's {name}: on [-30, 30] they differ by {gap:.1e}"
        )
    return None
