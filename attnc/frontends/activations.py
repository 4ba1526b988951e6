"""torch's activations, as the functions of `attnc.functions`. Each takes the arguments of its ATen operation, by their names.

What an operation in place does to other readers of the memory is the reader's affair."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flint import arb

from attnc import functions
from attnc.errors import InputError
from attnc.frontends.builder import Builder, Constant, RefusedError, Value
from attnc.functions import Function
from attnc.functions.balls import lower, upper, working

Operation = Callable[..., object]

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _plain(make: Callable[[], Function]) -> Operation:
    """An activation without parameters."""

    def operation(b: Builder, input: Value) -> Value:
        return b.apply(input, make())

    return operation


def _made(make: Callable[..., Function], *parameters: float) -> Function:
    try:
        return make(*parameters)
    except InputError as problem:
        raise RefusedError(str(problem)) from None


def leaky_relu(b: Builder, input: Value, negative_slope: float) -> Value:
    return b.apply(input, _made(functions.leaky_relu, b.number(negative_slope, "negative_slope")))


def prelu(b: Builder, input: Value, weight: object) -> Value:
    if not isinstance(weight, Constant) or weight.tensor.numel() != 1:
        raise RefusedError("has a slope for each channel: one slope, nn.PReLU(1), is accepted")
    return b.apply(input, functions.leaky_relu(b.number(weight)))


def rrelu(b: Builder, input: Value, lower: float, upper: float, training: bool) -> Value:
    """Outside training, torch's slope is the mean of both ends."""
    if training is not False:
        raise RefusedError("draws random slopes, as training=True: give training=False")
    return leaky_relu(b, input, (b.number(lower, "lower") + b.number(upper, "upper")) / 2)


def relu6(b: Builder, input: Value) -> Value:
    return b.apply(input, functions.clip(0, 6))


def hardtanh(b: Builder, input: Value, min_val: float, max_val: float) -> Value:
    """Also what nn.ReLU6 runs, with the ends 0 and 6: then it has the name that relu6 has."""
    ends = b.number(min_val, "min_val"), b.number(max_val, "max_val")
    return b.apply(input, _made(functions.clip if ends[0] == 0 else functions.hardtanh, *ends))


def clamp(b: Builder, input: Value, min: float | None = None, max: float | None = None) -> Value:
    if min is not None and max is None and b.number(min, "min") == 0:
        return b.apply(input, functions.relu())
    if min is None or max is None:
        raise RefusedError("has one end: clamp(min, max) and clamp(min=0) are accepted")
    return b.apply(input, _made(functions.clip, b.number(min, "min"), b.number(max, "max")))


def clamp_min(b: Builder, input: Value, min: float) -> Value:
    return clamp(b, input, min)


def threshold(b: Builder, input: Value, threshold: float, value: float) -> Value:
    if b.number(threshold, "threshold") != 0 or b.number(value, "value") != 0:
        raise RefusedError(
            f"has threshold={threshold} and value={value}: only zeros are accepted, which is the relu"
        )
    return b.apply(input, functions.relu())


def softshrink(b: Builder, input: Value, lambd: float) -> Value:
    lam = b.number(lambd, "lambd")
    return b.copy(input) if lam == 0 else b.apply(input, _made(functions.soft_threshold, lam))


def gelu(b: Builder, input: Value, approximate: str) -> Value:
    if approximate not in ("none", "tanh"):
        raise RefusedError(f"has approximate={approximate!r}: 'none' and 'tanh' are accepted")
    return b.apply(input, functions.gelu() if approximate == "none" else functions.gelu_tanh())


def softplus(b: Builder, input: Value, beta: float, threshold: float) -> Value:
    """log(1 + e^(βs))/β where βs <= threshold, and s beyond: there the two differ by at most
    log(1 + e^-threshold)/β, which falls as s grows."""
    beta = b.number(beta, "beta")
    smooth = _made(functions.softplus, beta)
    if threshold == math.inf:
        return b.apply(input, smooth)
    limit = b.number(threshold, "threshold")
    with working(128):
        deviation = upper((-arb(limit)).exp().log1p() / arb(beta))
        beyond = lower(arb(limit) / arb(beta))
    if not (math.isfinite(deviation) and math.isfinite(beyond)):
        raise RefusedError(f"has beta={beta} and threshold={limit}: they are too far apart")
    return b.apply(input, smooth, deviation=deviation, beyond=beyond)


def elu(b: Builder, input: Value, alpha: float) -> Value:
    return b.apply(input, _made(functions.elu, b.number(alpha, "alpha")))


def celu(b: Builder, input: Value, alpha: float) -> Value:
    """max(0, s) + min(0, α(e^(s/α) - 1)) = α·elu(s/α), for α > 0."""
    alpha = b.number(alpha, "alpha")
    if alpha <= 0:
        raise RefusedError(f"has alpha={alpha}: a positive one is accepted")
    inner = b.apply(b.divided(input, np.float64(alpha)), functions.elu())
    return b.scaled(inner, alpha)


def selu(b: Builder, input: Value) -> Value:
    return b.scaled(b.apply(input, functions.elu(SELU_ALPHA)), SELU_SCALE)


def log_sigmoid(b: Builder, input: Value) -> Value:
    """log(1/(1 + e^-s)) = -softplus(-s)."""
    return b.scaled(b.apply(b.scaled(input, -1.0), functions.softplus()), -1.0)


def hardsigmoid(b: Builder, input: Value) -> Value:
    """clip(s + 3, 0, 6)/6 = (clip(s, -3, 3) + 3)/6."""
    clipped = b.diagonal(b.apply(input, functions.clip(-3, 3)), shift=b.in_dtype(3.0))
    return b.divided(clipped, b.in_dtype(6.0))


def hardswish(b: Builder, input: Value) -> Value:
    return b.product(input, hardsigmoid(b, input))


def power(b: Builder, input: Value, exponent: float) -> Value:
    if b.number(exponent, "exponent") not in (1, 2):
        raise RefusedError(f"has the exponent {exponent}: 1 and 2 are accepted")
    return b.copy(input) if exponent == 1 else b.apply(input, functions.square())


# by the name of the ATen operation
ACTIVATIONS: dict[str, Operation] = {
    **{f.__name__: f for f in (leaky_relu, prelu, rrelu, relu6, hardtanh, clamp, clamp_min, threshold, softshrink)},
    **{f.__name__: f for f in (gelu, softplus, elu, celu, selu, log_sigmoid, hardsigmoid, hardswish)},
    **{name: _plain(getattr(functions, name)) for name in ("relu", "silu", "sigmoid", "tanh", "mish")},
    **{name: _plain(getattr(functions, name)) for name in ("sin", "cos", "exp", "abs", "square")},
    "absolute": _plain(functions.abs), "special_expit": _plain(functions.sigmoid), "clip": clamp, "pow": power,
}  # fmt: skip
