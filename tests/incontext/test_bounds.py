"""Every term of the learner's bound counts: one part at a time is made large, and an adversary does with it what is allowed."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
import torch
from flint import arb

import attnc
from attnc.arithmetic import ARITHMETIC
from attnc.domain import Interval
from attnc.functions.balls import working
from attnc.incontext import Radius, gradient_descent
from attnc.incontext.base import eigenvalue_bounds
from attnc.incontext.bounds import LearnerBound, is_monotone
from attnc.incontext.layers import _rounded, gather_error

RADIUS = Radius(2.0, 3.0, 4.0, 6.0)


@cache
def known(loss: str, dtype: torch.dtype = torch.float32, **options: bool) -> LearnerBound:
    return gradient_descent(
        loss, features=3, steps=7, step_size=0.05, radius=RADIUS, dtype=dtype, **options
    )._bounds("bound")


def altered(made: LearnerBound, **settings: object) -> LearnerBound:
    """The same bound with other settings."""
    return replace(made, settings=replace(made.settings, **settings))


def off_by(made: LearnerBound, **errors: float) -> LearnerBound:
    """The same bound with other errors of heads."""
    return replace(made, heads=replace(made.heads, **errors))


def product_error(d: int, x: float, w: float, u: float) -> Fraction:
    """By how much Σ x·w, d terms, can be off when every product and every sum is rounded up."""
    total, unit = Fraction(0), Fraction(u)
    for i in range(d):
        product = Fraction(x) * Fraction(w) * (1 + unit)
        total = product if i == 0 else (total + product) * (1 + unit)
    return total - d * Fraction(x) * Fraction(w)


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber(0.7)"])
@pytest.mark.parametrize("features", [1, 400])
def test_the_residual_errs_by_product_reading_and_activation(loss: str, features: int) -> None:
    """The slope of ψ near 0 carries what w·x errs: 1 for squared and huber, 1/4 for logistic."""
    made = altered(known(loss), features=features)
    product = product_error(features, RADIUS.x, RADIUS.w, ARITHMETIC["float32"].unit)
    for reading, activation in ((0.0, 0.0), (0.125, 0.0), (0.0, 0.25)):
        tried = off_by(made, reading=reading, activation=activation)
        lost = product + Fraction(reading)
        if loss == "logistic":
            half = float(lost) / 2
            lost = Fraction(1 / (1 + math.exp(-half)) - 1 / (1 + math.exp(half))) * (1 - Fraction(2) ** -40)
        if loss != "squared":
            lost += Fraction(activation)
        assert Fraction(tried.residual()[1]) >= lost


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber(0.7)"])
def test_the_residual_is_no_larger_than_is_said(loss: str) -> None:
    made = known(loss)
    largest = {
        "squared": RADIUS.u + RADIUS.y,
        "logistic": 1 / (1 + math.exp(-RADIUS.u)) + RADIUS.y,
        "huber(0.7)": 0.7,
    }[loss]
    assert made.residual()[0] >= largest
    if loss != "squared":
        assert off_by(made, activation=2.0).residual()[0] >= largest + 2


@pytest.mark.parametrize("loss", ["squared", "ridge(0.3)"])
def test_the_update_of_w_rounds(loss: str) -> None:
    """w passes at least three sums: the two means and the shrinking."""
    made = altered(known(loss), radius=Radius(2.0, 3.0, 2.0**20, 6.0))
    u = Fraction(ARITHMETIC["float32"].unit)
    size, _ = made.residual()
    found = gather_error(made.settings.e, 50, size, RADIUS.x, ARITHMETIC["float32"])
    means = (
        Fraction(made.settings.step_size)
        / Fraction(made.settings.e)
        * (Fraction(4, 3) * Fraction(found.one) + Fraction(found.two) / 6)
    )
    assert Fraction(made.step_error(50)["rounding"]) >= means + 2**20 * ((1 + u) ** 3 - 1)


def test_an_intercept_does_not_contract() -> None:
    plain, with_one = known("ridge(0.3)"), known("ridge(0.3)", intercept=True)
    assert plain.bound(50, 1.0) < plain.bound(50)
    assert with_one.bound(50, 1.0) == with_one.bound(50)


@pytest.mark.parametrize("curvature", [0.0, 10.0, 24.0, 39.0])
def test_a_step_contracts_by_its_worst_direction(curvature: float) -> None:
    """An adversary shifts every coordinate by δ in every step, along the eigenvector that contracts least."""
    made = altered(known("ridge(0.3)"), steps=40)
    ridge, eta = Fraction(made.settings.loss.ridge), Fraction(made.settings.step_size)
    q = max(abs(1 - eta * ridge), abs(1 - eta * (Fraction(curvature) + ridge)))
    delta = Fraction(sum(made.step_error(50).values())) * Fraction(math.sqrt(3) * (1 - 2.0**-50))
    distance = Fraction(0)
    for _ in range(made.settings.steps):
        distance = q * distance + delta
    assert Fraction(made.bound(50, curvature)) >= distance


def test_where_the_curvature_is_known_near_zero_only_gradient_descent_must_stay_there() -> None:
    made = gradient_descent(
        "poisson", features=2, steps=3, step_size=0.01, radius=Radius(1.0, 2.0, 1.0, 1.0), dtype=torch.float64
    )._bounds("bound")
    assert math.isfinite(made.bound(20))
    assert made.bound(20) * math.sqrt(2) <= 0.02  # within 2 % of U = 1
    assert math.isinf(off_by(made, reading=1.0).bound(20))


def test_what_is_not_proved_to_grow_is_not_said_to() -> None:
    """s³ - 10⁻¹² s falls between ±5.8·10⁻⁷, less than a cell is wide."""
    sly = attnc.function(
        lambda s: s**3 - 1e-12 * s, name="sly cube", enclosure=lambda x: x * x * x - x * arb("1e-12")
    )
    assert not is_monotone(sly, Interval(-1, 1.3))
    assert is_monotone(attnc.functions.tanh(), Interval(-3, 3))


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber(0.7)"])
def test_heads_are_proved_wherever_they_are_used(loss: str) -> None:
    learner = gradient_descent(loss, features=3, steps=7, step_size=0.05, radius=RADIUS, dtype=torch.float32)
    reading, activation = learner.reading, learner.activation
    assert reading.domain.lo <= -RADIUS.u and reading.domain.hi >= RADIUS.u
    if activation is not None:
        reach = RADIUS.u + reading.certificate.bound + (RADIUS.y if learner.loss.of_residual else 0.0)
        assert activation.domain.lo <= -reach and activation.domain.hi >= reach


@pytest.mark.parametrize("seed", range(5))
def test_the_curvature_of_a_context_is_not_too_small(seed: int) -> None:
    """One column: the eigenvalue is the mean of squares."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(17, 1, generator=draw, dtype=torch.float64)
    exact = sum((Fraction(v) ** 2 for v in x[:, 0].tolist()), Fraction(0)) / 17
    assert Fraction(eigenvalue_bounds(x)[1]) >= exact
    assert eigenvalue_bounds(x)[1] <= float(exact) * (1 + 1e-6)


@pytest.mark.parametrize(("rho", "n", "exp_units", "part"), [(8.0, 20, 0, 0.75), (0.125, 1, 40, 0.8)])
def test_every_rounding_of_a_mean_counts(rho: float, n: int, exp_units: int, part: float) -> None:
    """One example with the score ρ among n with the score 0: an adversary rounds its weight up, the sum of exponentials down,
    and every sum of values up."""
    a = replace(ARITHMETIC["float32"], unit=2.0**-14, tiny=0.0, exp_units=exp_units)
    with working(200):
        off, size = _rounded(arb(rho), n, arb(1), a)
        u, units = arb(a.unit), a.exp_units * arb(a.unit)
        up, down = 1 + units, (-2 * arb(rho) * (1 + u)).exp() * (1 - units)
        others = [(-arb(rho)).exp()] * (2 * n - 2)
        denominator = up
        for e in [*others, down]:
            denominator = (denominator + e) * (1 - u) if exp_units == 0 else denominator + e
        p, m = up / denominator * (1 + u) ** 3, down / denominator * (1 - u) ** 3
        found = (p - m) * (1 + u) ** 2 * (1 + u) ** (n - 1)
        meant = arb(rho).sinh() / (arb(rho).cosh() + n - 1)
        assert abs(found - meant) <= off and abs(found) <= size
        assert abs(found - meant) >= arb(part) * off
