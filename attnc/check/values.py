"""What the checker derives of each value of a program.

    lo <= exact <= hi        |executed - exact| <= error        |executed| <= size

`approximation` is what exact arithmetic would leave of `error`. The exact value is also an affine function of the input
(`Form`), which keeps what cancels between neurons. Arrays have the shape (tokens, features)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.check.upward import EPS, Long, largest, long, up
from attnc.domain import Array, Box, Normed, Tokens
from attnc.program import Program, Step
from attnc.program.program import MOST_FORM_SIZE, MOST_FORM_WORK
from attnc.records.layers import Layer

RHO = 2.0**-10  # relative error of an executed norm
LEAST = 2.0**-100


class CheckError(Exception):
    """Why a claim could not be confirmed."""


@dataclass(frozen=True, eq=False)
class Form:
    """|exact - (matrix·ξ + centre)| <= off, where ξ is the input minus the middle of its box, |ξ| <= half."""

    matrix: Long  # (tokens, features, inputs)
    centre: Long
    off: Long
    half: Long  # (inputs,)

    @property
    def swing(self) -> Long:
        """At least |matrix·ξ|."""
        return up(np.abs(self.matrix) @ self.half, len(self.half))

    def mapped(self, slope: Long, constant: Long, off: Long) -> Form:
        """slope∘form + constant ± off."""
        lost = 8 * EPS * (np.abs(slope) * (self.swing + np.abs(self.centre)) + np.abs(constant))
        matrix, centre = self.matrix * slope[..., None], self.centre * slope + constant
        return Form(matrix, centre, up(np.abs(slope) * self.off + off + lost), self.half)


@dataclass(frozen=True, eq=False)
class Value:
    """What holds of one value of the program, entry by entry."""

    lo: Long
    hi: Long
    error: Long
    approximation: Long
    size: Long
    form: Form | None = None
    normed: Normed | None = None  # the input, where a norm computes it

    @property
    def magnitude(self) -> Long:
        """At least |exact|."""
        return largest(self.lo, self.hi)

    @property
    def middle(self) -> tuple[Long, Long]:
        """The middle of the interval, and half of its width."""
        middle = long((self.lo + self.hi) / 2)
        half = np.maximum(self.hi - middle, middle - self.lo)
        return middle, up(half + 8 * EPS * self.magnitude)

    @property
    def reach(self) -> tuple[Long, Long]:
        """An interval of what is executed."""
        pad = up(self.error + 8 * EPS * (self.magnitude + self.error))
        return self.lo - pad, self.hi + pad

    def narrowed(self) -> Value:
        """The interval intersected with that of the affine form."""
        if self.form is None:
            return self
        pad = up(self.form.swing + self.form.off)
        pad = up(pad + 8 * EPS * (np.abs(self.form.centre) + pad))
        lo, hi = np.fmax(self.lo, self.form.centre - pad), np.fmin(self.hi, self.form.centre + pad)
        return replace(self, lo=lo, hi=hi, size=np.fmin(self.size, up(largest(lo, hi) + self.error)))


def value(lo: Long, hi: Long, error: Long, approximation: Long, form: Form | None = None) -> Value:
    """With the size that follows from the interval and the error."""
    return Value(lo, hi, error, approximation, up(largest(lo, hi) + error), form)


def start(program: Program, domain: Box | Normed, forms: bool = True) -> Value:
    """The input of a program: any vector of the domain, without an error."""
    features = domain.shape[-1]
    none = long(np.zeros((int(np.prod(domain.shape[:-1], dtype=int)), features)))
    if isinstance(domain, Normed):
        most = normed_size(domain)[None]
        return Value(-most, most, none, none, most, None, domain)
    lo, hi = (long(end).reshape(none.shape) for end in (domain.lo, domain.hi))
    found = value(lo, hi, none, none)
    size = domain.size * max(map(np.prod, program.shapes))
    if not forms or isinstance(domain, Tokens) or program.form_work > MOST_FORM_WORK or size > MOST_FORM_SIZE:
        return found
    middle, half = found.middle
    matrix = long(np.eye(domain.size)).reshape(*none.shape, domain.size)
    return replace(found, form=Form(matrix, middle, none, half.ravel()))


def normed_length(features: int) -> Long:
    """At least ‖y‖₂ of a normalised vector as executed: (1 + ρ)√d."""
    return up((1 + np.longdouble(RHO)) * np.sqrt(np.longdouble(features)))


def normed_room(domain: Normed) -> Long:
    """At least what an executed norm adds beside gain∘y + shift."""
    return long(np.longdouble(RHO) * (np.abs(long(domain.shift)) + np.longdouble(LEAST)))


def normed_size(domain: Normed) -> Long:
    """At least |x| for every output x of the norm."""
    length = normed_length(len(domain.gain))
    return up(np.abs(long(domain.gain)) * length + np.abs(long(domain.shift)) + normed_room(domain))


@dataclass(frozen=True, eq=False)
class HeadErrors:
    """Of the head of each neuron (features,): |head - f| on [lo, hi] in exact arithmetic, and as executed."""

    lo: Array
    hi: Array
    approximation: Array
    executed: Array


@dataclass(frozen=True, eq=False)
class SquareErrors:
    """λ and radius of each neuron (features,), powers of two; |square - η²| on [-1, 1] in exact arithmetic, and as executed.
    `multiplied`: no square is executed, but the product."""

    scale: Array
    radius: Array
    approximation: float
    executed: float
    multiplied: bool = False


@dataclass(frozen=True, eq=False)
class NormErrors:
    """Of the root of a norm, for tokens with a mean square up to `most`: relative, in exact arithmetic and as executed."""

    approximation: float
    executed: float
    most: float


Errors = HeadErrors | SquareErrors | NormErrors | None


@dataclass(frozen=True, eq=False)
class Passing:
    """A layer, the value of the program that it computes, what holds of its inputs, and what was proved of its heads."""

    program: Program
    layer: Layer
    inputs: Sequence[Value]
    arithmetic: Arithmetic
    errors: Errors = None

    @property
    def step(self) -> Step:
        return self.program.steps[self.layer.value - 1]
