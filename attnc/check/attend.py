"""The bound of attention between tokens: ŷ = Σ ŵ_j v̂_j against Σ w_j v_j, w = softmax(S), S_j = s q·k_j + b_j.

The executed scores differ from S_j by at most η_j: e_q and e_k through the products, the stored s and b, and at most d + 3
roundings. With the rounding of their distance from the largest, which matters up to the distance T where exp underflows, and
the error E of exp, the logarithm of a weight moves by at most Θ beside a common constant, so the odds of any set of keys by a
factor of at most e^{2Θ}. The mass of a set then changes by at most tanh(Θ/2), and Σ w_j v_j, an average over level sets of
v - min v of their masses, by the spread of v times that:

    |ŷ - y| <= max e_v + spread·tanh(Θ/2) + ((1 - u)^-(2m + 4) - 1) max|v̂| + underflow"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.check.values import EPS, Long, Passing, Value, gamma, long, up
from attnc.program import Attend


def bound(at: Passing) -> Value:
    (q, k, v), step, a = at.inputs, at.step, at.arithmetic
    assert isinstance(step, Attend)
    scale, u, tau = np.longdouble(at.layer.settings["split"][2]), np.longdouble(a.unit), np.longdouble(a.tiny)
    bias = long(at.layer.tensors.get("bias", np.zeros((1, 1, 1))))
    meant = long(np.zeros((1, 1, 1)) if step.bias is None else step.bias)
    d, keys = q.lo.shape[1] // step.heads, len(v.lo)
    queries = [_heads(part, step, False) for part in (q.error, q.size, q.magnitude, q.approximation)]
    others = [_heads(part, step, True) for part in (k.error, k.size, k.magnitude, k.approximation)]
    (e_q, size_q, exact_q, own_q), (e_k, size_k, exact_k, own_k) = queries, others
    raw = _dot(size_q, size_k)
    size = up(abs(scale) * raw + np.abs(bias))
    small = (
        2 * tau * (abs(scale) * (size_q.sum(-1)[..., None] + size_k.sum(-1)[:, None] + 4 * d + 1) + size + 4)
    )
    carried = abs(scale) * (_dot(e_q, size_k) + _dot(exact_q, e_k))
    stored = abs(scale - np.longdouble(step.scale)) * _dot(exact_q, exact_k) + np.abs(bias - meant)
    none = abs(scale) * raw if abs(scale) < tau else 0  # a subnormal factor may be taken for 0
    eta = up(carried + stored + gamma(d + 3, a) * size + small + none)
    eta = np.broadcast_to(eta, (step.heads, len(q.lo), keys))
    exp = np.longdouble(a.exp_units) * u
    depth = np.minimum(2.01 * size.max(), 3 - np.log(max(tau, np.longdouble(2.0**-1074))) + 2 * eta.max())
    theta = up(eta + u * depth + 2 * tau + exp / (1 - exp))
    exact = up(abs(scale) * (_dot(own_q, up(exact_k + own_k)) + _dot(exact_q, own_k)))
    largest = _flat(_heads(v.size, step, True).max(1, keepdims=True))
    rounding = gamma(2 * keys + 4, a) * largest + 64 * keys * tau * (1 + largest)
    error = up(_average(step, v, theta, v.error) + rounding)
    fits = (up(size + eta) < a.largest) & (up(raw) < a.largest)  # q·k is scaled after it was summed
    if not fits.all() or not (largest < a.largest / 4).all():
        error = np.full_like(error, np.inf)
    lo, hi = (_heads(end, step, True) for end in (v.lo, v.hi))
    rows = _visible(step, len(q.lo))
    low, high = np.stack([lo[:, r].min(1) for r in rows], 1), np.stack([hi[:, r].max(1) for r in rows], 1)
    own = _average(step, v, exact, v.approximation)
    exact_inputs = not any(x.approximation.any() for x in at.inputs)
    return Value.of(_flat(low), _flat(high), error, np.zeros_like(own) if exact_inputs else own)


def _average(step: Attend, v: Value, theta: Long, off: Long) -> Long:
    """max off + spread·tanh(Θ/2) over the keys of every query."""
    lo, hi, moved = (_heads(part, step, True) for part in (v.lo, v.hi, off))
    found = []
    for i, seen in enumerate(_visible(step, theta.shape[1])):
        share = np.minimum(1, up(np.tanh(theta[:, i, seen].max(-1) / 2)))[:, None]
        top, bottom = hi[:, seen].max(1), lo[:, seen].min(1)
        spread = up(top - bottom + 4 * EPS * (np.abs(top) + np.abs(bottom)))
        found.append(moved[:, seen].max(1) + np.where(share == 0, 0, spread * share))
    return up(_flat(np.stack(found, 1)))


def _visible(step: Attend, queries: int) -> list[NDArray[np.intp]]:
    """The keys that the mask leaves to each query."""
    if step.mask is None:
        keys: Any = slice(None)
        return [keys] * queries
    return [np.flatnonzero(row) for row in step.mask]


def _heads(x: Long, step: Attend, shared: bool) -> Long:
    """(heads, tokens, features); `shared`: of keys and values, which several heads may share."""
    count = step.slices if shared else step.heads
    return long(np.stack([part for part in np.split(x, count, 1) for _ in range(step.heads // count)]))


def _flat(x: Long) -> Long:
    return long(np.concatenate(list(x), 1))


def _dot(x: Long, y: Long) -> Long:
    """At least x yᵀ of numbers that are not negative."""
    return up(np.einsum("hid,hjd->hij", x, y), x.shape[-1])
