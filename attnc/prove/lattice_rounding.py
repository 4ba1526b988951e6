"""What execution adds to the error of a lattice network: |executed - exact| by the assumptions of `arithmetic`.

With exact scores Z_k, weights W_k and output g = Σ W_k v_k, on a cell:

    executed score      z_k = Z_k + ζ_k, |ζ_k| <= η_k = γ_{d+2} (Σ_j |κ_kj||x_j - o_j| + |offset_k|) + underflow
    executed exp        const·(e^{Z_k}(1 + θ'_k) + τ'), |θ'_k| <= θ_k = e^{η_k + u d_k}(1 + E) - 1, d_k = max z - z_k
    Σ e_k v_k/Σ e_k     differs from g by at most A/(1 - B), A = Σ (W_k θ_k + τ')|v_k - g|, B = Σ (W_k θ_k + τ')
    the sum of e_k      one common factor 1 ± γ_K/(1 - γ_K), which multiplies g alone
    divisions, products, the sum over keys      (1 + u)^{K+1+3} - 1 times Σ (W_k + W_k θ_k + τ')/(1 - B)·|v_k|

W_k <= Π_j w_j e^{|a_j|}, since log w is concave along each axis. As max z - z_k = log(max W/W_k) <= -log W_k up to η,
W_k d_k <= W_k max(1, -log W_k) for any upper bound of W_k."""

from __future__ import annotations

import itertools

import numpy as np

from attnc.arithmetic import Arithmetic
from attnc.domain import Array
from attnc.prove.lattice import LatticeNetwork
from attnc.prove.outward import gamma
from attnc.prove.taylor import GROW
from attnc.records.layers import Layer

_INTERVALS = {1: 64, 2: 20, 3: 10, 4: 6}  # along each axis
_HELD = 1 << 21  # numbers at once
_LN2 = 0.6932


def lattice_rounding(layer: Layer, lo: Array, hi: Array, low: Array, high: Array, a: Arithmetic) -> Array:
    """For each output at least |executed - exact| on the box [lo, hi], if exact outputs are between `low` and `high`; infinite
    where nothing is proved."""
    network = LatticeNetwork.of(layer)
    key, offset, values = (layer.tensor(name).astype(np.float64) for name in ("key", "offset", "values"))
    outputs = values.shape[1]
    nothing = np.full(outputs, np.inf)
    stored = [key, offset, values, network.centre]
    if any(((np.abs(x) > 0) & (np.abs(x) < a.tiny)).any() for x in stored) or len(key) * a.unit > 0.01:
        return nothing
    d = len(lo)
    count = _INTERVALS.get(d, 4)
    tables, reach = [], []
    for j in range(d):
        ends = np.linspace(lo[j], hi[j], count + 1)
        ends[0], ends[-1] = lo[j], hi[j]
        centre = ends[:-1] / 2 + ends[1:] / 2
        half = np.maximum(ends[1:] - centre, centre - ends[:-1]) * (1 + 2.0**-40) + 2.0**-50 * np.abs(centre)
        table = network.table(j, centre, half, 0)
        tables.append(table.e[..., 0] * table.grown * (GROW * (1 + 4 * network.delta)))
        reach.append((np.abs(centre - network.centre[j]) + half) * GROW)
    middle = low / 2 + high / 2
    away = (
        np.abs(values - middle) + (np.maximum(high - middle, middle - low)) * GROW
    )  # at least |v_k - g|, (K, outputs)
    largest = np.maximum(np.abs(low), np.abs(high))
    found = np.zeros(outputs)
    cells = list(itertools.product(range(count), repeat=d))
    step = max(1, _HELD // len(key))
    with np.errstate(all="ignore"):
        for start in range(0, len(cells), step):
            chosen = np.array(cells[start : start + step])
            part = _on_cells(tables, reach, chosen, (key, offset, values, away, largest), a)
            found = np.maximum(found, part)
    return np.where(np.isnan(found), np.inf, found)


def _on_cells(
    tables: list[Array], reach: list[Array], chosen: Array, numbers: tuple[Array, ...], a: Arithmetic
) -> Array:
    key, offset, values, away, largest = numbers
    anchors, d = key.shape
    u, tau = a.unit, a.tiny
    weight = tables[0][chosen[:, 0]]
    for j in range(1, d):
        weight = (weight[:, :, None] * tables[j][chosen[:, j]][:, None, :]).reshape(len(chosen), -1)
    weight = np.minimum(weight * GROW, 1.0)
    near = np.stack([reach[j][chosen[:, j]] for j in range(d)], 1)  # (cells, d)
    passing = (near @ np.abs(key).T + np.abs(offset)) * GROW
    entering = near.sum(1)[:, None]
    flushed = 4 * tau * (entering + np.abs(key).sum(1) + 3.0 * (d + 2))
    eta = (gamma(d + 2, u) * passing + flushed) * GROW
    exponent = np.frexp(np.maximum(weight, 2.0**-1070))[1]
    distance = np.maximum(1.0, (1 - exponent) * _LN2) + 2 * eta.max(1, keepdims=True)
    x = (eta + u * distance + tau) * GROW
    error = a.exp_units * u
    theta = (x + x * x + error * (1 + x + x * x)) * GROW
    tau_scaled = (
        16 * tau * anchors
    )  # relative to the largest exponential, of which there are at most `anchors`
    off = weight * theta + tau_scaled
    lost = off.sum(1) * GROW
    remaining = 1 - lost
    moved = (off @ away) * GROW / remaining[:, None]
    mass = ((weight + off) @ np.abs(values)) * GROW / remaining[:, None]
    sum_off = gamma(anchors, u)
    common = sum_off / (1 - sum_off) * GROW
    roundings = gamma(anchors + 1 + a.division_units, u)
    total = moved + common * (largest + moved) + roundings * (1 + common) * mass
    total = (total + 8 * tau * (anchors + 1) * (np.abs(values).max(0) + 1)) * GROW
    fine = (passing.max(1) < a.largest) & (lost < 0.5) & (x.max(1) <= 0.5)
    return np.asarray(np.where(fine[:, None], total, np.inf).max(0))
