"""Every term of the solver's bound counts: one part at a time is made large, and an adversary does with it what is allowed."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from attnc.arithmetic import ARITHMETIC
from attnc.incontext import SolverRadius, ridge_regression
from attnc.incontext.bounds import SolverBound
from attnc.incontext.layers import gather_error
from attnc.records.certificate import Status

A = ARITHMETIC["float64"]


def known(d: int = 3, ridge: float = 0.5) -> SolverBound:
    made = ridge_regression(
        ridge,
        features=d,
        iterations=6,
        radius=SolverRadius(2.0, 3.0, 2.0, 5.0),
        start=0.08,
        dtype=torch.float64,
    )
    return made._bounds("bound")


def reading(made: SolverBound, bound: float) -> SolverBound:
    return replace(made, reading=bound)


def altered(made: SolverBound, **settings: object) -> SolverBound:
    return replace(made, settings=replace(made.settings, **settings))


@pytest.mark.parametrize("d", [1, 3])
def test_what_is_read_wrongly_passes_both_products(d: int) -> None:
    """Every P_j·x_i off by B, every x_i = X: every entry of Q is off by XB, every entry of QP by dXBp, and so is all of E."""
    made = reading(known(d), 0.25)
    r = made.settings.radius
    assert made.step_error(20) >= d * d * r.x * 0.25 * r.p


@pytest.mark.parametrize("d", [1, 3])
def test_what_is_gathered_wrongly_passes_the_product(d: int) -> None:
    made = known(d)
    made = altered(made, scales=(0.1, *made.settings.scales[1:]))
    r = made.settings.radius
    mean = gather_error(0.1, 20, r.u, r.x, A).approximation
    assert mean > 1e-3 and made.step_error(20) >= d * d * mean * r.p


@pytest.mark.parametrize("d", [1, 3])
def test_the_product_counts(d: int) -> None:
    made = known(d)
    made = altered(made, scales=(made.settings.scales[0], 0.3, made.settings.scales[2]))
    mean = gather_error(0.3, d, 2.0, made.settings.radius.p, A).approximation
    assert mean > 1e-3 and made.step_error(20) >= d * d * mean


def test_every_step_errs() -> None:
    """One feature: P ← 2P - PAP - ε, and w = Pb is off by (1 - PA)b/A."""
    made = reading(known(1), 1e-3)
    r, a = made.settings.radius, Fraction(4)
    step = Fraction(made.step_error(20))
    p = Fraction(made.settings.start)
    for _ in range(made.settings.iterations):
        p = 2 * p - p * a * p - step
    b = Fraction(r.x) * Fraction(r.y)
    lost = abs(p * b - b / a)
    bound = made.bound(20, 4.0, 4.0)
    assert lost <= Fraction(bound)
    assert lost >= Fraction(1, 2) * Fraction(bound)


def test_an_iteration_that_may_diverge_has_no_bound() -> None:
    made = known(1)
    assert math.isfinite(made.bound(20, 4.0, 4.0))
    assert math.isinf(altered(made, start=0.3).bound(20, 4.0, 4.0))  # α‖A‖ > 1
    wild = reading(altered(made, iterations=1), 1.0)
    assert wild.step_error(20) * 4 > 1
    assert math.isinf(wild.bound(20, 4.0, 4.0))


def test_the_last_products_count() -> None:
    made = known(1)
    one = gather_error(0.2, 20, made.settings.radius.y, made.settings.radius.x, A).approximation
    assert one > 1e-3
    assert (
        altered(made, scales=(*made.settings.scales[:2], 0.2)).bound(20, 4.0, 4.0)
        >= made.settings.radius.p * one
    )


def test_a_bound_that_is_not_known_is_infinite() -> None:
    radius = SolverRadius(x=3, y=6, p=8, u=30)
    solver = ridge_regression(0.1, features=3, iterations=10, radius=radius, start=0.5)
    claim = solver.certificate
    assert claim.status is Status.UNKNOWN
    assert claim.bound == claim.approximation == claim.rounding == math.inf
