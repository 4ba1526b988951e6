"""The error of an affine map: with stored numbers Ŵ, b̂ and inputs x whose executed values are within e,

    e' = |Ŵ|e + |Ŵ - W||x| + |b̂ - b| + γ_{n+1}(|Ŵ||x̂| + |b̂|) + underflow        n: the weights of a row that are not 0

A sum of n products and a bias passes at most n + 1 roundings, in whatever order it is formed; a product with 0 is 0, and
adding it rounds nothing. If x is the output of a norm, `norm` bounds W x + b and |W||x|, which is sharper than any box."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.program import Affine, BatchNorm
from attnc.program.step import Numbers
from attnc.prove import norm
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, narrowed, unless_overflow
from attnc.prove.exact_affine import Enclosed, folded, plain
from attnc.prove.forms import along
from attnc.prove.outward import U, above, below, gamma, product, row_blocks, times, total, weighed
from attnc.records.layers import Layer


def affine_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of W x + b, or of a batch norm that is folded into it."""
    layer, stored = at.layer, at.layer.tensor("weight")
    constant = layer.tensors.get("bias", np.zeros(len(stored))).astype(np.float64)
    found = linear_bounds(at.values[0], _exact_numbers(at), stored, constant, at.arithmetic)
    return replace(found, approximation=affine_carried(layer, [at.values[0].approximation], {}))


def linear_bounds(
    x: ValueBounds, exact: tuple[Enclosed, Enclosed], held: Numbers, constant: Array, a: Arithmetic
) -> ValueBounds:
    """The bounds of Ŵ x̂ + b̂ against W x + b, without an approximation."""
    weight, bias = exact
    gap = weight.gap(held)
    stored = weight.number if gap is None else held.astype(np.float64)
    n, (through, entering) = stored.shape[1], _magnitudes(stored, x)
    passing = total(through, np.abs(constant))
    flushed = times(2 * a.tiny, total(entering, weighed(stored, np.ones(n)), 3.0 * (n + 2)))
    error = total(
        _moved(stored, x) if x.error.any() else 0.0,
        0.0 if gap is None else product(gap, x.size),
        total(above(np.abs(constant - bias.number)), bias.radius),
        times(_gammas(stored, a), passing),
        flushed,
    )
    lo, hi = affine_interval(x, weight, bias)
    form = None if x.form is None else along(x.form, weight, bias)
    error = np.where(entering < a.largest, unless_overflow(error, passing, a), np.inf)
    shape = (*x.lo.shape[:-1], len(stored))
    lo, hi, error = (np.broadcast_to(part, shape) for part in (lo, hi, error))
    return narrowed(ValueBounds(lo, hi, np.zeros(shape), error, form))


def _moved(stored: Array, x: ValueBounds) -> Array:
    """At least |Ŵ(x̂ - x)|: |Ŵ|e and, as both are outputs of the norm, at most twice its radius."""
    moved = weighed(stored, x.error)
    return moved if x.normed is None else np.fmin(moved, times(2.0, norm.radius(stored, x.normed)))


def affine_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """|Ŵ| e: what errors of the input become in exact arithmetic."""
    if not errors[0].any():
        return np.zeros((*errors[0].shape[:-1], len(layer.tensor("weight"))))
    return weighed(layer.tensor("weight"), errors[0])


def _exact_numbers(at: LayerInputs) -> tuple[Enclosed, Enclosed]:
    """The exact weight and bias of the step, or of the two steps, that the layer executes."""
    last = at.step
    if isinstance(last, Affine):
        return plain(last)
    assert isinstance(last, BatchNorm)
    first = at.program.steps[last.input - 1]
    assert isinstance(first, Affine)
    return folded(first, last)


def _magnitudes(stored: Array, x: ValueBounds) -> tuple[Array, Array]:
    """At least |Ŵ||x̂|, and at least Σ|x̂| (…, 1)."""
    d = x.lo.shape[-1]
    if x.normed is not None:
        return norm.magnitudes(stored, x.normed), norm.magnitudes(np.ones((1, d)), x.normed)
    return weighed(stored, x.executed), times(np.sum(x.executed, axis=-1, keepdims=True), 1 + d * 2.0**-50)


def _gammas(stored: Array, a: Arithmetic) -> Array:
    """γ_{n+1} by row, n the weights that are not 0."""
    counts, row = np.unique(np.count_nonzero(stored, axis=1), return_inverse=True)
    return np.array([gamma(int(n) + 1, a.unit) for n in counts])[row]


def affine_interval(x: ValueBounds, weight: Enclosed, bias: Enclosed) -> tuple[Array, Array]:
    """W m + b ± (the radius of W(x - m) + what rounding loses), m the middle of the interval or the shift of the norm."""
    if x.normed is None:
        middle = x.lo / 2 + x.hi / 2
        half = np.maximum(above(x.hi - middle), above(middle - x.lo))
        radius = weighed(weight.number, half)
    else:
        middle, half = x.normed.shift, np.zeros(len(x.normed.shift))
        radius = norm.radius(weight.number, x.normed)
    centre = np.concatenate([middle @ weight.number[rows].T for rows in row_blocks(weight.number)], axis=-1)
    centre = centre + bias.number
    n = int(np.count_nonzero(middle.any(axis=tuple(range(middle.ndim - 1)))))
    if n:
        passing = total(weighed(weight.number, np.abs(middle)), np.abs(bias.number))
        radius = total(radius, times(gamma(n + 1, U), passing), n * 2.0**-1020)
    radius = total(radius, bias.radius) if bias.folded else radius
    if weight.folded:
        most = total(np.abs(middle), half) if x.normed is None else x.size
        radius = total(radius, product(np.asarray(weight.radius), most))
    return below(centre - radius), above(centre + radius)
