"""The bound of an affine layer: ŷ = Ŵ x̂ + b̂ against W x + b.

    |ŷ - y| <= |Ŵ|e + |Ŵ - W||x| + |b̂ - b| + γ_{k+1}(Σ|ŵ_i x̂_i| + |b̂|) + underflow     k: the weights of a row that are not 0

Underflow: an input loses τ, an operation 2τ, a subnormal weight its whole product. In front of a norm x = γ∘y + β + r with
‖y‖₂ <= (1 + ρ)√d, |mean y| <= ρ if it is centred, and |r| <= ρ(|β| + 2⁻¹⁰⁰); then Cauchy-Schwarz bounds w·x and Σ|w_i x_i|."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.arithmetic import Arithmetic
from attnc.check.batch_norm import scale_and_shift
from attnc.check.upward import EPS, Long, gamma, long, parts, product, up, weighed
from attnc.check.values import RHO, Form, Passing, Value, normed_length, normed_room, value
from attnc.domain import Normed
from attnc.program import Affine, BatchNorm

Matrix = NDArray[Any]


def bound(at: Passing) -> Value:
    (x,), a = at.inputs, at.arithmetic
    W, b, b_off = _exact(at)
    stored = at.layer.tensors["weight"]
    constant = long(at.layer.tensors.get("bias", np.zeros(len(stored))))
    if x.normed is None:
        middle, half = x.middle
        spread, through = weighed(W, half.T).T, weighed(stored, x.size.T).T
    else:
        middle = long(x.normed.shift)[None]
        spread, through = (found[None] for found in _normed(W, x.normed))
    centre = product(W, middle.T).T + b
    lost = _lost(W, np.abs(middle), b)
    radius = up(spread + lost + b_off + 8 * EPS * (np.abs(centre) + spread))
    through = up(through + np.abs(constant))
    moved = weighed(stored, x.error.T).T
    if x.normed is not None:  # executed and exact, both are outputs of the norm
        moved = np.minimum(moved, up(2 * _normed(stored, x.normed)[0]))
    error = up(moved + np.abs(constant - b) + b_off)
    if not np.array_equal(W, stored):
        error = up(error + weighed(long(stored) - W, x.magnitude.T).T)
    if isinstance(at.step, BatchNorm):  # W itself is off by 8 units
        error = up(error + 8 * EPS * weighed(W, x.magnitude.T).T)
    error = up(error + _rounded(stored, x, through, a))
    error = np.where(through + error < a.largest, error, np.longdouble(np.inf))
    form = None if x.form is None else _form(x.form, W, b, b_off)
    approximation = weighed(stored, x.approximation.T).T
    lo, hi, error = (
        np.broadcast_to(end, approximation.shape) for end in (centre - radius, centre + radius, error)
    )
    return value(lo, hi, error, approximation, form)


def _exact(at: Passing) -> tuple[Matrix, Long, Long]:
    """W and b of the program, where a normalisation is folded in within EPS·(|W| …); and how far b may be off."""
    step = at.step
    affine = step if isinstance(step, Affine) else at.program.steps[step.inputs[0] - 1]
    assert isinstance(affine, Affine)
    b = long(np.zeros(len(affine.weight)) if affine.bias is None else affine.bias)
    if step is affine:
        return affine.weight, b, np.zeros_like(b)
    assert isinstance(step, BatchNorm)
    scale, shift, off = scale_and_shift(step)
    W = long(affine.weight) * scale[:, None]
    return W, b * scale + shift, up(off + 16 * EPS * (np.abs(b * scale) + np.abs(shift)))


def _lost(W: Matrix, size: Long, b: Long) -> Long:
    """At least what W x + b loses for |x| <= size, computed with these floats, W itself off by 8 units."""
    n = W.shape[1]
    return up((weighed(W, size.T).T + np.abs(b)) * (2 * n + 16) * EPS, n)


def _rounded(W: Matrix, x: Value, through: Long, a: Arithmetic) -> Long:
    tau = np.longdouble(a.tiny)
    terms = long(np.count_nonzero(W, axis=1))
    flushed = np.concatenate([np.abs(long(W[part])).sum(1) for part in parts(W)]) + 4 * terms + 2
    small = (np.abs(W) < a.tiny) & (W != 0)
    flushed = flushed + (product(small, x.size.T).T if small.any() else 0)
    return up(gamma(terms + 1, a) * through + 2 * tau * flushed, W.shape[1])


def _form(x: Form, W: Matrix, b: Long, b_off: Long) -> Form:
    tokens, n, inputs = x.matrix.shape
    columns = np.moveaxis(x.matrix, 1, 0).reshape(n, tokens * inputs)
    matrix = np.moveaxis(product(W, columns).reshape(len(W), tokens, inputs), 0, 1)
    lost = _lost(W, up(x.swing + np.abs(x.centre)), b)
    return Form(matrix, product(W, x.centre.T).T + b, up(weighed(W, x.off.T).T + lost + b_off), x.half)


def _normed(W: Matrix, domain: Normed) -> tuple[Long, Long]:
    """By how much w·x may differ from w·β, and at least Σ|w_i x_i|, for the outputs x of a norm."""
    found = [_normed_rows(long(W[part]), domain) for part in parts(W)]
    return np.concatenate([spread for spread, _ in found]), np.concatenate([size for _, size in found])


def _normed_rows(w: Long, domain: Normed) -> tuple[Long, Long]:
    d, rho = w.shape[1], np.longdouble(RHO)
    length, room = normed_length(d), normed_room(domain)
    v = w * long(domain.gain)
    size = up(np.sqrt((v * v).sum(1)), d)
    beside = up(np.abs(w) @ room, d)
    sizes = up(length * size + np.abs(w) @ (np.abs(long(domain.shift)) + room), d)
    if not domain.centred:
        return up(length * size + beside), sizes
    mean = v.sum(1) / d
    off = up(size * (8 * d + 64) * EPS)  # of the differences' length, and of the mean's share
    around = up(np.sqrt(((v - mean[:, None]) ** 2).sum(1)) + off, d)
    share = up(rho * (np.abs(mean) * d + off * d))
    return up(length * around + share + beside), sizes
