"""What learners are given lies within the radius, to the last bit, or is refused."""

from __future__ import annotations

import math

import pytest
import torch

from attnc.errors import InputError
from attnc.incontext.inputs import check_reached, checked_examples, checked_labels

WIDE = torch.float64


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_beyond_the_radius_are_refused(sign: float) -> None:
    x, y = torch.zeros(3, 2, dtype=WIDE), torch.zeros(3, dtype=WIDE)
    x[1, 1] = y[2] = 2.0 * sign
    assert checked_examples("x", x, 2, WIDE, 2.0, True) is x and checked_labels(y, 3, WIDE, 2.0, True) is y
    x[1, 1] = y[2] = math.nextafter(2.0, math.inf) * sign
    for check in (
        lambda strict: checked_examples("x", x, 2, WIDE, 2.0, strict),
        lambda strict: checked_labels(y, 3, WIDE, 2.0, strict),
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
        checked_examples("x", x, 2, WIDE, 2.0, strict)
    with pytest.raises(InputError):
        checked_labels(y, 3, WIDE, 2.0, strict)


def test_what_leaves_the_radius_on_the_way_is_refused() -> None:
    check_reached("|w|", 2.0, 2.0, "w")
    for size in (math.nextafter(2.0, math.inf), math.nan, math.inf):
        with pytest.raises(InputError):
            check_reached("|w|", size, 2.0, "w")
