"""Heads of two keys for completely monotone functions of a quadratic form u = |z|²/d + ε: 1/√u, 1/u and e^-u.

A token z that attends to itself with the score -λu and to a second key with the score -b and the value 0 reads σ(b - λu) times
its own value. Sums of such heads with scales λ_j = e^{jh} are powers u^-p, by Poisson's formula:

    u^p Σ_j c_j σ(b - λ_j u) = 1 + Σ_{k≠0} M(p + 2πik/h)/M(p) · u^{-2πik/h},     c_j = h λ_j^p/M(p)
    M(s) = ∫ σ(b - x) x^{s-1} dx = -Γ(s) Li_s(-e^b)

M(p + iy) decays like e^{-π|y|/2}. Where h and b make M(p + 2πi/h) vanish, the ripple is that of k = 2:

    p = 1/2    h = 0.6963, b = -0.2900         5.1e-13
               h = 2π/14.134725…, b = 0        6.3e-19, since M(s) = Γ(s)(1 - 2^{1-s})ζ(s) at b = 0: a zero of the zeta function
    p = 1      h = ln 2, b = 0                 0, since σ(-x) = 1/(e^x - 1) - 2/(e^{2x} - 1): the sum telescopes

All c_j are positive, so nothing cancels. Scales above some Λ/ε contribute less than e^-Λ. The scales below δ/U, of which there
are infinitely many, are replaced by the Gauss rule of their measure: m heads agree with them up to (δu/U)^{2m}.

e^-u is the limit p = ∞ of (1 + u/p)^-p, and written so. It takes one head: e^-b σ(b - u) = e^-u/(1 + e^{b-u}), with a relative
error of at most e^b."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from flint import acb, arb

from attnc.domain import Array
from attnc.errors import ConvergenceError

# h, b and the relative error of an infinite sum, by power, the fewest heads first
PATTERNS: dict[float, tuple[tuple[float, float, float], ...]] = {
    0.5: (
        (1.4, -3.0, 2.7e-3),
        (1.0, -3.0, 1.6e-4),
        (0.8, -1.0, 1.3e-5),
        (0.69631073019220428569, -0.29001707022608417249, 5.2e-13),
        (0.44452122302878244, 0.0, 6.3e-19),
    ),
    1.0: ((math.log(2), 0.0, 0.0),),
}
_TAILS = ((1, 0.3), (2, 0.5), (3, 0.3), (4, 0.3), (5, 0.3), (6, 0.3))  # heads m and the edge δ
_GRID = 48  # points of an octave at which candidates are compared


class TwoKeyHeads(NamedTuple):
    """Σ_j value_j σ(bias - scale_j u) ≈ u^-power; `error` is the largest relative error at samples."""

    bias: float
    scale: Array
    value: Array
    error: float


def power_heads(lo: float, hi: float, target: float, power: float = 0.5) -> TwoKeyHeads:
    """The fewest heads of the patterns whose relative error is at most `target` for lo <= u <= hi.

    >>> heads = power_heads(1e-12, 1e4, 1e-6)
    >>> len(heads.scale), heads.error < 1e-6
    (62, True)
    >>> len(power_heads(1e-12, 1e4, 1e-12).scale), len(power_heads(1e-12, 1e4, 1e-12, power=1.0).scale)
    (64, 65)
    """
    if power == math.inf:
        bias = math.log(target / 2)
        return TwoKeyHeads(bias, np.ones(1), np.array([math.exp(-bias)]), target / 2)
    for step, bias, ripple in PATTERNS[power]:
        if ripple <= target:
            for first, last, m in _sizes(lo, hi, step, math.log(1 / target)):
                scale, value = _heads(power, step, bias, first, last, m)
                error = _relative_error(power, lo, hi, bias, scale, value)
                if error <= target:
                    return TwoKeyHeads(bias, scale, value, error)
    raise ConvergenceError(
        f"no pattern of heads comes within a relative {target:g} of u^-{power:g} on [{lo:g}, {hi:g}]"
    )


def _sizes(lo: float, hi: float, step: float, reach: float) -> list[tuple[int, int, int]]:
    """The first and the last j, and the number of heads that stand for all j < first; the fewest heads first."""
    firsts = [(math.floor(math.log(edge / hi) / step), m) for m, edge in _TAILS]
    lasts = [math.ceil(math.log(max(reach + extra, 1.0) / lo) / step) for extra in (-2.0, 0.0, 3.0)]
    sizes = [(first, last, m) for first, m in firsts for last in lasts]
    return sorted(sizes, key=lambda size: (size[1] - size[0] + size[2], size[2], size[0], size[1]))


def _heads(power: float, step: float, bias: float, first: int, last: int, m: int) -> tuple[Array, Array]:
    """λ_j and c_j for first <= j <= last, after the m heads of the Gauss rule that stand for all j < first."""
    unit = step / mellin(power, bias)
    rule, share = _gauss_rule(power, step, m)
    j = np.arange(first, last + 1)
    edge = math.exp(step * first)
    scale = np.concatenate([edge * rule, np.exp(step * j)])
    value = np.concatenate([edge**power * share, np.exp(power * step * j)])
    return scale, unit * value


def mellin(power: float, bias: float) -> float:
    """M(p) = ∫ σ(b - x) x^{p-1} dx = -Γ(p) Li_p(-e^b)."""
    return float((-acb(-arb(bias).exp()).polylog(acb(power)) * acb(power).gamma()).real)


def _gauss_rule(power: float, step: float, m: int) -> tuple[Array, Array]:
    """Nodes and weights of the m-point Gauss rule of Σ_{j<0} e^{pjh} δ(x - e^{jh}), by Lanczos."""
    j = np.arange(-1, -math.ceil(80 / (power * step)), -1)
    x, w = np.exp(step * j), np.exp(power * step * j)
    q, before, beta = np.sqrt(w / w.sum()), np.zeros_like(x), 0.0
    matrix = np.zeros((m, m))
    for k in range(m):
        v = x * q - beta * before
        matrix[k, k] = v @ q
        v -= matrix[k, k] * q
        beta = float(np.sqrt(v @ v))
        if k + 1 < m:
            matrix[k, k + 1] = matrix[k + 1, k] = beta
            before, q = q, v / beta
    nodes, vectors = np.linalg.eigh(matrix)
    return nodes, w.sum() * vectors[0] ** 2


def _relative_error(power: float, lo: float, hi: float, bias: float, scale: Array, value: Array) -> float:
    """The largest |u^p Σ c_j σ(b - λ_j u) - 1| at samples, in float64."""
    count = max(2, math.ceil(_GRID * math.log2(hi / lo)))
    u = np.exp(np.linspace(math.log(lo), math.log(hi), count))
    with np.errstate(over="ignore"):
        sigma = 1 / (1 + np.exp(np.multiply.outer(u, scale) - bias))
    return float(np.abs(u**power * (sigma @ value) - 1).max())
