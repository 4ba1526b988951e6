"""Discontinuities are found, and steep continuous functions are not taken for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from attnc.domain import Box
from attnc.frontends.callable_source import CallableSource, find_jump

JUMPS: dict[str, tuple[Callable[[Tensor], Tensor], Box, list[float], float, float]] = {
    # f, box, where the search starts, its reach, the size of the jump
    "sign": (lambda x: torch.sign(x - 0.3), Box(-1, 1, shape=(1,)), [0.27], 0.1, 2.0),
    "sign from afar": (lambda x: torch.sign(x - 0.3), Box(-1, 1, shape=(1,)), [-0.5], 1.0, 2.0),
    "floor": (lambda x: torch.floor(4 * x), Box(-1, 1, shape=(1,)), [0.24], 0.05, 1.0),
    "small on a slope": (lambda x: 3 * x + 0.01 * (x > 0.3), Box(-1, 1, shape=(1,)), [0.31], 0.1, 0.01),
    "diagonal": (
        lambda x: (x[:, :1] > x[:, 1:]).double() + x[:, :1],
        Box(0, 1, shape=(2,)),
        [0.5, 0.52],
        0.1,
        1.0,
    ),
    "one token of four": (
        lambda x: x + (x[:, 2:3] > 0.1),
        Box(-1, 1, shape=(4, 1)),
        [0, 0, 0.12, 0],
        0.1,
        1.0,
    ),
    "argmax": (
        lambda x: torch.nn.functional.one_hot(x.argmax(-1), 3).double(),
        Box(0, 1, shape=(1, 3)),
        [0.5, 0.49, 0.1],
        0.1,
        1.0,
    ),
    "box of small numbers": (lambda x: torch.sign(x - 3e-7), Box(0, 1e-6, shape=(1,)), [2.9e-7], 1e-7, 2.0),
    "box far from zero": (lambda x: torch.sign(x - 1000.25), Box(1000, 1001, shape=(1,)), [1000.2], 0.1, 2.0),
}


@pytest.mark.parametrize("name", JUMPS)
def test_found(name: str) -> None:
    f, box, at, reach, size = JUMPS[name]
    ask = CallableSource(f, box)
    jump = find_jump(ask, np.array(at, dtype=float), reach, eps=1e-2)
    assert jump is not None
    assert jump.size == pytest.approx(size, rel=1e-3)
    apart = np.abs(jump.left - jump.right).max()
    assert apart <= 1e-11 * max(1.0, np.abs(jump.left).max())
    both = ask(np.stack([jump.left, jump.right]))
    assert np.abs(both[1] - both[0]).max() == jump.size  # the pair itself shows it
    assert np.abs(jump.left - at).max() <= reach * 1.01
    assert f"jumps by {jump.size:.3g} at x = " in str(jump)


CONTINUOUS: dict[str, tuple[Callable[[Tensor], Tensor], Box, list[float]]] = {
    "abs": (lambda x: x.abs(), Box(-1, 1, shape=(1,)), [0.01]),
    "sqrt": (lambda x: x.sqrt(), Box(0, 1, shape=(1,)), [0.0]),
    "sqrt near": (lambda x: x.abs().sqrt(), Box(-1, 1, shape=(1,)), [0.003]),
    "tenth root": (lambda x: x.abs() ** 0.1, Box(-1, 1, shape=(1,)), [0.0]),
    "pole": (lambda x: 1 / (x + 1e-3), Box(0, 1, shape=(1,)), [0.0]),
    "steep tanh": (lambda x: torch.tanh(1000 * x), Box(-1, 1, shape=(1,)), [0.001]),
    "steeper tanh": (lambda x: torch.tanh(1e6 * x), Box(-1, 1, shape=(1,)), [0.0]),
    "sort": (lambda x: x.sort(1).values, Box(0, 1, shape=(3, 1)), [0.5, 0.5, 0.5]),
    "constant": (lambda x: 0 * x + 3, Box(0, 1, shape=(2,)), [0.5, 0.5]),
    "wiggle": (lambda x: torch.sin(300 * x), Box(0, 1, shape=(1,)), [0.4]),
    "in float32": (lambda x: torch.tanh(50 * x.float()), Box(-1, 1, shape=(1,)), [0.01]),
}


@pytest.mark.parametrize("eps", [1e-1, 1e-2, 1e-4])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_not_reported(name: str, eps: float) -> None:
    f, box, at = CONTINUOUS[name]
    for reach in (0.3, 0.02):
        assert find_jump(CallableSource(f, box), np.array(at), reach, eps) is None


def test_jumps_below_eps_and_out_of_reach_are_not_reported() -> None:
    small = CallableSource(lambda x: x + 0.01 * (x > 0.3), Box(-1, 1, shape=(1,)))
    assert find_jump(small, np.array([0.3]), 0.1, eps=0.1) is None
    far = CallableSource(lambda x: torch.sign(x - 0.9), Box(-1, 1, shape=(1,)))
    assert find_jump(far, np.array([0.0]), 0.1, eps=0.1) is None


def test_float32_functions_have_jumps_too() -> None:
    jump = find_jump(
        CallableSource(lambda x: torch.sign(x.float() - 0.3), Box(-1, 1, shape=(1,))),
        np.array([0.28]),
        0.1,
        1e-2,
    )
    assert jump is not None and jump.size == 2 and abs(jump.left[0] - 0.3) < 1e-5


def test_neighbours_stay_in_the_box() -> None:
    """log is undefined outside, and Asked would refuse it."""
    ask = CallableSource(lambda x: torch.log(x) + (x > 0.15), Box(0.1, 1, shape=(1,)))
    jump = find_jump(ask, np.array([0.1]), 5.0, 1e-2)
    assert jump is not None and abs(jump.left[0] - 0.15) < 1e-9
