"""The bound of a product through two squares: p̂ = ρ²(q(ζ⁺/ρ) - q(ζ⁻/ρ))/4 against h·t, ζ± = ĥ/λ ± λt̂, λ and ρ powers of two.

With |ĥ| <= H, |t̂| <= V̂, |ĥ - h| <= e, |t̂ - t| <= e', and squares within B of η² on [-1, 1]:

    |p̂ - ĥ t̂| <= E + u(H V̂ + E) + underflow,   E = ¼ Σ± |ζ̂±² - ζ±²| + ρ²B/2
    |ĥ t̂ - h t| <= e V̂ + |h| e'

Where the product itself is executed, E is what factors lose that are taken for 0, τ(H + V̂)."""

from __future__ import annotations

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.check.values import EPS, CheckError, Long, Passing, SquareErrors, Value, long, up


def bound(at: Passing) -> Value:
    (h, t), squares, a = at.inputs, at.errors, at.arithmetic
    assert isinstance(squares, SquareErrors)
    u, tau = np.longdouble(a.unit), 2 * np.longdouble(a.tiny)
    square = long(squares.radius) * long(squares.radius)
    E = up((h.size + t.size) * tau) if squares.multiplied else _squared(h, t, squares, a)
    product = up(h.size * t.size)
    if squares.multiplied and not (up(product + E) < a.largest / 8).all():
        raise CheckError("a product exceeds the range of the dtype")
    exact = up(
        h.approximation * (t.magnitude + t.approximation)
        + h.magnitude * t.approximation
        + square * np.longdouble(squares.approximation) / 2
    )
    error = up(h.error * t.size + h.magnitude * t.error + E + u * (product + E) + 2 * tau)
    corners = np.stack([x * y for x in (h.lo, h.hi) for y in (t.lo, t.hi)])
    pad = up(4 * EPS * np.abs(corners).max(0))
    return Value(
        lo=corners.min(0) - pad,
        hi=corners.max(0) + pad,
        error=np.maximum(error, exact) if squares.multiplied else error,
        approximation=exact,
        size=up(product + E + u * (product + E) + 2 * tau),
    )


def _squared(h: Value, t: Value, squares: SquareErrors, a: Arithmetic) -> Long:
    """E of the two squares; raises `CheckError` where they are not proved."""
    u, tau = np.longdouble(a.unit), 2 * np.longdouble(a.tiny)
    scale, radius = long(squares.scale), long(squares.radius)
    left, right = h.size / scale, t.size * scale
    phi = (4 + radius + scale + 1 / scale) * tau  # what underflow moves ζ± by, and ζ±/ρ, in units of ζ
    both = up(left + right)
    if not (up(both * (1 + u) + phi) <= radius).all():
        raise CheckError("a sum or difference of the product may exceed the radius of its square")
    for factor in (scale, 1 / scale, 1 / radius, radius * radius):
        if not ((factor >= a.tiny) & (factor <= a.largest / 8)).all():
            raise CheckError("a power of two of the product exceeds the range of the dtype")
    moved = (u + u * u / 2) * (left * left + right * right) + both * (1 + u) * phi + phi * phi / 2
    return up(moved + (radius * radius * (np.longdouble(squares.executed) + tau) + tau) / 2)
