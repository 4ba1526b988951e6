"""Lipschitz constants: never below a difference quotient, and close to the largest slope."""

from __future__ import annotations

import math
import random

import pytest
import torch
from mpmath import mp, mpf

from attnc import functions
from attnc.errors import FunctionError, InputError

from .reference import CASES, DIGITS, LABELS, Case

each_case = pytest.mark.parametrize("case", CASES, ids=LABELS)
INTERVALS = ((-8.0, 8.0), (-30.0, 30.0), (-1.0, 1.0), (0.0, 1.0), (-3.0, 0.5), (2.0, 4.0))
each_interval = pytest.mark.parametrize("ends", INTERVALS, ids=str)


def slopes(case: Case, lo: float, hi: float, points: int = 4001) -> tuple[torch.Tensor, torch.Tensor]:
    """|f'| as torch differentiates it, on a grid and just inside the ends of each stretch."""
    inside = [s for k in (lo, *case.kinks, hi) for s in (k - 1e-9, k + 1e-9) if lo < s < hi]
    grid = torch.cat([torch.linspace(lo, hi, points, dtype=torch.float64)[1:-1], torch.tensor(inside)])
    grid.requires_grad_()
    (gradient,) = torch.autograd.grad(case.function(grid).sum(), grid)
    return grid.detach(), gradient.abs()


@each_case
@each_interval
def test_no_difference_quotient_exceeds_the_constant(case: Case, ends: tuple[float, float]) -> None:
    lo, hi = ends
    source = random.Random(f"{case.label}{ends}")
    pairs = [(source.uniform(lo, hi), source.uniform(lo, hi)) for _ in range(12)]
    grid, slope = slopes(case, lo, hi)
    steepest = grid[slope.argmax()].item()
    pairs += [(steepest, min(max(steepest + h, lo), hi)) for h in (1e-2, -1e-2, 1e-5, -1e-5, 1e-9, -1e-9)]
    constant = mpf(case.function.lipschitz(lo, hi))
    with mp.workdps(DIGITS // 4):
        for x, y in pairs:
            rise = abs(case.whole(mpf(x)) - case.whole(mpf(y)))
            assert rise <= constant * abs(mpf(x) - mpf(y)), (x, y)


@each_case
@each_interval
def test_the_constant_is_close_to_the_largest_slope(case: Case, ends: tuple[float, float]) -> None:
    _, slope = slopes(case, *ends)
    assert case.function.lipschitz(*ends) <= 1.03 * slope.max().item()


WIDE = ((-100.0, 100.0), (-1e3, 1e3), (-7.0, 1e3), (-1e4, 1e4), (-1e6, 1e6))
LARGEST_SLOPE = {
    "gelu": 1.1289, "gelu_tanh": 1.1290, "silu": 1.0998, "sigmoid": 0.25, "tanh": 1.0, "softplus": 1.0,
    "mish": 1.0885, "softsign": 1.0, "elu": 1.0, "sin": 1.0, "cos": 1.0, "relu": 1.0, "soft_threshold": 1.0,
    "quick_gelu": 1.0998, "gelu_fast": 1.1290, "gelu_bloom": 1.1290, "gelu_10": 1.1289, "hardswish": 1.5, "hardsigmoid": 1 / 6,
    "celu": 1.0, "selu": 1.7581,
}  # fmt: skip


@pytest.mark.parametrize("ends", WIDE, ids=str)
@pytest.mark.parametrize("name", LARGEST_SLOPE)
def test_the_constant_stays_sharp_on_wide_intervals(name: str, ends: tuple[float, float]) -> None:
    true = LARGEST_SLOPE[name]
    assert 0.999 * true <= functions.get(name).lipschitz(*ends) <= 1.03 * true


def test_a_slope_beyond_floating_point_is_infinite() -> None:
    assert functions.exp().lipschitz(0, 1000) == math.inf
    assert 1.0 <= functions.exp().lipschitz(-1000, 0) <= 1.01


def test_a_saturated_interval_has_a_tiny_constant() -> None:
    assert 0 < functions.sigmoid().lipschitz(100, 200) < 1.03 * math.exp(-100)
    assert 0 < functions.tanh().lipschitz(-200, -100) < 1.03 * 4 * math.exp(-200)
    assert functions.relu().lipschitz(-5, -1) == 0.0
    assert functions.clip(-1, 1).lipschitz(1, 7) == 0.0


def test_a_single_point_has_the_slope_there() -> None:
    assert functions.square().lipschitz(3, 3) == 6.0


def test_ends_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(InputError):
        functions.clip(-25, 25).lipschitz(30, -30)


def test_a_jump_has_no_finite_constant() -> None:
    step = functions.function(
        lambda s: (s >= 0).to(s.dtype),
        name="step",
        enclosure=(lambda x: x * 0, lambda x: x * 0 + 1),
        kinks=(0.0,),
    )
    assert step.lipschitz(-1, 1) == math.inf
    assert step.lipschitz(0, 1) == 0.0


def test_a_pole_has_no_finite_constant() -> None:
    reciprocal = functions.function(lambda s: 1 / s, name="reciprocal", enclosure=lambda x: 1 / x)
    assert reciprocal.lipschitz(-1, 2) == math.inf
    assert 1.0 <= reciprocal.lipschitz(1, 2) <= 1.03
    sides = [lambda x: -1 / x, lambda x: 1 / x]
    at_kink = functions.function(lambda s: 1 / s.abs(), name="at_kink", enclosure=sides, kinks=(0.0,))
    assert at_kink.lipschitz(-1, 2) == math.inf


def test_without_enclosure_nothing_is_proved() -> None:
    with pytest.raises(FunctionError):
        functions.function(torch.relu, name="mine").lipschitz(-1, 1)
