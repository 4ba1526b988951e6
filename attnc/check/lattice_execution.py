"""What execution adds to a lattice network: |executed - exact| on a box, by the assumptions of `arithmetic`.

With exact scores Z_k, weights W_k and output g = Σ_k W_k v_k the executed exponentials are, up to a common factor,

    e_k = W_k(1 + φ_k) + 8τ,     |φ_k| <= θ_k = e^y (1 + E) - 1 <= (y + E)(1 + y)(1 + E),     y = η_k + u d_k <= 1

η_k = γ_{m+2}(Σ_j |κ_kj||x_j - o_j| + |c_k|) + underflow is the rounding of a score, d_k <= -log W_k + 2 max η its distance from
the largest one, and E the error of exp. As Σ W_k (v_k - g) = 0,

    |Σ e_k v_k/Σ e_k - g| <= A/(1 - B),       A = Σ (W_k θ_k + 8τ)|v_k - g|,       B = Σ (W_k θ_k + 8τ)

Their sum has a common factor 1 ± γ_K/(1 - γ_K), and weights and products pass K + 1 roundings and those of the division:
γ_{K+1+3} of Σ e_k|v_k|/(1 - B).

Everything is a sum over the axes times a product over the axes: W_k <= Π_j w_j with w_j = `top`/`least`, and
w d <= w max(1, -log w). Sums over anchors are formed axis by axis on the cells of a grid."""

from __future__ import annotations

import itertools

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.check import real_functions as real
from attnc.check.cell_values import exp_above, up
from attnc.check.lattice import Lattice, contract
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.records.layers import Layer

GRID = {1: 192, 2: 48, 3: 20, 4: 11}  # intervals of each axis
_CELLS = 4096  # at once


def execution(
    layer: Layer, low: Array, high: Array, values: tuple[Array, Array], a: Arithmetic, finer: int = 1
) -> Array:
    """For each output at least |executed - exact| on [low, high], if the exact outputs are between the two `values`.

    Raises `CheckError` where nothing is proved."""
    stored = [
        np.abs(layer.tensors[name].astype(np.float64)) for name in ("centre", "key", "offset", "values")
    ]
    anchors, axes = stored[1].shape
    if any(((x > 0) & (x < a.tiny)).any() for x in stored) or not anchors * a.unit < 2.0**-7:
        raise CheckError("its numbers are too small, or too many, for the dtype")
    grid = [_intervals(s, t, finer * GRID.get(axes, 5)) for s, t in zip(low, high, strict=True)]
    sums = _Sums(layer, grid, values, a)
    index = np.array(list(itertools.product(*(range(len(g[0])) for g in grid))))
    found = np.zeros(stored[3].shape[1])
    with np.errstate(all="ignore"):
        for start in range(0, len(index), _CELLS):
            found = np.maximum(found, sums.on_cells(index[start : start + _CELLS]))
    if not np.isfinite(found).all():
        raise CheckError("its scores are too large for the dtype")
    return found


def _intervals(low: float, high: float, count: int) -> tuple[Array, Array]:
    edges = np.linspace(low, high, count + 1) if low < high else np.array([low, high])
    edges[0], edges[-1] = low, high
    return edges[:-1], edges[1:]


class _Sums:
    """The tables of a grid of cells, and the terms of the bound on them."""

    def __init__(
        self, layer: Layer, grid: list[tuple[Array, Array]], values: tuple[Array, Array], a: Arithmetic
    ) -> None:
        net = Lattice(layer)
        self.a, self.counts = a, net.counts
        shift = float(exp_above(np.array([2 * net.delta]))[0])
        self.weights, self.reach, self.distances, self.keys = [], [], [], []
        for j, (start, end) in enumerate(grid):
            table = net.axis(j, start, end)
            weight = up(table.top / np.maximum(table.least, 0.0)[:, None] * (shift if j == 0 else 1.0))
            weight = np.where(np.isnan(weight), np.inf, weight)
            self.weights.append(weight[:, None])
            away = -real.log(np.maximum(weight, 2.0**-900)) + 2.0**-40
            self.distances.append(up(weight * np.maximum(1.0, away))[:, None])
            self.keys.append(np.abs(net.key[j]))
            centre = net.centre[j]
            self.reach.append(up(np.maximum(np.abs(start - centre), np.abs(end - centre))))
        stored = layer.tensors["values"].astype(np.float64).T
        self.low, self.high = values
        self.middle = self.low / 2 + self.high / 2
        self.sizes = np.abs(stored)  # (outputs, anchors)
        offset = np.abs(layer.tensors["offset"].astype(np.float64))
        self.offset = offset
        away = up(np.abs(stored - self.middle[:, None]))
        # |v_k - m|, then 1; the same times |c_k|; then |v_k|
        rows = np.concatenate([away, np.ones((1, stored.shape[1]))])
        self.rows = np.ascontiguousarray(rows).reshape(-1, *self.counts)
        self.heavy = np.ascontiguousarray(rows * offset).reshape(-1, *self.counts)
        self.plain = np.ascontiguousarray(self.sizes).reshape(-1, *self.counts)

    def on_cells(self, index: Array) -> Array:
        """The bound, the largest over these cells, by output."""
        a, axes, anchors = self.a, len(self.counts), self.sizes.shape[1]
        u, tau, outputs = a.unit, a.tiny, len(self.sizes)

        def summed(numbers: Array, *other: tuple[int, Array]) -> Array:
            tables = list(self.weights)
            for j, table in other:
                tables[j] = table
            return contract(numbers, tables, index).reshape(len(index), -1) * (1 + 2.0**-30)

        reach = np.stack([r[index[:, j]] for j, r in enumerate(self.reach)], 1)
        entering = reach @ np.array([float(k.max()) for k in self.keys])
        passing = up(entering + float(self.offset.max()))
        gamma = (axes + 2) * u / (1 - (axes + 2) * u)
        flushed = 4 * tau * (reach.sum(1) + sum(float(k.max()) for k in self.keys) + 3.0 * (axes + 2))
        largest = up(gamma * passing + flushed)  # η of the farthest anchor
        extra = up(4 * (largest + 2 * u * (passing + largest)) + 2 * a.exp_units * u)
        fine = (extra < 0.25) & (passing < a.largest)
        # Σ W θ (|v - m|, 1): first the rounding of scores, then the distances, then exp and underflow
        mass = summed(self.rows)
        total = gamma * summed(self.heavy)
        for j, key in enumerate(self.keys):
            keyed = self.weights[j] * key
            total = total + gamma * reach[:, j, None] * summed(self.rows, (j, keyed))
            total = total + u * summed(self.rows, (j, self.distances[j]))
        total = up(total + (2 * u * largest + flushed + a.exp_units * u)[:, None] * mass)
        total = up(total * (1 + a.exp_units * u) * (1 + extra)[:, None])
        total = total + 8 * tau * up(self.rows.reshape(outputs + 1, -1).sum(1))
        lost = total[:, -1:]
        apart = up(np.maximum(self.high - self.middle, self.middle - self.low))
        moved = up((total[:, :-1] + lost * apart) / (1 - lost) * (1 + 2.0**-40))
        most = up(np.maximum(np.abs(self.low), np.abs(self.high)))
        common = anchors * u / (1 - 2 * anchors * u)
        passed = (anchors + 1 + a.division_units) * u
        passed = passed / (1 - passed)
        weighed = up((summed(self.plain) * (1 + extra)[:, None] + 8 * tau * self.sizes.sum(1)) / (1 - lost))
        found = moved + common * (most + moved) + passed * (1 + common) * weighed * (1 + 2.0**-30)
        found = up(found + 8 * tau * (anchors + 1) * (self.sizes.max(1) + 1))
        fine &= (lost[:, 0] < 0.5) & (self.sizes.max() < a.largest)
        return np.asarray(np.where(fine[:, None] & ~np.isnan(found), found, np.inf).max(0))
