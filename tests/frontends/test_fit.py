"""Fitted networks: they keep what they say at points of our own, and say so where they cannot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d

from attnc.domain import Array, Box
from attnc.errors import ConvergenceError
from attnc.frontends import fit as fitting
from attnc.frontends.callable_source import CallableSource
from attnc.frontends.fit import FittedNetwork, fit
from attnc.program import Pointwise
from attnc.program.evaluate import approximate

KERNEL = torch.tensor([[[0.2, 0.5, 0.3]]], dtype=torch.float64)
PROJECTION = torch.from_numpy(np.random.default_rng(8).normal(size=(10, 1)) / np.sqrt(10))


def convolution(x: Tensor) -> Tensor:
    return conv1d(x.transpose(1, 2), KERNEL, padding=1).transpose(1, 2)


def off(found: FittedNetwork, f: Callable[[Tensor], Tensor], box: Box, points: int = 20_000) -> float:
    """The largest distance of the program from f at uniform points, by the interpreter of programs."""
    x = box.lo + np.random.default_rng(77).random((points, *box.shape)) * (box.hi - box.lo)
    return float(np.abs(approximate(found.program, x) - f(torch.from_numpy(x)).numpy()).max())


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Box, float, int]] = {
    # f, box, eps, neurons that are enough
    "convolution": (convolution, Box(-1, 1, shape=(8, 1)), 1e-3, 16),
    "convolution to six digits": (convolution, Box(-1, 1, shape=(8, 1)), 1e-6, 16),
    "a wave in ten dimensions": (lambda x: torch.sin(3 * x @ PROJECTION), Box(-1, 1, shape=(10,)), 1e-2, 40),
    "distance from the mean": (
        lambda x: torch.tanh(x - x.mean(1, keepdim=True)),
        Box(-1, 1, shape=(6, 1)),
        1e-2,
        60,
    ),
    "square of the mean": (
        lambda x: x.mean(1, keepdim=True).square().expand(-1, 5, -1),
        Box(0, 3, shape=(5, 1)),
        1e-3,
        40,
    ),
    "running maximum, coarsely": (lambda x: torch.cummax(x, 1).values, Box(0, 1, shape=(6, 1)), 0.25, 60),
    "constant": (lambda x: 0 * x + 2, Box(0, 1, shape=(6, 1)), 1e-9, 1),
    "an axis without width": (
        lambda x: x[:, :1] * x[:, 1:2],
        Box(np.array([0.0, 2.0, -1.0, 5.0, 0.0]), np.array([1.0, 2.0, 1.0, 6.0, 1.0])),
        1e-3,
        40,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_within_eps(name: str) -> None:
    f, box, eps, neurons = CASES[name]
    found = fit(CallableSource(f, box), eps)
    assert found.error <= eps
    assert found.neurons <= neurons
    assert off(found, f, box) <= eps
    assert found.program.shape == box.shape
    hidden = [step for step in found.program.steps if isinstance(step, Pointwise)]
    assert [step.function.name for step in hidden] == ["tanh"] * (found.neurons > 0)


def test_weights_stay_moderate() -> None:
    found = fit(CallableSource(convolution, Box(-1, 1, shape=(8, 1))), 1e-6)
    assert (
        max(float(np.abs(step.tensors()["weight"]).max()) for step in found.program.steps if step.tensors())
        < 200
    )


def test_other_numbers_of_tokens() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cat([x.sum(1, keepdim=True), x[:, :1]], -1)

    box = Box(-1, 1, shape=(5, 2))
    found = fit(CallableSource(f, box, tokens=1), 1e-3)
    assert found.program.shapes[-1] == (1, 4) and off(found, f, box) <= 1e-3


def test_the_error_is_measured_and_where_it_is() -> None:
    f, box, eps, _ = CASES["a wave in ten dimensions"]
    found = fit(CallableSource(f, box), eps)
    there = approximate(found.program, found.worst) - f(torch.from_numpy(found.worst[None])).numpy()[0]
    assert abs(there).max() == pytest.approx(found.error, rel=1e-6)


def test_it_repeats_by_seed_and_leaves_random_numbers_alone() -> None:
    f, box, eps, _ = CASES["distance from the mean"]
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(2), np.random.rand(2)
    torch.manual_seed(3)
    np.random.seed(3)
    one, two, other = (fit(CallableSource(f, box), eps, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(2), expected[0]) and (np.random.rand(2) == expected[1]).all()
    assert one.program.digest() == two.program.digest() != other.program.digest()


def test_what_is_out_of_reach_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnc.frontends.fit.MOST_NEURONS", 30)
    monkeypatch.setattr("attnc.frontends.fit.STEPS", 12)
    ask = CallableSource(lambda x: torch.cummax(x, 1).values, Box(0, 1, shape=(6, 1)))
    with pytest.raises(ConvergenceError) as caught:
        fit(ask, 1e-3)
    found = caught.value.found
    assert isinstance(found, FittedNetwork) and found.neurons <= 30
    assert caught.value.reachable == found.error
    assert off(found, ask._f, ask.box) <= found.error * 1.1  # the best is there, and is what it says


def test_the_slope_of_the_refinement() -> None:
    """Against differences of what least squares leaves, one hidden weight at a time."""
    data = fitting._Data.draw(
        CallableSource(lambda x: torch.sin(3 * x) + x[:, :1] ** 2, Box(-1, 1, shape=(3,))), 1e-2, 0
    )
    hidden = fitting._new_neurons(data, 4, 4)
    heavy = torch.from_numpy(np.random.default_rng(0).uniform(0.5, 1.5, (len(data.u), 1)))
    state = fitting._State.of(data, hidden, 0, heavy)
    width, step = data.basis.shape[1] + 1, 1e-5
    slope = state.slope.reshape(4, width) * 2 / len(data.u)
    for neuron in range(4):
        for direction in range(width):
            losses = []
            for sign in (1, -1):
                moved = hidden[0].clone(), hidden[1].clone()
                if direction < width - 1:
                    moved[0][neuron] += sign * step * data.basis[:, direction]
                else:
                    moved[1][neuron] += sign * step
                losses.append(fitting._State.loss_of(data, moved, heavy))
            measured = (losses[0] - losses[1]) / (2 * step)
            assert float(slope[neuron, direction]) == pytest.approx(measured, rel=1e-3, abs=1e-6)


def test_points_of_the_corners_are_among_the_samples() -> None:
    u: Array = fitting.scattered(4000, 6, [0])
    assert (np.abs(u) <= 1).all() and (np.abs(u[::4]) == 1).any(1).mean() > 0.4
    basis = np.ones((6, 1)) / np.sqrt(6)
    reach = fitting.noise_along(basis, 1000, [0]) @ basis
    assert reach.max() > 0.9 * np.sqrt(6) and reach.min() < -0.9 * np.sqrt(6)
