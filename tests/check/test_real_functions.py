"""exp, log, sin, cos, erf and atan in float64: their stated errors, against balls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flint import arb

from attnc.check import real_functions as real
from attnc.domain import Array
from attnc.functions.balls import working

LN2, QUARTER = 0.6931471805599453, 1.5707963267948966


def near_multiples(step: float, count: int, draw: np.random.Generator) -> Array:
    """Numbers near k·step/2, where arguments are reduced to small or to the largest numbers."""
    k = draw.integers(-count, count, 400)
    return k * step / 2 * (1 + draw.integers(-3, 4, 400) * 2.0**-52)


CASES: dict[str, tuple[Callable[[Array], Array], Callable[[arb], arb], Callable[[Array], Array], Array]] = {}
_draw = np.random.default_rng(0)
_small = _draw.normal(size=300) * 10 ** _draw.uniform(-12, 0, 300)
CASES["exp"] = (
    real.exp, arb.exp, lambda y: real.EXP * y + real.LEAST,
    np.concatenate([_small, _draw.uniform(-760, 709, 500), near_multiples(LN2, 1000, _draw), [0.0, -800.0]]),
)  # fmt: skip
CASES["log"] = (
    real.log, arb.log, real.log_error,
    np.concatenate([1 + _small[np.abs(_small) < 0.9], np.exp(_draw.uniform(-600, 600, 500)), [0.5, 1.0, 2**-0.5, 2**0.5]]),
)  # fmt: skip
_angles = np.concatenate(
    [_small, _draw.uniform(-(2.0**20), 2.0**20, 500), near_multiples(QUARTER, 10**6, _draw)]
)
CASES["sin"] = (lambda x: real.sin_cos(x)[0], arb.sin, lambda y: real.TRIG + 0 * y, _angles)
CASES["cos"] = (lambda x: real.sin_cos(x)[1], arb.cos, lambda y: real.TRIG + 0 * y, _angles)
CASES["erf"] = (
    real.erf, arb.erf, lambda y: real.ERF + 0 * y,
    np.concatenate([_small, _draw.uniform(-7, 7, 300), [6.0, -6.0, 5.999999999, 1e300]]),
)  # fmt: skip
CASES["atan"] = (
    real.atan, arb.atan, lambda y: real.ATAN + 0 * y,
    np.concatenate([_small, _draw.normal(size=300) * 10 ** _draw.uniform(-300, 300, 300), [0.0, -0.0, 1.0, -1.0, 1 + 2.0**-52]]),
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_stated_errors_hold(name: str) -> None:
    compute, exact, error, x = CASES[name]
    found = compute(x)
    with working(256):
        for argument, y, most in zip(x.tolist(), found.tolist(), error(found).tolist(), strict=True):
            assert abs(arb(y) - exact(arb(argument))) <= arb(most), argument


@pytest.mark.parametrize("name", ["log", "sin", "cos", "erf", "exp"])
def test_arguments_outside_the_limits(name: str) -> None:
    outside = {
        "log": [0.0, -1.0, np.inf, 1e-310],
        "sin": [1e7, np.inf],
        "cos": [-1e9, np.nan],
        "erf": [np.nan],
        "exp": [np.nan],
    }
    with np.errstate(invalid="ignore"):
        assert np.isnan(CASES[name][0](np.array(outside[name]))).all()
    assert name != "exp" or real.exp(np.array([710.0]))[0] == np.inf
