"""What learners are given lies within the radius, to the last bit, or is refused."""

from __future__ import annotations

import math

import pytest
import torch

from attnc.errors import InputError
from attnc.incontext.base import check_reached, checked_numbers

WIDE = torch.float64


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_beyond_the_radius_are_refused(sign: float) -> None:
    x, y = torch.zeros(3, 2, dtype=WIDE), torch.zeros(3, dtype=WIDE)
    x[1, 1] = y[2] = 2.0 * sign
    assert (
        checked_numbers("x", x, (None, 2), WIDE, 2.0, True) is x
        and checked_numbers("y", y, (3,), WIDE, 2.0, True) is y
    )
    x[1, 1] = y[2] = math.nextafter(2.0, math.inf) * sign
    for check in (
        lambda strict: checked_numbers("x", x, (None, 2), WIDE, 2.0, strict),
        lambda strict: checked_numbers("y", y, (3,), WIDE, 2.0, strict),
    ):
        assert check(False) is not None
        with pytest.raises(InputError):
            check(True)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("strict", [True, False])
def test_numbers_that_are_not_finite_are_refused(wrong: float, strict: bool) -> None:
    x, y = torch.zeros(3, 2, dtype=WIDE), torch.zeros(3, dtype=WIDE)
    x[1, 1] = y[2] = wrong
    with pytest.raises(InputError):
        checked_numbers("x", x, (None, 2), WIDE, 2.0, strict)
    with pytest.raises(InputError):
        checked_numbers("y", y, (3,), WIDE, 2.0, strict)


def test_what_leaves_the_radius_on_the_way_is_refused() -> None:
    check_reached("|w|", 2.0, 2.0, "w")
    for size in (math.nextafter(2.0, math.inf), math.nan, math.inf):
        with pytest.raises(InputError):
            check_reached("|w|", size, 2.0, "w")


@pytest.mark.parametrize("shape", [(3,), (3, 3), (1, 3, 2), (0, 2), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        checked_numbers("x", torch.zeros(shape, dtype=WIDE), (None, 2), WIDE, 2.0, False)
