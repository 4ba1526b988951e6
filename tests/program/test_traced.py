"""Traced functions: the format, and its meaning in balls against mpmath."""

from __future__ import annotations

import json
import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from flint import arb

from attnc.errors import InputError
from attnc.functions.balls import working
from attnc.program import Program, Traced
from attnc.program.evaluate import exact
from attnc.records.record import _step, _step_json

MEANING: dict[str, Any] = {
    "add": mpmath.fadd, "subtract": mpmath.fsub, "multiply": mpmath.fmul, "divide": mpmath.fdiv, "maximum": max,
    "minimum": min, "negate": mpmath.fneg, "absolute": mpmath.fabs, "exp": mpmath.exp, "log": mpmath.log, "sin": mpmath.sin,
    "cos": mpmath.cos, "sqrt": mpmath.sqrt, "erf": mpmath.erf,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MEANING))
def test_operations_mean_what_the_format_says(name: str) -> None:
    two = name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
    f = Traced(0, 2, ((name, 0, 1) if two else (name, 0),), (2,))
    for x in ([0.3, 1.7], [2.5, 0.1], [1e-3, 1e3]):
        with mpmath.workprec(256), working(192):
            (ball,) = exact(Program((2,), (f,)), np.array(x))
            value = MEANING[name](*map(mpmath.mpf, x[: 1 + two]))
            digits = mpmath.nstr(value, 70)

            assert ball.overlaps(arb(digits)) and ball.rad() < 1e-40
        near = f.approximate(torch.tensor([x], dtype=torch.float64)).item()
        assert math.isclose(near, float(value), rel_tol=1e-13)


@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 7, 0.5, -1.5])
def test_powers(exponent: int | float) -> None:
    f = Traced(0, 1, (("power", 0, exponent),), (1,))
    (ball,) = exact(Program((1,), (f,)), np.array([1.3]))
    assert abs(float(ball.mid()) - 1.3**exponent) < 1e-13


def test_integer_powers_of_negative_numbers() -> None:
    f = Traced(0, 1, (("power", 0, 3), ("power", 0, 3.0)), (1, 2))
    whole, real = exact(Program((1,), (f,)), np.array([-2.0]))
    assert whole == -8 and not real.is_finite()


@pytest.mark.parametrize(("operation", "x"), [("log", 0.0), ("log", -1.0), ("sqrt", -1.0)])
def test_undefined_operations_have_no_value(operation: str, x: float) -> None:
    (ball,) = exact(Program((1,), (Traced(0, 1, ((operation, 0),), (1,)),)), np.array([x]))
    assert not ball.is_finite()


@pytest.mark.parametrize(
    "operations",
    [
        (("sinh", 0),), (("add", 0),), (("add", 0, 2),), (("exp", 1),), (("constant", 1),), (("constant", math.inf),), ((),),
        (("power", 0, "2"),), (("power", 0, 1e9),), (("exp", True),), (("exp", 0.0),), (("exp", -1),),
    ],
)  # fmt: skip
def test_other_operations_are_refused(operations: Any) -> None:
    with pytest.raises(InputError):
        Traced(0, 1, operations, (0,))


@pytest.mark.parametrize("returned", [(), (2,), (-1,), (True,), (0.0,)])
def test_other_outputs_are_refused(returned: Any) -> None:
    with pytest.raises(InputError):
        Traced(0, 1, (("exp", 0),), returned)


def test_the_record_is_json_and_reads_back() -> None:
    f = Traced(
        3, 2, (("constant", 0.1), ("power", 0, -2), ("power", 1, 0.5), ("add", 2, 3)), (5, 0, 5), name="f"
    )
    again = _step(json.loads(json.dumps(_step_json(f))), {}, None)
    assert isinstance(again, Traced) and again.settings() == f.settings() and again.name == "f"
    assert Program((2,), (f.reading({3: 0}),)).digest() == Program((2,), (again.reading({3: 0}),)).digest()
    x = torch.rand(4, 2, dtype=torch.float64)
    assert torch.equal(again.approximate(x), f.approximate(x))
