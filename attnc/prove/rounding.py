"""A bound of |executed head - exact head| from the assumptions of `arithmetic`.

Exact scores Z_k, reference key r, q_k = exp(Z_k - Z_r), D = Σ q_k >= 1, W_k = q_k/D, g = Σ W_k v_k. Executed:

    x = fl(a s + o),  z_k = fl(fl(κ_k x) + c_k)            |z_k - Z_k| <= η_k
    e_k = exp(fl(z_k - max z))(1 + ε) + 4τ                 = const · (q_k (1 + θ'_k) + τ'),  |θ'_k| <= θ_k
    ŷ = Σ e_k v_k / Σ e_k                                  |ŷ - g| <= Σ (W_k θ_k + τ')|v_k - g| / (1 - Σ (W_k θ_k + τ'))

with θ_k = exp(η_k + u|z_k - max z|)(1 + E) - 1, since Σ W_k (v_k - g) = 0. Two sums of p terms, the division and the
products then cost a factor (1 + u)^(p + 3)/(1 - pu) - 1 on Σ W|v|; p + 5 where a token attends to itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flint import arb

from attnc.arithmetic import Arithmetic


@dataclass(frozen=True)
class Keys:
    """The keys of one head with non-negligible weights on a cell, as balls over the cell."""

    slope: Sequence[arb]  # κ_k
    intercept: Sequence[arb]  # c_k
    score: Sequence[arb]  # Z_k
    lead: Sequence[arb]  # Z_k - Z_r
    weight: Sequence[arb]  # W_k
    own: Sequence[arb]  # value[k,0]: the coefficient of the token's own s
    constant: Sequence[arb]  # value[k,1]
    anchors: int  # of the head, near and far
    far: int  # further keys, with values up to `far_value`, of each of which Z_k - Z_r + 2η_k <= -distance
    far_value: arb
    distance: int


def query_error(a: Arithmetic, s: arb, gain: arb, offset: arb) -> arb:
    """|x - X| for x = fl(gain·s + offset): multiplying by 1 and adding 0 round nothing except what underflows."""
    u, tau = arb(a.unit), arb(a.tiny)
    product = arb(0) if gain == 1 else u * abs(gain * s)
    total = abs(gain * s + offset)
    added = arb(0) if offset == 0 else u * (total + product + tau)
    return (product + added + 8 * (1 + abs(gain)) * tau).upper()


def score_error(a: Arithmetic, slope: arb, intercept: arb, x: arb, x_error: arb, score: arb) -> arb:
    """η = |z - Z| for z = fl(fl(κ x) + c) with |x - X| <= x_error: multiplying by a power of two or 0 and adding 0 round nothing
    except what underflows."""
    u, tau = arb(a.unit), arb(a.tiny)
    entering = abs(slope) * x_error
    multiplied = arb(0) if _scales(slope) else u * (abs(slope * x) + entering)
    product = entering + multiplied + 4 * tau
    added = arb(0) if intercept == 0 else u * (abs(score) + product)
    return (product + added + 4 * tau).upper()


def _scales(slope: arb) -> bool:
    return slope.is_exact() and abs(math.frexp(float(slope))[0]) in (0.0, 0.5)


def head_rounding(a: Arithmetic, keys: Keys, s: arb, x: arb, x_error: arb, output: arb) -> arb:
    """A bound of |executed - exact| for one head on a cell, before the output projection.

    The executed exponential of a far key is at most exp(-distance (1 - u) + u·top)(1 + E)."""
    u, tau, one, far, far_value = arb(a.unit), arb(a.tiny), arb(1), keys.far, keys.far_value
    near_zero = -arb(keys.distance)
    stored = zip(keys.slope, keys.intercept, keys.score, strict=True)
    eta = [score_error(a, k, c, x, x_error, z) for k, c, z in stored]
    top = arb(0)
    for lead, e in zip(keys.lead, eta, strict=True):
        top = top.max(e.upper()).max((lead + e).upper())
    tau_scaled = 4 * tau * top.exp()
    theta = [
        (e + u * (abs(lead) + e + top) + 4 * tau).exp() * (one + a.exp_units * u) - one
        for lead, e in zip(keys.lead, eta, strict=True)
    ]
    off = [w * t + tau_scaled for w, t in zip(keys.weight, theta, strict=True)]
    far_off = far * ((near_zero * (one - 2 * u) + u * top).exp() * (one + a.exp_units * u) + tau_scaled)
    remaining = one - sum(off, arb(0)) - far_off
    if not (remaining > 0 and keys.anchors * u < one):
        return arb("inf")
    values = [o * s + c for o, c in zip(keys.own, keys.constant, strict=True)]
    sizes = [abs(o * s) + abs(c) for o, c in zip(keys.own, keys.constant, strict=True)]
    moved = sum((d * abs(v - output) for d, v in zip(off, values, strict=True)), arb(0))
    moved += far_off * (far_value + abs(output))
    mass = sum(((w + d) * size for w, d, size in zip(keys.weight, off, sizes, strict=True)), arb(0))
    mass += (far_off + far * near_zero.exp()) * far_value
    all_sizes = sum((size + abs(o) for size, o in zip(sizes, keys.own, strict=True)), far * far_value)
    gated = any(o != 0 for o in keys.own)
    roundings = keys.anchors + a.division_units + (2 if gated else 0)
    factor = (one + u) ** roundings / (one - keys.anchors * u) - one
    return (moved / remaining + factor * mass / remaining + 5 * tau * (all_sizes + keys.anchors + 1)).upper()


def projection_rounding(
    a: Arithmetic, outputs: Sequence[arb], errors: Sequence[arb], weights: Sequence[arb]
) -> arb:
    """|Σ_h fl(o_h y_h) - Σ_h o_h g_h| where each y_h is within errors[h] of g_h = outputs[h]."""
    u, tau = arb(a.unit), arb(a.tiny)
    grown = (1 + u) ** len(outputs)
    carried = sum((abs(w) * e for w, e in zip(weights, errors, strict=True)), arb(0))
    size = sum((abs(w * y) for w, y in zip(weights, outputs, strict=True)), arb(0))
    flushed = sum((1 + abs(w) for w in weights), arb(0))
    if len(outputs) == 1 and weights[0] == 1:
        return carried.upper()
    return (grown * carried + (grown - 1) * size + 8 * tau * flushed).upper()
