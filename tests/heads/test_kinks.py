"""Kinks that nobody declared are found, smooth functions are left alone."""

from __future__ import annotations

import pytest
import torch

import attnc
from attnc import functions
from attnc.domain import Interval
from attnc.heads.target import Plan, bends, find_kink

KINKED = {
    "abs": (lambda s: (s - 0.3).abs(), 0.3),
    "relu off the grid": (lambda s: torch.relu(s + 0.7123456), -0.7123456),
    "jump": (lambda s: torch.where(s > 0.123, s + 1, s), 0.123),
    "small kink": (lambda s: torch.sin(3 * s) + 1e-4 * (s - 0.5).abs(), 0.5),
    "square root": (lambda s: (s - 0.2).abs().sqrt(), 0.2),
    "floor": (lambda s: torch.floor(3 * s), None),
}


@pytest.mark.parametrize(("f", "where"), KINKED.values(), ids=KINKED)
def test_kinks_are_found(f, where) -> None:
    found = find_kink(attnc.function(f), Interval(-1, 1))
    assert found is not None
    assert where is None or abs(found - where) < 1e-6


@pytest.mark.parametrize(
    "spec", [n for n in functions.names() if not functions.get(n + ("(0,1)" if n == "clip" else "")).kinks]
)
@pytest.mark.parametrize("ends", [(-1, 1), (-8, 8), (-40, 30), (0.1, 0.2)])
def test_smooth_functions_are_left_alone(spec: str, ends: tuple[float, float]) -> None:
    assert find_kink(attnc.function(functions.get(spec).torch_form), Interval(*ends)) is None


@pytest.mark.parametrize("ends", [(-1, 1), (-1, 3), (-8, 5), (-1e-3, 2e-3), (-20, 2)])
@pytest.mark.parametrize("f", [lambda s: s.abs() * s.exp(), lambda s: 1 + s.relu()], ids=["abs exp", "relu"])
def test_a_kink_at_zero_is_zero(f, ends: tuple[float, float]) -> None:
    assert find_kink(attnc.function(f), Interval(*ends)) == 0.0


def test_declared_kinks_are_not_reported() -> None:
    f = attnc.function(torch.abs, kinks=(0.0,))
    assert find_kink(f, Interval(-1, 1)) is None


def test_a_sharp_but_smooth_function_is_left_alone() -> None:
    assert find_kink(attnc.function(lambda s: torch.tanh(200 * s)), Interval(-1, 1)) is None


def test_noise_is_not_a_kink() -> None:
    assert find_kink(attnc.function(lambda s: 1e6 + s), Interval(-1, 1)) is None


def test_bends_are_counted() -> None:
    assert bends(Plan(functions.sin(), Interval(-20.0, 20.0), "float64")) == 13
