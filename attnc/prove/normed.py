"""What a norm in front proves of the pre-activations W x + b: an interval for each neuron, whatever entered the norm.

Let y = (z - mean z)/√(var z + ε) (layer) or y = z/√(mean z² + ε) (rms), d numbers, ε >= 0, and x = γ∘y + β. Then
‖y‖₂² = d·var z/(var z + ε) <= d, likewise for rms, and Σ y = 0 for a layer norm. With v = γ∘w:

    w·x + b = w·β + b + v·y
    rms     |v·y| <= ‖v‖₂‖y‖₂ <= √d ‖v‖₂                                  Cauchy-Schwarz
    layer   v·y = (v - mean v)·y, so that |v·y| <= √d ‖v - mean v‖₂

and no smaller interval holds for every z: y = ±√d (v - mean v)/‖v - mean v‖₂ is itself a normalised vector (ε = 0), and for
ε > 0 multiples of it come as near as one likes (`attainable`).

A norm that is *executed* returns some x̂ near x. What is claimed for rounded inputs is claimed of every

    x̂ = γ∘ŷ + β + r    with ‖ŷ‖₂ <= (1 + ρ)√d,  |mean ŷ| <= ρ for a layer norm,  |r_i| <= ρ(|β_i| + 2⁻¹⁰⁰)

so that, splitting ŷ into its mean and the rest, of which ‖ŷ - mean ŷ‖₂ <= ‖ŷ‖₂,

    |w·x̂ + b - (w·β + b)| <= (1 + ρ)√d ‖v - mean v‖₂ + ρ|Σ v| + ρ Σ|w_i|(|β_i| + 2⁻¹⁰⁰)        layer; rms: (1 + ρ)√d ‖v‖₂ + …

ρ = 0 is exact arithmetic. ρ = 2⁻¹⁰ holds with room for an rms norm in float32. A layer norm subtracts the mean, and loses to
cancellation about |mean z|/√(var z + ε) units of roundoff in every coordinate of ŷ: in float32 that quotient may be some
thousand, in float64 some 10¹². Beyond, ŷ is no longer near a normalised vector, and nothing is claimed.

Where no norm stands in front, a box of inputs takes its place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Array, Box
from attnc.errors import InputError
from attnc.program.block import Norm
from attnc.prove.outward import U, above, below, gamma, grown, product, times, total

RHO = 2.0**-10
_LEAST = 2.0**-100
_HELD = 1 << 20  # numbers of a matrix that are worked on at once


def pre_activations(W: Array, b: Array, inputs: Norm | Box, rho: float = RHO) -> tuple[Array, Array]:
    """(lo, hi), one number a neuron: lo <= W x̂ + b <= hi in exact arithmetic for every x̂ that the module describes.

    >>> norm = Norm("layer", np.ones(2), np.zeros(2))
    >>> lo, hi = pre_activations(np.array([[1.0, -1.0], [3.0, 3.0]]), np.array([0.0, 5.0]), norm, rho=0.0)
    >>> lo.round(9), hi.round(9)
    (array([-2.,  5.]), array([2., 5.]))
    """
    W, b = _checked(W, b, inputs, rho)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(inputs, Box):
            middle, half = _halves(inputs)
            radius = weighed(W, half)
        else:
            middle, radius = inputs.shift, _radius(W, inputs, rho)
        lo, hi = _around(W, b, middle, radius)
    _require_finite(lo, hi)
    return lo, hi


def magnitudes(W: Array, b: Array, inputs: Norm | Box, rho: float = RHO) -> Array:
    """At least |W||x̂| + |b|, neuron by neuron, for the same x̂: what rounding errors are proportional to.

    Σ|w_i||γ_i ŷ_i| <= (1 + ρ)√d ‖γ∘w‖₂ by Cauchy-Schwarz, and |β_i + r_i| <= (1 + ρ)|β_i| + ρ2⁻¹⁰⁰.

    >>> norm = Norm("layer", np.ones(2), np.zeros(2))
    >>> float(magnitudes(np.array([[3.0, 4.0]]), np.array([-1.0]), norm, rho=0.0)[0].round(9))
    8.071067812
    """
    W, b = _checked(W, b, inputs, rho)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(inputs, Box):
            found = weighed(W, np.maximum(np.abs(inputs.lo), np.abs(inputs.hi)))
        else:
            still = total(times(above(np.float64(1 + rho)), np.abs(inputs.shift)), rho * _LEAST)
            parts = [_length(W[rows] * inputs.gain, centred=False) for rows in _parts(W)]
            moving = times(above(np.float64(1 + rho)), _root(W.shape[1]), np.concatenate(parts))
            found = total(moving, weighed(W, still))
        found = total(found, np.abs(b))
    _require_finite(found)
    return found


def roundings(W: Array, b: Array, inputs: Norm | Box, dtype: str, rho: float = RHO) -> Array:
    """At least |executed W x̂ + b - exact|, neuron by neuron: γ_{d+1}(|W||x̂| + |b|), and operands or results that underflow.

    The sum of d products and the bias is formed in any order, fused or not.

    >>> norm = Norm("rms", np.ones(2), np.zeros(2))
    >>> bool(roundings(np.array([[3.0, 4.0]]), np.zeros(1), norm, "float32")[0] < 8 * 3 * 2.0**-24)
    True
    """
    a = arithmetic(dtype)
    passing = magnitudes(W, b, inputs, rho)
    W = np.asarray(W, np.float64)
    d = W.shape[1]
    entering = magnitudes(np.ones((1, d)), np.zeros(1), inputs, rho)
    flushed = total(entering, weighed(W, np.ones(d)), 3.0 * (d + 2))
    error = total(times(gamma(d + 1, a.unit), passing), times(2 * a.tiny, flushed))
    if not ((total(passing, error) < a.largest).all() and (entering < a.largest).all()):
        raise InputError(
            f"what enters the block or a pre-activation may overflow {dtype}: nothing can be proved of it; scale the weights down"
        )
    return error


def reach(W: Array, b: Array, inputs: Norm | Box, dtype: str, rho: float = RHO) -> tuple[Array, Array]:
    """Between these lies W x̂ + b, executed or exact: the interval that a neuron's head must cover.

    >>> norm = Norm("rms", np.ones(1), np.zeros(1))
    >>> lo, hi = reach(np.ones((1, 1)), np.zeros(1), norm, "float32", rho=0.0)
    >>> bool(1 < hi[0] < 1 + 2.0**-21)
    True
    """
    lo, hi = pre_activations(W, b, inputs, rho)
    error = roundings(W, b, inputs, dtype, rho)
    return below(lo - error), above(hi + error)


def attainable(W: Array, norm: Norm) -> Array:
    """(m, d): for each neuron the z, of length √d, whose normalised vector (ε = 0) takes w·x + b to the upper end of its
    interval in exact arithmetic; -z takes it to the lower end. Where the interval is a point, z = 0.

    >>> attainable(np.array([[1.0, -3.0]]), Norm("layer", np.ones(2), np.zeros(2)))
    array([[ 1., -1.]])
    """
    W, _ = _checked(W, np.zeros(len(W)), norm, 0.0)
    with np.errstate(over="ignore"):
        z = W * norm.gain
    _require_finite(z)
    z = np.ldexp(z, -_exponents(z))
    if norm.kind == "layer":
        z = z - z.mean(axis=1, keepdims=True)
    length = np.sqrt((z * z).sum(axis=1, keepdims=True))
    return np.asarray(np.divide(z, length, out=np.zeros_like(z), where=length > 0) * np.sqrt(W.shape[1]))


def weighed(W: Array, x: Array) -> Array:
    """At least |W| x along the last axis of x, which is not negative; no copy of the whole of W is made.

    >>> weighed(np.array([[1.0, -2.0]]), np.array([3.0, 4.0])).round(9)
    array([11.])
    """
    return np.concatenate([product(np.abs(W[rows]), x) for rows in _parts(W)], axis=-1)


def arithmetic(dtype: str) -> Arithmetic:
    """The constants of a dtype, or an error that says which are known."""
    if dtype not in ARITHMETIC:
        raise InputError(
            f"dtype={dtype!r}: roundings are proved for {' and '.join(ARITHMETIC)}; convert the model first"
        )
    return ARITHMETIC[dtype]


def _parts(W: Array) -> Iterator[slice]:
    """Rows of a matrix, some at a time."""
    rows = max(1, _HELD // W.shape[1])
    return (slice(at, at + rows) for at in range(0, len(W), rows))


def _radius(W: Array, norm: Norm, rho: float) -> Array:
    return np.concatenate([_part(W[rows], norm, rho) for rows in _parts(W)])


def _part(W: Array, norm: Norm, rho: float) -> Array:
    d = W.shape[1]
    v = W * norm.gain
    spread = _length(v, centred=norm.kind == "layer")
    found = times(above(np.float64(1 + rho)), _root(d), spread)
    if rho == 0:
        return found
    moved = weighed(W, total(np.abs(norm.shift), _LEAST))
    if norm.kind == "layer":
        lost = times(gamma(d + 1, U), _root(d), _length(v, centred=False))
        moved = total(moved, np.abs(v.sum(axis=1)), lost)
    return total(found, times(rho, moved))


def _length(v: Array, centred: bool) -> Array:
    """At least ‖V‖₂, or ‖V - mean V‖₂, by rows, where v = V rounded once.

    ‖V - mean V‖₂ is the least of all ‖V - t‖₂, so that any t near the mean will do, and its own rounding is no matter:
    ‖V - t‖ <= ‖v - t‖ + ‖V - v‖ <= (1 + 2u)‖fl(v - t)‖ + 2u‖v‖. Rows are scaled by a power of two, against overflow;
    products that underflowed are left to `times`, which adds far more than they are."""
    d, exponent = v.shape[1], _exponents(v)
    v = np.ldexp(v, -exponent)
    whole = np.sqrt(grown(np.einsum("ij,ij->i", v, v), d + 1))
    if centred:
        v = v - v.mean(axis=1, keepdims=True)
        rest = np.sqrt(grown(np.einsum("ij,ij->i", v, v), d + 1))
    else:
        rest = whole
    found = total(times(1 + 4 * U, rest), times(8 * U, whole))
    return np.asarray(np.ldexp(found, exponent[:, 0]))


def _exponents(v: Array) -> Array:
    """(m, 1): the power of two above the largest number of each row."""
    return np.asarray(np.frexp(np.abs(v).max(axis=1, keepdims=True))[1])


def _root(d: int) -> float:
    """At least √d."""
    return float(above(np.sqrt(np.float64(d))))


def _around(W: Array, b: Array, middle: Array, radius: Array) -> tuple[Array, Array]:
    """W·middle + b ± radius, and what rounding loses in the middle."""
    centre = W @ middle + b
    n = int(np.count_nonzero(middle))
    if n:
        lost = times(gamma(n + 1, U), total(weighed(W, np.abs(middle)), np.abs(b)))
        radius = total(radius, lost, n * 2.0**-1020)
    return below(centre - radius), above(centre + radius)


def _halves(box: Box) -> tuple[Array, Array]:
    middle = box.lo / 2 + box.hi / 2
    return middle, np.maximum(above(box.hi - middle), above(middle - box.lo))


def _checked(W: Array, b: Array, inputs: Norm | Box, rho: float) -> tuple[Array, Array]:
    W, b = np.asarray(W, np.float64), np.asarray(b, np.float64)
    if W.ndim != 2 or 0 in W.shape or b.shape != W.shape[:1]:
        raise InputError(
            f"W has the shape {W.shape} and b {b.shape}: give (m, d) and (m,), neither of them empty"
        )
    if isinstance(inputs, Norm):
        if inputs.kind not in ("layer", "rms"):
            raise InputError(f"a norm of the kind {inputs.kind!r}: 'layer' and 'rms' are understood")
        beside = {"gain": inputs.gain, "shift": inputs.shift}
    else:
        beside = {"lo": inputs.lo, "hi": inputs.hi}
    for name, given in beside.items():
        if given.shape != W.shape[1:]:
            raise InputError(
                f"{name} has the shape {given.shape}, but W takes {W.shape[1]} numbers: give one each"
            )
    for name, given in {"W": W, "b": b, **beside}.items():
        if not np.isfinite(given).all():
            raise InputError(
                f"{name} holds a number that is not finite: nothing can be proved of it; mend the weights"
            )
    if not 0 <= rho <= 1:
        raise InputError(f"rho={rho!r}: give the relative room for rounding, between 0 and 1, e.g. 2**-10")
    return W, b


def _require_finite(*found: Array) -> None:
    if not all(np.isfinite(f).all() for f in found):
        raise InputError(
            "the weights are so large that pre-activations exceed the range of float64: scale them down"
        )
