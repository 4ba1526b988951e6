"""Rate fits: the confidence interval, and what cannot be fitted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnc.paper.experiments import settings
from attnc.paper.experiments.report import BASELINES, fit

pytest.importorskip("pandas")


def test_a_worked_example() -> None:
    """x = 0, 1, 2, 3 and y = 1, 2, 2, 4: slope 0.9, residual sum 0.7, so the error is sqrt(0.35 / 5)."""
    found = fit(np.exp([0, 1, 2, 3]).tolist(), np.exp([1, 2, 2, 4]).tolist(), [7] * 4)
    assert found is not None and found.slope == pytest.approx(0.9)
    assert found.low == pytest.approx(0.9 - 4.302653 * math.sqrt(0.07), rel=1e-6)
    assert found.high == pytest.approx(0.9 + 4.302653 * math.sqrt(0.07), rel=1e-6)


def test_every_seed_has_its_own_intercept() -> None:
    """Residuals ±1/6, ∓1/3, ±1/6 around slope 1/2 in the first seed, none in the second: sum 1/6, degrees 6 - 2 - 1."""
    x, y = [0.0, 1, 2, 0, 1, 2], [0.0, 1, 1, 9, 9.5, 10]
    found = fit(np.exp(x).tolist(), np.exp(y).tolist(), [1, 1, 1, 2, 2, 2])
    assert found is not None and found.runs == 6 and found.slope == pytest.approx(0.5)
    assert found.high == pytest.approx(0.5 + 3.182446 * math.sqrt((1 / 6) / 3 / 4), rel=1e-6)


@pytest.mark.parametrize("whole", [True, False])
def test_the_interval_covers_as_often_as_it_claims(whole: bool) -> None:
    """One intercept for all seeds does not: too wide where every seed has every size, too often wrong where not."""
    draw, sizes, seeds = np.random.default_rng(0), np.tile([1.0, 2, 4, 8], 3), np.repeat([5, 6, 7], 4)
    kept = np.arange(12) if whole else np.array([0, 1, 5, 6, 10, 11])
    hits, pooled, trials = 0, 0, 400
    for _ in range(trials):
        values = sizes**-2 * np.exp(draw.normal(0, 0.2, 12) + np.repeat(draw.normal(0, 1, 3), 4))
        own = fit(sizes[kept], values[kept], seeds[kept])
        common = fit(sizes[kept], values[kept], np.zeros(len(kept), dtype=int))
        assert own is not None and common is not None
        hits += own.low <= -2 <= own.high
        pooled += common.low <= -2 <= common.high
    assert 0.917 * trials <= hits <= 0.983 * trials  # three standard deviations around 95 %
    assert pooled >= 0.99 * trials if whole else pooled <= 0.91 * trials


def test_a_seed_with_one_size_has_no_effect() -> None:
    alone = fit((1, 2, 4), (1.0, 0.3, 0.06), (1, 1, 1))
    beside = fit((1, 2, 4, 4), (1.0, 0.3, 0.06, 50.0), (1, 1, 1, 2))
    assert alone is not None and beside is not None
    assert (beside.slope, beside.low) == pytest.approx((alone.slope, alone.low))


@given(st.floats(-5, 5), st.floats(1e-6, 1e6))
def test_an_exact_power_is_found(slope: float, level: float) -> None:
    sizes = (10.0, 20.0, 30.0, 50.0)
    found = fit(sizes, [level * s**slope for s in sizes], (1, 1, 1, 1))
    assert found is not None and found.slope == pytest.approx(slope, abs=1e-9)
    assert found.high - found.slope < 1e-9


def test_two_points_have_no_interval() -> None:
    found = fit((1, 2, 1), (1.0, 0.5, 3.0), (1, 1, 2))
    assert found is not None and found.slope == pytest.approx(-1)
    assert math.isnan(found.low) and math.isnan(found.high)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_values_without_a_logarithm_are_left_out(bad: float) -> None:
    found = fit((1, 2, 4, 8), (1.0, bad, 0.25**2, 0.125**2), (1, 1, 1, 1))
    assert found is not None and found.runs == 3 and found.slope == pytest.approx(-2)


@pytest.mark.parametrize(
    ("sizes", "values", "seeds"),
    [((1, 1), (1.0, 2.0), (1, 1)), ((1, 2), (1.0, 0.0), (1, 1)), ((1, 2), (1.0, 2.0), (1, 2)), ((), (), ())],
)
def test_no_slope_without_two_sizes(
    sizes: tuple[float, ...], values: tuple[float, ...], seeds: tuple[int, ...]
) -> None:
    assert fit(sizes, values, seeds) is None


def test_every_trained_setting_of_the_protocol_has_the_papers_result() -> None:
    runs = [
        one for one in settings("all", seeds=2) if one.method == "trained" and one.experiment != "heat-map"
    ]
    assert {replace(one, seed=1234) for one in runs} == set(BASELINES) and len(BASELINES) == 18
    unstable = BASELINES[replace(runs[0], p=80)]
    assert (unstable.low, unstable.mse, unstable.high) == (0.005, 0.049, 0.117) and math.isnan(unstable.most)
    assert (BASELINES[runs[0]].least, BASELINES[replace(runs[0], p=100)].most) == (0.65, 2.0)
