"""The built-in functions. Each enclosure has a form that is tight for saturated inputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from flint import arb, arb_series
from torch import Tensor

from attnc.errors import InputError
from attnc.functions.function import NAMES, Branch, Function, TorchForm, built_in

__all__ = [
    "abs", "celu", "clip", "cos", "elu", "exp", "gelu", "gelu_10", "gelu_bloom", "gelu_fast", "gelu_tanh", "hardsigmoid",
    "hardswish", "hardtanh", "identity", "leaky_relu", "mish", "pinball", "quick_gelu", "relu", "relu2", "selu", "sigmoid",
    "silu", "sin", "soft_threshold", "softplus", "softsign", "square", "tanh",
]  # fmt: skip
NAMES.update(__all__)
_SELU_SCALE, _SELU_ALPHA = 1.0507009873554805, 1.6732632423543772  # the floats that torch uses
LIPSCHITZ = {"sigmoid": 0.25, "tanh": 1.0, "clip": 1.0, "hardtanh": 1.0}  # constants on the whole line


def _zero(x: arb_series) -> arb_series:
    return x * 0


def _same(x: arb_series) -> arb_series:
    return x


def _real(name: str, x: object) -> float:
    """A parameter as a float."""
    if isinstance(x, bool) or not isinstance(x, (int, float, np.floating, np.integer)):
        raise InputError(f"{name} is a number: got {x!r}")
    try:
        return float(x) + 0.0  # -0.0 is 0.0, so that equal parameters have one label
    except OverflowError:
        raise InputError(f"{name} is too large for floating point") from None


def _positive(name: str, x: object) -> float:
    number = _real(name, x)
    if not number > 0:
        raise InputError(f"{name}={number}: give a positive number")
    return number


def _fixed(
    name: str,
    meaning: str,
    torch_form: TorchForm,
    branches: tuple[Branch, ...],
    kinks: tuple[float, ...] = (),
) -> Callable[[], Function]:
    """What returns the built-in function of this name, which has no parameters."""

    def create() -> Function:
        return built_in(name, torch_form, branches, kinks)

    create.__name__ = create.__qualname__ = name
    create.__doc__ = meaning
    return create


def _constant(c: float) -> Branch:
    return lambda x: x * 0 + arb(c)


def _logistic(x: arb_series) -> arb_series:
    """1/(1 + e^-x), from the side on which the exponential is small."""
    if x[0].mid() > 0:
        return 1 / (1 + (-x).exp())
    e = x.exp()
    return e / (1 + e)


def _hyperbolic_tangent(x: arb_series) -> arb_series:
    if x[0].mid() > 0:
        return 2 / (1 + (-2 * x).exp()) - 1
    return 1 - 2 / (1 + (2 * x).exp())


def _gaussian_gate(x: arb_series) -> arb_series:
    """x·Φ(x) = x·erfc(-x/√2)/2."""
    return x * (-x / arb(2).sqrt()).erfc() / 2


def _gelu_tanh(x: arb_series) -> arb_series:
    cubic = arb("0.044715") * x * x * x
    return x * _logistic(2 * (2 / arb.pi()).sqrt() * (x + cubic))


def _gelu_fast(x: arb_series) -> arb_series:
    return x * _logistic(arb("1.5957691216") * x * (1 + arb("0.044715") * x * x))


def _gelu_bloom(x: arb_series) -> arb_series:
    return x * _logistic(arb("1.59576912") * x * (1 + arb("0.044715") * x * x))


def _mish(x: arb_series) -> arb_series:
    if x[0].mid() > 0:
        decay = (-x).exp()
        return x * (1 + 2 * decay) / (1 + 2 * decay * (1 + decay))
    e = x.exp()
    growth = e * (e + 2)
    return x * growth / (growth + 2)


identity = _fixed("identity", "s.", lambda s: s.clone(), (_same,))
abs = _fixed("abs", "|s|.", torch.abs, (lambda x: -x, _same), (0.0,))
square = _fixed("square", "s².", torch.square, (lambda x: x * x,))
exp = _fixed("exp", "e^s.", torch.exp, (lambda x: x.exp(),))
sin = _fixed("sin", "The sine.", torch.sin, (lambda x: x.sin(),))
cos = _fixed("cos", "The cosine.", torch.cos, (lambda x: x.cos(),))
tanh = _fixed("tanh", "The hyperbolic tangent.", torch.tanh, (_hyperbolic_tangent,))
sigmoid = _fixed("sigmoid", "1/(1 + e^-s).", torch.sigmoid, (_logistic,))
relu = _fixed("relu", "max(s, 0).", torch.relu, (_zero, _same), (0.0,))
gelu = _fixed(
    "gelu", "s·Φ(s), Φ the normal distribution function (the form with erf).", F.gelu, (_gaussian_gate,)
)
silu = _fixed("silu", "s/(1 + e^-s).", F.silu, (lambda x: x * _logistic(x),))
mish = _fixed("mish", "s·tanh(softplus(s)) = s·(1 - 2/((1 + e^s)² + 1)).", F.mish, (_mish,))
# At 0 the second derivatives of the next two, and of selu, jump.
relu2 = _fixed(
    "relu2", "max(s, 0)².", lambda s: torch.square(torch.relu(s)), (_zero, lambda x: x * x), (0.0,)
)
softsign = _fixed(
    "softsign", "s/(1 + |s|).", F.softsign, (lambda x: x / (1 - x), lambda x: x / (1 + x)), (0.0,)
)
selu = _fixed(
    "selu",
    "λs for s > 0, λα(e^s - 1) below, λ = 1.0507009873554805, α = 1.6732632423543772.",
    F.selu,
    (lambda x: arb(_SELU_SCALE) * arb(_SELU_ALPHA) * (x.exp() - 1), lambda x: x * arb(_SELU_SCALE)),
    (0.0,),
)
hardsigmoid = _fixed(
    "hardsigmoid",
    "min(max(s/6 + 1/2, 0), 1).",
    lambda s: (s + 3).clamp(0, 6) / 6,
    (_zero, lambda x: (x + 3) / 6, _constant(1.0)),
    (-3.0, 3.0),
)
hardswish = _fixed(
    "hardswish", "s·hardsigmoid(s).", F.hardswish, (_zero, lambda x: x * (x + 3) / 6, _same), (-3.0, 3.0)
)
quick_gelu = _fixed(
    "quick_gelu",
    "s/(1 + e^(-1.702 s)).",
    lambda s: s * torch.sigmoid(1.702 * s),
    (lambda x: x * _logistic(arb("1.702") * x),),
)
gelu_tanh = _fixed(
    "gelu_tanh",
    "s/2·(1 + tanh(√(2/π)(s + 0.044715 s³))) = s·logistic(2√(2/π)(s + 0.044715 s³)).",
    lambda s: F.gelu(s, approximate="tanh"),
    (_gelu_tanh,),
)
gelu_fast = _fixed(
    "gelu_fast",
    "gelu_tanh with √(2/π) cut to 0.7978845608: s·logistic(1.5957691216·s(1 + 0.044715 s²)).",
    lambda s: s * torch.sigmoid(1.5957691216 * s * (1 + 0.044715 * s * s)),
    (_gelu_fast,),
)
gelu_bloom = _fixed(
    "gelu_bloom",
    "gelu_tanh with √(2/π) cut to 0.79788456, as in BLOOM: s·logistic(1.59576912·s(1 + 0.044715 s²)).",
    lambda s: s * torch.sigmoid(1.59576912 * s * (1 + 0.044715 * s * s)),
    (_gelu_bloom,),
)
gelu_10 = _fixed(
    "gelu_10",
    "gelu(min(s, 10)): gelu cut off at 10, from which gelu(10) differs by 8e-23.",
    lambda s: F.gelu(s.clamp(max=10)),
    (_gaussian_gate, lambda x: x * 0 + 5 * (-10 / arb(2).sqrt()).erfc()),
    (10.0,),
)


def leaky_relu(slope: float = 0.01) -> Function:
    """s for s > 0, slope·s below."""
    slope = _real("slope", slope)
    branches = (lambda x: x * arb(slope), _same)
    parameters = {"slope": slope}
    return built_in("leaky_relu", lambda s: torch.where(s > 0, s, s * slope), branches, (0.0,), parameters)


def clip(a: float, b: float) -> Function:
    """min(max(s, a), b): the paper's Range_[a,b], the generalised ReLU."""
    return _clip("clip", a, b)


def hardtanh(a: float = -1.0, b: float = 1.0) -> Function:
    """torch's hardtanh: clip, by default to [-1, 1]."""
    return _clip("hardtanh", a, b)


def _clip(name: str, a: float, b: float) -> Function:
    a, b = _real("a", a), _real("b", b)
    if not a < b:
        raise InputError(f"{name}(a,b) needs a < b: got a={a}, b={b}")
    branches = (_constant(a), _same, _constant(b))
    return built_in(name, lambda s: s.clamp(a, b), branches, (a, b), {"a": a, "b": b})


def soft_threshold(lam: float = 0.5) -> Function:
    """sign(s)·max(|s| - λ, 0): the proximal map of λ|s|."""
    lam = _positive("lam", lam)
    branches = (lambda x: x + arb(lam), _zero, lambda x: x - arb(lam))
    return built_in("soft_threshold", lambda s: s - s.clamp(-lam, lam), branches, (-lam, lam), {"lam": lam})


def pinball(tau: float = 0.5, width: float = 0.1) -> Function:
    """1/(1 + e^(-s/width)) - tau: the derivative of the quantile loss, whose jump at 0 is smoothed."""
    tau, width = _real("tau", tau), _positive("width", width)
    branch = (lambda x: _logistic(x / width) - tau,)
    parameters = {"tau": tau, "width": width}
    return built_in("pinball", lambda s: torch.sigmoid(s / width) - tau, branch, (), parameters)


def softplus(beta: float = 1.0) -> Function:
    """log(1 + e^(βs))/β. (torch's own turns linear beyond a threshold, a jump of 2e-9; this one does not.)"""
    beta = _positive("beta", beta)

    def series(x: arb_series) -> arb_series:
        y = x * arb(beta)
        if y[0].mid() > 0:
            return (y + (1 + (-y).exp()).log()) / arb(beta)
        return (1 + y.exp()).log() / arb(beta)

    parameters = {} if beta == 1 else {"beta": beta}
    return built_in("softplus", lambda s: -F.logsigmoid(-s * beta) / beta, (series,), (), parameters)


def elu(alpha: float = 1.0) -> Function:
    """s for s > 0, α(e^s - 1) below. At 0 its second derivative jumps, at α = 1 too."""
    alpha = _real("alpha", alpha)

    def torch_form(s: Tensor) -> Tensor:
        return torch.where(s > 0, s, alpha * torch.expm1(s.clamp(max=0)))

    branches = (lambda x: arb(alpha) * (x.exp() - 1), _same)
    return built_in("elu", torch_form, branches, (0.0,), {} if alpha == 1 else {"alpha": alpha})


def celu(alpha: float = 1.0) -> Function:
    """s for s > 0, α(e^(s/α) - 1) below. Its slope is continuous, its second derivative jumps at 0."""
    alpha = _positive("alpha", alpha)

    def torch_form(s: Tensor) -> Tensor:
        return torch.where(s > 0, s, alpha * torch.expm1(s.clamp(max=0) / alpha))

    branches = (lambda x: arb(alpha) * ((x / arb(alpha)).exp() - 1), _same)
    return built_in("celu", torch_form, branches, (0.0,), {} if alpha == 1 else {"alpha": alpha})
