"""A traced function of one number as a `Function`, for the designs and proofs of heads: its operations on power series.

Where an operation is not analytic on the cell (the argument of a maximum, of |s| or of `where` may change its sign, or that of a
root may be 0), the series has a range and no derivatives: its coefficients from the first on are NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flint import arb, arb_series, ctx
from torch import Tensor

from attnc.errors import InputError
from attnc.functions.function import Branch, Function, TorchForm
from attnc.program.traced import BALLS, Traced, integer_power
from attnc.records.certificate import Certificate
from attnc.records.traced import facts_of, stated_function


@dataclass(frozen=True, eq=False)
class TracedFunction(Function):
    """A function whose operations define it: its certificate states them."""

    traced: Traced | None = None

    def facts(self) -> dict[str, object]:
        """What the certificate of a head states of it."""
        assert self.traced is not None
        return facts_of(self.traced, self.kinks)


def traced_function(
    traced: Traced, name: str, kinks: tuple[float, ...] = (), torch_form: TorchForm | None = None
) -> TracedFunction:
    """f, which must be defined on the whole interval: a root is enclosed as that of max(s, 0)."""
    if (traced.width, len(traced.returned)) != (1, 1):
        raise InputError(f"{name!r} is a function of {traced.width} numbers: a head is for one")
    branch = _branch(traced)
    return TracedFunction(
        name, torch_form or _executed(traced), (branch,) * (len(kinks) + 1), kinks, traced=traced
    )


def stated_function_of(certificate: Certificate) -> TracedFunction | None:
    """The function that a head's certificate states by its operations, or None."""
    found = stated_function(certificate)
    return None if found is None else traced_function(found[0], certificate.facts["function"], found[1])


def _executed(traced: Traced) -> TorchForm:
    def run(s: Tensor) -> Tensor:
        made = traced.approximate(s.detach().reshape(-1, 1).double())
        return made.reshape(s.shape).to(s.dtype)

    return run


def _branch(traced: Traced) -> Branch:
    def branch(x: arb_series) -> arb_series:
        length = ctx.cap
        try:
            (found,) = traced.interpret([x], _SERIES, lambda c: arb_series([c]))
            if all(found[i].is_finite() for i in range(length)):
                return found
        except (ValueError, ZeroDivisionError):
            pass
        (value,) = traced.interpret([x[0]], _RANGES, arb)
        return arb_series([value] + [arb.nan()] * (length - 1))

    return branch


def _unknown() -> ValueError:
    return ValueError("not analytic on the cell")


def _absolute(x: arb_series) -> arb_series:
    if x[0] >= 0:
        return x
    if x[0] <= 0:
        return -x
    raise _unknown()


def _maximum(a: arb_series, b: arb_series) -> arb_series:
    return a if a is b else _where(a - b, a, b)


def _where(c: arb_series, a: arb_series, b: arb_series) -> arb_series:
    if c[0] > 0:
        return a
    if c[0] <= 0:
        return b
    raise _unknown()


def _power(x: arb_series, exponent: int | float) -> arb_series:
    if isinstance(exponent, float):
        return (x.log() * arb(exponent)).exp()
    found: arb_series = integer_power(x, exponent, arb_series([1]))
    return found


def _root_of_range(x: arb) -> arb:
    """The roots of the numbers of a ball that are not negative."""
    if x >= 0 or x < 0 or not x.is_finite():
        return x.sqrt()
    return arb(0).union(x.upper().sqrt())


_SERIES: dict[str, Callable[..., arb_series]] = {
    "add": arb_series.__add__, "subtract": arb_series.__sub__, "multiply": arb_series.__mul__,
    "divide": arb_series.__truediv__, "negate": arb_series.__neg__, "absolute": _absolute, "maximum": _maximum,
    "minimum": lambda a, b: -_maximum(-a, -b) if a is not b else a, "where": _where, "power": _power, "exp": arb_series.exp,
    "log": arb_series.log, "sin": arb_series.sin, "cos": arb_series.cos, "sqrt": arb_series.sqrt, "erf": arb_series.erf,
    "atan": arb_series.atan,
}  # fmt: skip
_RANGES: dict[str, Callable[..., arb]] = BALLS | {"sqrt": _root_of_range}
