"""The bounds of one value of a program: its range, its error, and what is proved of the heads that compute it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.domain import Array, Normed
from attnc.prove.forms import Form
from attnc.prove.outward import above, below, total


@dataclass(frozen=True)
class HeadErrors:
    """Errors of the heads of a layer, neuron by neuron, on every number of the dtype that may enter them.

    Pointwise: |head - f|. Product: |square head - ζ²|, scaling included. `approximation` is in exact arithmetic, `error` as
    executed."""

    approximation: Array | float = 0.0
    error: Array | float = 0.0


@dataclass(frozen=True, eq=False)
class ValueBounds:
    """lo <= exact <= hi. The network's value differs from the exact one by at most `approximation` if its heads are
    evaluated in exact arithmetic, and by at most `error` as executed."""

    lo: Array
    hi: Array
    approximation: Array
    error: Array
    form: Form | None = None
    slope: Array | None = None  # pointwise: a Lipschitz constant of f where its input may be, as executed
    largest: Array | None = None  # at least |executed|, if that is smaller than size + error
    normed: Normed | None = None  # the value is the output of a norm

    @property
    def size(self) -> Array:
        """At least |exact|."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    @cached_property
    def executed(self) -> Array:
        """At least |executed|."""
        sum_ = total(self.size, self.error)
        return sum_ if self.largest is None else np.fmin(sum_, self.largest)

    @property
    def reach(self) -> tuple[Array, Array]:
        """An interval that contains the executed value and the exact one."""
        return below(self.lo - self.error), above(self.hi + self.error)

    @property
    def rounding(self) -> Array:
        """At least error - approximation."""
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(self.error), above(self.error - self.approximation), np.inf)


def narrowed(bounds: ValueBounds) -> ValueBounds:
    """Intersect the interval with that of the affine form; a NaN becomes infinity."""
    lo, hi = (
        np.where(np.isnan(bounds.lo), -np.inf, bounds.lo),
        np.where(np.isnan(bounds.hi), np.inf, bounds.hi),
    )
    if bounds.form is not None:
        low, high = bounds.form.interval()
        lo, hi = np.fmax(lo, low), np.fmin(hi, high)
    approximation, error = (np.where(np.isnan(e), np.inf, e) for e in (bounds.approximation, bounds.error))
    return ValueBounds(lo, hi, approximation, error, bounds.form, bounds.slope, bounds.largest, bounds.normed)


def unbounded(shape: tuple[int, ...]) -> ValueBounds:
    """A value of which nothing is proved."""
    endless = np.full(shape, np.inf)
    return ValueBounds(-endless, endless, endless, endless)


def unless_overflow(error: Array, passing: Array, a: Arithmetic) -> Array:
    """The error, or infinity where a partial sum may overflow."""
    return np.where(total(passing, error) < a.largest, error, np.inf)
