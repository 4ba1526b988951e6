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
    heads = power_heads(1e-12, 1e4, error)
    assert len(heads.scale) < 0.75 * count and heads.error <= error


@pytest.mark.parametrize("target", [1e-3, 1e-6, 1e-12])
def test_the_number_of_heads_grows_by_one_for_an_octave(target: float) -> None:
    few, many = (len(power_heads(1e-6, hi, target).scale) for hi in (2.0**10, 2.0**50))
    assert many - few <= 40 * math.log(2) / 0.69 + 1


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_the_first_harmonic_vanishes(power: float) -> None:
    step, bias, ripple = PATTERNS[power][-1]
    with working(100):
        s = [acb(power, 2 * math.pi * k / step) for k in (1, 2)]
        sizes = [abs(-acb(-arb(bias).exp()).polylog(z) * z.gamma()) / mellin(power, bias) for z in s]
    assert 2 * float(sizes[0]) < 1e-15 and 2 * float(sizes[1]) <= max(ripple, 1e-15)


def test_all_values_are_positive() -> None:
    for target, power in ((1e-3, 0.5), (1e-14, 0.5), (1e-3, 1.0), (1e-14, 1.0)):
        heads = power_heads(1e-6, 1e6, target, power)
        assert (heads.value > 0).all() and (np.diff(heads.scale) > 0).all()


def test_an_error_below_every_pattern_is_refused() -> None:
    with pytest.raises(ConvergenceError):
        power_heads(1e-6, 1e6, 1e-19)
