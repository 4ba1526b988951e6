"""The error of attention between tokens, y = Σ_j W_j v_j with W = softmax of the scores S_j = s q·k_j + b_j, row by row.

Executed: ẑ_j = fl(fl(ŝ fl(q̂·k̂_j)) + b̂_j), weights fl(e_j/Σe) with e_j = exp(fl(ẑ_j - max ẑ))(1 + ε) + 4τ, and fl(Σ ŵ_j v̂_j).

    η_j = |ŝ|(Σ e_q|k̂_j| + |q|e_k) + |ŝ - s||q|·|k_j| + |b̂_j - b_j| + γ_{d+3}(|ŝ||q̂|·|k̂_j| + |b̂_j|) + underflow     >= |ẑ_j - S_j|
    Θ = max_j η_j + uT + 2τ + E/(1 - E),    T = min(largest |ẑ_i - ẑ_j|, ln 1/τ + 2 + 2 max η)

Up to a common factor, e_j is e^{S_j + θ_j} with |θ_j| <= Θ, plus at most 8τ: keys that are T below the largest score have less
than τ. Let W' be the weights of S + θ. Then for values within [a, b]

    |Σ W'_j v_j - Σ W_j v_j| <= (b - a) tanh(Θ/2) <= (b - a) min(1, Θ/2)

The sum is largest if θ_j = Θ for the values above it and -Θ for the others. Within these two groups the proportions of the
weights are unchanged; the mass p of the first becomes p' with logit p' = logit p + 2Θ, and σ(t + 2Θ) - σ(t) is largest at t = -Θ.
Each term ŵ_j v̂_j passes at most 2m + 4 roundings (a sum of m terms, a division of three, a product and a sum):

    e' = max_j e_v + (b - a) min(1, Θ/2) + γ_{2m+4} max|v̂| + 64mτ(1 + max|v̂|)

The sums over e_j differ from those without 8τ by a relative 16mτ, since the largest e_j is at least 1/2."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.program import Attend
from attnc.prove.bounds import Errors, Known, LayerInputs, ValueBounds, narrowed
from attnc.prove.outward import above, gamma, grown, times, total
from attnc.records.layers import Layer


def attend_bounds(at: LayerInputs) -> ValueBounds:
    """The bounds of softmax(scale·q kᵀ + bias) v."""
    (q, k, v), layer, step, a = at.values, at.layer, at.step, at.arithmetic
    assert isinstance(step, Attend)
    scores, passing, raw = _score_errors(layer, step, q, k, a)
    worst, far = float(np.max(scores)), times(2.01, np.max(passing))
    distance = np.minimum(far, -np.log(max(a.tiny, 2.0**-1074)) + 2 + 2 * worst)
    exponent = a.exp_units * a.unit
    off = total(scores, times(a.unit, distance), 2 * a.tiny, exponent / (1 - exponent))
    keys, largest = len(v.lo), _joined(_split(layer, v.executed, 1).max(1, keepdims=True))
    rounding = total(
        times(gamma(2 * keys + 4, a.unit), largest), times(64 * keys * a.tiny, total(1.0, largest))
    )
    error = total(_mixed(layer, v, off, v.error), rounding)
    most = np.maximum(np.max(raw), np.max(total(passing, scores)))  # q·k is scaled after it was summed
    safe = float(most) < a.largest and float(np.max(largest)) < a.largest / 4
    known = dict(zip(layer.inputs, at.values, strict=True))
    approximation = attend_carried(layer, [x.approximation for x in at.values], known)
    lo, hi = _range(layer, v, len(q.lo))
    return narrowed(ValueBounds(lo, hi, approximation, error if safe else np.full(error.shape, np.inf)))


def attend_carried(layer: Layer, errors: Errors, known: Known) -> Array:
    """What errors of the inputs become in exact arithmetic: max e_v + (b - a) min(1, max|ŝ|(e_q(|k| + e_k) + |q|e_k)/2)."""
    q, k, v = (known[i] for i in layer.inputs)
    if not any(error.any() for error in errors):
        return np.zeros((len(q.lo), q.lo.shape[1] // k.lo.shape[1] * v.lo.shape[1]))
    e_q, e_k = _split(layer, errors[0], 0), _split(layer, errors[1], 1)
    size_q, size_k = _split(layer, q.size, 0), _split(layer, k.size, 1)
    moved = total(_products(e_q, total(size_k, e_k)), _products(size_q, e_k))
    return _mixed(layer, v, times(abs(layer.settings["split"][2]), moved), errors[2])


def _score_errors(
    layer: Layer, step: Attend, q: ValueBounds, k: ValueBounds, a: Arithmetic
) -> tuple[Array, Array, Array]:
    """η, |ŝ||q̂|·|k̂| + |b̂| and |q̂|·|k̂|, each (heads, n, m)."""
    scale, d = layer.settings["split"][2], q.lo.shape[1] // layer.settings["split"][0]
    (e_q, run_q, size_q), (e_k, run_k, size_k) = (
        [_split(layer, part, i) for part in (x.error, x.executed, x.size)] for i, x in enumerate((q, k))
    )
    moved = total(_products(e_q, run_k), _products(size_q, e_k))
    stored = layer.tensors.get("bias", np.zeros((1, 1, 1))).astype(np.float64)
    bias = np.zeros((1, 1, 1)) if step.bias is None else step.bias.astype(np.float64)
    raw = _products(run_q, run_k)
    passing = total(times(abs(scale), raw), np.abs(stored))
    flushed = total(
        run_q.sum(-1)[..., None] * (1 + d * 2.0**-50), run_k.sum(-1)[:, None] * (1 + d * 2.0**-50), 4.0 * d
    )
    gap = 0.0 if scale == step.scale else float(above(np.float64(abs(scale - step.scale))))
    return (
        total(
            times(abs(scale), moved),
            times(gap, _products(size_q, size_k)),
            0.0 if np.array_equal(stored, bias) else above(np.abs(stored - bias)),
            times(gamma(d + 3, a.unit), passing),
            times(abs(scale), raw) if abs(scale) < a.tiny else 0.0,  # a subnormal factor may be taken for 0
            times(2 * a.tiny, total(times(abs(scale), flushed), passing, abs(scale), 4.0)),
        ),
        passing,
        raw,
    )


def _mixed(layer: Layer, v: ValueBounds, off: Array, errors: Array) -> Array:
    """max_j e_v + (b - a) min(1, Θ/2) over the keys that each query sees; `off` is Θ, (heads, n, m) or broadcast to it."""
    values, shift = _split(layer, errors, 1), np.asarray(off)
    lo, hi = (_split(layer, end, 1) for end in (v.lo, v.hi))
    rows = []
    for i, seen in enumerate(_seen(layer, shift.shape[1])):
        theta = shift[:, i, seen].max(-1)[:, None]
        spread = above(hi[:, seen].max(1) - lo[:, seen].min(1))
        rows.append(total(values[:, seen].max(1), times(spread, np.minimum(1.0, theta / 2))))
    return _joined(np.stack(rows, 1))


def _range(layer: Layer, v: ValueBounds, queries: int) -> tuple[Array, Array]:
    """The least and the largest value that each query sees."""
    lo, hi = (_split(layer, end, 1) for end in (v.lo, v.hi))
    seen = _seen(layer, queries)
    ends = np.stack([lo[:, s].min(1) for s in seen], 1), np.stack([hi[:, s].max(1) for s in seen], 1)
    return _joined(ends[0]), _joined(ends[1])


def _seen(layer: Layer, queries: int) -> list[NDArray[np.intp] | slice]:
    """The keys that each query sees."""
    mask = layer.tensors.get("mask")
    return [slice(None)] * queries if mask is None else [np.flatnonzero(row) for row in mask]


def _split(layer: Layer, x: Array, role: int) -> Array:
    """(heads, tokens, features) of queries (role 0), of keys or values (role 1)."""
    heads, slices, _ = layer.settings["split"]
    count = slices if role else heads
    parts = np.moveaxis(x.reshape(len(x), count, -1), 1, 0)
    return np.repeat(parts, heads // count, 0)


def _joined(x: Array) -> Array:
    """(tokens, heads·features) of (heads, tokens, features)."""
    return np.moveaxis(x, 0, 1).reshape(x.shape[1], -1)


def _products(x: Array, y: Array) -> Array:
    """At least x yᵀ for arrays that are not negative."""
    return grown(x @ np.swapaxes(y, -1, -2), x.shape[-1] + 1)
