"""Rounding from balls to floats goes outward, and the working precision is always restored."""

from __future__ import annotations

import math
import sys
import threading
from fractions import Fraction

import pytest
from flint import arb, ctx
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnc.functions.balls import ball, lower, magnitude, upper, variable, working

MAX = sys.float_info.max
finite = st.floats(allow_nan=False, allow_infinity=False)
rationals = st.fractions() | st.builds(lambda f, n: Fraction(f) / (2 * n + 1), finite, st.integers(0, 50))
thorough = settings(max_examples=200, deadline=None, database=None)


def as_ball(number: Fraction, radius: float = 0.0) -> arb:
    return arb(number.numerator) / arb(number.denominator) + arb(0, radius)


def ends(x: arb) -> tuple[Fraction, Fraction]:
    """The exact ends of a ball, from mantissas and exponents."""
    parts = x.mid().man_exp(), x.rad().man_exp()
    middle, radius = (Fraction(int(m)) * Fraction(2) ** int(e) for m, e in parts)
    return middle - radius, middle + radius


def at_most(x: float, y: Fraction) -> bool:
    return x == -math.inf or (x != math.inf and Fraction(x) <= y)


@thorough
@given(number=rationals, radius=st.floats(0, 1e10), precision=st.sampled_from([10, 53, 128]))
@example(number=Fraction(1, 10), radius=0.0, precision=128)
@example(number=Fraction(2) ** -1080, radius=0.0, precision=53)
@example(number=-(Fraction(2) ** -1080), radius=0.0, precision=53)
@example(number=Fraction(2) ** 1100, radius=0.0, precision=53)
@example(number=-(Fraction(2) ** 1100), radius=0.0, precision=53)
@example(number=Fraction(2) ** 1024 - 1, radius=1e300, precision=128)
def test_upper_lower_and_magnitude_are_outward(number: Fraction, radius: float, precision: int) -> None:
    with working(precision):
        x = as_ball(number, radius)
        lo, hi = ends(x)
        assert lo <= number <= hi
        assert at_most(lower(x), lo) and at_most(-upper(x), -hi)
        assert magnitude(x) >= 0 and at_most(-magnitude(x), -max(abs(lo), abs(hi)))


@thorough
@given(number=rationals.filter(lambda r: abs(r) < 1e300))
def test_upper_and_lower_are_neighbours_of_a_sharp_ball(number: Fraction) -> None:
    """Two floats lie between them at most: one above and one below, and what the ball's radius reaches."""
    with working(256):
        x = as_ball(number)
        step = math.nextafter(math.nextafter(lower(x), math.inf), math.inf)
        assert lower(x) <= upper(x) <= step


@thorough
@given(x=finite)
def test_an_exact_float_is_kept(x: float) -> None:
    with working(53):
        assert upper(arb(x)) == lower(arb(x)) == x
        assert magnitude(arb(x)) == abs(x)


@pytest.mark.parametrize("x", [arb.nan(), arb(0, math.inf), arb(math.inf), arb(-math.inf)], ids=str)
def test_balls_that_are_not_finite_have_infinite_ends(x: arb) -> None:
    assert (lower(x), upper(x), magnitude(x)) == (-math.inf, math.inf, math.inf)


def test_numbers_beyond_the_floats_are_bounded_by_the_largest_float() -> None:
    huge = arb(10) ** 400
    assert (lower(huge), upper(huge)) == (MAX, math.inf)
    assert (lower(-huge), upper(-huge)) == (-math.inf, -MAX)


def test_numbers_below_the_floats_are_bounded_by_the_smallest() -> None:
    tiny = arb(10) ** -400
    assert (lower(tiny), upper(tiny)) == (0.0, 5e-324)
    assert (lower(-tiny), upper(-tiny)) == (-5e-324, 0.0)


@thorough
@given(a=finite, b=finite, t=st.fractions(0, 1), precision=st.sampled_from([10, 53, 128]))
@example(a=-MAX, b=MAX, t=Fraction(1, 3), precision=53)
@example(a=5e-324, b=1e-323, t=Fraction(1, 2), precision=53)
@example(a=5e-324, b=MAX, t=Fraction(0), precision=10)
def test_ball_contains_its_interval(a: float, b: float, t: Fraction, precision: int) -> None:
    lo, hi = min(a, b), max(a, b)
    with working(precision):
        left, right = ends(ball(lo, hi))
    inside = Fraction(lo) + t * (Fraction(hi) - Fraction(lo))
    assert left <= Fraction(lo) <= inside <= Fraction(hi) <= right


@thorough
@given(a=finite, b=finite)
def test_ball_is_hardly_wider_than_its_interval(a: float, b: float) -> None:
    lo, hi = min(a, b), max(a, b)
    with working(128):
        left, right = ends(ball(lo, hi))
    width, size = Fraction(hi) - Fraction(lo), max(abs(Fraction(lo)), abs(Fraction(hi)))
    assert right - left <= width * (1 + Fraction(2) ** -27) + size * Fraction(2) ** -120


def test_ball_of_one_point_is_exact() -> None:
    with working(128):
        assert ball(0.1, 0.1).is_exact() and ball(0.1, 0.1) == arb(0.1)


def test_variable_is_the_centre_plus_t() -> None:
    with working(64, 4):
        x = variable(arb(3))
        assert [x[j] for j in range(4)] == [3, 1, 0, 0]
        assert [(x * x)[j] for j in range(6)] == [9, 6, 1, 0, 0, 0]


def test_working_sets_precision_and_length_and_restores_both() -> None:
    before = ctx.prec, ctx.cap
    with working(200, 7):
        assert (ctx.prec, ctx.cap) == (200, 7)
        assert (arb(1) / 3).rad() < arb(2) ** -195
    assert (ctx.prec, ctx.cap) == before


def test_working_nests() -> None:
    before = ctx.prec, ctx.cap
    with working(100, 3):
        with working(300):
            assert (ctx.prec, ctx.cap) == (300, 2)
            with working(64, 9):
                assert (ctx.prec, ctx.cap) == (64, 9)
            assert (ctx.prec, ctx.cap) == (300, 2)
        assert (ctx.prec, ctx.cap) == (100, 3)
    assert (ctx.prec, ctx.cap) == before


def test_working_restores_after_an_exception() -> None:
    before = ctx.prec, ctx.cap
    with working(100, 3):
        with pytest.raises(ZeroDivisionError), working(300, 8):
            _ = 1 // 0
        assert (ctx.prec, ctx.cap) == (100, 3)
    assert (ctx.prec, ctx.cap) == before


@pytest.mark.parametrize(("precision", "length"), [(0, 2), (-5, 2), (64, -1)])
def test_what_flint_refuses_leaves_the_context_alone(precision: int, length: int) -> None:
    before = ctx.prec, ctx.cap
    with pytest.raises(ValueError), working(precision, length):
        pytest.fail("flint took it")
    assert (ctx.prec, ctx.cap) == before


def test_a_thread_waits_until_another_has_left() -> None:
    entered = threading.Event()

    def enter() -> None:
        with working(300, 5):
            entered.set()

    other = threading.Thread(target=enter)
    with working(100, 3):
        other.start()
        assert not entered.wait(0.1)
        assert (ctx.prec, ctx.cap) == (100, 3)
    other.join()
    assert entered.is_set()
