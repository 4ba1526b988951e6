"""A draft has keys and values in exact coordinates; `finish` rounds it to the numbers that are stored.

Scores are determined up to a common affine function of x. The choice makes no difference in exact arithmetic and a large one
in floating point: slopes should be small where the values vary, and may be large elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.heads import patience
from attnc.heads.chain import Chain, softmax_weights
from attnc.heads.target import Target
from attnc.records.numbers import Array, HeadNumbers


@dataclass(frozen=True)
class Draft:
    """H heads in the coordinate x. `own` marks the keys of the token itself, whose values are multiples of s."""

    design: str
    keys: Array  # (H, p, 2)
    values: Array  # (H, p): constants, or the factor of s where `own`
    own: Array  # (H, p) of bool
    emphasis: Array  # (N,) least-squares weights of the sample points
    refit: bool = True  # whether values may be solved again for rounded keys
    chain: Chain | None = field(default=None, repr=False)


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


def one_head(design: str, chain: Chain, values: Array, emphasis: Array, refit: bool = True) -> Draft:
    """A draft of a single head without a key of its own."""
    own = np.zeros((1, chain.size), dtype=bool)
    return Draft(design, chain.keys()[None], values[None], own, emphasis, refit, chain)


def padded(draft: Draft, p: int) -> Draft:
    """The same head with p keys: keys are repeated, and copies share the weight of the original."""
    size = draft.keys.shape[1]
    times = [p // size + (k < p % size) for k in range(size)]
    keys = np.repeat(draft.keys, times, axis=1)
    keys[..., 1] -= np.repeat(np.log(times), times)
    values, own = np.repeat(draft.values, times, axis=1), np.repeat(draft.own, times, axis=1)
    return Draft(draft.design, keys, values, own, draft.emphasis, draft.refit)


def columns(keys: Array, own: Array, x: Array, s: Array) -> Array:
    """The linear model Σ_h Σ_k columns·values, (N, H·p): attention weights at the queries x, times s for the token's own key."""
    parts = []
    for key, mine, at in zip(keys, own, np.broadcast_to(x, (len(keys), len(s))), strict=True):
        weights = softmax_weights(key, at)
        parts.append(np.where(mine, weights * s[:, None], weights))
    return np.concatenate(parts, axis=1)


def solve_values(matrix: Array, y: Array, ridge: float, emphasis: Array | None = None) -> Array:
    """argmin Σ e_i² (matrix v - y)_i² + N ridge² |v|²."""
    n, p = matrix.shape
    if emphasis is not None:
        matrix, y = matrix * emphasis[:, None], y * emphasis
    tall = np.concatenate([matrix, ridge * np.sqrt(n) * np.eye(p)])
    return least_squares(tall, np.concatenate([y, np.zeros(p)]))[1]


def least_squares(tall: Array, goal: Array) -> tuple[Array, Array]:
    """Q of the matrix and the solution: by QR, or by singular values if the triangular factor is singular."""
    orthogonal, triangle = np.linalg.qr(tall)
    along = orthogonal.T @ goal
    try:
        solution = np.linalg.solve(triangle, along)
    except np.linalg.LinAlgError:
        solution = np.full(len(along), np.nan)
    if not np.isfinite(solution).all():
        solution = np.linalg.lstsq(triangle, along, rcond=None)[0]
    return orthogonal, solution


def reweighted(matrix: Array, y: Array, ridge: float, rounds: int) -> tuple[Array, Array]:
    """Values that nearly minimise the largest error, by Lawson's reweighted least squares, and the weights of the best round."""
    return lawson(matrix, y, lambda emphasis: solve_values(matrix, y, ridge, emphasis), rounds + 1)


def lawson(matrix: Array, y: Array, solve: Callable[[Array], Array], rounds: int) -> tuple[Array, Array]:
    """The best solution of several rounds, in which points with large errors get larger weights; and the weights."""
    emphasis = np.ones(len(y))
    best, least = (np.zeros(matrix.shape[1]), emphasis), np.inf
    for _ in range(rounds):
        patience.check(*matrix.shape)
        values = solve(emphasis)
        error = np.abs(matrix @ values - y)
        if error.max() < least:
            best, least = (values, emphasis), float(error.max())
        emphasis = lawson_step(emphasis, error)
    return best


def lawson_step(emphasis: Array, error: Array) -> Array:
    """Increase the weight of points with large errors."""
    if not error.max() > 0:
        return emphasis
    heavier: Array = emphasis * np.sqrt(error / error.max() + 1e-3)
    heavier /= np.sqrt((heavier**2).mean())
    return heavier


def finish(draft: Draft, target: Target) -> Finished:
    """Choose the centre of each query and the origin of the slopes, round to the target's dtype, and refit the values."""
    placed = [_place(*head, target) for head in zip(draft.keys, draft.values, draft.own, strict=True)]
    query, key = (np.stack(part) for part in zip(*placed, strict=True))
    values, s = draft.values, target.to_s(target.x)
    if draft.refit and target.dtype == "float32":
        matrix = columns(key, draft.own, query[:, :1] * s + query[:, 1:], s)
        values = solve_values(matrix, target.y, target.ridge, draft.emphasis).reshape(values.shape)
    value = _slopes_and_constants(to_dtype(values, target.dtype), draft.own)
    numbers = HeadNumbers(query, key, value, np.ones(len(key)), target.dtype)
    rounding = np.zeros_like(s)
    for head in zip(query, key, value, strict=True):
        rounding += rounding_estimate(*head, s, target.arithmetic)
    approximation = np.abs(forward(numbers, s) - target.y)
    return Finished(draft.design, numbers, float(approximation.max()), float(rounding.max()))


def forward(numbers: HeadNumbers, s: Array) -> Array:
    """The head in float64."""
    total = np.zeros_like(s)
    for query, key, value, out in zip(numbers.query, numbers.key, numbers.value, numbers.output, strict=True):
        weights = softmax_weights(key, query[0] * s + query[1])
        total += out * (weights * (value[:, 0] * s[:, None] + value[:, 1])).sum(axis=1)
    return total


def _slopes_and_constants(values: Array, own: Array) -> Array:
    return np.stack([np.where(own, values, 0.0), np.where(own, 0.0, values)], axis=-1)


def rounding_estimate(query: Array, key: Array, value: Array, s: Array, a: Arithmetic) -> Array:
    """The rounding bound of `prove.rounding` at the points s, in float64."""
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
    value = _slopes_and_constants(values, own)
    best, least = None, np.inf
    slopes = np.sort(keys[:, 0])
    chosen = slopes if len(slopes) <= 24 else slopes[np.linspace(0, len(slopes) - 1, 24).astype(int)]
    for centre in _centres(keys, target):
        patience.check(len(s) * (len(chosen) + 1), len(keys))
        for origin in [float((slopes[0] + slopes[-1]) / 2), *map(float, chosen)]:
            # κ x + c with x = (s - middle)/half is κ'(s - centre) + c', without the common part of slope `origin`
            slope = keys[:, 0] - origin
            intercept = keys[:, 1] + slope * ((centre - target.domain.middle) / target.half)
            key = np.stack([slope / target.half, intercept - intercept.max()], axis=-1)
            query, key = np.array([1.0, 0.0 - centre]), to_dtype(key, target.dtype)
            cost = float(rounding_estimate(query, key, value, s, target.arithmetic).max())
            if best is None or cost < 0.98 * least:
                best, least = (query, key), cost
    assert best is not None
    return best


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


def to_dtype(array: Array, dtype: str) -> Array:
    """Rounded to the dtype; subnormal numbers become 0, since processors treat them differently."""
    with np.errstate(all="ignore"):
        rounded = array.astype(dtype).astype(np.float64)
    return np.where(np.abs(rounded) < ARITHMETIC[dtype].tiny, 0.0, rounded)


def _short(x: float) -> float:
    """x rounded to ten bits, so that subtracting it rarely rounds."""
    mantissa, exponent = np.frexp(x)
    return float(np.ldexp(np.round(mantissa * 1024) / 1024, exponent))
