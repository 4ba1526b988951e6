"""The error of a product through squares, αβ = ((α/λ + λβ)² - (α/λ - λβ)²)/4.

With λ a power of two and q the square head, |q(ζ) - ζ²| <= A in exact arithmetic and <= Q as executed, for |ζ| <= R:

    p = (q(ζ⁺) - q(ζ⁻))/4,  ζ± = α/λ ± λβ

Exact arithmetic: |p - αβ| <= A/2. Executed, α̂ and β̂ are numbers with |α̂| <= H, |β̂| <= V; each sum α̂/λ ± λβ̂ becomes
itself times 1 + δ, |δ| <= u, plus an underflow φ; the squares of both add up to 2((α̂/λ)² + (λβ̂)²); the difference of the
two q is rounded once; scaling by λ and by 1/4 rounds nothing. With T = H/λ + λV:

    S = (u + u²)((H/λ)² + (λV)²) + (1 + u)Tφ + φ²             what rounding ζ± does to the product
    |p̂ - α̂β̂| <= E + u(HV + E) + underflow,  E = S + Q/2
    |α̂β̂ - αβ| <= e_α V + |α| e_β

engine="closed-form" executes the product itself, |fl(α̂β̂) - α̂β̂| <= uHV + τ(1 + H + V): a factor that is subnormal may be taken
for 0. In exact arithmetic the bound remains that of the squares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, narrowed, unbounded, unless_overflow
from attnc.prove.outward import above, below, times, total
from attnc.records.layers import Layer

Powers = NDArray[np.int8]
_POWERS = 100  # λ = 2^k with |k| up to this


def product_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of x∘y with square heads that are within `heads` of ζ² for |ζ| <= radius."""
    (x, y), layer, a, heads = at.values, at.layer, at.arithmetic, at.heads
    if heads.multiplied:
        return _multiplied(at)
    scale, radius = (np.exp2(k.astype(np.float64)) for k in (layer.tensor("scale"), layer.tensor("radius")))
    entering, flushed = _entering(x, y, scale, a)
    if not (entering <= radius).all() or not (times(radius, radius) < a.largest).all():
        return unbounded(x.lo.shape)
    u, left, right = a.unit, times(x.executed, 1 / scale), times(scale, y.executed)
    sums = total(
        times(u + u * u, total(times(left, left), times(right, right))),
        times(1 + u, total(left, right), flushed),
        times(flushed, flushed),
    )
    off = total(sums, np.asarray(heads.error) / 2)
    passing = total(times(x.executed, y.executed), off)
    error = total(times(x.error, y.executed), times(x.size, y.error), off, times(u, passing), 4 * a.tiny)
    largest = total(times(1 + u, passing), 4 * a.tiny)
    return _bounds(at, error, largest)


def _multiplied(at: LayerInputs) -> ValueBounds:
    """The bounds of x∘y where the product itself is executed."""
    (x, y), a = at.values, at.arithmetic
    size = times(x.executed, y.executed)
    rounding = total(times(a.unit, size), times(a.tiny, total(1.0, x.executed, y.executed)))
    error = total(times(x.error, y.executed), times(x.size, y.error), rounding)
    return _bounds(at, unless_overflow(error, size, a), total(size, rounding))


def _bounds(at: LayerInputs, error: Array, largest: Array) -> ValueBounds:
    """With what exact arithmetic leaves of the error, which is never more than the error."""
    (x, y), layer = at.values, at.layer
    known = dict(zip(layer.inputs, at.values, strict=True))
    carried = product_carried(layer, [x.approximation, y.approximation], known)
    approximation = total(carried, np.asarray(at.heads.approximation) / 2)
    ends = np.stack([s * t for s in (x.lo, x.hi) for t in (y.lo, y.hi)])
    lo, hi = below(ends.min(0)), above(ends.max(0))
    error = np.maximum(error, approximation) if at.heads.multiplied else error
    return narrowed(ValueBounds(lo, hi, approximation, error, largest=largest))


def product_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """e_x(|y| + e_y) + |x|e_y: what errors of the inputs become in exact arithmetic."""
    x, y = (known[i] for i in layer.inputs)
    return total(times(errors[0], total(y.size, errors[1])), times(x.size, errors[1]))


def square_powers(x: ValueBounds, y: ValueBounds, a: Arithmetic) -> tuple[Powers, Powers] | None:
    """log2 of λ, which makes both summands of x/λ ± λy alike in size, and of a radius that holds the executed sums; None if
    no radius of at most 2^127 does."""
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.rint(np.log2(x.executed / y.executed) / 2)
    power = np.clip(np.where(np.isfinite(power), power, 0.0), -_POWERS, _POWERS)
    entering, _ = _entering(x, y, np.exp2(power), a)
    k = np.ceil(np.log2(np.maximum(entering, 2.0**-40)))
    k += np.exp2(k) < entering
    return (power.astype(np.int8), k.astype(np.int8)) if (k <= 127).all() else None


def _entering(x: ValueBounds, y: ValueBounds, scale: Array, a: Arithmetic) -> tuple[Array, Array]:
    """At least |executed x/λ ± λy|, and what underflow moves it by."""
    size = total(times(x.executed, 1 / scale), times(scale, y.executed))
    flushed = times(2 * a.tiny, total(1 / scale, scale, 4.0))
    return total(times(1 + a.unit, size), flushed), flushed
