"""The outputs of a norm as inputs of an affine map: bounds of W x + b and of |W||x| that hold whatever entered the norm.

Let y = (z - mean z)/√(var z + ε) (LayerNorm, centred) or y = z/√(mean z² + ε) (RMSNorm), d numbers, ε >= 0, and
x = γ∘y + β. Then ‖y‖₂² = d·var z/(var z + ε) <= d, likewise for RMSNorm, and Σ y = 0 for LayerNorm. With v = γ∘w:

    w·x + b = w·β + b + v·y
    RMSNorm    |v·y| <= ‖v‖₂‖y‖₂ <= √d ‖v‖₂                               Cauchy-Schwarz
    LayerNorm  v·y = (v - mean v)·y, so that |v·y| <= √d ‖v - mean v‖₂

No smaller interval holds for every z: y = ±√d (v - mean v)/‖v - mean v‖₂ is itself a normalised vector (ε = 0), and for
ε > 0 multiples of it come arbitrarily close.

An *executed* norm returns some x̂ near x. The bounds hold for every

    x̂ = γ∘ŷ + β + r    with ‖ŷ‖₂ <= (1 + ρ)√d,  |mean ŷ| <= ρ if centred,  |r_i| <= ρ(|β_i| + 2⁻¹⁰⁰)

so that, splitting ŷ into its mean and the rest, where ‖ŷ - mean ŷ‖₂ <= ‖ŷ‖₂,

    |w·x̂ + b - (w·β + b)| <= (1 + ρ)√d ‖v - mean v‖₂ + ρ|Σ v| + ρ Σ|w_i|(|β_i| + 2⁻¹⁰⁰)     RMSNorm: (1 + ρ)√d ‖v‖₂ + …

ρ = 2⁻¹⁰ leaves room for an RMSNorm in float32. A LayerNorm subtracts the mean and loses about |mean z|/√(var z + ε) units of
roundoff in every coordinate of ŷ to cancellation: in float32 that quotient may be about 1000, in float64 about 10¹². Beyond,
ŷ is not near a normalised vector, and nothing is claimed."""

from __future__ import annotations

import numpy as np

from attnc.domain import Array, Normed
from attnc.prove.bounds import ValueBounds
from attnc.prove.outward import U, above, below, gamma, grown, row_blocks, times, total, weighed

RHO = 2.0**-10
_LEAST = 2.0**-100


def normed_input(domain: Normed) -> ValueBounds:
    """The bounds of x̂ itself, coordinate by coordinate."""
    reach = total(
        _stretched(np.abs(domain.gain), len(domain.gain)),
        times(RHO, total(np.abs(domain.shift), _LEAST)),
    )
    zero = np.zeros(domain.shape)
    return ValueBounds(below(domain.shift - reach), above(domain.shift + reach), zero, zero, normed=domain)


def radius(W: Array, domain: Normed) -> Array:
    """At least |W x̂ - W β|, row by row."""
    return np.concatenate([_radius(W[rows], domain) for rows in row_blocks(W)])


def magnitudes(W: Array, domain: Normed) -> Array:
    """At least |W||x̂|, row by row: the quantity that rounding errors are proportional to.

    Σ|w_i||γ_i ŷ_i| <= (1 + ρ)√d ‖γ∘w‖₂ by Cauchy-Schwarz, and |β_i + r_i| <= (1 + ρ)|β_i| + ρ2⁻¹⁰⁰."""
    still = total(times(above(np.float64(1 + RHO)), np.abs(domain.shift)), RHO * _LEAST)
    lengths = [_length(W[rows] * domain.gain, centred=False) for rows in row_blocks(W)]
    return total(_stretched(np.concatenate(lengths), W.shape[1]), weighed(W, still))


def _radius(W: Array, domain: Normed) -> Array:
    d, v = W.shape[1], W * domain.gain
    spread = _stretched(_length(v, centred=domain.centred), d)
    moved = weighed(W, total(np.abs(domain.shift), _LEAST))
    if domain.centred:
        lost = times(gamma(d + 1, U), above(np.sqrt(np.float64(d))), _length(v, centred=False))
        moved = total(moved, np.abs(v.sum(axis=1)), lost)
    return total(spread, times(RHO, moved))


def _stretched(length: Array, d: int) -> Array:
    """At least (1 + ρ)√d times a length."""
    return times(above(np.float64(1 + RHO)), above(np.sqrt(np.float64(d))), length)


def _length(v: Array, centred: bool) -> Array:
    """At least ‖V‖₂, or ‖V - mean V‖₂, by rows, where v is V rounded once.

    ‖V - mean V‖₂ is the least of all ‖V - t‖₂, so any t near the mean serves, and its own rounding does not matter:
    ‖V - t‖ <= ‖v - t‖ + ‖V - v‖ <= (1 + 2u)‖fl(v - t)‖ + 2u‖v‖. Rows are scaled by a power of two to avoid overflow;
    `times` adds far more than products that underflowed."""
    d, exponent = v.shape[1], np.frexp(np.abs(v).max(axis=1, keepdims=True))[1]
    v = np.ldexp(v, -exponent)
    whole = np.sqrt(grown(np.einsum("ij,ij->i", v, v), d + 1))
    rest = whole
    if centred:
        v = v - v.mean(axis=1, keepdims=True)
        rest = np.sqrt(grown(np.einsum("ij,ij->i", v, v), d + 1))
    return np.asarray(np.ldexp(total(times(1 + 4 * U, rest), times(8 * U, whole)), exponent[:, 0]))
