"""Comparisons, `torch.where` and inverse functions as scalar operations of a tape.

A tensor of truth values is a tensor of values that are 1 or 0: x > y is 1 if x - y > 0 else 0, and x >= y is 0 if y - x > 0 else
1, so that both are exact at equality. `torch.where` on them is one operation on x - y."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnc.frontends.activations import RefusedError
from attnc.frontends.tape import Symbols
from attnc.frontends.tape_writer import Real, Writer

Scalar = Callable[[Writer, int], int]
_LARGEST = 2.0**100  # far from the ends of float32


def _greater(w: Writer, x: int, y: int, one: float, other: float) -> int:
    return w.tape.write("where", w.tape.write("subtract", x, y), w.tape.constant(one), w.tape.constant(other))


def _compare(swap: bool, one: float) -> Callable[..., Symbols]:
    def run(w: Writer, self: Real, other: Real) -> Symbols:
        given = (other, self) if swap else (self, other)
        return w.each(lambda a, b: _greater(w, a, b, one, 1 - one), *given)

    return run


def _pointwise_equal(w: Writer, self: Real, other: Real) -> Symbols:
    raise RefusedError("is true at single points only: use an inequality")


def _never(w: Writer, self: Real) -> Tensor:
    """No real number is NaN or infinite; but torch finds both where a value is undefined, or too large for a float."""
    ends = [end for at in w.symbols(self).flatten().tolist() for end in w.reach(at)]
    if not all(abs(end) <= _LARGEST for end in ends):
        raise RefusedError("asks for NaN or infinity where a value may be undefined or very large")
    return torch.zeros(w.symbols(self).shape, dtype=torch.bool)


def choose(w: Writer, condition: int, a: int, b: int) -> int:
    """a if the condition, a value that is 1 or 0, is 1, else b."""
    made = w.tape.operations[condition - w.tape.inputs] if condition >= w.tape.inputs else ("",)
    if made[0] == "where":
        ends = tuple(w.tape.value_of(i) for i in made[2:])
        if ends == (1.0, 0.0):
            return w.tape.write("where", made[1], a, b)
        if ends == (0.0, 1.0):
            return w.tape.write("where", made[1], b, a)
    return w.tape.write("where", condition, a, b)


def where(w: Writer, condition: Any, self: Real, other: Real) -> Symbols:
    if isinstance(condition, Tensor):
        return Symbols(torch.where(condition, w.symbols(self), w.symbols(other)))
    return w.each(lambda c, a, b: choose(w, c, a, b), condition, self, other)


def _not(w: Writer, self: Real) -> Symbols:
    one, zero = w.tape.constant(1.0), w.tape.constant(0.0)
    return w.each(lambda c: choose(w, c, zero, one), self)


def _sign(w: Writer, a: int) -> int:
    zero = w.tape.constant(0.0)
    below = w.tape.write("where", w.tape.write("negate", a), w.tape.constant(-1.0), zero)
    return w.tape.write("where", a, w.tape.constant(1.0), below)


def _each(write: Scalar) -> Callable[..., Symbols]:
    return lambda w, self: w.each(lambda a: write(w, a), self)


def _asin(w: Writer, a: int) -> int:
    """atan(a/√(1 - a²))."""
    rest = w.tape.write("subtract", w.tape.constant(1.0), w.power(a, 2))
    return w.tape.write("atan", w.tape.write("divide", a, w.tape.write("sqrt", rest)))


def _quarter(w: Writer) -> int:
    """π/2 = 2 atan 1."""
    one = w.tape.constant(1.0)
    return w.tape.write("multiply", w.tape.constant(2.0), w.tape.write("atan", one))


def _acos(w: Writer, a: int) -> int:
    return w.tape.write("subtract", _quarter(w), _asin(w, a))


def _area(shift: float) -> Scalar:
    """log(a + √(a² ± 1))."""

    def one(w: Writer, a: int) -> int:
        root = w.tape.write("sqrt", w.tape.write("add", w.power(a, 2), w.tape.constant(shift)))
        return w.tape.write("log", w.tape.write("add", a, root))

    return one


def _atanh(w: Writer, a: int) -> int:
    """log((1 + a)/(1 - a))/2."""
    one = w.tape.constant(1.0)
    quotient = w.tape.write("divide", w.tape.write("add", one, a), w.tape.write("subtract", one, a))
    return w.tape.write("multiply", w.tape.constant(0.5), w.tape.write("log", quotient))


def _atan2(w: Writer, y: int, x: int) -> int:
    """atan(y/x) if x > 0 on the whole box, ±π/2 - atan(x/y) if y has a sign there, else 2 atan(y/(x + √(x² + y²))), which is
    singular where atan2 jumps."""
    write = w.tape.write
    if w.reach(x)[0] > 0:
        return write("atan", write("divide", y, x))
    low, high = w.reach(y)
    if low > 0 or high < 0:
        side = _quarter(w) if low > 0 else write("negate", _quarter(w))
        return write("subtract", side, write("atan", write("divide", x, y)))
    length = write("sqrt", w.dot([x, y], [x, y]))
    return write("multiply", w.tape.constant(2.0), write("atan", write("divide", y, write("add", x, length))))


def _lerp(w: Writer, self: Real, end: Real, weight: Real) -> Symbols:
    return w.apply("add", self, w.apply("multiply", weight, w.apply("subtract", end, self)))


def _prelu(w: Writer, self: Real, weight: Real) -> Symbols:
    low = w.apply("multiply", w.apply("minimum", self, 0.0), weight)
    return w.apply("add", w.apply("maximum", self, 0.0), low)


COMPARISONS: dict[str, Callable[..., Any]] = {
    "gt": _compare(False, 1.0), "lt": _compare(True, 1.0), "ge": _compare(True, 0.0), "le": _compare(False, 0.0),
    "eq": _pointwise_equal, "ne": _pointwise_equal, "isnan": _never, "isinf": _never,
}  # fmt: skip
LOGICAL: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("logical_not", "bitwise_not"), _not),
    **{name: lambda w, self, other: w.apply("minimum", self, other) for name in ("logical_and", "bitwise_and")},
    **{name: lambda w, self, other: w.apply("maximum", self, other) for name in ("logical_or", "bitwise_or")},
}  # fmt: skip
PIECEWISE: dict[str, Callable[..., Any]] = {
    **COMPARISONS, **LOGICAL, "where": where, "sign": _each(_sign),
    "atan": lambda w, self: w.apply("atan", self), "asin": _each(_asin), "acos": _each(_acos), "asinh": _each(_area(1.0)),
    "acosh": _each(_area(-1.0)), "atanh": _each(_atanh),
    "atan2": lambda w, self, other: w.each(lambda y, x: _atan2(w, y, x), self, other),
    "lerp": _lerp, "_prelu_kernel": _prelu,
}  # fmt: skip
