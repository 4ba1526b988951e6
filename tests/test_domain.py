"""Intervals: what is accepted, and every refusal."""

from __future__ import annotations

import math
import sys
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attnc.domain import Interval
from attnc.errors import AttncError, InputError

MAX = sys.float_info.max
finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("lo", "hi"),
    [
        (-8, 8),
        (-8.0, 8.0),
        (0, 5e-300),
        (1.0, math.nextafter(1.0, 2.0)),
        (-0.0, 1),
        (-MAX / 2, MAX / 2),
        (0, MAX),
        (0.6 * MAX, MAX),
        (np.float64(-1), np.float64(1)),
        (-(2**70), 2**53),
    ],
)
def test_accepted(lo: float, hi: float) -> None:
    interval = Interval(lo, hi)
    assert (interval.lo, interval.hi) == (float(lo), float(hi))
    assert isinstance(interval.lo, float) and isinstance(interval.hi, float)
    assert lo in interval and hi in interval and interval.middle in interval


@pytest.mark.parametrize(
    ("lo", "hi", "message"),
    [
        (1.0, 1.0, r"the interval \(1.0, 1.0\) is empty"),
        (0.0, -0.0, "is empty"),
        (8, -8, r"the interval \(8.0, -8.0\) is reversed"),
        (math.nan, 1.0, r"\(nan, 1.0\) is not finite"),
        (0.0, math.nan, "is not finite"),
        (-math.inf, 0.0, r"\(-inf, 0.0\) is not finite"),
        (0.0, math.inf, "is not finite"),
        (True, 2, "numbers: got True"),
        (0, True, "numbers: got True"),
        ("-8", 8, "numbers: got '-8'"),
        (-8, "8", "numbers: got '8'"),
        (None, 8, "numbers: got None"),
        (-8, None, "numbers: got None"),
        ((-8, 8), 1, r"numbers: got \(-8, 8\)"),
        (1j, 2, "numbers: got 1j"),
        (torch.tensor(0.0), 1, r"numbers: got tensor\(0.\)"),
        (0, 10**400, "too large for floating point"),
        (-(10**400), 0, "too large for floating point"),
        (-MAX, MAX, "has a width of inf"),
        (0.0, 5e-324, "has a width of 5e-324: .* 2\\^-1000"),
        (0.0, 2.0**-1001, "has a width of"),
    ],
)
def test_refused(lo: object, hi: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Interval(lo, hi)  # type: ignore[arg-type]


def test_the_smallest_width_is_accepted() -> None:
    assert Interval(0, 2.0**-1000).width == 2.0**-1000


def test_a_refusal_is_an_attnc_error_and_a_value_error() -> None:
    assert issubclass(InputError, AttncError) and issubclass(InputError, ValueError)


@settings(max_examples=200, deadline=None, database=None)
@given(lo=finite, hi=finite, s=finite)
def test_membership_middle_and_width_are_those_of_the_real_interval(lo: float, hi: float, s: float) -> None:
    assume(2.0**-1000 <= hi - lo < math.inf)
    interval = Interval(lo, hi)
    assert (s in interval) == (Fraction(lo) <= Fraction(s) <= Fraction(hi))
    exact = (Fraction(lo) + Fraction(hi)) / 2
    assert abs(Fraction(interval.middle) - exact) <= max(abs(Fraction(lo)), abs(Fraction(hi))) / 2**52
    assert lo <= interval.middle <= hi and interval.width == hi - lo


@pytest.mark.parametrize("s", [math.nan, math.inf, -math.inf, math.nextafter(8, 9), math.nextafter(-8, -9)])
def test_what_lies_outside_is_not_a_member(s: float) -> None:
    assert s not in Interval(-8, 8)


def test_an_interval_cannot_be_changed_and_is_compared_by_its_ends() -> None:
    assert Interval(-8, 8) == Interval(-8.0, 8.0) != Interval(-8, 9)
    assert len({Interval(-8, 8), Interval(-8.0, 8.0)}) == 1
    with pytest.raises(FrozenInstanceError):
        Interval(-8, 8).lo = 0.0  # type: ignore[misc]
