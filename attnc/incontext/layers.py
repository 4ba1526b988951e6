"""Layer A: every example reads w·x from the weight token. Layer C: the weight token gathers the mean of r_i x_i.

**A.** Its score with the weight token is e·w·x, with the BOS token 0; values ±2/e give a(e) = (2/e) tanh(e s/2) = s - e²s³/12
+ …, s = w·x. Heads with e, 2e, …, Ke cancel the next terms (Richardson extrapolation):

    Σ_h c_h a(he) = s ± O(e^2K s^(2K+1)),     c_h = Π_{j≠h} j²/(j² - h²),     for K = 2: (4 a(e) - a(2e))/3 = s - e⁴s⁵/30 + …

A larger K allows a larger e, and rounding is u/e. As a function of s this is K heads with two keys; it is proved to be close to
the identity on [-S, S] like any other head. The values are ±2/e, powers of two, and c_h/h stands in the output: products with
the values and their difference are exact.

**C.** Each example stands twice in the context, as (τx, τr) with τ = ±1. With scores e·τr and values τx softmax gives

    h(e) = Σ_i x_i sinh(e r_i) / (e Σ_i cosh(e r_i)) = (1/n) Σ r_i x_i + h_1 e² + h_2 e⁴ + …,

divided by e; the twins make both means vanish. Two heads, e and 2e, cancel the e² term: c = (4 h(e) - h(2e))/3.

Theorem. Let |r_i| <= R, |x_ij| <= X, ρ = eR, cosh 2ρ < 2. Then

    |c_j - (1/n) Σ r_i x_ij| <= (X R/3) (M(2ρ) - 1 - (2/3)(2ρ)²),     M(z) = (sinh z / z)/(2 - cosh z) = 1 + (2/3) z² + …

Proof. In r = Rt, x = Xξ, the series of h(e)/(XR) in ρ² is that of Σξ(t + ρ²t³/6 + …)/Σ(1 + ρ²t²/2 + …) with |ξ|, |t| <= 1; its
coefficients are at most those of M(ρ), for those of 1/D are at most those of 1/(1 - (cosh ρ - 1)). The combination multiplies the
k-th by (4 - 4^k)/3: 1 for k = 0, 0 for k = 1, and at most 4^k/3 in size from then on. ∎"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Interval
from attnc.errors import PrecisionError
from attnc.functions import identity
from attnc.functions.balls import upper, working
from attnc.heads.plan import HeadCandidate
from attnc.heads.target import Plan
from attnc.lower.function_to_head import finished_head
from attnc.network.head import Head
from attnc.network.running import constant
from attnc.prove.supnorm import SupNorm, supnorm
from attnc.records.numbers import HeadNumbers

_MOST_HEADS = 6  # of layer A


def reading_head(reach: float, dtype: str) -> Head:
    """The head of layer A for |w·x| <= reach: one more head as long as it lowers the proved error by a third."""
    plan = Plan(identity(), Interval(-reach, reach), dtype, "reading", 2)
    numbers, proof = _best_reading(plan, 2)
    for heads in range(3, _MOST_HEADS + 1):
        more, better = _best_reading(plan, heads)
        if not 1.5 * better.bound <= proof.bound:
            break
        numbers, proof = more, better
    if not math.isfinite(proof.bound):
        raise PrecisionError(
            f"no head can read w·x up to {reach:g} with a proof in {dtype}: use a smaller radius"
        )
    found = HeadCandidate("reading", numbers, proof, proof.attained, proof.at, proof.rounding)
    return finished_head(replace(plan, heads=numbers.heads), found, math.inf)


def _best_reading(plan: Plan, heads: int) -> tuple[HeadNumbers, SupNorm]:
    """The e that leaves the smallest proved error: a power of two, so that e·s is exact, around the one at which the first term
    that is not cancelled, about S(eS (K!)^(1/K)/π)^2K, is the rounding 16u/e."""
    balanced = (16 * ARITHMETIC[plan.dtype].unit) ** (1 / (2 * heads + 1))
    scale = math.pi / math.factorial(heads) ** (1 / heads) / plan.domain.hi
    start = round(math.log2(balanced * scale))
    tried = [_reading_numbers(2.0**k, heads, plan.dtype) for k in range(start - 2, start + 3)]
    proofs = [(n, supnorm(n, plan.f, plan.domain, quality=1.3)) for n in tried]
    return min(proofs, key=lambda pair: pair[1].bound)


def _reading_numbers(e: float, heads: int, dtype: str) -> HeadNumbers:
    """Heads e, 2e, …, keys for the weight token and for BOS, values ±2/e, outputs c_h/h."""
    factors = range(1, heads + 1)
    query = np.array([[h * e, 0.0] for h in factors])
    key, value = np.array([[[1.0, 0.0], [0.0, 0.0]]] * heads), np.zeros((heads, 2, 2))
    value[:, :, 1] = (2 / e, -2 / e)
    shares = [math.prod(Fraction(j * j, j * j - h * h) for j in factors if j != h) / h for h in factors]
    output = np.array([float(share) for share in shares]).astype(dtype).astype(np.float64)
    return HeadNumbers(query, key, value, output, dtype)


def gathered(r: Tensor, x: Tensor, e: float) -> tuple[Tensor, Tensor]:
    """e·h(e) and 2e·h(2e), each (…, d), for r (n, …): softmax over the 2n twins, scores ±e r_i, values ±x_i.

    The two terms of a pair of twins are added first, (p⁺ - p⁻)x: they nearly cancel, and nothing is lost by it."""
    twins, n = torch.cat([r, -r]), r.shape[0]
    weights = [torch.softmax(constant(factor * e, twins) * twins, 0) for factor in (1, 2)]
    one, two = ((p[:n] - p[n:]).movedim(0, -1) @ x for p in weights)
    return one, two


@dataclass(frozen=True)
class GatherError:
    """|c_j - (1/n) Σ r_i x_ij|: what exact arithmetic would leave, and what rounding adds to e·h(e) and 2e·h(2e)."""

    approximation: float
    one: float
    two: float
    size_one: float  # |e·h(e)| as executed is at most this
    size_two: float


def gather_error(e: float, n: int, largest_r: float, largest_x: float, a: Arithmetic) -> GatherError:
    """The theorem's bound, and the rounding of softmax over 2n keys and of the sums, in any order."""
    with working(96):
        x, size = arb(largest_x), arb(largest_r)
        rho = arb(e) * size
        z = 2 * rho
        approximation = arb("inf")
        if rho == 0:
            approximation = arb(0)
        elif z.cosh() < arb(2):
            tail = z.sinh() / z / (2 - z.cosh()) - 1 - 2 * z**2 / 3
            approximation = x * size / 3 * tail
        found = [_rounded(factor * rho, n, x, a) for factor in (1, 2)]
        return GatherError(upper(approximation), *(upper(f[0]) for f in found), *(upper(f[1]) for f in found))


def _rounded(rho: arb, n: int, x: arb, a: Arithmetic) -> tuple[arb, arb]:
    """The error and the size of the executed Σ (p⁺_i - p⁻_i) x_i, for |score| <= ρ and |x_i| <= x.

    The executed weight is p(1 + θ)(1 + φ)/((1 + m)(1 + σ)): θ from exp and from the rounding of z - max z, m = Σpθ, φ from the
    division, σ from the sum in the denominator, which all weights share. As Σp(θ - m)v = Σpθ(v - Σpv), and Σp|v - Σpv| <= x for
    |v| <= x, θ moves the result by at most xθ/(1 - θ), and φ by at most xφ(1 + θ)/(1 - θ). The terms of the sum have the sizes
    |p⁺ - p⁻|x, exactly Σ|sinh|/Σcosh·x <= tanh ρ·x in all."""
    u, tau = arb(a.unit), arb(a.tiny)
    if not 2 * n * u < arb(0.25):
        return arb("inf"), arb("inf")
    theta = (2 * rho * u + 4 * tau).exp() * (1 + a.exp_units * u) - 1 + tau
    own = (theta + ((1 + u) ** a.division_units - 1) * (1 + theta)) / (1 - theta)
    shared = 2 * n * u / (1 - 2 * n * u)
    shared = shared / (1 - shared)
    summed = (n + 2) * u / (1 - (n + 2) * u)
    exact = x * rho.tanh()
    lost = x * own * (1 + shared)
    off = lost + shared * exact + summed * (exact * (1 + shared) + lost) + 16 * n * tau * (x + 1)
    return off, exact + off
