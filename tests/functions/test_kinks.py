"""Kinks: each declared one is a point where f is not analytic, there is no other, and `pieces` cuts there."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from attnc import functions
from attnc.errors import InputError
from attnc.functions import Function
from attnc.functions.balls import variable, working

from .reference import CASES, LABELS, Case, random_points

each_case = pytest.mark.parametrize("case", CASES, ids=LABELS)
PLACES = (-25.0, -20.0, -7.0, -3.0, -2.5, -1.0, -0.5, -0.1, 0.0, 0.1, 0.3, 0.5, 1.0, 3.0, 4.0, 20.0, 25.0)


def jump(case: Case, s: float, order: int) -> mpf:
    """The size of the jump of the derivative at s, by differences from the right and from the left."""
    with mp.workdps(40):
        sides = [mp.diff(case.whole, mpf(s), order, direction=d, singular=False) for d in (1, -1)]
        return abs(sides[0] - sides[1]) / (1 + abs(sides[0]) + abs(sides[1]))


def cut_points(f: Function, lo: float, hi: float) -> list[tuple[float, float]]:
    return [(p.lo, p.hi) for p in f.pieces(lo, hi)]


def branches_used(f: Function, lo: float, hi: float) -> list[int]:
    """Which of f's branches the pieces have, told apart by their values at a point."""
    with working(64):
        x = variable(arb(0.25))
        known = [str(branch(x)) for branch in f.branches]
        return [known.index(str(piece.branch(x))) for piece in f.pieces(lo, hi)]


@each_case
def test_declared_kinks_are_those_of_the_definition(case: Case) -> None:
    assert case.function.kinks == case.kinks
    assert list(case.function.kinks) == sorted(case.function.kinks)
    assert len(case.function.branches) == len(case.kinks) + 1


@each_case
def test_a_derivative_of_order_one_or_two_jumps_at_each_kink(case: Case) -> None:
    for k in case.function.kinks:
        assert jump(case, k, 0) < 1e-30
        assert max(jump(case, k, 1), jump(case, k, 2)) > 1e-2, k


@each_case
def test_no_derivative_jumps_elsewhere(case: Case) -> None:
    for s in (*PLACES, *random_points(case, 6)):
        if s not in case.function.kinks:
            assert max(jump(case, s, order) for order in (0, 1, 2)) < 1e-25, s


@each_case
def test_pieces_cover_the_interval_in_order_and_hold_no_kink(case: Case) -> None:
    f = case.function
    for lo, hi in ((-30.0, 30.0), (-0.25, 0.2), (0.0, 30.0), (-30.0, 0.0), (2.0, 3.0), (-1.0, 0.5)):
        pieces = f.pieces(lo, hi)
        assert pieces[0].lo == lo and pieces[-1].hi == hi
        assert all(a.hi == b.lo and a.lo < a.hi for a, b in pairwise(pieces))
        assert {p.hi for p in pieces[:-1]} == {k for k in f.kinks if lo < k < hi}


@pytest.mark.parametrize(
    ("lo", "hi", "cuts", "branches"),
    [
        (-2.0, 2.0, [(-2.0, -1.0), (-1.0, 1.0), (1.0, 2.0)], [0, 1, 2]),
        (-1.0, 1.0, [(-1.0, 1.0)], [1]),
        (-1.0, 2.0, [(-1.0, 1.0), (1.0, 2.0)], [1, 2]),
        (-2.0, -1.0, [(-2.0, -1.0)], [0]),
        (-5.0, -3.0, [(-5.0, -3.0)], [0]),
        (1.0, 4.0, [(1.0, 4.0)], [2]),
        (0.0, 0.5, [(0.0, 0.5)], [1]),
        (0.5, 0.5, [(0.5, 0.5)], [1]),
        (1.0, 1.0, [(1.0, 1.0)], [2]),
    ],
)
def test_pieces_of_hardtanh(lo: float, hi: float, cuts: list[object], branches: list[int]) -> None:
    f = functions.hardtanh()
    assert cut_points(f, lo, hi) == cuts
    assert branches_used(f, lo, hi) == branches


def test_a_kink_one_float_inside_an_end_is_cut_off() -> None:
    below, above = math.nextafter(0.0, -1.0), math.nextafter(0.0, 1.0)
    assert cut_points(functions.relu(), below, above) == [(below, 0.0), (0.0, above)]
    assert cut_points(functions.relu(), -0.0, above) == [(0.0, above)]


@settings(max_examples=60, deadline=None, database=None)
@given(lo=st.floats(-5, 5), width=st.floats(0.1, 5))
def test_each_piece_has_the_branch_of_its_stretch(lo: float, width: float) -> None:
    f = functions.clip(-1, 3)
    for piece, branch in zip(f.pieces(lo, lo + width), branches_used(f, lo, lo + width), strict=True):
        s = piece.lo / 2 + piece.hi / 2
        assert branch == (0 if s < -1 else 1 if s < 3 else 2)


@pytest.mark.parametrize(("lo", "hi"), [(1.0, -1.0), (math.nan, 1.0), (0.0, math.nan)])
def test_pieces_refuse_ends_in_the_wrong_order(lo: float, hi: float) -> None:
    with pytest.raises(InputError):
        functions.relu().pieces(lo, hi)


@pytest.mark.parametrize("kinks", [(1.0, 0.0), (0.0, 0.0), (math.nan,), (math.inf,), (-math.inf, 0.0)])
def test_kinks_out_of_order_or_not_finite_are_refused(kinks: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        functions.function(lambda s: s, name="f", kinks=kinks)
