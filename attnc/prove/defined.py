"""Whether a traced function of one number is defined on an interval, where roots of what is 0 somewhere must be allowed.

Taylor models lose that |s| >= 0 on a cell that contains 0. Here a value is a ball together with a sign: whether the operations
that make it (an absolute value, an even power, a product of a number with itself, ...) show that it is not negative. A root of
such a value is defined although its ball contains negative numbers."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from flint import arb

from attnc.functions.balls import ball, working
from attnc.program.traced import BALLS, Traced, integer_power

_CELLS, _MOST, _PRECISION = 64, 4096, 96


@dataclass(frozen=True, eq=False)
class _Value:
    """A ball that contains a number, and whether that number is known not to be negative."""

    ball: arb
    signed: bool

    @classmethod
    def of(cls, made: arb, signed: bool = False) -> _Value:
        """Raises ValueError for a ball that is not finite: an operation may be undefined."""
        if not made.is_finite():
            raise ValueError("may be undefined")
        return cls(made, bool(signed or made >= 0))


def is_defined(f: Traced, lo: float, hi: float) -> bool:
    """True if every operation of f is proved to be defined on [lo, hi]; the widest cells that fail are halved up to a limit.

    >>> root = Traced(0, 1, (("absolute", 0), ("sqrt", 1)), (2,))
    >>> is_defined(root, -1.0, 1.0), is_defined(Traced(0, 1, (("sqrt", 0),), (1,)), -1.0, 1.0)
    (True, False)
    """
    ends = [lo + (hi - lo) * (i / _CELLS) for i in range(_CELLS)] + [hi]
    cells = [(a - b, a, b) for a, b in pairwise(ends)]
    heapq.heapify(cells)
    with working(_PRECISION):
        for _ in range(_MOST):
            if not cells:
                return True
            _, a, b = heapq.heappop(cells)
            if _defined_on(f, a, b):
                continue
            middle = a / 2 + b / 2
            if not a < middle < b:
                return False
            for low, high in ((a, middle), (middle, b)):
                heapq.heappush(cells, (low - high, low, high))
    return False


def _defined_on(f: Traced, a: float, b: float) -> bool:
    try:
        f.interpret([_Value.of(ball(a, b), a >= 0)], _TABLE, lambda c: _Value.of(arb(c), c >= 0))
    except (ValueError, ZeroDivisionError):
        return False
    return True


def _one(name: str, signed: bool = False) -> Callable[[_Value], _Value]:
    return lambda a: _Value.of(BALLS[name](a.ball), signed)


def _two(name: str, signed: Callable[[_Value, _Value], bool]) -> Callable[[_Value, _Value], _Value]:
    return lambda a, b: _Value.of(BALLS[name](a.ball, b.ball), signed(a, b))


def _both(a: _Value, b: _Value) -> bool:
    return a.signed and b.signed


def _sqrt(a: _Value) -> _Value:
    if not a.signed:
        raise ValueError("a root of what may be negative")
    top = a.ball.upper()
    return _Value.of(arb(0).union(top.sqrt()) if top > 0 else arb(0), True)


def _power(a: _Value, exponent: int | float) -> _Value:
    if isinstance(exponent, float):
        return _Value.of(BALLS["power"](a.ball, exponent), True)
    return _Value.of(integer_power(a.ball, exponent, arb(1)), exponent % 2 == 0 or a.signed)


def _where(c: _Value, a: _Value, b: _Value) -> _Value:
    return _Value.of(BALLS["where"](c.ball, a.ball, b.ball), _both(a, b))


_TABLE: dict[str, Callable[..., _Value]] = {
    "add": _two("add", _both), "subtract": _two("subtract", lambda a, b: False),
    "multiply": _two("multiply", lambda a, b: a is b or _both(a, b)), "divide": _two("divide", _both),
    "maximum": _two("maximum", lambda a, b: a.signed or b.signed), "minimum": _two("minimum", _both),
    "negate": _one("negate"), "absolute": _one("absolute", True), "exp": _one("exp", True), "log": _one("log"),
    "sin": _one("sin"), "cos": _one("cos"), "sqrt": _sqrt, "erf": _one("erf"), "atan": _one("atan"), "power": _power,
    "where": _where,
}  # fmt: skip
