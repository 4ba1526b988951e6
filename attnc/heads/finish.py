"""From a draft to stored numbers: choose the centre of the query and the origin of the slopes, round, refit.

Scores are determined up to a common affine function of x. The choice makes no difference in exact arithmetic and a large one
in floating point: slopes should be small where the values vary, and may be large elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.heads import patience
from attnc.heads.chain import softmax_weights
from attnc.heads.draft import Draft, solve_values
from attnc.heads.target import Target
from attnc.records.numbers import Array, HeadNumbers


@dataclass(frozen=True)
class Finished:
    """Numbers with estimates of their errors from sampling: they guide the search and prove nothing."""

    design: str
    numbers: HeadNumbers
    approximation: float
    rounding: float

    @property
    def estimate(self) -> float:
        return self.approximation + self.rounding


def finish(draft: Draft, target: Target) -> Finished:
    """Round to the target's dtype."""
    placed = [_place(draft.keys[h], draft.values[h], draft.own[h], target) for h in range(len(draft.keys))]
    query = np.stack([q for q, _ in placed])
    key = np.stack([k for _, k in placed])
    values = draft.values
    if draft.refit and target.dtype == "float32":
        values = _solve_again(query, key, draft, target).reshape(values.shape)
    rounded = to_dtype(values, target.dtype)
    value = np.stack([np.where(draft.own, rounded, 0.0), np.where(draft.own, 0.0, rounded)], axis=-1)
    numbers = HeadNumbers(query, key, value, np.ones(len(key)), target.dtype)
    approximation, rounding = estimate(numbers, target)
    return Finished(draft.design, numbers, approximation, rounding)


def forward(numbers: HeadNumbers, s: Array) -> Array:
    """The head in float64."""
    total = np.zeros_like(s)
    for query, key, value, out in zip(numbers.query, numbers.key, numbers.value, numbers.output, strict=True):
        weights = softmax_weights(key, query[0] * s + query[1])
        total += out * (weights * (value[:, 0] * s[:, None] + value[:, 1])).sum(axis=1)
    return total


def estimate(numbers: HeadNumbers, target: Target) -> tuple[float, float]:
    """The largest error at the sample points, and the rounding bound there (see `prove.rounding`), in float64."""
    s = target.to_s(target.x)
    approximation = np.abs(forward(numbers, s) - target.y)
    rounding = np.zeros_like(s)
    for query, key, value in zip(numbers.query, numbers.key, numbers.value, strict=True):
        rounding += head_rounding_estimate(query, key, value, s, target.arithmetic)
    return float(approximation.max()), float(rounding.max())


def head_rounding_estimate(query: Array, key: Array, value: Array, s: Array, a: Arithmetic) -> Array:
    with np.errstate(all="ignore"):
        x = query[0] * s + query[1]
        weights = softmax_weights(key, x)
        score = x[:, None] * key[:, 0] + key[:, 1]
        lead = score - score.max(axis=1, keepdims=True)
        v = value[:, 0] * s[:, None] + value[:, 1]
        g = (weights * v).sum(axis=1, keepdims=True)
        turns = 2.0 if query[1] != 0 else 1.0
        theta = turns * np.abs(key[:, 0] * x[:, None]) + np.abs(score) + np.abs(lead) + a.exp_units
        off = weights * np.expm1(np.minimum(a.unit * theta, 600.0))
        remaining = 1 - off.sum(axis=1)
        moved = np.where(remaining > 0, (off * np.abs(v - g)).sum(axis=1) / remaining, np.inf)
        result = moved + a.unit * (2 * len(key) + 3) * (weights * np.abs(v)).sum(axis=1)
    return np.where(np.isfinite(result), result, np.inf)


def _place(keys: Array, values: Array, own: Array, target: Target) -> tuple[Array, Array]:
    """The query (1, -centre) and the rounded keys, for the centre and the origin of slopes with the least rounding."""
    s = target.to_s(target.x[:: max(1, len(target.x) // 160)])
    value = np.stack([np.where(own, values, 0.0), np.where(own, 0.0, values)], axis=-1)
    best: tuple[float, Array, Array] | None = None
    for centre in _centres(keys, target):
        patience.check()
        for origin in _origins(keys):
            query, key = _shifted(keys, centre, origin, target)
            cost = float(head_rounding_estimate(query, key, value, s, target.arithmetic).max())
            if best is None or cost < 0.98 * best[0]:
                best = (cost, query, key)
    assert best is not None
    return best[1], best[2]


def _centres(keys: Array, target: Target) -> list[float]:
    """0, the middle of the interval, each kink, and the middle of the keys' own range."""
    middle, half = target.domain.middle, target.half
    with np.errstate(all="ignore"):
        ties = -np.diff(keys[:, 1]) / np.diff(keys[:, 0])
    inside = ties[np.isfinite(ties) & (np.abs(ties) <= 1)]
    own_middle = middle + half * float(np.median(inside)) if len(inside) else middle
    wanted = [0.0] if 0.0 in target.domain else []
    wanted += [_short(middle), _short(own_middle), *(k for k in target.f.kinks if k in target.domain)]
    return list(dict.fromkeys(float(to_dtype(np.array(c), target.dtype)) for c in wanted))


def _origins(keys: Array) -> list[float]:
    slopes = np.sort(keys[:, 0])
    chosen = slopes if len(slopes) <= 24 else slopes[np.linspace(0, len(slopes) - 1, 24).astype(int)]
    return [float((slopes[0] + slopes[-1]) / 2), *map(float, chosen)]


def _shifted(keys: Array, centre: float, origin: float, target: Target) -> tuple[Array, Array]:
    """κ x + c with x = (s - middle)/half becomes κ'(s - centre) + c', without the common part of slope `origin`."""
    slope = keys[:, 0] - origin
    intercept = keys[:, 1] + slope * ((centre - target.domain.middle) / target.half)
    intercept = intercept - intercept.max()
    key = np.stack([slope / target.half, intercept], axis=-1)
    return np.array([1.0, 0.0 - centre]), to_dtype(key, target.dtype)


def _solve_again(query: Array, key: Array, draft: Draft, target: Target) -> Array:
    s = target.to_s(target.x)
    parts = []
    for h in range(len(key)):
        weights = softmax_weights(key[h], query[h, 0] * s + query[h, 1])
        parts.append(np.where(draft.own[h], weights * s[:, None], weights))
    return solve_values(np.concatenate(parts, axis=1), target.y, target.ridge, draft.emphasis)


def to_dtype(array: Array, dtype: str) -> Array:
    """Rounded to the dtype; subnormal numbers become 0, since processors treat them differently."""
    with np.errstate(all="ignore"):
        rounded = array.astype(dtype).astype(np.float64)
    return np.where(np.abs(rounded) < ARITHMETIC[dtype].tiny, 0.0, rounded)


def _short(x: float) -> float:
    """x rounded to ten bits, so that subtracting it rarely rounds."""
    mantissa, exponent = np.frexp(x)
    return float(np.ldexp(np.round(mantissa * 1024) / 1024, exponent))
