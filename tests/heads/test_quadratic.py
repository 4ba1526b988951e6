"""Powers of a quadratic form as sums of two-key heads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import acb, arb

from attnc.errors import ConvergenceError
from attnc.functions.balls import working
from attnc.heads.quadratic import PATTERNS, mellin, power_heads

# heads that the trapezoid rule needs for 16 decades, and its error (1e-12 <= u <= 1e4)
TRAPEZOID = ((61, 1.7e-4), (102, 1.9e-6), (152, 3e-8))


@pytest.mark.parametrize(("count", "error"), TRAPEZOID)
def test_fewer_heads_than_the_trapezoid_rule(count: int, error: float) -> None:
    heads = power_heads(0.5, 1e-12, 1e4, error)
    assert len(heads) < 0.75 * count and heads.error <= error


@pytest.mark.parametrize("target", [1e-3, 1e-6, 1e-12])
def test_the_number_of_heads_grows_by_one_for_an_octave(target: float) -> None:
    few, many = (len(power_heads(0.5, 1e-6, hi, target)) for hi in (2.0**10, 2.0**50))
    assert many - few <= 40 * math.log(2) / 0.69 + 1


def test_the_inverse_telescopes() -> None:
    """Σ_j 2^j σ(-2^j u) = 2^a/(e^{2^a u} - 1) - 2^{b+1}/(e^{2^{b+1} u} - 1) for a <= j <= b."""
    with working(200):
        u = arb(3) / 7
        total = sum((arb(2) ** j / (1 + (arb(2) ** j * u).exp()) for j in range(-20, 6)), arb(0))
        ends = [arb(2) ** j / ((arb(2) ** j * u).exp() - 1) for j in (-20, 6)]
        assert abs(total - ends[0] + ends[1]) < arb(10) ** -50


@pytest.mark.parametrize(("power", "pattern"), [(p, found[-1]) for p, found in PATTERNS.items()])
def test_the_first_harmonic_vanishes(power: float, pattern: tuple[float, float, float]) -> None:
    step, bias, ripple = pattern
    with working(100):
        s = [acb(power, 2 * math.pi * k / step) for k in (1, 2)]
        sizes = [abs(-acb(-arb(bias).exp()).polylog(z) * z.gamma()) / mellin(power, bias) for z in s]
    assert 2 * float(sizes[0]) < 1e-15 and 2 * float(sizes[1]) <= max(ripple, 1e-15)


def test_all_values_are_positive() -> None:
    for power, target in ((0.5, 1e-3), (0.5, 1e-14), (1.0, 1e-9)):
        heads = power_heads(power, 1e-6, 1e6, target)
        assert (heads.value > 0).all() and (np.diff(heads.scale) > 0).all()


def test_an_error_below_every_pattern_is_refused() -> None:
    with pytest.raises(ConvergenceError):
        power_heads(0.5, 1e-6, 1e6, 1e-19)
