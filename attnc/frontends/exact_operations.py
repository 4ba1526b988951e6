"""The exact meaning of ATen operations on real numbers, in ball arithmetic: arrays of balls in, an array of balls out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.frontends.activations import ACTIVATIONS, RefusedError, activation
from attnc.functions import Function
from attnc.program.integer_product import ball_product, matrix_product
from attnc.program.step import Balls

_HIDDEN = np.array(arb.neg_inf(), dtype=object)  # the score of a key that a mask hides
Real = Balls | Tensor | float  # a Tensor holds exact numbers


def to_balls(x: Real) -> Balls:
    """Numbers as balls; a tensor's numbers are exact, and True is 1."""
    if isinstance(x, np.ndarray):
        return x
    if not isinstance(x, Tensor):
        if not isinstance(x, (int, float, arb)):
            raise RefusedError(f"takes numbers of type {type(x).__name__}")
        return _each(arb, np.asarray(int(x) if isinstance(x, bool) else x, dtype=object))
    if x.is_complex() or x.is_quantized or x.dtype == torch.uint64:
        raise RefusedError(f"takes numbers of type {x.dtype}")
    return _each(arb, (x.detach().double() if x.is_floating_point() else x.to(torch.int64)).numpy())


def _each(f: Callable[[Any], arb], x: Any) -> Balls:
    return np.asarray(np.frompyfunc(f, 1, 1)(x), dtype=object)


def apply(f: Function, x: Real) -> Balls:
    """f of every number; not finite where a ball is too wide for the enclosure of f."""

    def value(s: arb) -> arb:
        try:
            return f.over(s)
        except (ValueError, ZeroDivisionError):
            return arb.nan()

    return _each(value, to_balls(x))


def linear(input: Real, weight: Real, bias: Real | None = None) -> Balls:
    """x Wᵀ + b."""
    rows = to_balls(input)
    flat = rows.reshape(-1, rows.shape[-1])
    if isinstance(weight, Tensor):
        y = ball_product(flat, weight.detach().double().numpy())
    else:
        y = matrix_product(flat, to_balls(weight).T)
    y = y.reshape(*rows.shape[:-1], y.shape[1])
    return y if bias is None else y + to_balls(bias)


def matmul(self: Real, other: Real) -> Balls:
    """Products of matrices, or of stacks of them."""
    if isinstance(other, Tensor) and other.ndim == 2:
        return linear(self, other.T)
    x, y = to_balls(self), to_balls(other)
    rows, columns = x.reshape(1, -1) if x.ndim == 1 else x, y.reshape(-1, 1) if y.ndim == 1 else y
    lead = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    rows, columns = (np.broadcast_to(m, (*lead, *m.shape[-2:])) for m in (rows, columns))
    found = np.empty((*lead, rows.shape[-2], columns.shape[-1]), dtype=object)
    for at in np.ndindex(lead):
        found[at] = matrix_product(rows[at], columns[at])
    found = found[..., 0] if y.ndim == 1 else found
    return found[..., 0, :] if x.ndim == 1 and y.ndim > 1 else found[..., 0] if x.ndim == 1 else found


def _add(self: Real, other: Real, alpha: float = 1) -> Balls:
    x, y = to_balls(self), to_balls(other)
    return np.asarray(x + (y if alpha == 1 else arb(alpha) * y), dtype=object)


def _sub(self: Real, other: Real, alpha: float = 1) -> Balls:
    return _add(self, other, -alpha)


def _mul(self: Real, other: Real) -> Balls:
    return np.asarray(to_balls(self) * to_balls(other), dtype=object)


def _div(self: Real, other: Real, rounding_mode: str | None = None) -> Balls:
    if rounding_mode is not None:
        raise RefusedError(f"rounds its quotients: rounding_mode={rounding_mode!r}")
    return np.asarray(to_balls(self) / to_balls(other), dtype=object)


def _pow(self: Real, exponent: Real) -> Balls:
    if isinstance(exponent, (int, float)) and abs(exponent) <= 8 and float(exponent).is_integer():
        x = to_balls(self)
        power = math.prod(
            [x] * int(abs(exponent)), start=np.full_like(x, arb(1))
        )  # flint's power of [±r] is not finite
        return np.asarray(power if exponent >= 0 else 1 / power, dtype=object)
    return np.asarray(to_balls(self) ** to_balls(exponent), dtype=object)


def _addmm(self: Real, x: Real, y: Real, beta: float = 1, alpha: float = 1) -> Balls:
    return _add(_mul(self, beta), matmul(x, y), alpha)


def total(self: Real, dim: int | Sequence[int] | None = None, keepdim: bool = False, **_: object) -> Balls:
    """The sum over some axes, or over all."""
    x = to_balls(self)
    axes = tuple(range(x.ndim)) if dim is None or dim == [] else tuple(np.atleast_1d(dim).tolist())
    add: Any = np.add.reduce
    return np.asarray(add(x, axis=axes, keepdims=keepdim, initial=arb(0)), dtype=object)


def mean(self: Real, dim: int | Sequence[int] | None = None, keepdim: bool = False, **_: object) -> Balls:
    y = total(self, dim, keepdim)
    return np.asarray(y / (to_balls(self).size // max(1, y.size)), dtype=object)


def norm(x: Real, gain: Real | None, shift: Real | None, eps: float, centred: bool, axes: int = 1) -> Balls:
    """gain∘z/√(mean z² + eps) + shift over the last axes, z = x - mean x if `centred`, else z = x."""
    over = list(range(-axes, 0))
    z = to_balls(x)
    z = z - mean(z, over, True) if centred else z
    y = z * _each(arb.rsqrt, mean(z * z, over, True) + arb(eps))
    y = y if gain is None else y * to_balls(gain)
    return np.asarray(y if shift is None else y + to_balls(shift), dtype=object)


def _layer_norm(
    input: Real, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float, **_: object
) -> Balls:
    return norm(input, weight, bias, eps, True, len(normalized_shape))


def _rms_norm(input: Real, normalized_shape: Sequence[int], weight: Any, eps: float | None) -> Balls:
    if eps is None:
        raise RefusedError("has eps=None, which depends on the dtype: give a number")
    return norm(input, weight, None, eps, False, len(normalized_shape))


def _is_hidden(s: arb) -> bool:
    """Whether a score is -∞ itself, and not a number that is unknown."""
    return bool(s.mid() == arb.neg_inf()) and s.rad().is_finite()


def softmax(self: Real, dim: int, **_: object) -> Balls:
    """e^s / Σ e^s along an axis; the weights are 0 where every score is -∞, as in torch's attention."""
    x = np.moveaxis(to_balls(self), dim, -1)
    y = np.empty(x.shape, dtype=object)
    for at in np.ndindex(x.shape[:-1]):
        seen = [s for s in x[at] if not _is_hidden(s)]
        if not all(s.is_finite() for s in seen):
            y[at] = arb.nan()
        elif not seen:
            y[at] = arb(0)
        else:
            largest = max(s.mid() for s in seen)
            weights = [(s - largest).exp() for s in x[at]]
            y[at] = np.array(weights) / sum(weights, arb(0))
    return np.moveaxis(y, -1, dim)


def attention(
    query: Real, key: Real, value: Real, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Balls:  # fmt: skip
    """softmax(scale q kᵀ + mask) v."""
    if dropout_p:
        raise RefusedError("has dropout: call model.eval()")
    q, k, v = map(to_balls, (query, key, value))
    if enable_gqa:
        k, v = (np.repeat(m, q.shape[-3] // m.shape[-3], axis=-3) for m in (k, v))
    factor = 1 / arb(q.shape[-1]).sqrt() if scale is None else arb(scale)
    scores = matmul(q, np.swapaxes(k, -1, -2)) * factor
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, _HIDDEN)
    if isinstance(attn_mask, Tensor) and not attn_mask.is_floating_point():
        scores = np.where(attn_mask.numpy(), scores, _HIDDEN)
    elif attn_mask is not None:
        scores = scores + to_balls(attn_mask)
    return matmul(softmax(scores, -1), v)


def _conv(
    input: Real, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Balls:
    """A convolution as the product of its windows and the weight."""
    if groups != 1 or isinstance(padding, str) or not isinstance(weight, Tensor):
        raise RefusedError(
            f"is a convolution with groups={groups} and padding={padding!r}: groups=1 and numbers are supported"
        )
    kernel = weight.shape[2:]
    x: Any = to_balls(input)
    stride, padding, dilation = (
        list(n) * len(kernel) if len(n) == 1 else list(n) for n in (stride, padding, dilation)
    )
    x = np.pad(
        x,
        [(0, 0)] * (x.ndim - len(kernel)) + [(p, p) for p in padding],
        constant_values=np.array(arb(0), dtype=object),
    )
    spans = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    axes = tuple(range(-len(kernel), 0))
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axes)
    steps: Any = (..., *(slice(None, None, n) for n in (*stride, *dilation)))
    windows = windows[steps]
    windows = np.moveaxis(
        windows, -2 * len(kernel) - 1, -len(kernel) - 1
    )  # (N, places …, channels, kernel …)
    flat = windows.reshape(*windows.shape[: -len(kernel) - 1], -1)
    return np.moveaxis(linear(flat, weight.reshape(len(weight), -1), bias), -1, -len(kernel) - 1)


def _extreme(largest: bool) -> Callable[..., Balls]:
    pick = np.frompyfunc(lambda a, b: a.max(b) if largest else a.min(b), 2, 1)
    return lambda self, other: np.asarray(pick(to_balls(self), to_balls(other)), dtype=object)


def _elementwise(operation: str) -> Callable[..., Balls]:
    def run(**given: Any) -> Balls:
        (_, x), *others = given.items()
        found = activation(operation, dict(others))
        if found.deviation:
            raise RefusedError("is not analytic beyond its threshold: give threshold=inf")
        return apply(found.function, x)

    return run


def _map(f: Callable[[arb], arb]) -> Callable[..., Balls]:
    return lambda self: _each(f, to_balls(self))


OPERATIONS: dict[str, Callable[..., Balls]] = {
    **{operation: _elementwise(operation) for operation in ACTIVATIONS},
    "add": _add, "sub": _sub, "rsub": lambda self, other, alpha=1: _sub(other, self, alpha), "mul": _mul, "div": _div,
    "subtract": _sub, "multiply": _mul, "divide": _div, "true_divide": _div, "pow": _pow, "neg": _map(arb.__neg__),
    "sqrt": _map(arb.sqrt), "rsqrt": _map(arb.rsqrt), "reciprocal": _map(lambda s: 1 / s), "exp": _map(arb.exp),
    "log": _map(arb.log), "log1p": _map(arb.log1p), "sin": _map(arb.sin), "cos": _map(arb.cos), "erf": _map(arb.erf),
    "maximum": _extreme(True), "minimum": _extreme(False), "sum": total, "mean": mean,
    "cumsum": lambda self, dim: np.add.accumulate(to_balls(self), axis=dim),
     "softmax": softmax, "_softmax": softmax,
    "_safe_softmax": softmax, "log_softmax": lambda self, dim, **_: _each(arb.log, softmax(self, dim)), "linear": linear,
    "matmul": matmul, "mm": lambda self, mat2: matmul(self, mat2), "bmm": lambda self, mat2: matmul(self, mat2),
    "addmm": lambda self, mat1, mat2, **k: _addmm(self, mat1, mat2, **k),
    "baddbmm": lambda self, batch1, batch2, **k: _addmm(self, batch1, batch2, **k), "layer_norm": _layer_norm,
    "rms_norm": _rms_norm, "scaled_dot_product_attention": attention, "conv1d": _conv, "conv2d": _conv,
}  # fmt: skip


def run(operation: str, given: dict[str, Any]) -> Balls:
    """The result of an operation, from its arguments by name; raises RefusedError if it has no exact meaning here."""
    if operation not in OPERATIONS:
        raise RefusedError("has no exact meaning here")
    try:
        return OPERATIONS[operation](**given)
    except (InputError, TypeError) as problem:  # arguments that the table does not know
        raise RefusedError(str(problem)) from problem
