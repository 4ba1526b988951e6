"""torch's arithmetic, reshapes and linear maps as steps. Each takes the arguments of its ATen operation, by their names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from attnc import functions
from attnc.frontends.activations import Activation, RefusedError
from attnc.frontends.aten import CASTS, COPIES, DROPOUTS
from attnc.frontends.builder import Builder, Constant, Value
from attnc.program import BatchNorm, Pointwise
from attnc.program.step import Numbers, Shape

BATCH = "the batch size"  # of any value: a result must not depend on it
Axes = tuple[object, ...]  # of ints and BATCH
Operation = Callable[..., object]
OWN_NUMBERS = "computes with the model's own numbers alone: store the result as a parameter or a buffer"


def _constant(b: Builder, c: object) -> Numbers | np.floating:
    return b.numbers(c) if isinstance(c, Constant) else b.in_dtype(b.number(c))


def _same_shapes(input: Value, other: Value) -> None:
    if input.shape != other.shape:
        raise RefusedError(f"combines values of different shapes, {input.shape} and {other.shape}")


def add(b: Builder, input: object, other: object, alpha: object = 1, *, sign: float = 1.0) -> Value:
    """input + sign·alpha·other."""
    factor = sign * b.number(alpha, "alpha")
    if isinstance(input, Value) and isinstance(other, Value):
        _same_shapes(input, other)
        return b.combine([input, other], [1.0, factor])
    if factor not in (1, -1):
        raise RefusedError("has an alpha and a constant: alpha is accepted between two values")
    if isinstance(input, Value):
        c = _constant(b, other)
        return b.diagonal(input, shift=c if factor == 1 else -c)
    assert isinstance(other, Value)
    return b.diagonal(other, gain=b.in_dtype(factor), shift=_constant(b, input))


def rsub(b: Builder, input: object, other: object, alpha: object = 1) -> Value:
    return add(b, other, input, alpha, sign=-1.0)


def mul(b: Builder, input: object, other: object) -> Value:
    if isinstance(input, Value) and isinstance(other, Value):
        _same_shapes(input, other)
        return b.product(input, other)
    value, factor = (input, other) if isinstance(input, Value) else (other, input)
    assert isinstance(value, Value)
    if isinstance(factor, Constant) and factor.tensor.numel() > 1:
        return b.diagonal(value, gain=b.numbers(factor))
    if isinstance(factor, Constant) and factor.tensor.ndim > len(value.shape) + 1:
        shape = tuple(factor.tensor.shape)
        raise RefusedError(f"combines a value of shape {value.shape} with a tensor of shape {shape}")
    return b.scaled(value, b.number(factor))


def div(b: Builder, input: object, other: object, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None and isinstance(input, Value) and _is_one_plus_abs(b, other, input):
        return b.apply(input, Activation(functions.softsign()))
    if rounding_mode is not None or not isinstance(input, Value) or isinstance(other, Value):
        raise RefusedError("divides by a value, or rounds: division by a number is accepted")
    return b.divided(input, _constant(b, other))


def _is_one_plus_abs(b: Builder, other: object, x: Value) -> bool:
    """Whether a value is |x| + 1, as in torch's softsign, x/(|x| + 1)."""
    if not isinstance(other, Value) or other.shape != x.shape:
        return False
    shifted = b.step(other)
    if not isinstance(shifted, BatchNorm) or shifted.input == 0:
        return False
    parts = {"mean": 0.0, "variance": 1.0, "gain": 1.0, "shift": 1.0}
    if shifted.epsilon != 0 or any((getattr(shifted, part) != n).any() for part, n in parts.items()):
        return False
    inner = b.step(Value(shifted.input, other.shape))
    return isinstance(inner, Pointwise) and inner.function.label == "abs" and inner.input == x.index


def neg(b: Builder, input: Value) -> Value:
    return b.scaled(input, -1.0)


def linear(b: Builder, input: Value, weight: object, bias: object = None) -> Value:
    if not isinstance(weight, Constant) or not (bias is None or isinstance(bias, Constant)):
        raise RefusedError("has a weight or a bias that is computed: parameters and buffers are accepted")
    return b.affine(input, weight, bias)


def matmul(b: Builder, input: object, other: object = None, mat2: object = None) -> Value:
    """x W. (aten.mm calls W `mat2`.)"""
    weight = mat2 if other is None else other
    if not isinstance(input, Value) or not isinstance(weight, Constant):
        raise RefusedError("is accepted as (a value) @ (a parameter)")
    return b.affine(input, weight, None, transposed=True)


def addmm(b: Builder, input: object, mat1: object, mat2: object) -> Value:
    """bias + x W, the bias first."""
    if not isinstance(mat1, Value) or not isinstance(mat2, Constant) or not isinstance(input, Constant):
        raise RefusedError("is accepted as addmm(a parameter, a value, a parameter)")
    return b.affine(mat1, mat2, input, transposed=True)


def batch_norm(
    b: Builder, input: Value, weight: object, bias: object, running_mean: object, running_var: object, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool,
) -> Value:  # fmt: skip
    """(x - mean)/√(var + ε)·weight + bias, with the running statistics."""
    stored = isinstance(running_mean, Constant) and isinstance(running_var, Constant)
    if training is not False or not stored:
        raise RefusedError("normalises by the batch: use training=False and track_running_stats=True")
    if len(input.shape) != 1:
        raise RefusedError(
            f"is accepted on (batch, features), and its input has shape (batch, *{input.shape})"
        )
    mean, variance = _constant(b, running_mean), _constant(b, running_var)
    gain = np.ones_like(mean) if weight is None else _constant(b, weight)
    shift = np.zeros_like(mean) if bias is None else _constant(b, bias)
    epsilon = b.number(eps, "eps")
    return b.add(BatchNorm, input, mean=mean, variance=variance, gain=gain, shift=shift, epsilon=epsilon)


def dropout(b: Builder, input: Value, p: float, train: bool) -> Value:
    if train is not False and p != 0:
        raise RefusedError("is random with training=True: give training=False, or training=self.training")
    return input


def log_sigmoid(b: Builder, input: Value) -> Value:
    """log(1/(1 + e^-s)) = -softplus(-s)."""
    return b.scaled(b.apply(b.scaled(input, -1.0), Activation(functions.softplus())), -1.0)


def same(b: Builder, input: Value, **layout: object) -> Value:
    """A copy, or a cast to the dtype that the value has: the translator compares the dtypes of all values."""
    return input


def flatten(b: Builder, input: Value, start_dim: int, end_dim: int) -> Value:
    start, end = _axis(input, start_dim), _axis(input, end_dim)
    if start > end:
        raise RefusedError(f"flattens from axis {start_dim} to {end_dim}: give start_dim <= end_dim")
    inside = input.shape[start - 1 : end]
    return b.reshaped(input, (*input.shape[: start - 1], math.prod(inside), *input.shape[end:]))


def unflatten(b: Builder, input: Value, dim: int, sizes: object) -> Value:
    axis = _axis(input, dim)
    listed = tuple(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else (sizes,)
    cut = _resolved(listed, input.shape[axis - 1])
    return b.reshaped(input, (*input.shape[: axis - 1], *cut, *input.shape[axis:]))


def reshape(b: Builder, input: Value, shape: Sequence[object] = (), size: Sequence[object] = ()) -> Value:
    """To (batch, …): the first size is the batch size, or a -1 that can only stand for it. (aten.view calls it `size`.)"""
    sizes = (*shape, *size)
    keeps = bool(sizes) and (sizes[0] is BATCH or (sizes[0] == -1 and -1 not in sizes[1:]))
    if not keeps or BATCH in sizes[1:] or len(sizes) == 1:
        advice = "write x.flatten(1), or x.reshape(x.shape[0], …)"
        raise RefusedError(f"reshapes to {sizes}, which does not keep the batch axis: {advice}")
    return b.reshaped(input, _resolved(sizes[1:], math.prod(input.shape)))


def reshape_as(b: Builder, input: Value, other: object) -> Value:
    if not isinstance(other, Value):
        raise RefusedError("takes a shape that does not keep the batch axis")
    return reshape(b, input, (BATCH, *other.shape))


def squeeze(b: Builder, input: Value, dim: object = None) -> Value:
    if not isinstance(dim, int):
        raise RefusedError("drops every axis of size 1, also the batch: name the axis, squeeze(dim)")
    axis = _axis(input, dim)
    if input.shape[axis - 1] != 1:
        return input
    return b.reshaped(input, (*input.shape[: axis - 1], *input.shape[axis:]))


def unsqueeze(b: Builder, input: Value, dim: int) -> Value:
    axes = len(input.shape) + 2
    axis = dim + axes if dim < 0 else dim
    if not 1 <= axis < axes:
        raise RefusedError(f"puts an axis at {dim}: the batch stays axis 0")
    return b.reshaped(input, (*input.shape[: axis - 1], 1, *input.shape[axis - 1 :]))


def sym_size(b: Builder, input: Value, dim: int) -> object:
    return (BATCH, *input.shape)[dim]


def _axis(x: Value, dim: object) -> int:
    """An axis counted from the batch, 0, which must not be touched."""
    axes = len(x.shape) + 1
    if not isinstance(dim, int) or isinstance(dim, bool) or not -axes <= dim < axes:
        raise RefusedError(f"names axis {dim} of {axes}")
    if dim % axes == 0:
        raise RefusedError(f"works on axis {dim}, the batch: axes 1 to {axes - 1} are accepted (start_dim=1)")
    return dim % axes


def _resolved(given: Axes, elements: int) -> Shape:
    """The sizes with -1 filled in; their product is the number of elements."""
    sizes = [n for n in given if isinstance(n, int) and not isinstance(n, bool)]
    if len(sizes) != len(given) or sizes.count(-1) > 1 or any(n < -1 or n == 0 for n in sizes):
        raise RefusedError(f"reshapes to {given}: positive sizes, and one -1, are accepted")
    known = math.prod(n for n in sizes if n != -1)
    if elements % known or (-1 not in sizes and elements != known):
        raise RefusedError(f"reshapes {elements} numbers to {given}, which holds {known}")
    return tuple(elements // known if n == -1 else n for n in sizes)


sub = partial(add, sign=-1.0)
# by the name of the ATen operation
OPERATIONS: dict[str, Operation] = {
    "add": add, "sub": sub, "subtract": sub, "rsub": rsub, "mul": mul, "multiply": mul, "div": div, "divide": div,
    "true_divide": div, "neg": neg, "negative": neg, "linear": linear, "matmul": matmul, "mm": matmul, "addmm": addmm,
    "batch_norm": batch_norm, "log_sigmoid": log_sigmoid, "sym_size": sym_size, "view": reshape, "_unsafe_view": reshape,
    "view_as": reshape_as, "reshape": reshape, "reshape_as": reshape_as, "flatten": flatten, "unflatten": unflatten,
    "squeeze": squeeze, "unsqueeze": unsqueeze, **dict.fromkeys(DROPOUTS, dropout), **dict.fromkeys(COPIES | CASTS, same),
}  # fmt: skip
# operations that only rearrange numbers: exact on the model's own tensors, too
REARRANGES = COPIES | {
    "t", "numpy_T", "mT", "transpose", "permute", "view", "reshape", "view_as", "reshape_as", "flatten", "unflatten",
    "squeeze", "unsqueeze", "select", "slice", "expand",
}  # fmt: skip
HINTS = dict.fromkeys(("softmax", "log_softmax"), "leave it off and compile the logits")
