"""What the checker derives of each value of a program, and how it becomes a verdict.

    lo <= exact <= hi        |executed - exact| <= error        |executed| <= size

`approximation` is what exact arithmetic would leave of `error`. The exact value is also an affine function of the input
(`Form`), which keeps what cancels between neurons. Arrays have the shape (tokens, features).

Bounds are numpy's longest floats. A formula of k sums, products and roots of numbers that are not negative has a relative error
below k units: `up` adds more than that. The few differences are taken with their rounding added (`Value`, `affine`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.arithmetic import Arithmetic
from attnc.domain import Array, Box, Normed, Tokens
from attnc.program import Program, Step
from attnc.program.program import MOST_FORM_SIZE, MOST_FORM_WORK
from attnc.records.certificate import Certificate, Status, Verdict
from attnc.records.layers import Heads, Layer

Long = NDArray[np.longdouble]
EPS = np.longdouble(np.finfo(np.longdouble).eps)
_HELD = 1 << 20  # numbers of a matrix that are converted at once
RHO, LEAST = 2.0**-10, 2.0**-100  # the error of an executed norm, relative and absolute


class CheckError(Exception):
    """Why a claim could not be confirmed; it is refuted if an input has the given error."""

    def __init__(
        self, reason: str, input: tuple[float, ...] | None = None, error: float | None = None
    ) -> None:
        super().__init__(reason)
        self.input, self.error = input, error

    def verdict(self, bound: float | None, cells: int = 0, name: str = "") -> Verdict:
        status = Status.UNKNOWN if self.error is None else Status.REFUTED
        return Verdict(status, str(self), bound, self.input, self.error, cells, name)


def require(verdict: Verdict, part: str) -> Verdict:
    """The verdict on a part, if it is proved; raises `CheckError` otherwise."""
    if not verdict:
        raise CheckError(f"{part}: {verdict.reason}", verdict.input, verdict.error)
    return verdict


def long(x: Any) -> Long:
    found: Long = np.asarray(x, np.longdouble)
    return found


def up(x: Array | Long, terms: int = 0) -> Long:
    """At least the exact value of a formula of few operations and sums of so many terms, none of them negative."""
    return long(x * (1 + (4 * terms + 256) * EPS) + np.longdouble(2.0**-1020))


def largest(lo: Long, hi: Long) -> Long:
    """The magnitude of an interval."""
    return np.maximum(np.abs(lo), np.abs(hi))


def gamma(terms: Array | Long | int, a: Arithmetic) -> Long:
    """γ_k = ku/(1 - ku) for k roundings; infinite where it is not defined or useless."""
    k = long(terms) * np.longdouble(a.unit)
    return np.where(k < 0.5, up(k / (1 - np.minimum(k, 0.5))), np.longdouble(np.inf))


def cut(W: NDArray[Any]) -> list[slice]:
    """Rows of a matrix, a part at a time."""
    rows = max(1, _HELD // max(1, W.shape[1]))
    return [slice(i, i + rows) for i in range(0, len(W), rows)]


def product(W: NDArray[Any], x: Long) -> Long:
    """W x for x (n, columns), rounded to nearest."""
    found: Long = np.concatenate([long(W[part]) @ x for part in cut(W)])
    return found


def weighed(W: NDArray[Any], x: Long) -> Long:
    """At least |W| x for x (n, columns) that is not negative; 0 if x is."""
    if not x.any():
        return long(np.zeros((len(W), x.shape[1])))
    return up(np.concatenate([np.abs(long(W[part])) @ x for part in cut(W)]), W.shape[1])


def floats(lo: Long, hi: Long) -> tuple[Array, Array]:
    """An interval as float64 numbers, outwards."""
    return np.nextafter(lo.astype(np.float64), -np.inf), np.nextafter(hi.astype(np.float64), np.inf)


def largest_float(x: Long) -> float:
    """The largest of these as a float, rounded up; NaN where one of them is."""
    most = np.max(x)
    nearest = np.float64(most)
    return float(nearest if nearest >= most else np.nextafter(nearest, np.inf))


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

    @classmethod
    def of(cls, lo: Long, hi: Long, error: Long, approximation: Long, form: Form | None = None) -> Value:
        """With the size that follows from the interval and the error."""
        return cls(lo, hi, error, approximation, up(largest(lo, hi) + error), form)

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


def start(program: Program, domain: Box | Normed, forms: bool = True) -> Value:
    """The input of a program: any vector of the domain, without an error."""
    features = domain.shape[-1]
    none = long(np.zeros((int(np.prod(domain.shape[:-1], dtype=int)), features)))
    if isinstance(domain, Normed):
        length, room, _ = normed(domain)
        most = up(np.abs(long(domain.gain)) * length + np.abs(long(domain.shift)) + room)[None]
        return Value(-most, most, none, none, most, None, domain)
    lo, hi = (long(end).reshape(none.shape) for end in (domain.lo, domain.hi))
    found = Value.of(lo, hi, none, none)
    size = domain.size * max(map(np.prod, program.shapes))
    if not forms or isinstance(domain, Tokens) or program.form_work > MOST_FORM_WORK or size > MOST_FORM_SIZE:
        return found
    middle, half = found.middle
    matrix = long(np.eye(domain.size)).reshape(*none.shape, domain.size)
    return replace(found, form=Form(matrix, middle, none, half.ravel()))


def normed(domain: Normed) -> tuple[Long, Long, np.longdouble]:
    """Of an executed norm, at least ‖y‖₂ of the normalised vector, (1 + ρ)√d, and what is added to gain∘y + shift; and ρ."""
    rho = np.longdouble(RHO)
    length = up((1 + rho) * np.sqrt(np.longdouble(len(domain.gain))))
    return length, long(rho * (np.abs(long(domain.shift)) + np.longdouble(LEAST))), rho


@dataclass(frozen=True, eq=False)
class HeadErrors:
    """Of the head of each neuron (features,): |head - f| on [lo, hi] in exact arithmetic, and as executed."""

    lo: Array
    hi: Array
    approximation: Array
    executed: Array


def head_errors(
    heads: Heads, claims: Sequence[Certificate], executed: Sequence[float], shape: tuple[int, ...]
) -> HeadErrors:
    """What is certified of the head of each neuron of a layer, given the executed error of each head."""
    found = HeadErrors(*np.full((4, shape[-1]), np.nan))
    for (neurons, _), head, error in zip(heads, claims, executed, strict=True):
        part = slice(None) if neurons is None else neurons
        found.lo[part], found.hi[part] = head.interval.lo, head.interval.hi
        found.approximation[part], found.executed[part] = head.approximation, error
    return found


@dataclass(frozen=True, eq=False)
class SquareErrors:
    """λ and radius of each neuron (features,), powers of two; |square - η²| on [-1, 1] in exact arithmetic, and as executed.
    `multiplied`: no square is executed, but the product."""

    scale: Array
    radius: Array
    approximation: float
    executed: float
    multiplied: bool = False


def square_errors(
    square: Certificate, powers: Sequence[NDArray[Any]], executed: float, multiplied: bool = False
) -> SquareErrors:
    """What is certified of the squares of a product, given log2 of λ and of the radius and the executed error of the head."""
    if not square.interval.lo <= -1 <= 1 <= square.interval.hi:
        raise CheckError("the head of the square is not proved on [-1, 1]")
    scale, radius = (np.exp2(k.astype(np.float64)) for k in powers)
    return SquareErrors(scale, radius, square.approximation, executed, multiplied)


@dataclass(frozen=True, eq=False)
class NormErrors:
    """Of the root of a norm, for tokens with a mean square up to `most`: relative, in exact arithmetic and as executed."""

    approximation: float
    executed: float
    most: float


@dataclass(frozen=True, eq=False)
class TracedErrors:
    """Of a lattice network for a traced function, on the box [low, high] (features,): the function's values are between `least`
    and `most` (outputs,), and |network - f| in exact arithmetic and as executed."""

    low: Array
    high: Array
    least: Array
    most: Array
    approximation: float
    executed: float


Errors = HeadErrors | SquareErrors | NormErrors | TracedErrors | None


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
