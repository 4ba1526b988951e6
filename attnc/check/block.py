"""The checker of feed-forward blocks: what is proved of heads, carried to the outputs anew.

It shares nothing with the prover (`block_bound`, `normed`, `slopes`, `outward`). Its quantities are numbers that are not
negative, made by sums, products and roots in numpy's longest floats: k such operations err by less than k of their units,
relatively, and each formula is enlarged by more than that (`_up`). Differences are taken twice only, of a row's mean and of an
interval's end, and what they lose is added.

What enters is any x̂ = γ∘ŷ + β + r with ‖ŷ‖₂ <= (1 + ρ)√d, |mean ŷ| <= ρ where the norm subtracts a mean, and
|r_i| <= ρ(|β_i| + 2⁻¹⁰⁰), ρ = 2⁻¹⁰; or any x̂ of a box. Let s = W1 x̂ + b1 and ŝ what is executed, |ŝ - s| <= e;
T >= |executed head - f| at ŝ; L the slope and F the size of f:

    |ĥ - f(s)| <= T + L e,   |ĥ| <= F + T =: H

Where the block is gated, t = U x̂ + c, |t| <= V, |t̂ - t| <= e'. The executed product goes through ζ± = ĥ/λ ± λt̂ and squares that
are within B on [-1, 1], scaled to [-R, R]:

    |p̂ - ĥ t̂| <= E + u(H V̂ + E) + underflow,   E = ¼ Σ± |ζ̂±² - ζ±²| + R²B/2,   V̂ = V + e'
    |ĥ t̂ - f(s) t| <= (T + L e) V̂ + F e'
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.check.ranges import slope_and_size
from attnc.domain import Array, Box
from attnc.functions import Function
from attnc.program.block import FeedForward, Norm
from attnc.records.certificate import Status
from attnc.records.verdict import Verdict

Long = NDArray[np.longdouble]
RHO = 2.0**-10
_LEAST = 2.0**-100
_EPS = np.longdouble(np.finfo(np.longdouble).eps)
_HELD = 1 << 20  # numbers of a matrix that are worked on at once


@dataclass(frozen=True, eq=False)
class HeadErrors:
    """What holds of the head of each neuron (m,) on [lo, hi]: |head - f| in exact arithmetic, and executed in all."""

    lo: Array
    hi: Array
    exact: Array
    executed: Array


@dataclass(frozen=True, eq=False)
class SquareErrors:
    """λ and the radius of each neuron (m,), powers of two; |square - η²| on [-1, 1] in exact arithmetic, and executed in all."""

    scale: Array
    radius: Array
    exact: float
    executed: float


@dataclass(frozen=True)
class BlockClaim:
    """|converted - original| <= exact in exact arithmetic; executed, at most exact + rounding; with faultless heads, products."""

    exact: float
    rounding: float
    products: float | None = None


def check_block(
    ff: FeedForward,
    f: Function,
    heads: HeadErrors,
    claim: BlockClaim,
    dtype: str,
    squares: SquareErrors | None = None,
    inputs: Norm | Box | None = None,
) -> Verdict:
    """Whether the claim holds in every output of a block, for all inputs that its norm, or `inputs`, describes.

    >>> from attnc import functions
    >>> norm, one = Norm("rms", np.ones(1), np.zeros(1)), np.ones((1, 1))
    >>> ff = FeedForward("relu", one, one[0] * 0, 3 * one, one[0] * 0, norm=norm)
    >>> heads = HeadErrors(*(one[0] * c for c in (-2, 2, 1e-3, 1.001e-3)))
    >>> [check_block(ff, functions.relu(), heads, BlockClaim(0.003001, r), "float32").status for r in (4e-6, 1e-6)]
    ['proved', 'unknown']
    """
    bound = claim.exact + claim.rounding
    entering = inputs if inputs is not None else ff.norm
    problem = _unfit(ff, heads, squares, entering, dtype)
    if problem is not None or entering is None:
        return Verdict(Status.UNKNOWN, problem or "", bound)
    with np.errstate(all="ignore"):
        try:
            a = ARITHMETIC[dtype]
            at = _reached(ff, f, heads, a, entering)
            found = _bound(ff, at, heads, squares, a)
            rest = None if claim.products is None else _bound(ff, at, *_faultless(heads, squares), a)
        except _NotCoveredError as reason:
            return Verdict(Status.UNKNOWN, str(reason), bound)
    claims = [
        ("exact", found.exact, Fraction(claim.exact)),
        ("exact + rounding", found.executed, Fraction(claim.exact) + Fraction(claim.rounding)),
    ]
    if rest is not None and claim.products is not None:
        claims.append(("products", rest.executed, Fraction(claim.products)))
    for name, proved, claimed in claims:
        if not (np.isfinite(proved) and Fraction(proved) <= claimed):
            return Verdict(
                Status.UNKNOWN, f"{name} is said to be {float(claimed):.6g}: proved is {proved:.6g}", bound
            )
    return Verdict(Status.PROVED, f"the bounds of {len(ff.b2)} outputs hold", bound)


@dataclass(frozen=True)
class _Found:
    exact: float
    executed: float


class _NotCoveredError(Exception):
    """Something that the bound needs does not hold."""


@dataclass(frozen=True, eq=False)
class _Entered:
    """Of W x̂ + b, a number a row: its interval in exact arithmetic, and what executing it adds."""

    centre: Long
    radius: Long
    error: Long

    @property
    def size(self) -> Long:
        return _up(np.abs(self.centre) + self.radius)


@dataclass(frozen=True, eq=False)
class _Reached:
    """Of each neuron: what executing s adds, the slope and the size of f where it may be, and t where the block is gated."""

    error: Long
    slope: Long
    size: Long
    gate: _Entered | None


def _up(x: Array | Long, terms: int = 0) -> Long:
    """At least the exact value of a formula of few operations and sums of so many terms, none of them negative."""
    return _long(x * (1 + (4 * terms + 256) * _EPS) + np.longdouble(2.0**-400))


def _long(x: Array | Long) -> Long:
    found: Long = np.asarray(x, np.longdouble)
    return found


def _gamma(terms: Long, a: Arithmetic) -> Long:
    """γ_{n+1} = (n + 1)u/(1 - (n + 1)u)."""
    k = (terms + 1) * np.longdouble(a.unit)
    if not (k < 0.5).all():
        raise _NotCoveredError("a row has too many terms for the dtype")
    return _up(k / (1 - k))


def _weighed(W: Array, columns: Long) -> Long:
    """|W| @ columns (n, k)."""
    rows = max(1, _HELD // max(1, W.shape[1]))
    parts = [np.abs(_long(W[i : i + rows])) @ columns for i in range(0, len(W), rows)]
    return _up(np.concatenate(parts), W.shape[1])


def _entered(W: Array, b: Array, inputs: Norm | Box, a: Arithmetic) -> _Entered:
    rows = max(1, _HELD // max(1, W.shape[1]))
    parts = [_rows(W[i : i + rows], b[i : i + rows], inputs, a) for i in range(0, len(W), rows)]
    return _Entered(
        *(np.concatenate([getattr(p, name) for p in parts]) for name in ("centre", "radius", "error"))
    )


def _rows(W: Array, b: Array, inputs: Norm | Box, a: Arithmetic) -> _Entered:
    """n products and the bias: no term passes more than n + 1 roundings; each operation may lose 2τ besides, an input τ, and a
    weight that is subnormal all of its product."""
    w, tau, n = _long(W), 2 * np.longdouble(a.tiny), W.shape[1]
    middle, spread, sizes, most = _spread(w, inputs)
    offset = _long(b)
    centre = w @ middle + offset
    lost = _up((np.abs(w) @ np.abs(middle) + np.abs(offset)) * (2 * n + 16) * _EPS, n)
    terms = np.count_nonzero(W, axis=1).astype(np.longdouble)
    gamma = _gamma(terms, a)
    whole = _up(sizes + np.abs(offset))
    if not ((whole * 4 <= a.largest).all() and (most <= a.largest).all()):
        raise _NotCoveredError("what enters, or a sum of products, may leave the range of the dtype")
    small = (np.abs(w) < a.tiny) & (w != 0)
    flushed = tau * (2 * terms + 2 + np.abs(w).sum(1)) + small @ (most * np.longdouble(a.tiny))
    radius = _up(spread + lost + 8 * _EPS * (np.abs(centre) + spread))
    return _Entered(centre, radius, _up(gamma * whole + 2 * flushed, n))


def _spread(w: Long, inputs: Norm | Box) -> tuple[Long, Long, Long, Long]:
    """A middle of x̂; by how much w·x̂ may differ from w·middle; at least Σ|w_i x̂_i|; at least |x̂_i|."""
    if isinstance(inputs, Box):
        lo, hi = _long(inputs.lo), _long(inputs.hi)
        middle = _long((lo + hi) / 2)
        half = _up(np.maximum(hi - middle, middle - lo)) + _EPS * 8 * np.maximum(np.abs(lo), np.abs(hi))
        most = np.maximum(np.abs(lo), np.abs(hi))
        return middle, _up(np.abs(w) @ half, w.shape[1]), _up(np.abs(w) @ most, w.shape[1]), most
    d, rho = w.shape[1], np.longdouble(RHO)
    length = _up((1 + rho) * np.sqrt(np.longdouble(d)))
    v, shift = w * _long(inputs.gain), np.abs(_long(inputs.shift))
    size = _up(np.sqrt((v * v).sum(1)), d)
    wandering = _long(rho * (shift + np.longdouble(_LEAST)))
    beside = _up(np.abs(w) @ wandering, d)
    most = _up(np.abs(_long(inputs.gain)) * length + shift + wandering)
    sizes = _up(length * size + np.abs(w) @ (shift + wandering), d)
    if inputs.kind != "layer":
        return _long(inputs.shift), _up(length * size + beside), sizes, most
    mean = v.sum(1) / d
    off = _up(size * (8 * d + 64) * _EPS)  # of the differences' length, and of the mean's share
    around = _up(np.sqrt(((v - mean[:, None]) ** 2).sum(1)) + off, d)
    share = _up(rho * (np.abs(mean) * d + off * d))
    return _long(inputs.shift), _up(length * around + share + beside), sizes, most


def _reached(ff: FeedForward, f: Function, heads: HeadErrors, a: Arithmetic, inputs: Norm | Box) -> _Reached:
    """Where the neurons may be, which the heads must cover."""
    s = _entered(ff.W1, ff.b1, inputs, a)
    reach = _up(s.radius + s.error) + 8 * _EPS * np.abs(s.centre)
    lo, hi = s.centre - reach, s.centre + reach
    outside = ~((_long(heads.lo) <= lo) & (hi <= _long(heads.hi)))
    if outside.any():
        j = int(np.argmax(outside))
        where, known = f"[{float(lo[j]):.6g}, {float(hi[j]):.6g}]", f"[{heads.lo[j]:g}, {heads.hi[j]:g}]"
        raise _NotCoveredError(f"neuron {j} may be anywhere in {where}, and its head is proved on {known}")
    ends = np.nextafter(lo.astype(np.float64), -np.inf), np.nextafter(hi.astype(np.float64), np.inf)
    slope, size = map(_long, slope_and_size(f, *ends))
    t = None if ff.U is None or ff.c is None else _entered(ff.U, ff.c, inputs, a)
    return _Reached(s.error, slope, size, t)


def _bound(
    ff: FeedForward, at: _Reached, heads: HeadErrors, squares: SquareErrors | None, a: Arithmetic
) -> _Found:
    exact, executed = _long(heads.exact), _long(heads.executed)
    error, height = _up(executed + at.slope * at.error), _up(at.size + executed)
    if at.gate is not None and squares is not None:
        exact, error, height = _product(exact, error, height, at.size, at.gate, squares, a)
    return _projected(ff, exact, error, height, a)


def _product(
    exact: Long, error: Long, height: Long, size: Long, t: _Entered, squares: SquareErrors, a: Arithmetic
) -> tuple[Long, Long, Long]:
    """Of f(s)·t: the error in exact arithmetic, the error executed, and the size of what is executed."""
    u, tau = np.longdouble(a.unit), 2 * np.longdouble(a.tiny)
    scale, radius, V = _long(squares.scale), _long(squares.radius), t.size
    gate = _up(V + t.error)
    left, right = height / scale, gate * scale
    phi = (4 + radius + scale + 1 / scale) * tau  # what underflow moves ζ± by, and ζ±/ρ, in units of ζ
    both = _up(left + right)
    if not (_up(both * (1 + u) + phi) <= radius).all():
        raise _NotCoveredError("a sum or difference of the product may leave the radius of its square")
    for factor in (scale, 1 / scale, 1 / radius, radius * radius):
        if not ((factor >= a.tiny) & (factor <= a.largest / 8)).all():
            raise _NotCoveredError("a power of two of the product leaves the range of the dtype")
    square = radius * radius
    moved = (u + u * u / 2) * (left * left + right * right) + both * (1 + u) * phi + phi * phi / 2
    E = _up(moved + (square * (np.longdouble(squares.executed) + tau) + tau) / 2)
    product = _up(height * gate)
    off = _up(error * gate + size * t.error + E + u * (product + E) + 2 * tau)
    return (
        _up(exact * V + square * np.longdouble(squares.exact) / 2),
        off,
        _up(product + E + u * (product + E) + 2 * tau),
    )


def _projected(ff: FeedForward, exact: Long, error: Long, height: Long, a: Arithmetic) -> _Found:
    small = ((np.abs(ff.W2) < a.tiny) & (ff.W2 != 0)).any()
    ones = np.ones_like(exact)
    sums = _weighed(ff.W2, np.stack([exact, error, height, ones], axis=1))
    terms = np.count_nonzero(ff.W2, axis=1).astype(np.longdouble)
    gamma, tau = _gamma(terms, a), 2 * np.longdouble(a.tiny)
    whole = _up(sums[:, 2] + np.abs(_long(ff.b2)))
    if not (whole * 4 <= a.largest).all():
        raise _NotCoveredError("a sum of products may leave the range of the dtype")
    flushed = tau * (2 * terms + 2 + sums[:, 3]) + (tau * height.sum() if small else 0)
    executed = _up(sums[:, 1] + gamma * whole + 2 * flushed, len(exact))
    return _Found(_float(sums[:, 0]), _float(executed))


def _float(x: Long) -> float:
    """The largest of these, rounded up."""
    return float(np.nextafter(np.float64(x.max()), np.inf))


def _faultless(heads: HeadErrors, squares: SquareErrors | None) -> tuple[HeadErrors, SquareErrors | None]:
    """Heads and squares that are the functions themselves: what is left is what the matrix products round."""
    none = np.zeros_like(heads.exact)
    return replace(heads, exact=none, executed=none), squares and replace(squares, exact=0.0, executed=0.0)


def _unfit(
    ff: FeedForward, heads: HeadErrors, squares: SquareErrors | None, inputs: Norm | Box | None, dtype: str
) -> str | None:
    """Why there is nothing to prove, or None."""
    if inputs is None:
        return "no norm stands in front of the block, and no box of its inputs is given: nothing is known of what enters"
    if dtype not in ARITHMETIC:
        return f"blocks run in float32 or float64: got {dtype!r}"
    if ff.gated and squares is None:
        return "the block is gated, and nothing is known of the squares of its products"
    arrays = [x for x in (ff.W1, ff.b1, ff.W2, ff.b2, ff.U, ff.c) if x is not None]
    if not all(np.isfinite(x).all() for x in arrays):
        return "a number of the block is not finite"
    if not all(np.array_equal(x.astype(dtype), x) for x in arrays):
        return f"the block holds numbers that {dtype} cannot"
    proved = [heads.lo, heads.hi, heads.exact, heads.executed]
    if squares is not None:
        proved += [squares.scale, squares.radius]
    if not all(x.shape == ff.b1.shape and np.isfinite(x).all() for x in proved):
        return "what is known of the heads does not fit the neurons of the block"
    d = inputs.lo.shape if isinstance(inputs, Box) else inputs.gain.shape
    return None if d == (ff.W1.shape[1],) else f"the block takes {ff.W1.shape[1]} features, and {d} enter"
