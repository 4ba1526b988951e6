"""Taylor models of tanh neurons contain them, without slack, from flat to saturated neurons and from wide to tiny cells."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb

from attnc.functions.balls import working
from attnc.prove.fitted import FittedNumbers, tanh_coefficients
from attnc.prove.taylor import monomials
from tests.prove.traced_functions import BITS, corner_or_inside, in_cell, model_value

CELLS, POINTS, NEURONS, OUTPUTS = 10, 4, 5, 2


def numbers(draw: np.random.Generator, d: int, steep: float) -> FittedNumbers:
    def normal(*shape: int) -> np.ndarray:
        return draw.normal(size=shape)

    return FittedNumbers(
        steep * normal(NEURONS, d), steep * normal(NEURONS), normal(OUTPUTS, NEURONS), normal(OUTPUTS)
    )


def affine(weight: np.ndarray, bias: np.ndarray, x: list[arb]) -> list[arb]:
    pairs = zip(weight, bias, strict=True)
    return [sum((arb(w) * s for w, s in zip(row, x, strict=True)), arb(b)) for row, b in pairs]


def value(g: FittedNumbers, x: list[arb]) -> list[arb]:
    """The network at a point, in balls."""
    return affine(g.w2, g.b2, [s.tanh() for s in affine(g.w1, g.b1, x)])


@pytest.mark.parametrize("steep", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("half", [1e-12, 1e-4, 0.02, 0.4])
@pytest.mark.parametrize(("d", "degree"), [(1, 10), (2, 4), (3, 2), (2, 1)])
def test_neurons_are_contained(d: int, degree: int, half: float, steep: float) -> None:
    draw = np.random.default_rng([d, degree, round(-10 * np.log10(half)), round(steep)])
    g, centre = numbers(draw, d, steep), draw.uniform(-1, 1, (CELLS, d))
    halves = half * draw.uniform(0.2, 1, (CELLS, d))
    found, tight = g.models(monomials(d, degree), centre, halves), 0
    for cell in range(CELLS):
        for _ in range(POINTS):
            t = corner_or_inside(draw, d)
            with working(BITS):
                meant = value(g, in_cell(centre[cell], halves[cell], t))
                for y, model in zip(meant, found, strict=True):
                    r = float(model.r[cell])
                    assert abs(y - model_value(model, cell, t)) <= arb(r) if np.isfinite(r) else True
                    tight += r < 1e-6
    if half * steep <= 1e-4 and degree >= 2:
        assert tight == CELLS * POINTS * OUTPUTS


def test_coefficients_of_tanh() -> None:
    """Their stated errors, against the series in balls."""
    from flint import arb_series

    z = np.concatenate([np.linspace(-4, 4, 33), [0.0, -0.0, 1e-300, 12.0, -40.0, 700.0]])
    found, wrong = tanh_coefficients(z, 12)
    with working(4000, 13):  # so that coefficients that are 0 are known below the smallest errors
        for i, s in enumerate(z.tolist()):
            e = arb_series([arb(2 * s), 2]).exp()
            series = (e - 1) / (e + 1)
            for k in range(13):
                assert abs(arb(float(found[k][i])) - series[k]) <= arb(float(wrong[k][i])), (s, k)
