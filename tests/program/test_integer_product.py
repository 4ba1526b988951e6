"""Products of balls and exact matrices by integers: never wrong, and hardly wider than the numbers demand."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb

from attnc.errors import InputError
from attnc.functions.balls import working
from attnc.program import integer_product
from attnc.program.integer_product import ball_product
from attnc.program.step import Balls, Numbers

WIDE = 4000


@pytest.fixture(autouse=True)
def _always_by_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integer_product, "SMALL", -1)


def ends(x: Balls, row: Numbers) -> tuple[arb, arb]:
    """The least and the largest value of Σ w x over the balls."""
    signed = [(arb(float(w)), b) for w, b in zip(row, x, strict=True)]
    low = sum((w * b.mid() - abs(w) * b.rad() for w, b in signed), arb(0))
    return low, low + 2 * sum((abs(w) * b.rad() for w, b in signed), arb(0))


@pytest.mark.parametrize("precision", [64, 192])
@pytest.mark.parametrize("seed", range(12))
def test_encloses_every_product_and_is_not_wide(seed: int, precision: int) -> None:
    draw = np.random.default_rng(seed)
    n, k, m = draw.integers(1, 5), draw.integers(1, 60), draw.integers(1, 5)
    sizes = 10.0 ** draw.uniform(-300 if seed == 1 else -12, 3, (m, k))
    weight = draw.normal(size=(m, k)) * sizes * draw.integers(0, 2, (m, k))
    weight = weight.astype(np.float32) if seed % 2 else weight
    radius = 10.0 ** draw.uniform(-50, -3) * draw.random((n, k)) * (seed % 3)
    with working(precision):
        thirds = [
            [arb(v, r) / 3 for v, r in zip(*row, strict=True)]
            for row in zip(draw.normal(size=(n, k)), radius, strict=True)
        ]
        x = np.array(thirds, dtype=object) * (1 - (seed == 2))
        found = ball_product(x, weight)
    with working(WIDE):
        for i, j in np.ndindex(found.shape):
            low, high = ends(x[i], weight[j])
            assert found[i, j].contains(low) and found[i, j].contains(high), "zero slack"
            size = float(np.abs(weight).max()) * float(max(abs(b).upper() for b in x[i])) * k
            coarse = (high - low) + arb(float(radius.max())) * size * arb(2) ** -14
            assert found[i, j].rad() <= coarse + arb(size) * arb(2) ** (2 - precision)


def test_exact_numbers_have_exact_products() -> None:
    x = np.array([[arb(3), arb(5)]], dtype=object)
    with working(256):
        found = ball_product(x, np.array([[2.0**60, -(2.0**-60)], [0.0, 0.0]]))[0]
        assert found[0] == arb(3) * arb(2) ** 60 - arb(5) / arb(2) ** 60 and found[1] == 0
        far = ball_product(x, np.array([[3.0, 5e-324]]))[0, 0]  # numbers this far apart are rounded
        assert far.contains(arb(9)) and not far.is_exact() and far.rad() < 1e-75


def test_roundings_that_nothing_else_covers() -> None:
    """A number below the grid of its row, and many radii below that of the largest."""
    with working(64):
        far = ball_product(np.array([[arb(1), arb(2) ** -300]], dtype=object), np.array([[0.0, 1.0]]))[0, 0]
        small = [arb(0, 0.999 * 2.0**-29)] * 40
        wide = ball_product(np.array([[arb(0, 1), *small]], dtype=object), np.full((1, 41), 1 - 2.0**-53))[
            0, 0
        ]
    with working(WIDE):
        assert far.contains(arb(2) ** -300)
        assert wide.rad() >= (1 - arb(2) ** -53) * (1 + sum((b.rad() for b in small), arb(0)))


def test_numbers_that_are_not_finite() -> None:
    x = np.array([[arb(1), arb.nan()], [arb(1), arb(2)]], dtype=object)
    found = ball_product(x, np.ones((3, 2)))
    assert not any(b.is_finite() for b in found[0]) and [float(b) for b in found[1]] == [3.0] * 3
    for weight in (np.array([[np.inf, 1.0]]), np.array([[np.nan, 1.0]]), np.zeros((1, 1 << 16))):
        with pytest.raises(InputError):
            ball_product(x, weight)


def test_small_products_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    weight = draw.normal(size=(5, 7))
    with working(128):
        x = np.array([[arb(v) / 3 for v in row] for row in draw.normal(size=(4, 7))], dtype=object)
        by_integers = ball_product(x, weight)
        monkeypatch.setattr(integer_product, "SMALL", 100)
        by_balls = ball_product(x, weight)
    assert all(
        a.overlaps(b) and b.rad() < 1e-35 for a, b in zip(by_integers.flat, by_balls.flat, strict=True)
    )
