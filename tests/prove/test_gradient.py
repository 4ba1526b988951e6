"""Lipschitz constants: at least the slopes that are found, and within the tolerance of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnc.program import Traced
from attnc.prove.gradient import lipschitz_bound
from attnc.prove.lattice_bound import SingularError
from tests.prove.traced_functions import random_function

LO, HI = np.array([-1.0, -0.5]), np.array([1.0, 0.75])


def largest_slope(f: Traced, lo: np.ndarray, hi: np.ndarray, seed: int = 0) -> float:
    """Of |f(x) - f(y)|/|x - y| over pairs of near points, from below."""
    draw = np.random.default_rng(seed)
    x = lo + draw.random((4000, len(lo))) * (hi - lo)
    x[:500] = np.where(draw.random((500, len(lo))) < 0.5, lo, hi)
    y = np.clip(x + draw.standard_normal(x.shape) * 1e-4 * (hi - lo), lo, hi)
    values = [f.approximate(torch.from_numpy(z)).numpy() for z in (x, y)]
    apart = np.sqrt(np.square(x - y).sum(1))
    change = np.abs(values[0] - values[1]).max(1) - 1e-12
    return float((change[apart > 0] / apart[apart > 0]).max())


@pytest.mark.parametrize("seed", range(12))
def test_no_slope_exceeds_the_constant(seed: int) -> None:
    draw = np.random.default_rng(seed)
    f = random_function(draw, 2, 2)
    found = lipschitz_bound(f, LO, HI, tolerance=0.05, seconds=0.7)
    assert largest_slope(f, LO, HI) <= found.constant
    assert found.attained <= found.constant and (
        found.constant <= 1.05 * found.attained or not found.finished
    )


def test_smooth_functions_are_sharp() -> None:
    f = Traced(0, 2, (("constant", 3.0), ("multiply", 0, 1), ("multiply", 2, 3), ("sin", 4)), (5,))
    found = lipschitz_bound(f, LO, HI)
    assert found.finished and largest_slope(f, LO, HI) <= found.constant <= 1.05 * largest_slope(f, LO, HI)


@pytest.mark.parametrize(
    "operations",
    [
        (("maximum", 0, 1),),
        (("minimum", 0, 1), ("maximum", 0, 1)),
        (("absolute", 0),),
        (("minimum", 0, 1), ("maximum", 0, 1), ("maximum", 2, 3)),
    ],
)
def test_maxima_and_sorting_have_the_constant_one(operations: tuple[tuple[object, ...], ...]) -> None:
    f = Traced(0, 2, operations, tuple(range(2, 2 + len(operations))))
    assert lipschitz_bound(f, LO, HI).constant == 1.0


def test_the_larger_slope_of_a_maximum_counts() -> None:
    f = Traced(0, 2, (("constant", 3.0), ("multiply", 1, 2), ("maximum", 0, 3), ("minimum", 0, 3)), (4, 5))
    assert 3.0 <= lipschitz_bound(f, LO, HI).constant <= 3.0 * (1 + 1e-9)


def test_an_infinite_slope_is_named_with_its_cell() -> None:
    f = Traced(0, 2, (("power", 0, 2), ("sqrt", 2)), (3,))
    with pytest.raises(SingularError) as caught:
        lipschitz_bound(f, LO, HI)
    assert caught.value.lo[0] <= 0 <= caught.value.hi[0]


def test_no_time_leaves_a_constant_that_holds() -> None:
    f = Traced(0, 2, (("exp", 0), ("multiply", 1, 2)), (3,))
    assert lipschitz_bound(f, LO, HI, seconds=0.0).constant >= largest_slope(f, LO, HI)
