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
    made = fit(np.exp([0, 1, 2, 3]).tolist(), np.exp([1, 2, 2, 4]).tolist())
    assert made.slope == pytest.approx(0.9)
    assert made.intercept == pytest.approx(0.9)
    assert made.low == pytest.approx(0.9 - 4.302653 * math.sqrt(0.07), rel=1e-6)
    assert made.high == pytest.approx(0.9 + 4.302653 * math.sqrt(0.07), rel=1e-6)


def test_the_interval_covers_the_true_slope_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    sizes = np.repeat([1.0, 2.0, 4.0, 8.0], 2)
    hits = sum(
        bool(fit(sizes.tolist(), (sizes**-2 * np.exp(draw.normal(0, 0.3, 8))).tolist()).contains(-2.0))
        for _ in range(1000)
    )
    assert 929 <= hits <= 971  # three standard deviations around 950


@given(st.floats(-5, 5), st.floats(1e-6, 1e6))
def test_an_exact_power_is_found(slope: float, level: float) -> None:
    sizes = (10.0, 20.0, 30.0, 50.0)
    made = fit(sizes, [level * s**slope for s in sizes])
    assert made.slope == pytest.approx(slope, abs=1e-9)
    assert made.high is not None
    assert made.high - made.slope < 1e-9


def test_two_points_have_no_interval() -> None:
    made = fit((1, 2), (1.0, 0.5))
    assert (made.low, made.high, made.points, made.contains(-1.0)) == (None, None, 2, None)
    assert "no interval" in str(made)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_values_without_a_logarithm_are_left_out_and_counted(bad: float) -> None:
    made = fit((1, 2, 4, 8), (1.0, bad, 0.25**2, 0.125**2))
    assert (made.points, made.left_out) == (3, 1)
    assert made.slope == pytest.approx(-2)
    assert "1 left out" in str(made)


@pytest.mark.parametrize(
    ("sizes", "values"),
    [((1, 1), (1.0, 2.0)), ((1, 2), (1.0, 0.0)), ((0, 1), (1.0, 1.0)), ((1,), (1.0, 2.0)), ((), ())],
)
def test_what_has_no_slope_is_refused(sizes: tuple[float, ...], values: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        fit(sizes, values)


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
