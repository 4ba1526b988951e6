"""Lipschitz constants of traced functions: gradients as Taylor models, on adaptive cells.

A dual number is a model of the value, models of its partial derivatives, and L >= |∇|₂ on each cell, which is the smaller of what
the partial derivatives give and of what the operations give:

    L(a + b) = L_a + L_b      L(ab) = L_a|b| + L_b|a|      L(g(a)) = |g'(a)| L_a      L(max(a, b)) = max(L_a, L_b)

Where a and b may change places, the gradient of max(a, b) is any convex combination of theirs (Clarke's gradient); the Lipschitz
constant of f on a box is the largest |∇f|₂ over it. For max and sort it is exactly 1. A `where` may jump: on cells where its
branch is not known, the gradient is not bounded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnc.domain import Array
from attnc.program.traced import Traced
from attnc.prove import taylor_functions as tf
from attnc.prove.lattice_bound import SingularError, grid, split
from attnc.prove.taylor import GROW, TINY, Model, monomials

_DEGREE, _SINGULAR = 2, 2.0**-20
_MOST = 2048  # cells at once
Partials = tuple[Model | None, ...]


def euclidean(sizes: list[Array]) -> Array:
    """√Σ s², relative to the largest s: squares of small numbers would be lost by underflow."""
    largest = np.max(sizes, axis=0)
    unit = np.where(largest > 0, largest, 1.0)
    return np.asarray(unit * np.sqrt(sum((s / unit) ** 2 for s in sizes)))


class Dual:
    """A value with its partial derivatives; None is 0."""

    __slots__ = ("g", "slope", "v")

    def __init__(self, v: Model, g: Partials, slope: Array | None = None) -> None:
        sizes = [part.size for part in g if part is not None]
        own = euclidean(sizes) * GROW + TINY if sizes else np.zeros(v.cells)
        self.v, self.g = v, g
        self.slope = own if slope is None else np.fmin(own, slope)

    def chained(self, value: Model, derivative: Model) -> Dual:
        """g(self) from the models of g and of g'."""
        parts = tuple(None if part is None else part * derivative for part in self.g)
        return Dual(value, parts, self.slope * derivative.size * GROW + TINY)


def _linear(sign: float) -> Callable[[Dual, Dual], Dual]:
    def run(a: Dual, b: Dual) -> Dual:
        other = b.v if sign > 0 else -b.v
        parts = tuple(_sum(p, q if sign > 0 or q is None else -q) for p, q in zip(a.g, b.g, strict=True))
        return Dual(a.v + other, parts, (a.slope + b.slope) * (1 + 2.0**-52))

    return run


def _sum(p: Model | None, q: Model | None) -> Model | None:
    return q if p is None else p if q is None else p + q


def _times(a: Dual, b: Dual) -> Dual:
    parts = (
        _sum(None if p is None else p * b.v, None if q is None else a.v * q)
        for p, q in zip(a.g, b.g, strict=True)
    )
    return Dual(a.v * b.v, tuple(parts), (a.slope * b.v.size + b.slope * a.v.size) * GROW + TINY)


def _reciprocal(a: Dual) -> Dual:
    v = tf.reciprocal(a.v)
    return a.chained(v, -(v * v))


def _power(a: Dual, exponent: int | float) -> Dual:
    if exponent == 0:
        return Dual(tf.power(a.v, 0), (None,) * len(a.g))
    lower = a.v.x.constant(1.0, a.v.cells) if exponent == 1 else tf.power(a.v, exponent - 1)
    return a.chained(tf.power(a.v, exponent), lower.scaled(float(exponent)))


def _erf(a: Dual) -> Dual:
    """erf' = 2/√π e^(-a²); 1.1283791670955126 is 2/√π to 2u."""
    slope = tf.exp(-(a.v * a.v)).scaled(1.1283791670955126)
    return a.chained(tf.erf(a.v), Model(slope.x, slope.c, (slope.r + 4 * 2.0**-53 * slope.size) * GROW))


def _sqrt(a: Dual) -> Dual:
    return a.chained(tf.real_power(a.v, 0.5), tf.real_power(a.v, -0.5).scaled(0.5))


def _exp(a: Dual) -> Dual:
    v = tf.exp(a.v)
    return a.chained(v, v)


def _absolute(a: Dual) -> Dual:
    return _maximum(a, Dual(-a.v, tuple(None if p is None else -p for p in a.g), a.slope))


def _maximum(a: Dual, b: Dual) -> Dual:
    """∇ = λ∇a + (1 - λ)∇b with λ = 1 where a is the larger, 0 where b is, and 1/2 ± 1/2 where they may change places."""
    low, high = (a.v - b.v).range
    first, second = low >= 0, high <= 0
    both = ~(first | second)
    share = np.where(first, 1.0, np.where(second, 0.0, 0.5))
    weight = Model(a.v.x, share[None].copy(), np.where(both, 0.5, 0.0))
    parts: list[Model | None] = []
    for p, q in zip(a.g, b.g, strict=True):
        if p is None and q is None:
            parts.append(None)
            continue
        zero = a.v.x.constant(0.0, a.v.cells)
        p, q = p or zero, q or zero
        mixed = q + weight * (p - q)
        parts.append(p.where(first, q.where(second, mixed)))
    slope = np.where(first, a.slope, np.where(second, b.slope, np.maximum(a.slope, b.slope)))
    return Dual(tf.maximum(a.v, b.v), tuple(parts), slope)


def _atan(a: Dual) -> Dual:
    return a.chained(tf.atan(a.v), tf.reciprocal((a.v * a.v).shifted(1.0)))


def _where(c: Dual, a: Dual, b: Dual) -> Dual:
    """Where the branch is not known, f may jump, so nothing is promised."""
    low, high = c.v.range
    first, second = low > 0, high <= 0
    zero = a.v.x.constant(0.0, a.v.cells)
    unknown = a.v.x.constant(0.0, a.v.cells, np.inf)
    parts = tuple(
        (p or zero).where(first, (q or zero).where(second, unknown)) for p, q in zip(a.g, b.g, strict=True)
    )
    slope = np.where(first, a.slope, np.where(second, b.slope, np.inf))
    return Dual(tf.where(c.v, a.v, b.v), parts, slope)


def _negate(a: Dual) -> Dual:
    return Dual(-a.v, tuple(None if p is None else -p for p in a.g), a.slope)


OPERATIONS: dict[str, Callable[..., Dual]] = {
    "add": _linear(1.0), "subtract": _linear(-1.0), "multiply": _times, "divide": lambda a, b: _times(a, _reciprocal(b)),
    "negate": _negate, "absolute": _absolute, "maximum": _maximum,
    "minimum": lambda a, b: _negate(_maximum(_negate(a), _negate(b))),
    "exp": _exp, "log": lambda a: a.chained(tf.log(a.v), tf.reciprocal(a.v)),
    "sin": lambda a: a.chained(tf.sin(a.v), tf.cos(a.v)), "cos": lambda a: a.chained(tf.cos(a.v), -tf.sin(a.v)),
    "sqrt": _sqrt, "erf": _erf, "atan": _atan, "power": _power, "where": _where,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class LipschitzBound:
    """Every output changes by at most `constant`·|x - x'|₂ on the box; `attained` is a value of |∇f|₂ near the point `where`, so
    the constant cannot be smaller. `finished`: the two are within the tolerance; otherwise the time was up."""

    constant: float
    attained: float
    where: Array
    cells: int
    finished: bool


def lipschitz_bound(
    f: Traced, lo: Array, hi: Array, tolerance: float = 0.02, seconds: float = math.inf, enough: float = 0.0
) -> LipschitzBound:
    """The Lipschitz constant of the outputs on a box, to a relative tolerance, or one that is at most `enough`. Raises
    `SingularError` where f is not smooth."""
    started = time.process_time()
    pending = [(*grid(lo, hi, 2), math.inf)]
    done, best, where, cells = 0.0, 0.0, lo / 2 + hi / 2, 0
    while pending:
        at = max(range(len(pending)), key=lambda i: pending[i][2])
        centre, half, known = pending.pop(at)
        if len(centre) > _MOST:
            pending.append((centre[_MOST:], half[_MOST:], known))
            centre, half = centre[:_MOST], half[:_MOST]
        if time.process_time() - started > seconds:
            return LipschitzBound(max(done, known, *(part[2] for part in pending)), best, where, cells, False)
        slope, sure = _slopes(f, centre, half)
        cells += len(centre)
        endless = ~np.isfinite(slope) & (half <= _SINGULAR * (hi - lo) + 2.0**-40 * np.abs(centre)).all(1)
        if endless.any():
            k = int(np.flatnonzero(endless)[0])
            raise SingularError(centre[k] - half[k], centre[k] + half[k])
        if sure.max() > best:
            best, where = float(sure.max()), centre[int(sure.argmax())]
        high = ~(slope <= max((1 + tolerance) * best, enough))
        done = max(done, float(slope[~high].max(initial=0.0)))
        if high.any():
            made = split(centre[high], half[high])
            pending.append((*made, float(slope[high].max())))
    return LipschitzBound(done, best, where, cells, True)


def _slopes(f: Traced, centre: Array, half: Array) -> tuple[Array, Array]:
    """At least the largest |∇f_o|₂ of each cell, and a value that it attains at the middle."""
    d, cells = centre.shape[1], len(centre)
    table = monomials(d, _DEGREE)
    one = table.constant(1.0, cells)
    inputs = [
        Dual(
            table.variable(j, centre[:, j], half[:, j]),
            tuple(one if i == j else None for i in range(d)),
            np.ones(cells),
        )
        for j in range(d)
    ]
    with np.errstate(all="ignore"):
        outputs = f.interpret(inputs, OPERATIONS, lambda c: Dual(table.constant(c, cells), (None,) * d))
        slope, sure = np.zeros(cells), np.zeros(cells)
        for y in outputs:
            slope = np.maximum(slope, np.where(np.isfinite(y.slope), y.slope, np.inf))
            parts = [np.maximum(np.abs(p.c[0]) - p.r * GROW, 0.0) for p in y.g if p is not None]
            least = np.sqrt(sum((p**2 for p in parts), np.zeros(cells))) * (1 - 2.0**-40)
            sure = np.maximum(sure, np.where(np.isfinite(least), least, 0.0))
    return slope, sure
