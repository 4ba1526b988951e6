"""The bounds of one value of a program: its range, its error, and what is proved of the heads that compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.domain import Array, Normed
from attnc.program import Program, Step
from attnc.prove.forms import Form
from attnc.prove.outward import above, below, total
from attnc.records.layers import Layer


@dataclass(frozen=True)
class HeadErrors:
    """Errors of the heads of a layer, neuron by neuron, on every number of the dtype that may enter them.

    Pointwise: |head - f|. Product: |square head - ζ²|, scaling included. `approximation` is in exact arithmetic, `error` as
    executed. `multiplied`: the product is executed as x∘y, and `error` is not used.

    Norm: relative errors of the root, for tokens whose mean square is at most `most`."""

    approximation: Array | float = 0.0
    error: Array | float = 0.0
    multiplied: bool = False
    most: float = np.inf


@dataclass(frozen=True, eq=False)
class ValueBounds:
    """lo <= exact <= hi. The network's value differs from the exact one by at most `approximation` if its heads are
    evaluated in exact arithmetic, and by at most `error` as executed."""

    lo: Array
    hi: Array
    approximation: Array
    error: Array
    form: Form | None = None
    slope: Array | None = None  # pointwise, norm: a Lipschitz constant where its input may be, as executed
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


Errors = Sequence[Array]  # of the inputs of a layer
Known = Mapping[int, ValueBounds]  # of the values of a program


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """A layer, the bounds of the values it reads, and what is proved of its heads."""

    program: Program
    layer: Layer
    values: Sequence[ValueBounds]
    arithmetic: Arithmetic
    heads: HeadErrors

    @property
    def step(self) -> Step:
        """The step of the program that the layer executes, or the last of them."""
        return self.program.steps[self.layer.value - 1]


def narrowed(bounds: ValueBounds) -> ValueBounds:
    """Intersect the interval with that of the affine form; a NaN becomes infinity."""
    lo = np.where(np.isnan(bounds.lo), -np.inf, bounds.lo)
    hi, approximation, error = (
        np.where(np.isnan(x), np.inf, x) for x in (bounds.hi, bounds.approximation, bounds.error)
    )
    if bounds.form is not None:
        low, high = bounds.form.interval()
        lo, hi = np.fmax(lo, low), np.fmin(hi, high)
    return replace(bounds, lo=lo, hi=hi, approximation=approximation, error=error)


def unbounded(shape: tuple[int, ...]) -> ValueBounds:
    """A value of which nothing is proved."""
    endless = np.full(shape, np.inf)
    return ValueBounds(-endless, endless, endless, endless)


def unless_overflow(error: Array, passing: Array, a: Arithmetic) -> Array:
    """The error, or infinity where a partial sum may overflow."""
    return np.where(total(passing, error) < a.largest, error, np.inf)
