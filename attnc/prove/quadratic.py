"""The error of heads that compute a power of a quadratic form (`heads.quadratic`).

With u = q/d + ε, λ_j = d·slope_j and b_j = intercept_j + λ_j ε, all exact, R(q) = Σ c_j σ(b_j - λ_j u) and

    g(t) = e^{pt} Σ_j c_j σ(b_j - λ_j e^t) - 1,     t = ln u

is the relative error of R against u^-p. On each cell of t it is a Taylor polynomial with a remainder in ball arithmetic.

Executed, for a token z (docs/arithmetic.md), with x_j = slope_j q and w_j = σ(intercept_j - x_j):

    q̂ = q(1 + δ) + 2dτ,  |δ| <= γ_{d+1}                      hence û = u(1 + δ'),  |δ'| <= γ_{d+1} + 2τ/ε
    ŝ_j = fl(intercept_j - fl(slope_j q̂))                    |ŝ_j - s_j| <= η_j = u(1 + u)(2x_j + |intercept_j|) + 4τ
    ŵ_j = e^{ŝ_j}/(1 + e^{ŝ_j})                              w_j(1 + θ_j) + 8τ,  1 + θ_j <= e^{η_j}(1 + E)(1 + u)^4
    R̂ = Σ c_j ŵ_j                                            each term passes at most H + 1 roundings

since ŝ_j <= 0 is compared with the score 0 of the second key, and ln σ has a slope of at most 1. Where x_j > X = 2⁸ (float32)
or 2¹¹ (float64) both weights are below τ. With K >= u^p Σ c_j w_j λ_j u, which bounds what errors of the scores contribute,

    u^p Σ c_j w_j (e^{η_j} - 1) <= e^{η} u(1 + u)(2K + |b|(1 + |g|)) + …

and the relative error of R̂ is at most (1 + |g|)(1 + κ)(1 + γ_{H+1})(1 + δ')^p - 1 and the like."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from flint import arb, arb_series

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.functions.balls import upper, working
from attnc.records.numbers import QuadraticNumbers

_PRECISION = 128
_TERMS = 20
_WIDTH = 0.2  # of a cell of t
_PARTS = 8  # of a cell on which its polynomial is bounded
_LARGEST_EXPONENT = {"float32": 256, "float64": 2048}  # e^-X is below τ, also with all roundings


def exact_heads(numbers: QuadraticNumbers) -> list[tuple[arb, arb, arb]]:
    """λ_j, b_j and c_j for the variable u."""
    scales = [arb(x) * numbers.dim for x in numbers.slope.tolist()]
    return [
        (scale, arb(b) + scale * arb(numbers.offset), arb(c))
        for scale, b, c in zip(scales, numbers.intercept.tolist(), numbers.value.tolist(), strict=True)
    ]


def relative_error(numbers: QuadraticNumbers, most: float) -> float:
    """At least |u^p R - 1| for every u from ε to `most`; infinity if that cannot be bounded."""
    if numbers.power == math.inf:
        return _exponential_error(numbers, most)
    with working(_PRECISION, _TERMS + 1):
        heads, p = exact_heads(numbers), arb(numbers.power)
        worst = arb(0) if most > numbers.offset else arb("inf")
        for centre, half in _cells(numbers.offset, most) if most > numbers.offset else ():
            worst = worst.max(_cell_error(heads, p, centre, half))
        return upper(worst)


def _exponential_error(numbers: QuadraticNumbers, most: float) -> float:
    """At least |e^u R - 1| for every u from ε to `most`: e^u R = c e^{b + (1 - λ)u}/(1 + e^{b - λu}), where the numerator is
    monotone in u and the denominator largest at ε."""
    with working(_PRECISION):
        ((scale, b, c),) = exact_heads(numbers)
        ends = [c * (b + (1 - scale) * arb(t)).exp() for t in (numbers.offset, most)]
        largest = 1 + (b - scale * arb(numbers.offset)).exp()
        return upper((ends[0].max(ends[1]) - 1).max(1 - ends[0].min(ends[1]) / largest))


def exponential_executed_error(
    numbers: QuadraticNumbers, most: float, relative: float, a: Arithmetic
) -> float:
    """At least |e^u R̂ - 1| for every token with ε <= u <= `most`, if `relative` bounds |e^u R - 1|: with x = slope·q,

    |ŝ - s| <= slope|q̂ - q| + u(1 + u)(2x̂ + |intercept|) + 4τ,     slope|q̂ - q| <= λ(γ_{d+1} u + 4τ)
    ŵ = w(1 + θ) + 8τ,  1 + θ <= e^{|ŝ - s|}(1 + E)(1 + u)^4,     R̂ = c ŵ with two roundings"""
    with working(_PRECISION):
        u, tau, reach = arb(a.unit), arb(a.tiny), arb(most)
        ((scale, _, c),) = exact_heads(numbers)
        moved = scale * (_gamma(numbers.dim + 1, u) * reach + 4 * tau)
        score = scale * reach + moved
        off = moved + u * (1 + u) * (2 * score + arb(float(abs(numbers.intercept).max()))) + 4 * tau
        factor = off.exp() / ((1 - a.exp_units * u) * (1 - u) ** 4 * (1 - 2 * u))
        lost = 16 * tau * (c + 1) * reach.exp() * (1 + 4 * u)
        g = arb(relative)
        if not (g < 1 and reach * numbers.dim * (1 + _gamma(numbers.dim + 1, u)) < arb(a.largest)):
            return math.inf
        return upper(((1 + g) * factor - 1 + lost).max(1 - (1 - g) / factor + lost))


def _cells(lo: float, hi: float) -> list[tuple[arb, arb]]:
    """Centres and half-widths of cells that cover [ln lo, ln hi]."""
    first, last = arb(lo).log().lower(), arb(hi).log().upper()
    count = int(float(last - first) / _WIDTH) + 1
    half = ((last - first) / (2 * count)).upper()
    return [
        (((first + last) / 2 + half * (2 * i + 1 - count)).mid(), half * (1 + arb(2) ** -64))
        for i in range(count)
    ]


def _cell_error(heads: Sequence[tuple[arb, arb, arb]], p: arb, centre: arb, half: arb) -> arb:
    """At least |g(t)| for |t - centre| <= half: the polynomial on parts of the cell, and the remainder g^(n)/n! half^n."""
    polynomial = _series(heads, p, centre, _TERMS)
    remainder = _series(heads, p, centre + arb(0, half.upper()), _TERMS + 1)
    coefficients = [polynomial[k] for k in range(_TERMS)]
    coefficients[0] -= 1
    worst = arb(0)
    for i in range(_PARTS):
        s = half * (arb(2 * i + 1 - _PARTS) + arb(0, 1)) / _PARTS
        worst = worst.max(_horner(coefficients, s))
    return worst + abs(remainder[_TERMS]).upper() * half**_TERMS


def _horner(coefficients: Sequence[arb], s: arb) -> arb:
    """At least |Σ a_k s^k| on the ball s, by the derivative: |P(m)| + rad·sup|P'|."""
    middle, slope = arb(0), arb(0)
    for k in range(len(coefficients) - 1, -1, -1):
        middle = middle * s.mid() + coefficients[k]
        if k:
            slope = slope * s + k * coefficients[k]
    return (abs(middle) + abs(slope).upper() * s.rad()).upper()


def _series(heads: Sequence[tuple[arb, arb, arb]], p: arb, t: arb, terms: int) -> arb_series:
    """The power series of g + 1 around every point of the ball t."""
    shift = arb_series([0, 1], terms)
    u = shift.exp() * t.exp()
    total = arb_series([0], terms)
    for scale, bias, value in heads:
        e = (bias - scale * u).exp()
        total = total + value * (e / (1 + e))
    return total * ((p * shift).exp() * (p * t).exp())


def score_weight(numbers: QuadraticNumbers, most: float) -> float:
    """K: at least u^p Σ c_j w_j λ_j u for every u from ε to `most`."""
    with working(_PRECISION):
        heads, p = exact_heads(numbers), arb(numbers.power)
        worst = arb(0)
        for centre, half in _cells(numbers.offset, most):
            left, right = (centre - half).exp(), (centre + half).exp()
            terms = (c * scale / (1 + (scale * left - b).exp()) for scale, b, c in heads)
            worst = worst.max((sum(terms, arb(0)) * right ** (1 + p)).upper())
        return upper(worst)


def executed_error(
    numbers: QuadraticNumbers, most: float, relative: float, weight: float, a: Arithmetic
) -> float:
    """At least |u^p R̂ - 1| for every token with ε <= u <= `most`, if `relative` and `weight` bound |g| and K up to
    most(1 + 2γ_{d+1}); infinity if rounding is not bounded."""
    with working(_PRECISION):
        u, tau, p = arb(a.unit), arb(a.tiny), arb(numbers.power)
        square = _gamma(numbers.dim + 1, u) + 2 * tau / arb(numbers.offset)
        limit = _LARGEST_EXPONENT[a.dtype]
        bias = max((abs(b) for _, b, _ in exact_heads(numbers)), key=lambda x: float(x.upper()))
        eta = (
            u * (1 + u) * (2 * limit + arb(float(abs(numbers.intercept).max()))) + 4 * tau
        )  # the largest η that matters
        g = arb(relative)
        scores = eta.exp() * (u * (1 + u) * (2 * arb(weight) + bias * (1 + g)) + 4 * tau * (1 + g))
        kappa = (1 + scores / (1 - g)) * (1 + a.exp_units * u) * (1 + u) ** 4 - 1
        values = sum((arb(c) for c in numbers.value.tolist()), arb(len(numbers)))
        flushed = 16 * tau * values * arb(most) ** p
        sums = _gamma(len(numbers) + 1, u)
        if not (square < 1 and g < 1 and arb(most) * numbers.dim * (1 + square) < arb(a.largest)):
            return float("inf")
        up = (1 + g) * (1 + kappa) * (1 + sums) / (1 - square) ** p + (1 + sums) * flushed - 1
        down = 1 - (1 - g) * (1 - kappa) * (1 - sums) / (1 + square) ** p + (1 + sums) * flushed
        return upper(up.max(down))


def _gamma(operations: int, u: arb) -> arb:
    return operations * u / (1 - operations * u)


def closed_form_error(numbers: QuadraticNumbers, most: float, a: Arithmetic) -> float:
    """At least |√u R̂ - 1| for R̂ = 1/√(fl(q̂/d + ε)) and every token with ε <= u <= `most`.

    q̂ has the relative error γ_{d+1}; 1/d is stored, multiplied, and ε is stored and added: four roundings; the square root
    errs by 4u (docs/arithmetic.md), the division rounds once."""
    with working(_PRECISION):
        u, tau = arb(a.unit), arb(a.tiny)
        inside = _gamma(numbers.dim + 5, u) + 4 * tau / arb(numbers.offset)
        if not (inside < 1 and arb(most) * numbers.dim * (1 + inside) < arb(a.largest)):
            return float("inf")
        return upper((1 - a.window_exp_units * u) ** -1 * (1 - u) ** -1 / (1 - inside).sqrt() - 1)


def norm_errors(
    gain: Array, shift: Array, relative: float, executed: float, a: Arithmetic
) -> tuple[float, float]:
    """At least |y - norm| in exact arithmetic and as executed, in every feature: y = gain∘(R z) + shift, |z_i| <= √d √u,

    exact      |γ_i| √d g
    executed   |γ_i| √d ((1 + e)(1 + u)³ - 1) + u|β_i| + 6τ(1 + |γ_i| + √d), infinite if |γ_i|√d(1 + e) + |β_i| may overflow"""
    with working(_PRECISION):
        u, tau = arb(a.unit), arb(a.tiny)
        largest, offset = arb(float(np.abs(gain).max())), arb(float(np.abs(shift).max()))
        size = largest * arb(len(gain)).sqrt()
        root, whole = arb(len(gain)).sqrt(), (1 + arb(executed)) * (1 + u) ** 3
        rounded = size * (whole - 1) + u * offset + 6 * tau * (1 + largest + root)
        fits = (size * whole + offset) * (1 + u) < arb(a.largest)
        return upper(size * arb(relative)), upper(rounded) if fits else math.inf
