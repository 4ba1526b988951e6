"""Heads with anchors on a lattice a_k = kΔ, k = -P..P, and heads in which a token attends to itself.

Keys (2ck, -ck²) and the query s/Δ give the weights W_k ∝ exp(-c(s/Δ - k)²): Gaussians of variance σ² = Δ²/(2c). By Poisson
summation Σ W_k a_k = s and Σ W_k (a_k² - σ²) = s², up to a ripple of the relative size 2 e^{-π²/c} and to the tails beyond the
ends of the lattice, e^{-cm²} if it extends m anchors beyond the interval.

A function is gate symmetric if f(s) - f(-s) = s, for example gelu, silu and relu. Then f(s) - max(s, 0) is even and decays,
and the values max(a_k, 0) + β_|k| need few β: beyond them, values are zero on one side and a_k on the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnc.functions import Function
from attnc.functions.function import is_builtin
from attnc.heads.draft import forward, lawson, to_dtype
from attnc.heads.target import evaluate
from attnc.records.numbers import Array, HeadNumbers

GATE_SYMMETRIC = (
    "gelu",
    "gelu_tanh",
    "gelu_fast",
    "gelu_bloom",
    "quick_gelu",
    "silu",
    "softplus",
    "relu",
    "hardswish",
)
GATES = {"silu": 1.0, "quick_gelu": 1.702}  # s·logistic(Bs)
RELU_GAP = 0.2785  # sup |max(s, 0) - s·logistic(Bs)| is 0.27847/B
STEEPEST = 2.0**40
_ROUNDS = 7  # of Lawson's weights


@dataclass(frozen=True)
class Rung:
    """A lattice: its spacing Δ, the sharpness c of its weights, and the exponent c·m² of its margin of m anchors."""

    spacing: float
    sharpness: float
    cut: float

    @property
    def margin(self) -> int:
        return math.ceil(math.sqrt(self.cut / self.sharpness))


RUNGS = (Rung(1.0, 1 / 2, 20.0), Rung(1 / 2, 3 / 8, 26.0), Rung(1 / 2, 1 / 4, 30.0), Rung(1 / 4, 1 / 4, 40.0))
BUMPS = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 28.0, 32.0, 40.0)


def is_gate_symmetric(f: Function) -> bool:
    """Whether f is a built-in function with f(s) - f(-s) = s that decays on the left. Proofs do not rest on it."""
    return f.name in GATE_SYMMETRIC and not f.parameters and is_builtin(f)


def lattice_gate(f: Function, radius: float, dtype: str, rung: Rung, bump: float) -> HeadNumbers:
    """A head for a gate-symmetric f on [-radius, radius]: the anchors up to `bump` are fitted, those beyond exact."""
    inner = round(bump / rung.spacing)
    last = max(math.ceil(radius / rung.spacing), inner) + rung.margin
    k = np.arange(-last, last + 1.0)
    value = np.maximum(k * rung.spacing, 0.0)
    value[last - inner : last + inner + 1] = _fitted(f, rung, inner, dtype)
    return lattice_numbers(k, value, rung, dtype)


def lattice_gates(f: Function, radius: float, eps: float, dtype: str) -> Iterator[HeadNumbers]:
    """Heads whose sampled error is at most eps, coarse lattices first; the closest one if there is none."""
    closest, least = None, math.inf
    for rung in RUNGS:
        previous = math.inf
        for bump in BUMPS:
            near = min(radius, bump + 8)  # only the ripple remains beyond it
            error, _ = sampled_error(lattice_gate(f, near, dtype, rung, bump), f, near)
            if error < least:
                closest, least = (rung, bump), error
            if error <= eps:
                yield lattice_gate(f, radius, dtype, rung, bump)
            if error <= eps or error > 0.8 * previous:
                break
            previous = error
    if closest is not None and least > eps:
        yield lattice_gate(f, radius, dtype, *closest)


def lattice_numbers(k: Array, value: Array, rung: Rung, dtype: str) -> HeadNumbers:
    """The head with anchors kΔ and these values; its query and keys are exact in every dtype."""
    c, query = rung.sharpness, np.array([[1 / rung.spacing, 0.0]])
    key = np.stack([2 * c * k, -c * k * k], axis=-1)[None] + 0.0
    values = np.stack([np.zeros_like(value), value], axis=-1)
    return HeadNumbers(query, key, values[None], np.ones(1), dtype)


def square_numbers(dtype: str) -> HeadNumbers:
    """s² on [-1, 1] by the values a_k² - σ², all of them exact in float32 too."""
    rung = Rung(1 / 8, 1 / 4, 36.0)
    last = round(1 / rung.spacing) + rung.margin
    k = np.arange(-last, last + 1.0)
    value: Array = rung.spacing**2 * (k * k - 1 / (2 * rung.sharpness))
    return lattice_numbers(k, value, rung, dtype)


def self_gate(f: Function, eps: float, dtype: str) -> HeadNumbers | None:
    """{zero: score 0, the token itself: score Bs, value s} gives s·logistic(Bs): silu, quick_gelu, and relu up to 0.27847/B.
    None for every other function."""
    if not is_builtin(f) or f.name not in (*GATES, "relu"):
        return None
    steep = GATES.get(f.name) or min(STEEPEST, 2.0 ** max(0, math.ceil(math.log2(RELU_GAP / eps))))
    key = np.array([[[0.0, 0.0], [float(np.asarray(steep, dtype)), 0.0]]])
    value = np.array([[[0.0, 0.0], [1.0, 0.0]]])
    return HeadNumbers(np.array([[1.0, 0.0]]), key, value, np.ones(1), dtype)


def sampled_error(numbers: HeadNumbers, f: Function, radius: float) -> tuple[float, float]:
    """The largest |head - f| at samples of [-radius, radius], and where. It proves nothing."""
    near = min(radius, 9)
    s = np.concatenate([np.linspace(-radius, radius, 4001), np.linspace(-near, near, 4001)])
    error = np.abs(forward(numbers, s) - evaluate(f, s))
    worst = int(np.argmax(error))
    return float(error[worst]), float(s[worst])


def _fitted(f: Function, rung: Rung, inner: int, dtype: str) -> Array:
    """The values of the anchors kΔ, |k| <= inner, by least squares on the interval that their weights reach."""
    spacing, c = rung.spacing, rung.sharpness
    reach = inner * spacing + 6 * spacing / math.sqrt(2 * c)
    last = math.ceil(reach / spacing) + math.ceil(math.sqrt(44 / c))
    k = np.arange(-last, last + 1)
    half = np.linspace(0.0, reach, 40 * math.ceil(reach / spacing) + 1)
    s = np.concatenate([-half[:0:-1], half])
    weights = np.exp(-c * (s[:, None] / spacing - k) ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    fitted = slice(last - inner, last + inner + 1)
    columns, outer = weights[:, fitted], np.maximum(k * spacing, 0.0)
    ramp = outer[fitted].copy()
    outer[fitted] = 0.0
    goal = evaluate(f, s) - weights @ outer
    beta, emphasis = _even_part(columns, goal, ramp)
    values = ramp + np.concatenate([beta[:0:-1], beta])
    plain = to_dtype(values, dtype)
    if dtype == "float64":
        return plain
    careful = _rounded_together(columns, goal, ramp, plain, emphasis, dtype)
    error, plain_error = (float(np.abs(columns @ v - goal).max()) for v in (careful, plain))
    return careful if error < plain_error else plain


def _even_part(columns: Array, goal: Array, ramp: Array) -> tuple[Array, Array]:
    """β for |k| = 0..inner with values ramp + β that nearly minimise the largest error, by Lawson's reweighting, and the weights
    of the points s >= 0."""
    n, inner = len(goal) // 2 + 1, len(ramp) // 2
    left = columns[:n][::-1]
    folded = left[:, inner + 1 :] + left[:, inner - 1 :: -1]
    even = np.concatenate([left[:, inner : inner + 1], folded], axis=1)
    goal = (goal[:n] - columns[:n] @ ramp)[::-1]

    def solve(emphasis: Array) -> Array:
        return np.linalg.lstsq(even * emphasis[:, None], goal * emphasis, rcond=1e-15)[0].astype(np.float64)

    return lawson(even, goal, solve, _ROUNDS)


def _rounded_together(
    columns: Array, goal: Array, ramp: Array, plain: Array, emphasis: Array, dtype: str
) -> Array:
    """Values on the right are kΔ + β_k, where β_k keeps few digits: they are rounded down or up one after the other, the
    coarsest first, so that each compensates the rounding of the previous ones (Babai's nearest plane)."""
    inner = len(ramp) // 2
    right, left = slice(inner + 1, None), slice(inner + 1)
    weight = np.concatenate([emphasis[:0:-1], emphasis])
    orthogonal, triangle = np.linalg.qr(columns[:, right] * weight[:, None])
    along = orthogonal.T @ ((goal - columns[:, left] @ plain[left]) * weight)
    mirrored, careful = plain[:inner][::-1] + ramp[right], np.zeros(inner)
    for i in reversed(range(inner)):
        wanted = (along[i] - triangle[i, i + 1 :] @ careful[i + 1 :]) / triangle[i, i]
        careful[i] = _beside(mirrored[i], wanted, dtype)
    return np.concatenate([plain[left], careful])


def _beside(x: float, wanted: float, dtype: str) -> float:
    """Of the two numbers of the dtype around x, the one nearer to `wanted`."""
    near = np.asarray(x, dtype)
    other = np.nextafter(near, np.asarray(math.inf if float(near) < x else -math.inf, dtype))
    return min((float(near), float(other)), key=lambda y: abs(y - wanted))
