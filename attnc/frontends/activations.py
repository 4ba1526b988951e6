"""torch's activations as functions of `attnc.functions`: one table for every front end.

Each entry takes the arguments of its ATen operation, by their names, and returns the function of its first argument."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from flint import arb

from attnc import functions
from attnc.errors import AttncError, InputError
from attnc.functions import Function
from attnc.functions.balls import lower, upper, working
from attnc.program import Pointwise


class RefusedError(AttncError):
    """Why an operation is not accepted; the reader adds where it is."""


def activation(operation: str, arguments: Mapping[str, Any]) -> Pointwise:
    """What an ATen operation computes from its first argument, value 0; `arguments` are the others."""
    try:
        found = ACTIVATIONS[operation](**arguments)
    except InputError as problem:
        raise RefusedError(str(problem)) from None
    return found if isinstance(found, Pointwise) else Pointwise(0, found)


def finite(given: object, what: str) -> float:
    """A number as the float that equals it."""
    number = given if isinstance(given, (int, float)) and not isinstance(given, bool) else math.nan
    if not math.isfinite(number) or float(number) != number:
        raise RefusedError(f"{what} is {given!r:.40}: a finite number that a float can hold is accepted")
    return float(number)


def _rrelu(lower: object, upper: object, training: object, **_: object) -> Function:
    """Outside training, the slope is the mean of both ends."""
    if training is not False:
        raise RefusedError("draws random slopes, as training=True: give training=False")
    return functions.leaky_relu((finite(lower, "lower") + finite(upper, "upper")) / 2)


def _hardtanh(min_val: object, max_val: object) -> Function:
    """nn.ReLU6 runs this operation too, with the ends 0 and 6."""
    lo, hi = finite(min_val, "min_val"), finite(max_val, "max_val")
    return functions.clip(lo, hi) if lo == 0 else functions.hardtanh(lo, hi)


def _clamp(min: object = None, max: object = None) -> Function:
    if min is not None and max is None and finite(min, "min") == 0:
        return functions.relu()
    if min is None or max is None:
        raise RefusedError("has one end: clamp(min, max) and clamp(min=0) are accepted")
    return functions.clip(finite(min, "min"), finite(max, "max"))


def _threshold(threshold: object, value: object) -> Function:
    if finite(threshold, "threshold") != 0 or finite(value, "value") != 0:
        raise RefusedError(f"has threshold={threshold} and value={value}: 0 is accepted for both (relu)")
    return functions.relu()


def _softshrink(lambd: object) -> Function:
    size = finite(lambd, "lambd")
    return functions.identity() if size == 0 else functions.soft_threshold(size)


def _gelu(approximate: object) -> Function:
    if approximate not in ("none", "tanh"):
        raise RefusedError(f"has approximate={approximate!r}: 'none' and 'tanh' are accepted")
    return functions.gelu() if approximate == "none" else functions.gelu_tanh()


def _softplus(beta: object, threshold: object) -> Pointwise:
    """log(1 + e^(βs))/β where βs <= threshold, and s beyond: there the two differ by at most
    log(1 + e^-threshold)/β, which falls as s grows."""
    steep = finite(beta, "beta")
    smooth = functions.softplus(steep)
    if threshold == math.inf:
        return Pointwise(0, smooth)
    limit = finite(threshold, "threshold")
    with working(128):
        deviation = upper((-arb(limit)).exp().log1p() / arb(steep))
        beyond = lower(arb(limit) / arb(steep))
    if not (math.isfinite(deviation) and math.isfinite(beyond)):
        raise RefusedError(f"has beta={steep} and threshold={limit}: their ratio overflows")
    return Pointwise(0, smooth, deviation, beyond)


def _elu(alpha: object, scale: object = 1.0, input_scale: object = 1.0) -> Function:
    if scale != 1 or input_scale != 1:
        raise RefusedError(f"has scale={scale} and input_scale={input_scale}: 1 is accepted")
    return functions.elu(finite(alpha, "alpha"))


def _pow(exponent: object) -> Function:
    if finite(exponent, "exponent") not in (1, 2):
        raise RefusedError(f"has the exponent {exponent}: 1 and 2 are accepted")
    return functions.identity() if exponent == 1 else functions.square()


ACTIVATIONS: dict[str, Callable[..., Function | Pointwise]] = {
    "relu": functions.relu, "silu": functions.silu, "sigmoid": functions.sigmoid, "tanh": functions.tanh,
    "mish": functions.mish, "selu": functions.selu, "hardswish": functions.hardswish, "hardsigmoid": functions.hardsigmoid,
    "sin": functions.sin, "cos": functions.cos, "exp": functions.exp, "abs": functions.abs, "square": functions.square,
    "absolute": functions.abs, "special_expit": functions.sigmoid, "relu6": lambda: functions.clip(0, 6), "clamp": _clamp,
    "clip": _clamp, "clamp_min": _clamp, "hardtanh": _hardtanh, "rrelu": _rrelu, "threshold": _threshold,
    "softshrink": _softshrink, "gelu": _gelu, "softplus": _softplus, "elu": _elu, "pow": _pow,
    "leaky_relu": lambda negative_slope: functions.leaky_relu(finite(negative_slope, "negative_slope")),
    "prelu": lambda weight: functions.leaky_relu(finite(weight, "weight")),
    "celu": lambda alpha: functions.celu(finite(alpha, "alpha")),
}  # fmt: skip
