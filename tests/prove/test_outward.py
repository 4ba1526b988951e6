"""Bounds that are rounded outwards are at least the exact value: compared as fractions, without slack."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from attnc.prove.outward import above, below, gamma, grown, product, times, total


def fractions(numbers: np.ndarray) -> list[Fraction]:
    return [Fraction(float(x)) for x in np.ravel(numbers)]


@pytest.mark.parametrize("n", [1, 2, 7, 300])
@pytest.mark.parametrize("scale", [1.0, 1e-160, 1e150])
def test_a_product_is_at_least_the_exact_one(n: int, scale: float) -> None:
    draw = np.random.default_rng(n)
    weight, x = draw.random((5, n)) * scale, draw.random((3, n)) * draw.choice([1.0, 1e-9], n)
    found = product(weight, x)
    for i in range(3):
        for j in range(5):
            exact = sum(
                (a * b for a, b in zip(fractions(x[i]), fractions(weight[j]), strict=True)), Fraction(0)
            )
            assert Fraction(float(found[i, j])) >= exact
            assert float(found[i, j]) <= float(exact) * (1 + 1e-12) + 1e-300


def test_sums_and_products_are_at_least_the_exact_ones() -> None:
    draw = np.random.default_rng(0)
    terms = draw.random((6, 50)) * 10.0 ** draw.uniform(-20, 20, (6, 50))
    summed, multiplied = total(*terms), times(*terms)
    for k in range(50):
        column = fractions(terms[:, k])
        assert Fraction(float(summed[k])) >= sum(column, Fraction(0))
        exact = Fraction(1)
        for f in column:
            exact *= f
        assert Fraction(float(multiplied[k])) >= exact


def test_products_that_underflow_are_not_lost() -> None:
    tiny = np.array([1e-200])
    assert float(times(tiny, tiny)[0]) > 0
    assert float(product(tiny[None], tiny[None])[0, 0]) > 0


@pytest.mark.parametrize(("k", "unit"), [(1, 2.0**-24), (4097, 2.0**-24), (10, 2.0**-53)])
def test_gamma_is_rounded_up(k: int, unit: float) -> None:
    exact = Fraction(k) * Fraction(unit)
    assert Fraction(gamma(k, unit)) >= exact / (1 - exact)
    assert gamma(k, unit) <= float(exact / (1 - exact)) * (1 + 1e-14)


def test_gamma_says_nothing_of_too_many_roundings() -> None:
    assert gamma(2**23, 2.0**-24) == np.inf


def test_grown_covers_so_many_roundings() -> None:
    assert Fraction(float(grown(np.float64(1), 100))) >= (1 + Fraction(2) ** -53) ** 100


@pytest.mark.parametrize("x", [0.0, 1.0, -1.0, 0.1, -3.7e300, 5e-324, -(2.0**-1022)])
def test_below_and_above_are_the_neighbours(x: float) -> None:
    assert float(below(np.float64(x))) < x < float(above(np.float64(x)))
    both = (below(np.array([x])), above(np.array([x])))
    assert [float(b[0]) for b in both] == [np.nextafter(x, -np.inf), np.nextafter(x, np.inf)]
