"""Known approximators as attention: against numpy's interpolation, against plain maxima, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import attnc
from attnc.errors import AttncError, InputError, PrecisionError, UnsupportedError
from attnc.paper import MaxAffine, Spline, relu_network
from attnc.program.evaluate import approximate, exact

KNOTS, VALUES = [0.0, 0.3, 1.0, 1.1, 4.0], [1.0, -2.0, 0.7, 0.7, 3.0]


def test_spline_is_the_interpolation() -> None:
    net = relu_network(Spline(KNOTS, VALUES), eps=1e-6)
    x = torch.linspace(0, 4, 4001, dtype=torch.float64)[:, None]
    error = np.abs(net(x).numpy()[:, 0] - np.interp(x.numpy()[:, 0], KNOTS, VALUES)).max()
    assert error <= 1e-6 and net.certificate.bound <= 1e-6
    assert len(net.layers) == 1 and net.program.shapes[-1] == (1,)
    assert net.theorem.bound is None and "5 knots" in net.notes[0]


def test_outer_pieces_go_on() -> None:
    net = relu_network(Spline(KNOTS, VALUES), eps=1e-6, domain=(-1, 6))
    ends = torch.tensor([[-1.0], [6.0]], dtype=torch.float64)
    slopes = -3 / 0.3, (3.0 - 0.7) / 2.9
    assert np.allclose(net(ends).numpy()[:, 0], [1 - slopes[0], 3 + 2 * slopes[1]], atol=1e-6)


increasing = st.lists(st.floats(-50, 50, width=32), min_size=3, max_size=12, unique=True).map(sorted)


@given(increasing, st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_deviation_is_what_the_program_is_off(knots: list[float], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=len(knots))
    spline = Spline(knots, values)
    lo, hi = knots[0], knots[-1]
    deviation = spline.deviation(lo, hi)
    points = np.concatenate([knots, np.linspace(lo, hi, 9)])
    points = points[(points >= lo) & (points <= hi)]
    found = [abs(_fraction(exact(spline.program(), np.array([x]), 4096)[0]) - spline.at(x)) for x in points]
    assert max(found) <= deviation
    assert max(found[: len(knots)]) == deviation
    assert float(deviation) <= 2.0**-50 * _steepest(knots, values) * (hi - lo)


def _fraction(ball: object) -> Fraction:
    """An exact ball as a fraction."""
    mantissa, exponent = ball.mid().man_exp()  # type: ignore[attr-defined]
    assert ball.rad() == 0  # type: ignore[attr-defined]
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def _steepest(knots: list[float], values: np.ndarray) -> float:
    return float(np.abs(np.diff(values) / np.diff(knots)).max())


def test_spline_of_many_knots() -> None:
    knots = np.linspace(0, 1, 101)
    spline = Spline(knots, np.sin(7 * knots))
    net = relu_network(spline, eps=1e-5)
    x = np.linspace(0, 1, 2003)
    error = np.abs(net(torch.from_numpy(x)[:, None]).numpy()[:, 0] - np.interp(x, knots, np.sin(7 * knots)))
    assert error.max() <= 1e-5
    assert 0 < spline.deviation(0.0, 1.0) < Fraction(1, 10**15)


def test_eps_below_the_slopes_of_float64_is_refused() -> None:
    steep = Spline([0.0, 1.0, 3.0], [0.1, 1e20, 0.0])
    with pytest.raises(PrecisionError, match="64") as refusal:
        relu_network(steep, eps=1e-3)
    assert refusal.value.reachable > 0


@pytest.mark.parametrize("m", [2, 3, 5, 8])
def test_max_affine_is_the_maximum(m: int) -> None:
    draw = np.random.default_rng(m)
    a, b = draw.normal(size=(m, 3)), draw.normal(size=m)
    net = relu_network(MaxAffine(a, b), eps=1e-6, domain=attnc.Box(-1, 1, shape=(3,)))
    x = draw.uniform(-1, 1, (3000, 3))
    assert np.abs(net(torch.from_numpy(x)).numpy()[:, 0] - (x @ a.T + b).max(1)).max() <= 1e-6
    assert len(net.layers) == math.ceil(math.log2(m)) and net.certificate.bound <= 1e-6


def test_max_affine_program_is_exact() -> None:
    a = np.array([[0.1, 0.2], [-0.3, 0.7], [0.5, -0.9]])
    x = np.array([[0.3, -0.4], [1.0, 1.0], [-0.125, 0.5]])
    rows = [[Fraction(v) for v in row] for row in a.tolist()]
    for point in x:
        best = max(sum(w * Fraction(float(v)) for w, v in zip(row, point, strict=True)) for row in rows)
        assert _fraction(exact(MaxAffine(a, np.zeros(3)).program(), point, 512)[0]) == best


def test_a_relu_network_goes_in_as_module_and_as_program(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).double().eval()
    net = relu_network(module, eps=1e-6, domain=attnc.Box(-1, 1, shape=(3,)))
    x = 2 * torch.rand(500, 3, dtype=torch.float64) - 1
    with torch.no_grad():
        assert float((net(x) - module(x)).abs().max()) <= 1e-6
    again = relu_network(net.program, eps=1e-4, domain=(-1, 1), dtype=torch.float32)
    assert (
        np.abs(again(x.float()).double().numpy() - approximate(net.program, x.float().numpy())).max() <= 1e-4
    )
    net.save(tmp_path / "net.safetensors")
    assert attnc.verify(tmp_path / "net.safetensors")
    assert "relu" in net.notes[0] and attnc.load(tmp_path / "net.safetensors").notes == net.notes


BOX = attnc.Box(-1, 1, shape=(2,))
TENT = Spline([0, 1, 3], [0, 2, 1])
BAD = {
    "knots equal": (lambda: Spline([0, 1, 1], [0, 1, 2]), "increasing knots"),
    "knots fall": (lambda: Spline([0, 2, 1], [0, 1, 2]), r"knots\[1\]=2.0"),
    "two knots": (lambda: Spline([0, 1], [0, 1]), "at least 3"),
    "other lengths": (lambda: Spline([0, 1, 2], [0, 1]), "same length"),
    "knots in a table": (lambda: Spline([[0, 1, 2]], [[0, 1, 2]]), "two lists"),
    "NaN knot": (lambda: Spline([0, math.nan, 2], [0, 1, 2]), "knots is not finite"),
    "NaN value": (lambda: Spline([0, 1, 2], [0, math.nan, 2]), "values is not finite"),
    "text": (lambda: Spline("abc", [0, 1, 2]), "knots is a"),
    "too steep": (lambda: Spline([0, 1e-300, 1], [0, 1e300, 0]), "too steep"),
    "A and b": (lambda: MaxAffine([[1.0], [2.0]], [0.0]), r"\(m,\)"),
    "A a list": (lambda: MaxAffine([1.0, 2.0], [0.0, 1.0]), r"\(m, d\)"),
    "one row": (lambda: MaxAffine([[1.0]], [0.0]), "m >= 2"),
    "NaN in A": (lambda: MaxAffine([[1.0], [math.nan]], [0.0, 0.0]), "A is not finite"),
    "NaN in b": (lambda: MaxAffine([[1.0], [2.0]], [0.0, math.nan]), "b is not finite"),
    "no domain": (lambda: relu_network(MaxAffine(np.eye(2), [0.0, 0.0]), eps=1e-3), "give domain"),
    "other domain": (lambda: relu_network(TENT, eps=1e-3, domain=BOX), r"shape \(1,\)"),
    "eps": (lambda: relu_network(TENT, eps=0.0), "eps=0.0"),
    "dtype": (lambda: relu_network(TENT, eps=1e-3, dtype=torch.float16), "dtype="),
    "module without a box": (lambda: relu_network(nn.ReLU(), eps=1e-3, domain=(-1, 1)), "attnc.Box"),
    "no model": (lambda: relu_network(3, eps=1e-3, domain=BOX), "got int"),
    "a function": (lambda: relu_network(lambda x: x, eps=1e-3, domain=BOX), "function"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    act, said = BAD[case]
    with pytest.raises(InputError, match=said):
        act()


def test_a_module_that_is_not_understood_is_listed() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(x, -1)

    with pytest.raises((UnsupportedError, AttncError)):
        relu_network(Odd().eval(), eps=1e-3, domain=BOX)
