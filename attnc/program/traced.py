"""y = f(x) for a function that is stored as a list of scalar operations: a traced function.

The format, in a network file as JSON (`Traced` has the same three fields):

    {"kind": "traced", "name": "f", "input": 1, "width": 2,
     "operations": [["constant", 3.0], ["multiply", 0, 1], ["multiply", 2, 3], ["sin", 4]],
     "returned": [5]}

Values are numbered. Value i < `width` is coordinate i of the input; operation j computes value width + j from values with smaller
numbers. The outputs of the function are the values `returned`, in that order; a value may be returned more than once.

    ["constant", c]                     the double c, exactly
    ["add", a, b]  ["subtract", a, b]  ["multiply", a, b]  ["maximum", a, b]  ["minimum", a, b]
    ["divide", a, b]                    b must not be 0
    ["negate", a]  ["absolute", a]  ["exp", a]  ["sin", a]  ["cos", a]  ["erf", a]  ["atan", a]
    ["log", a]                          a must be positive
    ["sqrt", a]                         a must not be negative
    ["where", c, a, b]                  a if c > 0, else b
    ["power", a, k]                     k is a whole number, stored as one; a must not be 0 if k < 0
    ["power", a, q]                     q is a double, stored as one (2.0 is not 2): e^(q log a), a must be positive

The meaning is the function of real numbers: no operation rounds. Constants are doubles, so 0.1 means the double nearest to a
tenth. Where an operation is not defined, the function has no value, and nothing can be proved on a box that contains such a
point. Everything else that a function may do (tanh, softmax, sort, matrix products and inverses, norms) is written as these
operations when it is traced; tanh a, for example, is 1 - 2/(1 + exp 2a)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, OneInput, Shape

Operation = tuple[Any, ...]  # its name, then numbers of values; a constant or an exponent last
V = TypeVar("V")
ONE = ("negate", "absolute", "exp", "log", "sin", "cos", "sqrt", "erf", "atan")
TWO = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
THREE = ("where",)
KINKS = ("absolute", "maximum", "minimum", "where")
MOST_OPERATIONS = 20_000


@dataclass(frozen=True, eq=False)
class Traced(OneInput):
    """y = f(x) for a function of all features, as a list of operations on numbered values. The module's docstring defines it.

    >>> f = Traced(0, 2, (("multiply", 0, 1), ("sin", 2)), (3,))
    >>> f.approximate(torch.tensor([[0.5, 2.0]], dtype=torch.float64)).tolist()
    [[0.8414709848078965]]
    """

    width: int
    operations: tuple[Operation, ...]
    returned: tuple[int, ...]
    kind = "traced"
    linear = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "operations", tuple(tuple(one) for one in self.operations))
        object.__setattr__(self, "returned", tuple(self.returned))
        if type(self.width) is not int or self.width < 1:
            raise InputError(f"width={self.width!r} must be a positive whole number")
        if len(self.operations) > MOST_OPERATIONS:
            raise InputError(
                f"it has {len(self.operations)} operations: up to {MOST_OPERATIONS} are accepted"
            )
        for j, operation in enumerate(self.operations):
            if not _is_valid(operation, self.width + j):
                raise InputError(f"operation {j} of a traced function is not valid: {list(operation)!r:.80}")
        count = self.width + len(self.operations)
        if not self.returned or not all(type(i) is int and 0 <= i < count for i in self.returned):
            raise InputError(f"a traced function with {count} values returns {self.returned!r:.80}")

    def shape(self, *given: Shape) -> Shape:
        if given[0] != (self.width,):
            raise InputError(f"it takes {self.width} features, but its input has shape {given[0]}")
        return (len(self.returned),)

    def exact(self, *x: Balls) -> Balls:
        """Row by row; an undefined operation gives a ball that is not finite."""
        found = np.empty((len(x[0]), len(self.returned)), dtype=object)
        for i, row in enumerate(x[0]):
            found[i] = self.interpret(list(row), BALLS, arb)
        return found

    def approximate(self, *x: Tensor) -> Tensor:
        rows = x[0].to(torch.float64)
        columns = self.interpret(list(rows.unbind(1)), TORCH, lambda c: rows.new_full((len(rows),), c))
        return torch.stack(columns, 1)

    def interpret(
        self, inputs: Sequence[V], table: Mapping[str, Callable[..., V]], constant: Callable[[float], V]
    ) -> list[V]:
        """The outputs, with operations from a table by name, on values of any kind. Values are dropped after their last use."""
        values: dict[int, V] = dict(enumerate(inputs))
        for j, (name, *given) in enumerate(self.operations):
            if name == "constant":
                made = constant(given[0])
            elif name == "power":
                made = table[name](values[given[0]], given[1])
            else:
                made = table[name](*(values[i] for i in given))
            values[self.width + j] = made
            for i in self._last_used[j]:
                values.pop(i, None)
        return [values[i] for i in self.returned]

    @cached_property
    def _last_used(self) -> list[list[int]]:
        """For each operation, the values that nothing reads after it."""
        seen, found = set(self.returned), []
        for j in range(len(self.operations) - 1, -1, -1):
            read = set(operands(self.operations[j])) | {self.width + j}
            found.append(sorted(read - seen))
            seen |= read
        return found[::-1]

    @property
    def has_kinks(self) -> bool:
        return any(operation[0] in KINKS for operation in self.operations)


def operands(operation: Operation) -> tuple[int, ...]:
    """The values that an operation reads."""
    return () if operation[0] == "constant" else operation[1:2] if operation[0] == "power" else operation[1:]


def _is_valid(operation: Operation, values: int) -> bool:
    """Whether it is an operation of the format that reads only earlier values."""
    name, *given = operation if operation else ("",)
    if name == "constant":
        return len(given) == 1 and type(given[0]) is float and math.isfinite(given[0])
    if name == "power":
        if len(given) != 2 or type(given[1]) not in (int, float) or not abs(given[1]) <= 64:
            return False
        given = given[:1]
    elif len(given) != (1 if name in ONE else 2 if name in TWO else 3 if name in THREE else -1):
        return False
    return all(type(i) is int and 0 <= i < values for i in given)


def _ball_power(x: arb, exponent: int | float) -> arb:
    if isinstance(exponent, float):
        return (arb(exponent) * x.log()).exp()
    found: arb = integer_power(x, exponent, arb(1))
    return found


def _ball_where(c: arb, a: arb, b: arb) -> arb:
    """Both branches where the sign of c is not known."""
    return a if c > 0 else b if c <= 0 else a.union(b) if c.is_finite() else arb.nan()


def integer_power(x: Any, exponent: int, one: Any) -> Any:
    """x^k by squaring, and the reciprocal of x^-k for k < 0."""
    if exponent < 0:
        return one / integer_power(x, -exponent, one)
    if exponent == 0:
        return one
    half = integer_power(x, exponent // 2, one)
    square = half * half if exponent > 1 else one
    return square * x if exponent % 2 and exponent > 1 else x if exponent == 1 else square


BALLS: dict[str, Callable[..., arb]] = {
    "add": arb.__add__, "subtract": arb.__sub__, "multiply": arb.__mul__, "divide": arb.__truediv__,
    "maximum": arb.max, "minimum": arb.min, "negate": arb.__neg__, "absolute": arb.__abs__,
    "exp": arb.exp, "log": arb.log, "sin": arb.sin, "cos": arb.cos, "sqrt": arb.sqrt, "erf": arb.erf, "power": _ball_power,
    "atan": arb.atan, "where": _ball_where,
}  # fmt: skip
TORCH: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "negate": torch.neg, "absolute": torch.abs, "exp": torch.exp, "log": torch.log, "sin": torch.sin,
    "cos": torch.cos, "sqrt": torch.sqrt, "erf": torch.erf, "power": torch.pow,
    "atan": torch.atan, "where": lambda c, a, b: torch.where(c > 0, a, b),
}  # fmt: skip
