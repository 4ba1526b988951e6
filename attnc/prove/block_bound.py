"""The error of a feed-forward block whose activations are attention: what is proved of each head, carried to the outputs.

The block's input x̂ is taken *as executed*: any vector of numbers of the dtype that `normed` describes, or of a box. Compared are

    original    W2 f(s) + b2,  s = W1 x̂ + b1,          gated: W2 (f(s) ∘ t) + b2,  t = U x̂ + c          in exact arithmetic
    converted   the same with a head h_j in place of f at neuron j, and products through squares      in exact arithmetic
    executed    the converted block in the dtype: sums in any order, fused or not, underflow to zero allowed

with |converted - original| <= exact and |executed - original| <= exact + rounding. What norm or residual sum does next is
no part of the block; neither is the rounding of the original block when that is executed.

Plain blocks. ŝ is executed, |ŝ - s| <= e, and both lie where the head is proved: |h(ŝ) - f(ŝ)| <= a. The executed head returns ĥ,
|ĥ - h(ŝ)| <= r. It is f that carries ŝ to s, so that f's own Lipschitz constant L is needed, not the head's:

    |ĥ - f(s)| <= a + (r + L e),   |ĥ| <= F + a + r =: H,   F >= |f|
    exact     Σ_j |W2_ij| a_j
    rounding  Σ_j |W2_ij| (r_j + L_j e_j) + γ_{m+1} (Σ_j |W2_ij| H_j + |b2_i|) + underflow

Gated blocks. With λ a power of two and q the square head, |q(ζ) - ζ²| <= A for |ζ| <= R, executed within ϱ of q:

    p = (q(ζ⁺) - q(ζ⁻))/4,  ζ± = h(s)/λ ± λt            for ((α/λ + λβ)² - (α/λ - λβ)²)/4 = αβ

Exact: |p - h t| <= A/2 and |h t - f t| <= aV, V >= |t|. Executed, ĥ and t̂ are numbers with |ĥ| <= H, |t̂| <= V + e' =: V̂; each sum
ĥ/λ ± λt̂ becomes itself times 1 + δ, |δ| <= u, plus an underflow φ; their squares add up to 2((ĥ/λ)² + (λt̂)²); the difference
of the two q is rounded once; scaling by λ and by 1/4 rounds nothing. With T = H/λ + λV̂:

    S = (u + u²/2)((H/λ)² + (λV̂)²) + (1 + u)Tφ + φ²/2        what rounding ζ± does to the product
    |p̂ - ĥt̂| <= E + u(HV̂ + E) + underflow,  E = S + (A + ϱ)/2
    |ĥt̂ - f(s)t| <= (a + r + L e)V̂ + F e'
    exact     Σ_j |W2_ij| (a_j V_j + A_j/2)
    rounding  Σ_j |W2_ij| ((r + L e)V̂ + (a + F)e' + S + ϱ/2 + u(HV̂ + E) + underflow)_j + γ_{m+1}(…) + underflow

where |p̂| <= (1 + u)(HV̂ + E) + underflow stands in the place of H."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.domain import Array, Box
from attnc.errors import InputError
from attnc.functions import Function
from attnc.program.block import FeedForward, Norm
from attnc.prove.normed import RHO, arithmetic, pre_activations, roundings, weighed
from attnc.prove.outward import above, below, gamma, times, total
from attnc.prove.slopes import slopes

_POWERS = 100  # λ = 2^k with |k| up to this


@dataclass(frozen=True, eq=False)
class Heads:
    """What is proved of the head of each neuron (m,) at every number s of the dtype in [lo, hi], and of f there."""

    lo: Array
    hi: Array
    approximation: Array  # |head(s) - f(s)| in exact arithmetic
    rounding: Array  # |executed head - exact head| at s
    size: Array  # |f(s)|
    lipschitz: Array  # of f


@dataclass(frozen=True, eq=False)
class Squares:
    """What is proved of the square head of each neuron (m,) at every number of the dtype in [-radius, radius].

    Where heads share anchors by scaling with a power of two, the errors are those of the whole, scaling included."""

    scale: Array  # λ, powers of two
    radius: Array
    approximation: Array  # |head(ζ) - ζ²| in exact arithmetic
    rounding: Array  # |executed head - exact head| at ζ


@dataclass(frozen=True, eq=False)
class BlockBound:
    """Output by output: |converted - original| <= exact in exact arithmetic; executed, at most exact + rounding."""

    exact: Array  # (outputs,)
    rounding: Array  # (outputs,)

    @property
    def total(self) -> Array:
        """At least |executed - original|, output by output."""
        return total(self.exact, self.rounding)

    def __str__(self) -> str:
        return (
            f"{self.exact.max():.3g} exact, {self.rounding.max():.3g} rounding, {self.total.max():.3g} in all"
        )


def proved_heads(
    f: Function, lo: Array, hi: Array, approximation: Array | float, rounding: Array | float
) -> Heads:
    """Heads with these errors on [lo, hi], neuron by neuron or all alike; the size and the slope of f are enclosed.

    >>> from attnc import functions
    >>> heads = proved_heads(functions.relu(), np.array([-3.0, -2.0]), np.array([4.0, -1.0]), 1e-6, 1e-7)
    >>> heads.size.round(6), heads.lipschitz
    (array([4., 0.]), array([1., 0.]))
    """
    table = slopes(f, float(lo.min()), float(hi.max()), lo.size)
    low, high = table.band(lo, hi, np.zeros_like(lo))
    size = np.maximum(np.abs(low), np.abs(high))
    off, executed = (np.broadcast_to(np.asarray(e, np.float64), lo.shape) for e in (approximation, rounding))
    return Heads(lo, hi, off, executed, size, table.lipschitz(lo, hi))


def square_reach(
    ff: FeedForward, heads: Heads, dtype: str, inputs: Norm | Box | None = None, rho: float = RHO
) -> tuple[Array, Array]:
    """(λ, radius) of a gated block: λ makes the two summands of h/λ ± λt alike in size, and the executed sums lie within
    the radius.

    >>> norm = Norm("rms", np.ones(1), np.zeros(1))
    >>> one = np.ones((1, 1))
    >>> ff = FeedForward("relu", 16 * one, one[0] * 0, one, one[0] * 0, one, one[0] * 0, norm)
    >>> heads = Heads(*(one[0] * c for c in (-17, 17, 0, 0, 16, 1)))
    >>> square_reach(ff, heads, "float32", rho=0.0)[1].round(4)
    array([8.])
    """
    inputs = _inputs(ff, inputs)
    gate = _gate(ff, inputs, dtype, rho)
    height = total(heads.size, heads.approximation, heads.rounding)
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.rint(np.log2(height / gate.executed) / 2)
    scale = np.exp2(np.clip(np.where(np.isfinite(power), power, 0.0), -_POWERS, _POWERS))
    return scale, _entering(scale, height, gate.executed, arithmetic(dtype)).radius


def block_bound(
    ff: FeedForward,
    heads: Heads,
    dtype: str,
    squares: Squares | None = None,
    inputs: Norm | Box | None = None,
    rho: float = RHO,
) -> BlockBound:
    """The bound of the module's text, for a model whose numbers are of the dtype. `inputs` stands for the block's norm where
    it has none; `squares` are the product's heads where the block is gated.

    >>> norm = Norm("rms", np.ones(1), np.zeros(1))
    >>> one = np.ones((1, 1))
    >>> ff = FeedForward("relu", one, one[0] * 0, 3 * one, one[0] * 0, norm=norm)
    >>> heads = Heads(*(one[0] * c for c in (-2, 2, 1e-3, 1e-6, 2, 1)))
    >>> print(block_bound(ff, heads, "float32"))
    0.003 exact, 4.07e-06 rounding, 0.003 in all
    """
    inputs, a = _inputs(ff, inputs), arithmetic(dtype)
    _check_numbers(ff, a)
    _check_heads(heads, len(ff.b1))
    error = roundings(ff.W1, ff.b1, inputs, dtype, rho)
    lo, hi = pre_activations(ff.W1, ff.b1, inputs, rho)
    _check_covered("head", heads.lo, heads.hi, below(lo - error), above(hi + error))
    neurons = _Neurons(
        heads.approximation,
        total(heads.rounding, times(heads.lipschitz, error)),
        total(heads.size, heads.approximation, heads.rounding),
    )
    if ff.gated:
        if squares is None:
            raise InputError(
                "the block is gated, and no heads for its product were given: give squares=Squares(…)"
            )
        neurons = _products(neurons, heads, squares, _gate(ff, inputs, dtype, rho), a)
    return _projected(ff, neurons, a)


@dataclass(frozen=True)
class _Neurons:
    """What goes into the output projection: its error in exact arithmetic, what rounding adds, its executed size."""

    exact: Array
    rounding: Array
    size: Array


@dataclass(frozen=True)
class _Gate:
    """t = U x̂ + c: |t| <= size, |executed - t| <= error."""

    size: Array
    error: Array

    @property
    def executed(self) -> Array:
        return total(self.size, self.error)


@dataclass(frozen=True)
class _Entering:
    """What enters the square heads: T, what underflow moves it by, and the radius that holds it as executed."""

    size: Array
    flushed: Array
    radius: Array


def _gate(ff: FeedForward, inputs: Norm | Box, dtype: str, rho: float) -> _Gate:
    if ff.U is None or ff.c is None:
        raise InputError("the block is not gated: it has no product, hence no square heads")
    lo, hi = pre_activations(ff.U, ff.c, inputs, rho)
    return _Gate(np.maximum(np.abs(lo), np.abs(hi)), roundings(ff.U, ff.c, inputs, dtype, rho))


def _entering(scale: Array, height: Array, gate: Array, a: Arithmetic) -> _Entering:
    size = total(times(height, 1 / scale), times(scale, gate))
    flushed = times(2 * a.tiny, total(1 / scale, scale, 4.0))
    return _Entering(size, flushed, total(times(1 + a.unit, size), flushed))


def _products(neurons: _Neurons, heads: Heads, squares: Squares, gate: _Gate, a: Arithmetic) -> _Neurons:
    u, scale, executed = a.unit, squares.scale, gate.executed
    _check_squares(squares, scale, len(executed))
    into = _entering(scale, neurons.size, executed, a)
    _check_covered("square head", -squares.radius, squares.radius, -into.radius, into.radius)
    if not (times(into.radius, into.radius) < a.largest).all():
        raise InputError(
            f"products may overflow {a.dtype}: nothing can be proved of them; scale the weights down"
        )
    left, right = times(neurons.size, 1 / scale), times(scale, executed)
    sums = total(
        times(u + u * u, total(times(left, left), times(right, right))),
        times(1 + u, into.size, into.flushed),
        times(into.flushed, into.flushed),
    )
    off = total(sums, squares.approximation / 2, squares.rounding / 2)
    product = total(times(neurons.size, executed), off)
    rounding = total(
        times(neurons.rounding, executed),
        times(total(heads.approximation, heads.size), gate.error),
        sums,
        squares.rounding / 2,
        times(u, product),
        4 * a.tiny,
    )
    exact = total(times(neurons.exact, gate.size), squares.approximation / 2)
    return _Neurons(exact, rounding, total(times(1 + u, product), 4 * a.tiny))


def _projected(ff: FeedForward, neurons: _Neurons, a: Arithmetic) -> BlockBound:
    m = len(ff.b1)
    exact, carried, passing, weights = weighed(
        ff.W2, np.stack([neurons.exact, neurons.rounding, neurons.size, np.ones(m)])
    )
    passing = total(passing, np.abs(ff.b2))
    entering = weighed(np.ones((1, m)), neurons.size)
    flushed = times(2 * a.tiny, total(entering, weights, 3.0 * (m + 2)))
    rounding = total(carried, times(gamma(m + 1, a.unit), passing), flushed)
    if not (total(passing, rounding) < a.largest).all():
        raise InputError(
            f"outputs may overflow {a.dtype}: nothing can be proved of them; scale the weights down"
        )
    return BlockBound(exact, rounding)


def _inputs(ff: FeedForward, inputs: Norm | Box | None) -> Norm | Box:
    found = ff.norm if inputs is None else inputs
    if found is None:
        raise InputError("no norm stands in front of the block: give inputs=Box(lo, hi) for what enters it")
    return found


def _check_numbers(ff: FeedForward, a: Arithmetic) -> None:
    """That the numbers are those of the executed block, and that their shapes fit."""
    numbers = {"W1": ff.W1, "b1": ff.b1, "W2": ff.W2, "b2": ff.b2, "U": ff.U, "c": ff.c}
    given = {name: n for name, n in numbers.items() if n is not None}
    if ff.W2.shape != (len(ff.b2), len(ff.b1)) or ff.W2.size == 0:
        raise InputError(
            f"W2 has the shape {ff.W2.shape}: expected is {(len(ff.b2), len(ff.b1))}, as b2 and b1 say"
        )
    if ff.U is not None and ff.U.shape != ff.W1.shape:
        raise InputError(
            f"U has the shape {ff.U.shape}, W1 {ff.W1.shape}: a gate has as many neurons as the activation"
        )
    for name, n in given.items():
        if not np.isfinite(n).all():
            raise InputError(
                f"{name} holds a number that is not finite: nothing can be proved of it; mend the weights"
            )
        with np.errstate(over="ignore"):
            kept = a.dtype == "float64" or np.array_equal(n.astype(np.float32), n)
        if not kept:
            raise InputError(
                f"{name} holds a number that is not of {a.dtype}: give the numbers of the model that runs"
            )


def _check_heads(heads: Heads, m: int) -> None:
    _check_proved(("lo", "hi"), heads, m, least=-np.inf)
    _check_proved(("approximation", "rounding", "size", "lipschitz"), heads, m)


def _check_squares(squares: Squares, scale: Array, m: int) -> None:
    _check_proved(("scale", "radius", "approximation", "rounding"), squares, m)
    mantissa, exponent = np.frexp(scale)
    if not ((mantissa == 0.5) & (np.abs(exponent) <= _POWERS + 1)).all():
        raise InputError(
            f"scale holds a number other than 2^k, |k| <= {_POWERS}: take it from `square_reach`"
        )


def _check_proved(names: tuple[str, ...], of: Heads | Squares, m: int, least: float = 0.0) -> None:
    for name in names:
        given = getattr(of, name)
        if np.shape(given) != (m,):
            raise InputError(
                f"{name} has the shape {np.shape(given)}: give one number for each of {m} neurons"
            )
        if not (np.isfinite(given) & (given >= least)).all():
            raise InputError(
                f"{name} holds a number that is not finite or negative: nothing is proved of such a head"
            )


def _check_covered(what: str, lo: Array, hi: Array, low: Array, high: Array) -> None:
    out = np.flatnonzero((low < lo) | (high > hi))
    if len(out):
        j = out[0]
        raise InputError(
            f"the {what} of neuron {j} is proved on [{lo[j]:.17g}, {hi[j]:.17g}], but it is given numbers of "
            f"[{low[j]:.17g}, {high[j]:.17g}]: take the intervals from `reach` or `square_reach` ({len(out)} neurons)"
        )
