"""A tensor lattice: one softmax over all the points of a grid, for functions of a few variables.

Anchor k = (k_1, …, k_m) stands at the point (L_{k_1}, …, L_{k_m}). Its score Σ_j (2 b_j x_j L_{k_j} - b_j L_{k_j}²) makes its
weight the product of the weights of its coordinates, w_k(x) = Π_j w_{k_j}(x_j). On a grid of sample points the weights are the
Kronecker product W_1 ⊗ … ⊗ W_m, and so is their pseudo-inverse: values are solved for axis by axis, and W is never formed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch

from attnc.heads.chain import softmax_rows
from attnc.records.numbers import Array

Values = Callable[[Array], Array]  # points (N, m) → values (N, outputs)
MOST_BLOCK = 2**22  # numbers in memory at once
SHARPNESS = 8.0  # bΔ² of a Lipschitz grid
CONSTANT = 0.2504  # C₂(8) = 1/4 + 3.4e-4
MOST_SAMPLES = 2**20
_OVER = {1: 12.0, 2: 5.0}  # sample points for each anchor and axis, by the number of axes; 3 for more axes
_ROUNDS, _PATIENCE = 24, 6  # of Lawson's weights, and without progress
_STEPS = 6  # of conjugate gradients in each round
_LEAST = 1e-2  # of a sample point's weight, so that conjugate gradients converge


@dataclass(frozen=True)
class Axis:
    """Anchors L_k = first + k·step, weights w_k(x) ∝ exp(-b (x - L_k)²); `sharpness` is b."""

    first: float
    step: float
    count: int
    sharpness: float

    @property
    def points(self) -> Array:
        """The anchors' coordinates, (count,)."""
        return self.first + self.step * np.arange(self.count, dtype=np.float64)

    def on(self, lo: float, hi: float) -> Axis:
        """This axis of [-1, 1], moved to [lo, hi]."""
        middle, half = lo / 2 + hi / 2, hi / 2 - lo / 2
        if half == 0:
            return Axis(middle, 0.0, self.count, 0.0)
        return Axis(middle + half * self.first, half * self.step, self.count, self.sharpness / half**2)

    def weights(self, x: Array) -> Array:
        """w_k(x_i), (len(x), count)."""
        return softmax_rows(-self.sharpness * (x[:, None] - self.points) ** 2)

    def numbers(self, o: float, dtype: str) -> tuple[Array, Array]:
        """Its rounded keys, counted from o, and its part of the offsets before rounding."""
        key = rounded(2 * self.sharpness * (self.points - o), dtype)
        return key, -self.sharpness * (self.points - o) ** 2 - key * o


def rounded(numbers: Array, dtype: str) -> Array:
    return numbers.astype(dtype).astype(np.float64)


@dataclass(frozen=True)
class Lattice:
    """Axes, and a value for each of their Π g_j combinations, the last axis running fastest."""

    axes: tuple[Axis, ...]
    values: Array  # (anchors, outputs)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(axis.count for axis in self.axes)

    @property
    def anchors(self) -> int:
        return math.prod(self.counts)

    def keys(self, centre: Array, dtype: str = "float64") -> tuple[Array, Array]:
        """key (K, m) and offset (K,) of the scores key_k·x + offset_k, in the dtype: 2 b (L_k - o) and -b (L_k² - o²), o the
        centre. The offset belongs to the rounded key: at x = o the score is -b (L_k - o)²."""
        parts = [axis.numbers(o, dtype) for axis, o in zip(self.axes, centre, strict=True)]
        key = np.stack(np.meshgrid(*(k for k, _ in parts), indexing="ij"), -1).reshape(self.anchors, -1)
        return key, rounded(reduce(np.add.outer, [c for _, c in parts]).reshape(-1), dtype)

    def __call__(self, x: Array, centre: Array | None = None, dtype: str = "float64") -> Array:
        """Σ_k w_k(x) v_k at points (N, m), in float64, with keys and offsets rounded to the dtype.

        The rounding of the offsets is the only part that is not a sum over the axes: with offset_k = Σ_j offset_{k_j} + δ_k it is
        Σ_k Π w_{k_j} e^{δ_k} v_k / Σ_k Π w_{k_j} e^{δ_k}."""
        point = [float(axis.points.mean()) for axis in self.axes] if centre is None else centre
        parts = [axis.numbers(o, dtype) for axis, o in zip(self.axes, point, strict=True)]
        exact = reduce(np.add.outer, [c for _, c in parts]).reshape(-1)
        shift = np.exp(rounded(exact, dtype) - exact)[:, None]
        numbers = np.concatenate([shift * self.values, shift], 1) if (shift != 1).any() else self.values
        rows = max(1, MOST_BLOCK // max(*self.counts, numbers.size // self.counts[0]))
        found = [np.zeros((0, self.values.shape[1]))]
        for i in range(0, len(x), rows):
            block = x[i : i + rows]
            weights = [softmax_rows(block[:, j : j + 1] * k + c) for j, (k, c) in enumerate(parts)]
            sums = weights[0] @ numbers.reshape(self.counts[0], -1)
            for w in weights[1:]:
                sums = np.einsum("ng,ngr->nr", w, sums.reshape(len(block), w.shape[1], -1))
            found.append(sums if numbers is self.values else sums[:, :-1] / sums[:, -1:])
        return np.concatenate(found)

    def run(self, x: Array, centre: Array, dtype: str) -> Array:
        """Σ_k softmax_k(key_k·x + offset_k) v_k, every operation in the dtype."""
        kind = getattr(torch, dtype)
        given = (*self.keys(centre, dtype), self.values, np.ascontiguousarray(x))
        keys, offsets, values, inputs = (torch.from_numpy(a).to(kind) for a in given)
        rows = max(1, MOST_BLOCK // self.anchors)
        parts = [torch.softmax(block @ keys.T + offsets, -1) @ values for block in torch.split(inputs, rows)]
        return torch.cat(parts).double().numpy()


def counts_for(lo: Array, hi: Array, lipschitz: float, eps: float) -> list[int]:
    """Cells on each axis with K √(Σ Δ_j² C₂) <= eps: equal sides, then one fewer where that suffices.

    A cell of sides Δ_j has its centre at most ½√(ΣΔ_j²) from its points; softmax at sharpness c = bΔ² adds a part in a thousand
    (`prove/lookup.py` has the proof). Equal sides are best because the Lipschitz constant multiplies |x - g|₂."""
    sides = [float(side) for side in hi - lo]
    rate = lipschitz * math.sqrt(CONSTANT) / eps
    counts = [max(1, math.ceil(side * rate * math.sqrt(len(sides)))) for side in sides]
    for j in sorted(range(len(sides)), key=lambda j: counts[j]):
        fewer = [c - (i == j) for i, c in enumerate(counts)]
        if fewer[j] and rate * math.hypot(*(s / c for s, c in zip(sides, fewer, strict=True))) <= 1:
            counts = fewer
    return counts


def grid_axes(lo: Array, hi: Array, counts: list[int]) -> tuple[Axis, ...]:
    """An anchor in the middle of each cell."""
    sides = zip(lo.tolist(), ((hi - lo) / counts).tolist(), counts, strict=True)
    return tuple(
        Axis(a + step / 2, step, n, SHARPNESS / step / step if n > 1 else 0.0) for a, step, n in sides
    )


def nodes(count: int) -> Array:
    """Sample points of [-1, 1], ends included, somewhat denser towards them."""
    t = np.linspace(-1.0, 1.0, count)
    return np.asarray((t + np.sin(np.pi / 2 * t)) / 2)


def on_interval(unit: Array, lo: float, hi: float) -> Array:
    """Points of [-1, 1] as points of [lo, hi]."""
    return np.clip(lo / 2 + hi / 2 + (hi / 2 - lo / 2) * unit, lo, hi)


def factors(weights: Array, ridge: float) -> tuple[Array, Array]:
    """Q (n, g) and R (g, g) with v = R⁻¹ Qᵀ y = argmin |W v - y|² + n·ridge²·|v|², and W = Q R."""
    n, g = weights.shape
    orthogonal, triangle = np.linalg.qr(np.concatenate([weights, ridge * np.sqrt(n) * np.eye(g)]))
    return orthogonal[:n], triangle


def along(matrices: Sequence[Array], tensor: Array) -> Array:
    """(M_1 ⊗ … ⊗ M_m) applied to the leading axes of a tensor."""
    for j, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, (1, j)), 0, j)
    return tensor


@dataclass(frozen=True)
class Sampled:
    """f on a grid of sample points of the box, and the factors of the weights there."""

    grid: Array  # (s_1·…·s_m, m)
    f: Array  # (s_1, …, s_m, outputs)
    weights: tuple[Array, ...]  # (s_j, g_j)
    q: tuple[Array, ...]
    r: tuple[Array, ...]


def sample(f: Values, axes: tuple[Axis, ...], lo: Array, hi: Array, ridge: float) -> Sampled:
    """f on a grid with several points for each anchor along every axis, fewer if the grid would be too large."""

    def sizes(over: float) -> list[int]:
        return [3 if axis.count == 1 else max(5, math.ceil(over * axis.count)) for axis in axes]

    over = _OVER.get(len(axes), 3.0)
    while over > 1.25 and math.prod(sizes(over)) > MOST_SAMPLES:
        over -= 0.125
    points = [on_interval(nodes(n), a, b) for n, a, b in zip(sizes(over), lo, hi, strict=True)]
    grid = np.stack(np.meshgrid(*points, indexing="ij"), -1)
    flat = grid.reshape(-1, len(axes))
    weights = tuple(axis.weights(x) for axis, x in zip(axes, points, strict=True))
    q, r = zip(*(factors(w, ridge) for w in weights), strict=True)
    return Sampled(flat, f(flat).reshape(*grid.shape[:-1], -1), weights, q, r)


def solved(data: Sampled, allowed: float) -> Array:
    """Values (g_1, …, g_m, outputs): least squares, then Lawson's weights if these miss `allowed` by less than a factor of four.

    Values are solved for f minus the middle of its range, as weights add up to one."""
    dims = tuple(range(len(data.q)))
    middle = (data.f.max(axis=dims) + data.f.min(axis=dims)) / 2
    goal = data.f - middle
    z = along([q.T for q in data.q], goal)
    error = float(np.abs(goal - along(data.q, z)).max())
    if 0.7 * allowed < error < 4 * allowed:
        z = _lawson(data.q, goal, z, 0.7 * allowed)
    back: list[Array] = [np.linalg.inv(r).astype(np.float64) for r in data.r]
    return np.asarray(along(back, z) + middle)


def _lawson(q: tuple[Array, ...], goal: Array, z: Array, enough: float) -> Array:
    """Lawson's iteration for min max |goal - Q z|, output by output: weighted least squares, weights grow with the error.

    Q has nearly orthonormal columns, so a few steps of conjugate gradients on Qᵀ E Q dz = Qᵀ E (goal - Q z) do."""
    dims, back = tuple(range(len(q))), [m.T for m in q]
    emphasis, best, least, since = np.ones_like(goal), z, np.inf, 0
    for _ in range(_ROUNDS):
        left = goal - along(q, z)
        size = np.abs(left)
        if float(size.max()) < least:
            since = 0 if float(size.max()) < 0.99 * least else since
            best, least = z, float(size.max())
        since += 1
        if least <= enough or since > _PATIENCE:
            break
        emphasis *= np.sqrt(size / (size.max(axis=dims) + 1e-300) + 1e-3)
        emphasis /= emphasis.mean(axis=dims)
        heavy = np.maximum(emphasis, _LEAST)
        gradient = along(back, heavy * left)
        step, norm = gradient, (gradient**2).sum(axis=dims)
        for _ in range(_STEPS):
            image = along(back, heavy * along(q, step))
            length = norm / ((step * image).sum(axis=dims) + 1e-300)
            z, gradient = z + length * step, gradient - length * image
            fresh = (gradient**2).sum(axis=dims)
            step, norm = gradient + fresh / (norm + 1e-300) * step, fresh
    return best
