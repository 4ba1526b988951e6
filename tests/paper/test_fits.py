"""Rate fits: the quantiles of Student's distribution, the interval, and what cannot be fitted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnc.errors import InputError
from attnc.paper.experiments import settings
from attnc.paper.experiments.baselines import BASELINES, baseline
from attnc.paper.experiments.fits import fit, student


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.30265), (5, 2.57058), (10, 2.22814), (30, 2.04227), (100_000, 1.95999)],
)
def test_the_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert student(degrees) == pytest.approx(quantile, rel=2e-6)


def test_a_worked_example() -> None:
    """x = 0, 1, 2, 3 and y = 1, 2, 2, 4: slope 0.9, residual sum 0.7, so the error is sqrt(0.35 / 5)."""
    made = fit(np.exp([0, 1, 2, 3]).tolist(), np.exp([1, 2, 2, 4]).tolist(), [7] * 4)
    assert made.slope == pytest.approx(0.9)
    assert made.intercept == pytest.approx(0.9)
    assert made.low == pytest.approx(0.9 - 4.302653 * math.sqrt(0.07), rel=1e-6)
    assert made.high == pytest.approx(0.9 + 4.302653 * math.sqrt(0.07), rel=1e-6)


def test_seeds_of_different_level_are_centred_by_themselves() -> None:
    """Residuals ±1/6, ∓1/3, ±1/6 around slope 1/2 in the first seed, none in the second: sum 1/6, degrees 6 - 2 - 1."""
    x, y = [0.0, 1, 2, 0, 1, 2], [0.0, 1, 1, 9, 9.5, 10]
    made = fit(np.exp(x).tolist(), np.exp(y).tolist(), [1, 1, 1, 2, 2, 2])
    assert made.slope == pytest.approx(0.5)
    assert (made.points, made.seeds) == (6, 2)
    assert made.high == pytest.approx(0.5 + 3.182446 * math.sqrt((1 / 6) / 3 / 4), rel=1e-6)


@pytest.mark.parametrize("whole", [True, False])
def test_with_an_effect_of_the_seed_the_interval_covers_as_often_as_it_says(whole: bool) -> None:
    """And one intercept for all does not: far too wide where every seed has every size, too often wrong where not."""
    draw, sizes, seeds = np.random.default_rng(0), np.tile([1.0, 2, 4, 8], 3), np.repeat([5, 6, 7], 4)
    kept = np.arange(12) if whole else np.array([0, 1, 5, 6, 10, 11])
    hits, pooled = 0, 0
    for _ in range(1000):
        values = sizes**-2 * np.exp(draw.normal(0, 0.2, 12) + np.repeat(draw.normal(0, 1, 3), 4))
        given = sizes[kept].tolist(), values[kept].tolist()
        hits += fit(*given, seeds[kept].tolist()).contains(-2.0) is True
        pooled += fit(*given, [0] * len(kept)).contains(-2.0) is True
    assert 929 <= hits <= 971  # three standard deviations around 950
    assert pooled >= 995 if whole else pooled <= 900


def test_a_seed_with_one_size_changes_nothing() -> None:
    alone = fit((1, 2, 4), (1.0, 0.3, 0.06), (1, 1, 1))
    beside = fit((1, 2, 4, 4), (1.0, 0.3, 0.06, 50.0), (1, 1, 1, 2))
    assert (beside.slope, beside.low) == pytest.approx((alone.slope, alone.low))


@given(st.floats(-5, 5), st.floats(1e-6, 1e6))
def test_an_exact_power_is_found(slope: float, level: float) -> None:
    sizes = (10.0, 20.0, 30.0, 50.0)
    made = fit(sizes, [level * s**slope for s in sizes], (1, 1, 1, 1))
    assert made.slope == pytest.approx(slope, abs=1e-9)
    assert made.high is not None
    assert made.high - made.slope < 1e-9


def test_two_points_have_no_interval() -> None:
    assert fit((1, 2, 1), (1.0, 0.5, 3.0), (1, 1, 2)).low is None
    made = fit((1, 2), (1.0, 0.5), (1, 1))
    assert (made.low, made.high, made.points, made.contains(-1.0)) == (None, None, 2, None)
    assert "no interval" in str(made)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_values_without_a_logarithm_are_left_out_and_counted(bad: float) -> None:
    made = fit((1, 2, 4, 8), (1.0, bad, 0.25**2, 0.125**2), (1, 1, 1, 1))
    assert (made.points, made.left_out) == (3, 1)
    assert made.slope == pytest.approx(-2)
    assert "1 left out" in str(made)


@pytest.mark.parametrize(
    ("sizes", "values", "seeds"),
    [
        ((1, 1), (1.0, 2.0), (1, 1)),
        ((1, 2), (1.0, 0.0), (1, 1)),
        ((0, 1), (1.0, 1.0), (1, 1)),
        ((1,), (1.0, 2.0), (1, 1)),
        ((1, 2), (1.0, 2.0), (1,)),
        ((1, 2), (1.0, 2.0), (1, 2)),  # each seed has one size
        ((), (), ()),
    ],
)
def test_what_has_no_slope_is_refused(
    sizes: tuple[float, ...], values: tuple[float, ...], seeds: tuple[int, ...]
) -> None:
    with pytest.raises(InputError):
        fit(sizes, values, seeds)


def test_every_trained_setting_of_the_protocol_has_the_papers_figure() -> None:
    runs = [
        one for one in settings("all", seeds=2) if one.method == "trained" and one.experiment != "heat-map"
    ]
    assert {baseline(one) for one in runs} == set(BASELINES)
    assert len({one.setting for one in BASELINES}) == len(BASELINES) == 18
    unstable = baseline(replace(runs[0], p=80, seed=99, method="nearest"))
    assert unstable is not None
    assert (unstable.low, unstable.mse, unstable.high) == (0.005, 0.049, 0.117)
    assert baseline(replace(runs[0], epochs=49)) is None


@pytest.mark.parametrize(
    ("p", "times", "within"),
    [
        *((60, 1.34, True), (60, 0.66, True), (60, 1.36, False), (60, 0.64, False)),
        *((100, 1.9, True), (100, 0.51, True), (120, 2.1, False), (120, 0.49, False), (80, 9.0, None)),
    ],
)
def test_a_ratio_is_within_the_limits_of_the_issue(p: int, times: float, within: bool | None) -> None:
    known = baseline(replace(settings("anchors", seeds=1)[0], p=p))
    assert known is not None
    assert known.holds(times * known.mse) is within
