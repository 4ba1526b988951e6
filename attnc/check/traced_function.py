"""The function that a head's certificate states by its operations: Taylor coefficients by recurrences of the checker's own.

A value on a cell is a list of balls. Of n coefficients, the k-th contains f^(k)/k! on the whole cell. A list of one ball is a
range: nothing is known of derivatives, since an operation is not analytic on the cell (a kink, or the root of what may be 0).

With a' the series of a: e = exp a has e' = a'e, and log a, √a, a^q, atan a and erf a follow from a·(log a)' = a',
2√a (√a)' = a', a (a^q)' = q a' a^q, (1 + a²)(atan a)' = a' and (erf a)' = 2/√π a' exp(-a²)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, arb_series, ctx

from attnc.check.traced import output_range
from attnc.check.values import CheckError
from attnc.errors import AttncError, InputError
from attnc.functions import Function, get
from attnc.program import Traced
from attnc.records.certificate import Certificate
from attnc.records.traced import stated_function

Series = list[arb]
MOST, MOST_KINKS = 400, 64  # operations and kinks: the proof of a head evaluates them on every cell


@dataclass(frozen=True, eq=False)
class StatedFunction(Function):
    """A function that a certificate defines."""

    traced: Traced | None = None

    def value(self, s: float) -> arb:
        assert self.traced is not None
        return _evaluated(self.traced, [arb(s)])[0]


def function_of(certificate: Certificate) -> StatedFunction | None:
    """The function that a head's certificate states, defined on its whole domain; None if it only names one.

    Raises `CheckError` if it is damaged, or may be undefined somewhere."""
    try:
        stated = stated_function(certificate)
        if stated is None:
            return None
        f, kinks = stated
        with suppress(InputError):
            if get(f.name).provable:
                raise CheckError(f"its function has the name of a registered one, {f.name!r}")
        branches, domain = (_branch(f),) * (len(kinks) + 1), certificate.interval
        found = StatedFunction(certificate.facts["function"], _no_torch_form, branches, kinks, traced=f)
    except AttncError as problem:
        raise CheckError(f"its function cannot be read: {problem}") from problem
    if len(f.operations) > MOST or len(kinks) > MOST_KINKS:
        given = f"{len(f.operations)} operations and {len(kinks)} kinks"
        raise CheckError(f"its function has {given}: up to {MOST} and {MOST_KINKS} are checked")
    with np.errstate(all="ignore"):
        output_range(f, np.array([domain.lo]), np.array([domain.hi]))
    return found


def _no_torch_form(_: Any) -> Any:
    raise CheckError("the checker evaluates the operations of a function in ball arithmetic only")


def _branch(f: Traced) -> Callable[[arb_series], arb_series]:
    def branch(x: arb_series) -> arb_series:
        length = ctx.cap
        found = _evaluated(f, [x[k] for k in range(length)])
        return arb_series(found + [arb.nan()] * (length - len(found)))

    return branch


def _evaluated(f: Traced, s: Series) -> Series:
    (found,) = f.interpret([s], _TABLE, lambda c: _constant(c, len(s)))
    return found


def _constant(c: float, length: int) -> Series:
    return [arb(c)] + [arb(0)] * (length - 1)


def _sum(a: Series, b: Series) -> Series:
    return [p + q for p, q in zip(a, b, strict=False)]


def _scaled(factor: arb | int, a: Series) -> Series:
    return [factor * p for p in a]


def _convolved(a: Series, b: Series, k: int, first: int = 0) -> arb:
    """Σ a_j b_{k-j} for j = first … k."""
    return sum((a[j] * b[k - j] for j in range(first, k + 1)), arb(0))


def _product(a: Series, b: Series) -> Series:
    return [_convolved(a, b, k) for k in range(min(len(a), len(b)))]


def _quotient(a: Series, b: Series) -> Series:
    """c b = a."""
    if not (b[0] > 0 or b[0] < 0):
        return [arb.nan()]
    found: Series = []
    for k in range(min(len(a), len(b))):
        found.append((a[k] - sum((b[j] * found[k - j] for j in range(1, k + 1)), arb(0))) / b[0])
    return found


def _integral(start: arb, slope: Series, length: int) -> Series:
    """The series that begins with `start` and has this derivative."""
    return [start] + [slope[k - 1] / k for k in range(1, min(length, len(slope) + 1))]


def _slope(a: Series) -> Series:
    return [k * a[k] for k in range(1, len(a))]


def _exp(a: Series) -> Series:
    found = [a[0].exp()]
    for k in range(1, len(a)):
        found.append(sum((j * a[j] * found[k - j] for j in range(1, k + 1)), arb(0)) / k)
    return found


def _log(a: Series) -> Series:
    if not a[0] > 0:
        return [arb.nan()]
    return _integral(a[0].log(), _quotient(_slope(a), a[:-1]) if len(a) > 1 else [], len(a))


def _circular(a: Series) -> tuple[Series, Series]:
    sine, cosine = [a[0].sin()], [a[0].cos()]
    for k in range(1, len(a)):
        steps = [j * a[j] for j in range(k + 1)]
        up = sum((steps[j] * cosine[k - j] for j in range(1, k + 1)), arb(0)) / k
        down = sum((steps[j] * sine[k - j] for j in range(1, k + 1)), arb(0)) / k
        sine.append(up)
        cosine.append(-down)
    return sine, cosine


def _sqrt(a: Series) -> Series:
    if a[0] > 0:
        root = [a[0].sqrt()]
        for k in range(1, len(a)):
            inner = sum((root[j] * root[k - j] for j in range(1, k)), arb(0))
            root.append((a[k] - inner) / (2 * root[0]))
        return root
    top = a[0].upper()  # the operation is defined, as `output_range` proves: the argument is not negative
    return [arb(0).union(top.sqrt())] if top >= 0 else [arb.nan()]


def _erf(a: Series) -> Series:
    bell = _exp(_scaled(-1, _product(a, a)))
    slope = _scaled(2 / arb.pi().sqrt(), _product(_slope(a), bell))
    return _integral(a[0].erf(), slope, len(a))


def _atan(a: Series) -> Series:
    if len(a) == 1:
        return [a[0].atan()]
    below = _product(a, a)
    below[0] = 1 + (a[0].abs_lower() ** 2).union(a[0].abs_upper() ** 2)  # at least 1, on wide cells too
    return _integral(a[0].atan(), _quotient(_slope(a), below[:-1]), len(a))


def _power(a: Series, exponent: int | float) -> Series:
    one = _constant(1.0, len(a))
    if isinstance(exponent, float):
        return _exp(_scaled(arb(exponent), _log(a)))
    found = one
    for _ in range(abs(exponent)):
        found = _product(found, a)
    return _quotient(one, found) if exponent < 0 else found


def _absolute(a: Series) -> Series:
    return a if a[0] >= 0 else _scaled(-1, a) if a[0] <= 0 else [abs(a[0])]


def _where(c: Series, a: Series, b: Series) -> Series:
    if c[0] > 0:
        return a
    if c[0] <= 0:
        return b
    return [a[0].union(b[0]) if c[0].is_finite() else arb.nan()]


def _larger(a: Series, b: Series) -> Series:
    return a if a is b or a[0] >= b[0] else b if b[0] >= a[0] else [a[0].max(b[0])]


def _smaller(a: Series, b: Series) -> Series:
    return a if a is b or a[0] <= b[0] else b if b[0] <= a[0] else [a[0].min(b[0])]


_TABLE: dict[str, Callable[..., Series]] = {
    "add": _sum, "subtract": lambda a, b: _sum(a, _scaled(-1, b)), "multiply": _product, "divide": _quotient,
    "negate": lambda a: _scaled(-1, a), "absolute": _absolute, "maximum": _larger, "minimum": _smaller, "where": _where,
    "power": _power, "exp": _exp, "log": _log, "sin": lambda a: _circular(a)[0], "cos": lambda a: _circular(a)[1],
    "sqrt": _sqrt, "erf": _erf, "atan": _atan,
}  # fmt: skip
