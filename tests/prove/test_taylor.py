"""Taylor models contain the functions that they model, without slack; and they are not much wider."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb

from attnc.functions.balls import working
from attnc.program import Traced
from attnc.prove.taylor import monomials
from attnc.prove.taylor_functions import models
from tests.prove.traced_functions import (
    BITS,
    corner_or_inside,
    exact_values,
    in_cell,
    model_value,
    random_function,
)

CELLS, POINTS = 12, 4
TWO = ("add", "subtract", "multiply", "maximum", "minimum")
CASES = {
    **{name: (("sin", 0), ("add", 0, 2), ("cos", 1), (name, 3, 4)) for name in TWO},
    "where": (("sin", 0), ("cos", 1), ("subtract", 2, 3), ("where", 4, 0, 3)),
    "divide": (("sin", 0), ("constant", 2.5), ("add", 1, 3), ("divide", 2, 4)),
    **{name: (("multiply", 0, 1), ("add", 0, 2), (name, 3)) for name in ("exp", "sin", "cos", "erf", "absolute", "negate")},
    "atan": (("multiply", 0, 1), ("add", 0, 2), ("atan", 3)),
    **{name: (("multiply", 0, 1), ("constant", 3.0), ("add", 2, 3), (name, 4)) for name in ("log", "sqrt")},
    **{f"power {q}": (("multiply", 0, 1), ("constant", 3.0), ("add", 2, 3), ("power", 4, q)) for q in (-2, 0, 3, 7, -1.5, 0.3)},
}  # fmt: skip


def check(f: Traced, d: int, degree: int, seed: int) -> tuple[int, float]:
    """How many values were compared, and the largest part of a radius that was used."""
    draw = np.random.default_rng(seed)
    half, centre = 10.0 ** draw.uniform(-3, -0.3, (CELLS, d)), draw.uniform(-1, 1, (CELLS, d))
    found, compared, used = models(f, monomials(d, degree), centre, half), 0, 0.0
    for cell in range(CELLS):
        for _ in range(POINTS):
            t = corner_or_inside(draw, d)
            point = in_cell(centre[cell], half[cell], t)
            with working(BITS):
                for y, model in zip(exact_values(f, point), found, strict=True):
                    r = float(model.r[cell])
                    if np.isfinite(r):
                        off = abs(y - model_value(model, cell, t))
                        assert off <= arb(r), (f.operations, centre[cell], half[cell], t)
                        used = max(used, float(off.mid()) / max(r, 1e-300))
                        compared += 1
    return compared, used


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("degree", [1, 3, 8])
def test_operations_are_contained(name: str, degree: int) -> None:
    f = Traced(0, 2, CASES[name], (1 + len(CASES[name]),))
    compared, used = check(f, 2, degree, degree)
    assert compared >= 0.8 * CELLS * POINTS
    if degree == 1 and name not in ("power 0", "power -2"):
        assert used > 0.3  # the radius is needed


@pytest.mark.parametrize("seed", range(24))
def test_compositions_are_contained(seed: int) -> None:
    draw = np.random.default_rng(seed)
    d = int(draw.integers(1, 4))
    f = random_function(draw, d, 2)
    compared, _ = check(f, d, int(draw.choice([2, 4, 6])), seed)
    assert compared > 0


def test_smooth_functions_are_sharp() -> None:
    """On small cells the radius is that of the next Taylor term."""
    f = Traced(0, 2, (("multiply", 0, 1), ("sin", 2), ("exp", 3)), (4,))
    (model,) = models(f, monomials(2, 6), np.array([[0.3, -0.4]]), np.full((1, 2), 0.05))
    assert model.r[0] < 1e-9 and model.spread[0] < 0.1


@pytest.mark.parametrize(
    "operation", [("log", 0), ("sqrt", 0), ("power", 0, -1), ("power", 0, 0.5), ("divide", 0, 0)]
)
def test_singularities_promise_nothing(operation: tuple[object, ...]) -> None:
    f = Traced(0, 1, (operation,), (1,))
    (model,) = models(f, monomials(1, 4), np.array([[0.1], [0.0], [3.0]]), np.array([[0.2], [0.1], [0.5]]))
    assert not np.isfinite(model.r[:2]).any() and np.isfinite(model.r[2])


def test_huge_numbers_promise_nothing() -> None:
    f = Traced(0, 1, (("power", 0, 3), ("exp", 1), ("multiply", 2, 2)), (3,))
    (model,) = models(f, monomials(1, 3), np.array([[100.0]]), np.array([[1.0]]))
    assert not np.isfinite(model.size).any()


def test_halves_are_the_polynomial_on_halves() -> None:
    x = monomials(2, 3)
    draw = np.random.default_rng(0)
    p, s = draw.standard_normal(len(x.exponents)), np.array([0.3, -0.7])
    for sides, matrix in zip(([-1, -1], [-1, 1], [1, -1], [1, 1]), x.halves, strict=True):
        t = (np.array(sides) + s) / 2
        whole, part = (float(np.prod(v**x.exponents, 1) @ c) for v, c in ((t, p), (s, matrix @ p)))
        assert abs(whole - part) < 1e-12
    assert (np.abs(x.halves).sum(1) <= 1).all()
