"""engine="closed-form" multiplies: prover and checker bound x∘y against every adversary, without slack."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from attnc.arithmetic import ARITHMETIC
from attnc.check import product as checker
from attnc.check.values import CheckError, Passing, SquareErrors, Value, largest_float
from attnc.program import Product, Program
from attnc.prove.bounds import HeadErrors, LayerInputs, ValueBounds
from attnc.prove.product import product_bounds
from attnc.records.layers import Layer
from tests.prove.blocks import coarse, q

Factor = tuple[float, float, float]  # lo, hi and the error of what is executed
PROGRAM = Program((1,), (Product((0, 0)),))
LAYER = Layer("product", (0, 0), 1, {"scale": np.zeros(1, np.int8), "radius": np.zeros(1, np.int8)})


def proved(x: Factor, y: Factor, squares: float = 0.0) -> ValueBounds:
    values = [ValueBounds(*(np.array([t]) for t in (lo, hi, 0.0, e))) for lo, hi, e in (x, y)]
    heads = HeadErrors(squares, np.inf, multiplied=True)
    return product_bounds(LayerInputs(PROGRAM, LAYER, values, ARITHMETIC["float32"], heads))


def checked(x: Factor, y: Factor, squares: float = 0.0) -> Value:
    values = []
    for lo, hi, e in (x, y):
        ends = [np.full((1, 1), t, np.longdouble) for t in (lo, hi, e, 0.0)]
        values.append(Value(*ends, size=np.full((1, 1), max(abs(lo), abs(hi)) + e, np.longdouble)))
    errors = SquareErrors(np.ones(1), np.ones(1), squares, np.inf, multiplied=True)
    return checker.bound(Passing(PROGRAM, LAYER, values, ARITHMETIC["float32"], errors))


@pytest.mark.parametrize("tiny", [2.0**-20, 2.0**-126])
@pytest.mark.parametrize("unit", [2.0**-8, 2.0**-24])
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((-3.0, 2.0, 0.0), (-1.0, 5.0, 0.0)),
        ((-3.0, 2.0, 0.125), (-1.0, 5.0, 0.5)),
        ((0.0, 1e6, 0.0), (0.0, 2.0**-30, 0.0)),
        ((-(2.0**-30), 2.0**-30, 2.0**-32), (1.0, 1e6, 2.0**-10)),
        ((0.0, 0.0, 0.0), (-7.0, 7.0, 0.0)),
    ],
)
def test_no_adversary_leaves_the_product_itself(
    x: Factor, y: Factor, unit: float, tiny: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every end, every error of the inputs, both ways of rounding, underflow, and factors below τ that are taken for 0."""
    a, worst = coarse(monkeypatch, unit, tiny), Fraction(0)
    bounds = [q(proved(x, y).error[0]), q(largest_float(checked(x, y).error))]
    for s, t, *push in product(x[:2], y[:2], *([(-1, 1)] * 4)):
        exact = q(s) * q(t)
        s_hat, t_hat = q(s) + push[0] * q(x[2]), q(t) + push[1] * q(y[2])
        rounded = s_hat * t_hat * (1 + push[2] * q(a.unit)) + push[3] * q(a.tiny)
        worst = max(worst, abs(rounded - exact))
    if x[0] <= 0 <= x[1]:  # a subnormal factor, as good as τ, becomes 0
        most = max(map(abs, y[:2]))
        lost = q(a.tiny) * q(most) * (1 - Fraction(1, 2**40)) + q(a.tiny)
        worst = max(worst, lost)
    for bound in bounds:
        assert worst <= bound
    assert bounds[0] <= 2 * worst + 8 * q(a.tiny) * (1 + q(max(x[1], y[1])) * 4)
    assert bounds[1] <= bounds[0] * (1 + Fraction(1, 1000)) + 8 * q(a.tiny) * (
        1 + q(max(map(abs, x + y))) * 4
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_executed_products_are_within_the_bound(dtype: str) -> None:
    """Numbers of all scales, subnormal ones included, each as an interval of its own."""
    a, draw = ARITHMETIC[dtype], np.random.default_rng(3)
    scale = np.exp2(draw.uniform(np.log2(a.tiny) - 8, 60, (2, 400))) * draw.choice([-1, 1], (2, 400))
    x, y = (torch.tensor(row).to(a.torch_dtype) for row in scale)
    values = [ValueBounds(t, t, 0 * t, 0 * t) for t in (x.double().numpy(), y.double().numpy())]
    at = LayerInputs(PROGRAM, LAYER, values, a, HeadErrors(multiplied=True))
    bound = product_bounds(at).error
    for s, t, p, allowed in zip(x.tolist(), y.tolist(), (x * y).tolist(), bound, strict=True):
        assert abs(q(p) - q(s) * q(t)) <= q(allowed)


def test_the_error_is_never_below_that_of_the_squares_in_exact_arithmetic() -> None:
    x, y = (-1.0, 1.0, 0.0), (-1.0, 1.0, 0.0)
    for found in (proved(x, y, 0.5), checked(x, y, 0.5)):
        error, approximation = (float(np.ravel(e)[0]) for e in (found.error, found.approximation))
        assert error >= approximation >= 0.25 and error < 0.2500001


def test_products_that_may_overflow_are_not_bounded() -> None:
    huge = (0.0, 2.0**70, 0.0)
    assert proved(huge, huge).error[0] == np.inf
    with pytest.raises(CheckError, match="range"):
        checked(huge, huge)
