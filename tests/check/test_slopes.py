"""Lines above and below a function, on many intervals at once as on each of them."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb

from attnc import functions
from attnc.check.slopes import CellTable


@pytest.mark.parametrize("name", ["gelu", "relu", "clip(-2,2)"])
@pytest.mark.parametrize("slope", [0.0, 0.3, -2.0])
def test_one_slope_for_many_intervals(name: str, slope: float) -> None:
    """The same floats as one interval at a time; points, touching intervals and the whole table among them."""
    draw = np.random.default_rng(1)
    lo = draw.normal(size=200) * 10 ** draw.uniform(-3, 1, 200)
    hi = lo + 10 ** draw.uniform(-9, 1, 200)
    lo = np.concatenate([lo, [lo.min(), lo.min(), hi.max(), -0.5, 0.0]])
    hi = np.concatenate([hi, [hi.max(), lo.min(), hi.max(), 0.0, 0.5]])
    table = CellTable(functions.get(name), float(lo.min()), float(hi.max()), np.stack([lo, hi]))
    low, high = table.line(lo, hi, np.full(len(lo), slope))
    alone = [table.line(lo[i : i + 1], hi[i : i + 1], np.array([slope])) for i in range(len(lo))]
    assert np.array_equal(low, np.concatenate([a for a, _ in alone]))
    assert np.array_equal(high, np.concatenate([b for _, b in alone]))
    f = functions.get(name)
    for x in draw.random(4):
        for i, s in enumerate(np.clip(lo + x * (hi - lo), lo, hi).tolist()):
            value = f.value(s) - arb(slope) * arb(s)
            assert not value < arb(low[i]) and not value > arb(high[i])
