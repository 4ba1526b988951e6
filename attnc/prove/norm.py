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
ŷ is not near a normalised vector, and nothing is claimed.

`norm_bounds` bounds a norm that is a step of a network, ŷ = fl(γ̂∘(R̂ ẑ) + β̂), with z = x - mean x or x, s(z) = √(|z|²/d + ε),
N(z) = z/s(z) and R̂ within a relative g (exact arithmetic), e (executed) of 1/s:

    |ẑ - z|₂ <= ‖e_x‖₂ + ‖r‖₂,     r_i = γ_{d+3} mean|x̂| + u(|x̂_i| + (1 + γ_{d+3}) mean|x̂|) + (2d + 8)τ, 0 if not centred
    |N(ẑ) - N(z)|_i <= min(|ẑ - z|₂/s_min, spread of N_i)
    e' = |γ̂_i| that + |γ̂_i| Y_i((1 + e)(1 + u)³ - 1) + u|β̂_i| + 6τ(1 + |γ̂_i|) + |γ̂_i - γ_i| Y_i + |β̂_i - β_i|

since x - mean x is a projection, and the Jacobian (I - N Nᵀ/d)/s of N has the eigenvalues 1/s and ε/s³. s_min is the least s
between z and ẑ, and Y_i = min(√d, |ẑ_i|/s_min) bounds |N_i|. R̂ must be proved up to the largest |ẑ|²/d + ε."""

from __future__ import annotations

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.domain import Array, Normed
from attnc.program import Norm
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, narrowed, unbounded, unless_overflow
from attnc.prove.outward import U, above, below, gamma, grown, row_blocks, times, total, weighed
from attnc.records.layers import Layer

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


def norm_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of a norm whose heads have the relative errors `heads` for tokens with a mean square up to heads.most."""
    (x,), step, a, heads = at.values, at.step, at.arithmetic, at.heads
    assert isinstance(step, Norm)
    d, u = len(step.gain), a.unit
    exact, reach, lost = _entering(x, step.centred, a)
    if not all(np.isfinite(end).all() for end in reach):
        return unbounded(x.lo.shape)
    (low, high), least = _normalised(*reach, step.epsilon)
    if not (total(mean_square(x, step.centred, a), step.epsilon) <= heads.most).all():
        return unbounded(x.lo.shape)
    gain, shift = (at.layer.tensor(name).astype(np.float64) for name in ("gain", "shift"))
    slope, spread = times(np.abs(gain), 1 / least), times(np.abs(gain), above(high - low))
    values = np.maximum(np.abs(low), np.abs(high))
    rounded = total(heads.error, times(gamma(3, u), total(1.0, heads.error)))
    own = total(
        times(np.abs(gain), values, rounded),
        times(u, np.abs(shift)),
        times(6 * a.tiny, total(1.0, np.abs(gain), values)),
        times(above(np.abs(gain - step.gain)), values),
        above(np.abs(shift - step.shift)),
    )
    found = [
        np.fmin(times(slope, _lengths(e, off)), spread)
        for e, off in ((x.error, lost), (x.approximation, None))
    ]
    (low, high), _ = _normalised(*exact, step.epsilon)
    g, b = step.gain.astype(np.float64), step.shift.astype(np.float64)
    ends = np.stack([g * low, g * high])
    pad = times(2.0**-50, total(np.abs(ends).max(0), np.abs(b)))
    near = total(own, times(np.abs(gain), _lengths(lost) / np.sqrt(d) / least)) <= 2.0**-11 * np.abs(g)
    still = own <= RHO / 2 * (np.abs(b) + _LEAST)
    return narrowed(
        ValueBounds(
            below(ends.min(0) + b - pad),
            above(ends.max(0) + b + pad),
            total(found[1], times(np.abs(gain), values, heads.approximation)),
            unless_overflow(total(found[0], own), total(times(np.abs(gain), values), np.abs(shift)), a),
            slope=slope,
            normed=Normed(step.centred, g, b) if (near | (still & (g == 0))).all() else None,
        )
    )


def norm_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """|γ|‖e‖₂/s: what errors of the input become in exact arithmetic, for small errors."""
    slope = known[layer.value].slope
    length = _lengths(errors[0])
    return np.where(length > 0, times(np.inf if slope is None else slope, length), 0.0)


def mean_square(x: ValueBounds, centred: bool, a: Arithmetic) -> Array:
    """At least |ẑ|²/d, token by token."""
    _, reach, _ = _entering(x, centred, a)
    sizes = np.maximum(np.abs(reach[0]), np.abs(reach[1]))
    return grown(np.square(sizes).sum(-1) / x.lo.shape[-1], x.lo.shape[-1] + 3)


def _entering(
    x: ValueBounds, centred: bool, a: Arithmetic
) -> tuple[tuple[Array, Array], tuple[Array, Array], Array]:
    """The intervals of z, and of z and ẑ; and r."""
    error = np.maximum(x.error, x.approximation)
    if not centred:
        return (x.lo, x.hi), (below(x.lo - error), above(x.hi + error)), np.full(x.lo.shape, 2 * a.tiny)
    d, lost, (lo, hi) = x.lo.shape[-1], _centring(x, a), _centred(x)
    moved = total(error, grown(error.sum(-1, keepdims=True) / d, d + 2), lost)
    return (lo, hi), (below(lo - moved), above(hi + moved)), lost


def _centring(x: ValueBounds, a: Arithmetic) -> Array:
    """r: at least what x̂ - mean x̂ loses."""
    d = x.lo.shape[-1]
    mean = grown(x.executed.sum(-1, keepdims=True) / d, d + 2)
    lost = gamma(d + 3, a.unit)
    return total(
        times(lost, mean), times(a.unit, total(x.executed, times(1 + lost, mean))), (2 * d + 8) * a.tiny
    )


def _centred(x: ValueBounds) -> tuple[Array, Array]:
    """The interval of x - mean x: (1 - 1/d) x_i - Σ_{j≠i} x_j/d."""
    d = x.lo.shape[-1]
    pad = times((d + 8) * 2.0**-50, total(x.size, np.sum(x.size, -1, keepdims=True) / d))
    rest = [(np.sum(end, -1, keepdims=True) - end) / d for end in (x.lo, x.hi)]
    return x.lo * (1 - 1 / d) - rest[1] - pad, x.hi * (1 - 1 / d) - rest[0] + pad


def _normalised(lo: Array, hi: Array, epsilon: float) -> tuple[tuple[Array, Array], Array]:
    """The range of z_i/s(z) for lo <= z <= hi, and (…, 1) at most s(z)."""
    d = lo.shape[-1]
    near, far = np.maximum(0.0, np.maximum(lo, -hi)), np.maximum(np.abs(lo), np.abs(hi))
    room = (d + 8) * 2.0**-50
    least = np.sqrt((np.square(near).sum(-1, keepdims=True) / d + epsilon) * (1 - room)) * (1 - room)
    most = np.sqrt((np.square(far).sum(-1, keepdims=True) / d + epsilon) * (1 + room)) * (1 + room)
    top = above(np.sqrt(np.float64(d)))
    low = np.maximum(below(np.where(lo < 0, lo / least, lo / most)), -top)
    high = np.minimum(above(np.where(hi > 0, hi / least, hi / most)), top)
    return (low, high), least


def _lengths(error: Array, other: Array | None = None) -> Array:
    """(…, 1): at least ‖e‖₂, plus that of another one."""
    length = np.sqrt(grown(np.square(error).sum(-1, keepdims=True), error.shape[-1] + 2))
    own = grown(length, 2)
    return own if other is None else total(own, _lengths(other))
