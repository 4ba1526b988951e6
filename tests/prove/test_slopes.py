"""Two tables of a function's slopes and values, the prover's and the checker's: both hold, at points and over intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flint import arb

from attnc import functions
from attnc.check.slopes import CellTable
from attnc.functions.balls import working
from attnc.prove.slopes import slopes
from tests.soundness.networks import ACTIVATIONS


def intervals(seed: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    lo = draw.normal(size=12) * scale
    hi = lo + draw.exponential(size=12) * scale * draw.choice([1e-6, 0.1, 1.0], 12)
    lo[0], hi[0] = 0.0, 0.0
    lo[1], hi[1] = -scale, 0.0
    return lo, hi


def inside(lo: float, hi: float, kinks: tuple[float, ...]) -> list[float]:
    spread = [lo + (hi - lo) * t for t in (0, 0.1, 0.37, 0.5, 0.81, 0.999, 1)]
    points = [*spread, *(k for k in kinks), *(math.nextafter(k, s) for k in kinks for s in (-1e9, 1e9))]
    return [min(hi, max(lo, x)) for x in points]


@pytest.mark.parametrize("spec", ACTIVATIONS)
@pytest.mark.parametrize("scale", [0.01, 3.0, 400.0])
def test_no_value_lies_outside_the_band_and_no_chord_is_steeper(spec: str, scale: float) -> None:
    if spec == "exp" and scale > 3:
        scale = 9.0
    f = functions.get(spec)
    lo, hi = intervals(len(spec), scale)
    slope = np.random.default_rng(1).normal(size=len(lo))
    prover, checker = (
        slopes(f, float(lo.min()), float(hi.max())),
        CellTable(f, float(lo.min()), float(hi.max())),
    )
    for low, high, steepest in (
        (*prover.band(lo, hi, slope), prover.lipschitz(lo, hi)),
        (*checker.line(lo, hi, slope), checker.steepest(lo, hi)),
    ):
        with working(160):
            for j in range(len(lo)):
                points = inside(float(lo[j]), float(hi[j]), f.kinks)
                values = [f.value(s) for s in points]
                for s, v in zip(points, values, strict=True):
                    beside = v - arb(float(slope[j])) * arb(s)
                    assert not beside < arb(float(low[j])) and not beside > arb(float(high[j])), (spec, s)
                for s, t, v, w in zip(points, points[1:], values, values[1:], strict=False):
                    assert not abs(v - w) > arb(float(steepest[j])) * abs(arb(s) - arb(t)), (spec, s, t)


@pytest.mark.parametrize("spec", ["tanh", "gelu", "relu", "sin"])
def test_the_tables_are_sharp(spec: str) -> None:
    """Not only sound: within a hundredth of what is attained."""
    f = functions.get(spec)
    lo, hi = np.array([-2.0, 0.5, -1.0]), np.array([3.0, 0.9, 1.0])
    prover, checker = slopes(f, -2.0, 3.0), CellTable(f, -2.0, 3.0)
    grid = np.linspace(lo, hi, 20001)
    y = f(torch.from_numpy(grid)).numpy()
    steep = np.abs(np.diff(y, axis=0) / np.diff(grid, axis=0)).max(0)
    for low, high, steepest in (
        (*prover.band(lo, hi, 0 * lo), prover.lipschitz(lo, hi)),
        (*checker.line(lo, hi, 0 * lo), checker.steepest(lo, hi)),
    ):
        span = y.max(0) - y.min(0)
        assert (high - y.max(0) <= 0.01 * span).all() and (y.min(0) - low <= 0.01 * span).all()
        assert (steepest <= 1.01 * steep + 1e-9).all()


def test_a_jump_of_slope_at_a_kink_belongs_to_both_sides() -> None:
    f = functions.relu()
    lo, hi = np.array([-1.0, 0.0, -1.0]), np.array([0.0, 1.0, -1e-9])
    for steepest in (slopes(f, -1.0, 1.0).lipschitz(lo, hi), CellTable(f, -1.0, 1.0).steepest(lo, hi)):
        assert steepest[1] == 1.0
        assert steepest[2] == 0.0
