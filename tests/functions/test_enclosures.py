"""The ball-arithmetic forms against mpmath: at points, as Taylor series and over cells, with zero slack."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from flint import arb, arb_series
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from attnc import functions
from attnc.functions.balls import ball, variable, working
from attnc.functions.function import Branch

from .reference import CASES, DIGITS, LABELS, Case, encloses, random_points

each_case = pytest.mark.parametrize("case", CASES, ids=LABELS)
SPECIAL = (0.0, -0.0, 5e-324, -5e-324, 1e-300, -1e-300, 1e-5, -1e-5, 40.0, -40.0, 700.0, -700.0, 1e4, -1e4)
TAYLOR_ORDER = 6
TAYLOR_DIGITS = 60
TAYLOR_ERROR = arb(10) ** -40


def around_kinks(case: Case) -> list[float]:
    return [s for k in case.kinks for s in (math.nextafter(k, -math.inf), k, math.nextafter(k, math.inf))]


def branch_at(case: Case, s: float) -> Branch:
    return case.function.pieces(s, math.nextafter(s, math.inf))[0].branch


def absolute(case: Case) -> int:
    """1 where the enclosure is sharp in absolute terms only: e^s - 1 and log(1 + e^s) near zero."""
    return int(case.function.name in ("tanh", "elu", "celu", "selu", "softplus", "pinball"))


def mp_taylor(case: Case, s: float, order: int) -> list[mpf]:
    """mpmath's coefficients, by differences: a step near 10^-TAYLOR_DIGITS, a precision raised to match."""
    with mp.workdps(TAYLOR_DIGITS):
        return [mpf(c) for c in mp.taylor(case.stretch_at(s), mpf(s), order, chop=False)]


def inflated(coefficient: arb, scale: arb) -> arb:
    """The ball with room for the truncation error of mpmath's differences.

    That error is of the order 10^-TAYLOR_DIGITS of the size of the coefficients; 10^-40 of it leaves 20
    digits to spare, and is below the last of the 128 bits with which the ball was made.
    """
    return coefficient + arb(0, (scale * TAYLOR_ERROR).upper())


def test_every_builtin_function_has_a_case() -> None:
    built_in = {name for name in functions.names() if functions.meaning(name) != "A registered function."}
    assert {case.function.name for case in CASES} == built_in


@each_case
def test_value_contains_the_reference_at_points(case: Case) -> None:
    f = case.function
    with working(128), mp.workdps(DIGITS):
        for s in (*random_points(case, 40), *SPECIAL, *around_kinks(case)):
            assert encloses(f.value(s), case.whole(mpf(s))), s


@each_case
def test_value_is_sharp_at_points(case: Case) -> None:
    f = case.function
    with working(128), mp.workdps(DIGITS):
        for s in (*random_points(case, 40), *SPECIAL, *around_kinks(case)):
            size = arb(abs(case.whole(mpf(s))))
            assert f.value(s).rad() <= (size + absolute(case)) * arb(2) ** -85, s


@pytest.mark.parametrize("s", [-5.0, -1.3, -0.0, 0.7, 4.0, 5.0])
def test_gelu_tanh_is_the_formula_with_tanh(s: float) -> None:
    with working(128), mp.workdps(DIGITS):
        inner = mp.sqrt(2 / mp.pi) * (mpf(s) + mpf("0.044715") * mpf(s) ** 3)
        assert encloses(functions.gelu_tanh().value(s), mpf(s) / 2 * (1 + mp.tanh(inner)))


@each_case
def test_taylor_coefficients_meet_the_reference(case: Case) -> None:
    points = [
        *random_points(case, 4, -6.0, 6.0),
        *random_points(case, 2, -30.0, -20.0),
        29.5,
        *around_kinks(case),
    ]
    for s in points:
        expected = mp_taylor(case, s, TAYLOR_ORDER)
        with working(128, TAYLOR_ORDER + 1):
            found = branch_at(case, s)(variable(arb(s)))
            scale = arb(max(map(abs, expected)))
            allowed = (scale + absolute(case)) * arb(2) ** -80
            for j, wanted in enumerate(expected):
                got = found[j]
                assert inflated(got, scale).contains(arb(wanted)), (s, j)
                assert got.rad() <= allowed, (s, j)


@each_case
@settings(max_examples=20, deadline=None, database=None)
@given(
    middle=st.floats(-30, 30),
    width=st.floats(1e-9, 1.0),
    at=st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_narrow_cells_hold_value_and_slope(case: Case, middle: float, width: float, at: list[float]) -> None:
    """Up to a width of 1 no function may fail."""
    with working(128, 3):
        for piece in case.function.pieces(middle - width / 2, middle + width / 2):
            series = piece.branch(variable(ball(piece.lo, piece.hi)))
            check_cell(case, piece, series, at)


@each_case
@settings(max_examples=20, deadline=None, database=None)
@given(
    ends=st.tuples(st.floats(-60, 60), st.floats(-60, 60)),
    at=st.lists(st.floats(0, 1), min_size=1, max_size=1),
)
def test_wide_cells_hold_value_and_slope(case: Case, ends: tuple[float, float], at: list[float]) -> None:
    """A cell may be too wide, which is a ValueError or a ball that is not finite, but never a false claim."""
    with working(128, 3):
        for piece in case.function.pieces(min(ends), max(ends)):
            try:
                series = piece.branch(variable(ball(piece.lo, piece.hi)))
            except ValueError as problem:
                assert "denominator" in str(problem)
                continue
            check_cell(case, piece, series, at)


def check_cell(case: Case, piece: functions.Piece, series: arb_series, at: list[float]) -> None:
    inside = [min(piece.hi, piece.lo + (piece.hi - piece.lo) * t) for t in at]
    formula = case.stretch_at(piece.lo)
    for s in (piece.lo, piece.hi, *inside):
        with mp.workdps(TAYLOR_DIGITS):
            value, slope, bend = (mpf(c) for c in mp.taylor(formula, mpf(s), 2, chop=False))
            scale = arb(abs(value) + abs(slope) + abs(bend))
            assert not series[0].is_finite() or encloses(series[0], formula(mpf(s))), s
            assert not series[1].is_finite() or inflated(series[1], scale).contains(arb(slope)), s


@each_case
@pytest.mark.parametrize("width", [0.25, 1.0])
def test_cells_of_width_up_to_one_have_finite_coefficients(case: Case, width: float) -> None:
    """Over [-30, 30], kinks and zero included: no division by a ball that holds zero."""
    edges = [-30.0 + width * i for i in range(int(60 / width) + 1)]
    with working(128, 4):
        for a, b in pairwise(edges):
            for piece in case.function.pieces(a, b):
                series = piece.branch(variable(ball(piece.lo, piece.hi)))
                assert all(series[j].is_finite() for j in range(4)), (a, b)


@each_case
def test_cells_converge_to_the_value_as_they_narrow(case: Case) -> None:
    """The excess of a cell's ball over f's range is proportional to the cell's width."""
    for s in (-12.0, -1.7, 0.9, 12.0):
        slope = abs(mp_taylor(case, s, 1)[1])
        with working(128, 2):
            branch, width = branch_at(case, s), 2.0**-20
            cell = branch(variable(ball(s, s + width)))
            size = 5 * arb(slope) + 20 * abs(case.function.value(s)) + arb(2) ** -100
            assert cell[0].rad() <= width * size, s


ONE_SIDED = ("sigmoid", "tanh", "silu", "mish", "softplus")


@pytest.mark.parametrize("name", ONE_SIDED)
@pytest.mark.parametrize("ends", [(1.0, 100.0), (-100.0, -1.0), (1.0, 1e5), (-1e5, -1.0)])
def test_saturated_cells_have_bounded_slopes(name: str, ends: tuple[float, float]) -> None:
    """The exponential is taken on the side on which it is small: a cell far from zero is never too wide."""
    with working(128, 3):
        series = functions.get(name).pieces(*ends)[0].branch(variable(ball(*ends)))
        assert abs(series[1]) < 4 * max(map(abs, ends)) and series[2].is_finite()


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "silu", "softplus"])
@pytest.mark.parametrize("ends", [(0.0, 50.0), (-50.0, 0.0), (-0.5, 50.0), (-50.0, 0.5)])
def test_cells_across_zero_use_the_side_of_their_middle(name: str, ends: tuple[float, float]) -> None:
    with working(128, 3):
        series = functions.get(name).pieces(*ends)[0].branch(variable(ball(*ends)))
        assert series[1].is_finite() and abs(series[1]) < 200


@each_case
def test_two_precisions_overlap_and_the_higher_is_sharper(case: Case) -> None:
    chosen = random_points(case, 12)
    for s in (*chosen, *SPECIAL, *around_kinks(case)):
        branch = branch_at(case, s)
        with working(64, 5):
            coarse = branch(variable(arb(s)))
        with working(256, 5):
            fine = branch(variable(arb(s)))
            for j in range(5):
                assert coarse[j].overlaps(fine[j]), (s, j)
                assert s not in chosen or fine[j].rad() <= coarse[j].rad(), (s, j)
