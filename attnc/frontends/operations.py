"""Builder: the steps of a program, built without rounding a number of the source; OPERATIONS: torch's operations as steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.parameter import is_lazy

from attnc import functions
from attnc.errors import InputError, Problem
from attnc.frontends.activations import RefusedError, finite
from attnc.frontends.aten import CASTS, COPIES, DROPOUTS, RESHAPES
from attnc.frontends.problems import tensor_problem, to_numpy
from attnc.functions import Function, square
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program, Reshape, Step
from attnc.program.step import Numbers, OneInput, Shape


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the program."""

    index: int  # 0 is the input; step i computes value i + 1
    shape: Shape  # without the batch axis


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that does not depend on the input, with its name: the model's own, or one that forward creates."""

    tensor: Tensor
    name: str
    created: bool = False  # by forward, from python numbers alone, as by torch.ones(3)


class Builder:
    """A list of steps. Every method is an identity of real arithmetic."""

    def __init__(self, shape: Shape, dtype: np.dtype[np.floating]) -> None:
        self.shape, self.dtype = shape, dtype
        self.where = self.name = ""  # the current part of the source, in messages and in the names of steps
        self.problems: list[Problem] = []
        self._steps: list[Step] = []
        self.input = Value(0, shape)

    def add(self, kind: Any, *inputs: Value, **fields: Any) -> Value:
        """Append a step that reads the inputs; one that does not fit is refused."""
        read = tuple(x.index for x in inputs)
        try:
            step = kind(read[0] if issubclass(kind, OneInput) else read, **fields, name=self.name)
            shape = step.shape(*(x.shape for x in inputs))
        except InputError as problem:
            raise RefusedError(str(problem)) from None
        self._steps.append(step)
        return Value(len(self._steps), shape)

    def step(self, x: Value) -> Step | None:
        """The step that computes a value; None for the input."""
        return self._steps[x.index - 1] if x.index else None

    def apply(self, x: Value, f: Function | Pointwise) -> Value:
        """f(x), and how far the source's own function is from f, if f is a step."""
        known = f if isinstance(f, Pointwise) else Pointwise(0, f)
        if known.function.label == "identity":
            return x
        return self.add(Pointwise, x, function=known.function, deviation=known.deviation, beyond=known.beyond)

    def combine(self, values: Sequence[Value], coefficients: Sequence[float]) -> Value:
        return self.add(Combine, *values, coefficients=tuple(coefficients))

    def scaled(self, x: Value, c: float) -> Value:
        return x if c == 1 else self.combine([x], [c])

    def product(self, x: Value, y: Value) -> Value:
        """x·y = ((x + y)² - (x - y)²)/4, and x·x = x²."""
        if x.index == y.index and x.shape == y.shape:
            return self.apply(x, square())
        halves = [self.combine([x, y], [1.0, sign]) for sign in (1.0, -1.0)]
        return self.combine([self.apply(half, square()) for half in halves], [0.25, -0.25])

    def divided(self, x: Value, c: Numbers | np.floating) -> Value:
        """x/c. Where 1/c is no float: two normalisations of variance |c| each, x/√|c|/√|c|·sign c."""
        if np.any(np.asarray(c) == 0):
            raise RefusedError("divides by zero")
        inverse = 1 / float(c) if np.ndim(c) == 0 else math.inf
        if math.isfinite(inverse) and Fraction(inverse) * Fraction(float(c)) == 1:
            return self.scaled(x, inverse)
        root = self.diagonal(x, gain=np.sign(c), variance=np.abs(c))
        return self.diagonal(root, variance=np.abs(c))

    def diagonal(self, x: Value, **given: Numbers | np.floating) -> Value:
        """x·gain/√variance + shift, element by element, with numbers that broadcast to x as torch's do."""
        one, zero = self.dtype.type(1), self.dtype.type(0)
        parts = {"mean": zero, "variance": one, "gain": one, "shift": zero} | given
        filled = {part: _broadcastable(np.asarray(a), x.shape) for part, a in parts.items()}
        if all(a.ndim == 1 for a in filled.values()):
            wide = {part: np.broadcast_to(a, x.shape[-1:]) for part, a in filled.items()}
            return self.add(BatchNorm, x, **wide, epsilon=0.0)
        wide = {part: np.broadcast_to(a, x.shape).reshape(-1) for part, a in filled.items()}
        flat = self.reshaped(x, (math.prod(x.shape),))
        return self.reshaped(self.add(BatchNorm, flat, **wide, epsilon=0.0), x.shape)

    def affine(self, x: object, weight: object, bias: object, *, transposed: bool = False) -> Value:
        if not (isinstance(x, Value) and isinstance(weight, Constant) and isinstance(bias, Constant | None)):
            raise RefusedError("is accepted on a value, with parameters or buffers as weight and bias")
        w, b = self.numbers(weight), None if bias is None else self.numbers(bias)
        return self.add(Affine, x, weight=w.T if transposed else w, bias=b)

    def reshaped(self, x: Value, to: Shape) -> Value:
        if not to:
            raise RefusedError("leaves no axis of features: keep one, as in (batch, 1)")
        return x if to == x.shape else self.add(Reshape, x, to=to)

    def numbers(self, constant: Constant) -> Numbers:
        """A tensor of the model as it is stored. One that is not accepted is reported, and ones take its place."""
        reason = tensor_problem(constant.tensor)
        if reason is None:
            return to_numpy(constant.tensor)
        if is_lazy(constant.tensor):
            raise RefusedError(f"reads {constant.name}, which {reason}")
        self.report(reason, constant.name)
        return np.ones(tuple(constant.tensor.shape))

    def number(self, c: object, what: str = "the number") -> float:
        """A python number, or the only number of a tensor, as the float that equals it."""
        if isinstance(c, Constant):
            if c.tensor.numel() != 1:
                shape = tuple(c.tensor.shape)
                raise RefusedError(f"{what} is {c.name} of shape {shape}: a single number is accepted")
            return float(self.numbers(c).reshape(()))
        if isinstance(c, Value):
            raise RefusedError(f"{what} is a value that depends on the input: a number is accepted")
        return finite(c, what)

    def in_dtype(self, c: float) -> np.floating:
        """The number in the source's dtype if that holds it, else in float64."""
        with np.errstate(over="ignore"):
            narrow: np.floating = self.dtype.type(c)
        return narrow if float(narrow) == c else np.float64(c)

    def report(self, reason: str, where: str | None = None) -> None:
        self.problems = list(dict.fromkeys([*self.problems, Problem(where or self.where, reason)]))

    def program(self, output: Value) -> Program:
        """The steps that the output needs, in their order; the last of them computes the output."""
        needed = {output.index}
        for i in range(output.index, 0, -1):
            if i in needed:
                needed.update(self._steps[i - 1].inputs)
        place = {index: i for i, index in enumerate(sorted(needed | {0}))}
        kept = [self._steps[index - 1].reading(place) for index in sorted(needed - {0})]
        return Program(self.shape, tuple(kept))


def _broadcastable(a: Numbers, shape: Shape) -> Numbers:
    """Numbers that broadcast to (batch, *shape) without touching the batch: a vector of the last axis, or of the whole rank."""
    axes: Shape = a.shape[1:] if a.ndim == len(shape) + 1 and a.shape[0] == 1 else a.shape
    axes = (1,) * (len(shape) - len(axes)) + axes
    if len(axes) != len(shape) or any(n not in (1, wanted) for n, wanted in zip(axes, shape, strict=True)):
        raise RefusedError(f"combines a value of shape {shape} with a tensor of shape {a.shape}")
    return a.reshape(axes[-1:] if all(n == 1 for n in axes[:-1]) else axes)


BATCH = "the batch size"  # of any value: a result must not depend on it
Operation = Callable[..., object]
OWN_NUMBERS = "computes with the model's own numbers alone: store the result as a parameter or a buffer"


def _constant(b: Builder, c: object) -> Numbers | np.floating:
    return b.numbers(c) if isinstance(c, Constant) else b.in_dtype(b.number(c))


def add(b: Builder, input: object, other: object, alpha: object = 1, *, sign: float = 1.0) -> Value:
    """input + sign·alpha·other."""
    factor = sign * b.number(alpha, "alpha")
    if isinstance(input, Value) and isinstance(other, Value):
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
        return b.product(input, other)
    value, factor = (input, other) if isinstance(input, Value) else (other, input)
    assert isinstance(value, Value)
    if isinstance(factor, Constant) and factor.tensor.numel() > 1:
        return b.diagonal(value, gain=b.numbers(factor))
    return b.scaled(value, b.number(factor))


def div(b: Builder, input: object, other: object, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None and isinstance(input, Value):
        if not isinstance(other, Value):
            return b.divided(input, _constant(b, other))
        if _is_one_plus_abs(b, other, input):
            return b.apply(input, functions.softsign())
    raise RefusedError("divides by a value, or rounds: division by a number is accepted")


def _is_one_plus_abs(b: Builder, other: Value, x: Value) -> bool:
    """Whether a value is |x| + 1, as in torch's softsign, x/(|x| + 1)."""
    shifted = b.step(other)
    if other.shape != x.shape or not isinstance(shifted, BatchNorm) or shifted.input == 0:
        return False
    numbers = {"mean": 0.0, "variance": 1.0, "gain": 1.0, "shift": 1.0, "epsilon": 0.0}
    if any(np.any(getattr(shifted, part) != n) for part, n in numbers.items()):
        return False
    inner = b.step(Value(shifted.input, other.shape))
    return isinstance(inner, Pointwise) and inner.function.label == "abs" and inner.input == x.index


def neg(b: Builder, input: Value) -> Value:
    return b.scaled(input, -1.0)


def linear(b: Builder, input: Value, weight: object, bias: object = None) -> Value:
    return b.affine(input, weight, bias)


def matmul(b: Builder, input: object, other: object = None, mat2: object = None) -> Value:
    """x W. (aten.mm calls W `mat2`.)"""
    return b.affine(input, mat2 if other is None else other, None, transposed=True)


def addmm(b: Builder, input: object, mat1: object, mat2: object) -> Value:
    """bias + x W, the bias first."""
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
        shape = ", ".join(map(str, ("batch", *input.shape)))
        raise RefusedError(f"normalises the second axis of ({shape}): it is accepted on (batch, features)")
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
    return b.scaled(b.apply(b.scaled(input, -1.0), functions.softplus()), -1.0)


def same(b: Builder, input: Value, **layout: object) -> Value:
    """A copy, or a cast to the dtype that the value has: the translator compares the dtypes of all values."""
    return input


def squeeze(b: Builder, input: Value, dim: object = None) -> Value:
    axes = len(input.shape) + 1
    if not isinstance(dim, int) or dim % axes == 0:
        raise RefusedError("may drop the batch axis: name another one, squeeze(dim)")
    return b.reshaped(input, tuple(n for i, n in enumerate(input.shape, 1) if n != 1 or i != dim % axes))


def sym_size(b: Builder, input: Value, dim: int) -> object:
    return (BATCH, *input.shape)[dim]


sub = partial(add, sign=-1.0)
# by the name of the ATen operation
OPERATIONS: dict[str, Operation] = {
    "add": add, "sub": sub, "subtract": sub, "rsub": rsub, "mul": mul, "multiply": mul, "div": div, "divide": div,
    "true_divide": div, "neg": neg, "negative": neg, "linear": linear, "matmul": matmul, "mm": matmul, "addmm": addmm,
    "batch_norm": batch_norm, "log_sigmoid": log_sigmoid, "sym_size": sym_size, "squeeze": squeeze,
    **dict.fromkeys(DROPOUTS, dropout), **dict.fromkeys(COPIES | CASTS, same),
}  # fmt: skip
# operations that only rearrange numbers: exact on the model's own tensors, too
REARRANGES = COPIES | RESHAPES | {
    "t", "numpy_T", "mT", "transpose", "permute", "squeeze", "select", "slice", "expand",
}  # fmt: skip
_LOGITS = (
    "is not supported: leave it off and compile the logits. A softmax of the outputs is outside of the network that is proved: "
    "apply it to net(x)"
)
HINTS = {
    **dict.fromkeys(("softmax", "log_softmax"), _LOGITS),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), "is not supported, like all convolutions"),
}
