"""How errors pass: enclosures hold at every value of the program, and every term of the error is needed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb

from attnc import functions
from attnc.domain import Box
from attnc.functions.balls import working
from attnc.lower.layers import lower_steps
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program, Reshape
from attnc.program.evaluate import exact
from attnc.prove.affine import affine_interval
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import compose
from attnc.prove.exact_affine import Enclosed
from tests.soundness.networks import case


def upto(program: Program, value: int) -> Program:
    return Program(program.shape, program.steps[:value])


@pytest.mark.parametrize("seed", range(0, 84, 3))
def test_every_value_lies_in_its_interval_and_in_its_form(seed: int) -> None:
    c = case(seed)
    stages = lower_steps(c.program, "float64")
    known = compose(c.program, stages, c.box, {}, "float64")
    draw = np.random.default_rng(seed)
    corners = np.where(draw.random((3, *c.box.shape)) < 0.5, c.box.lo, c.box.hi)
    for x in [*corners, c.box.lo + draw.random(c.box.shape) * (c.box.hi - c.box.lo)]:
        for stage in stages:
            check_enclosed(known[stage.value], x, c.box, exact(upto(c.program, stage.value), x, 160))


def check_enclosed(known: ValueBounds, x: np.ndarray, box: Box, balls: np.ndarray) -> None:
    with working(160):
        for lo, hi, ball in zip(known.lo.ravel(), known.hi.ravel(), balls.ravel(), strict=True):
            assert not ball < arb(float(lo)) and not ball > arb(float(hi))
        if known.form is None:
            return
        middle = box.lo / 2 + box.hi / 2
        xi = [arb(float(v)) - arb(float(m)) for v, m in zip(x.ravel(), middle.ravel(), strict=True)]
        rows = known.form.matrix.reshape(-1, box.size)
        for row, c, r, ball in zip(
            rows, known.form.centre.ravel(), known.form.radius.ravel(), balls.ravel(), strict=True
        ):
            line = sum((arb(float(a)) * t for a, t in zip(row, xi, strict=True)), arb(float(c)))
            assert not abs(ball - line) > arb(float(r))


def error(program: Program, box: Box, dtype: str, delta: float = 0.0) -> np.ndarray:
    stages = lower_steps(program, dtype)
    deltas = {s.value: HeadErrors(delta, delta) for s in stages}
    return compose(program, stages, box, deltas, dtype)[len(program.steps)].error


def test_rounding_of_a_long_sum_is_nearly_met() -> None:
    """1 + 2⁻²⁴ + 2⁻²⁴ + …, summed from the left in float32, stays 1: every addition loses half a unit."""
    n = 1025
    weight = np.full((1, n), 2.0**-24, dtype=np.float32)
    weight[0, 0] = 1
    bound = error(Program((n,), (Affine(0, weight),)), Box(1, 1, shape=(n,)), "float32")[0]
    found = np.float32(0)
    for w in weight[0]:
        found = np.float32(found + w)
    lost = 1 + 1024 * 2.0**-24 - float(found)
    assert lost == 1024 * 2.0**-24
    assert 0.9 * bound <= lost <= bound


def test_weights_and_biases_that_are_rounded() -> None:
    weight, bias = np.array([[1 + 2.0**-25]]), np.array([3 + 2.0**-24])
    program = Program((1,), (Affine(0, weight, bias),))
    (stage,) = lower_steps(program, "float32")
    assert stage.kind == "affine" and stage.tensor("weight")[0, 0] == 1
    x = 1000.0
    off = abs(x * weight[0, 0] + bias[0] - (x + 3))
    without = error(
        Program((1,), (Affine(0, np.array([[1.0]]), np.array([3.0])),)), Box(x, x, shape=(1,)), "float32"
    )[0]
    assert error(program, Box(x, x, shape=(1,)), "float32")[0] >= without + off


def test_errors_grow_by_the_weights_and_the_slope() -> None:
    """δ of the first layer, through |W| and the slope of the second."""
    steps = (
        Affine(0, np.array([[1.0]])),
        Pointwise(1, functions.relu()),
        Affine(2, np.array([[-3.0], [5.0]])),
        Pointwise(3, functions.leaky_relu(0.5)),
        Affine(4, np.array([[2.0, -4.0]])),
    )
    found = error(Program((1,), steps), Box(1, 2, shape=(1,)), "float64", 1e-3)[0]
    first = 1e-3 * (0.5 * 3 * 2 + 5 * 4)
    assert first + 1e-3 * 6 <= found <= (first + 1e-3 * 6) * (1 + 1e-9)


def test_a_bounded_function_bounds_the_error() -> None:
    steps = (
        Affine(0, np.array([[1e6]])),
        Pointwise(1, functions.tanh()),
        Affine(2, np.array([[1e6]])),
        Pointwise(3, functions.tanh()),
    )
    found = error(Program((1,), steps), Box(-1, 1, shape=(1,)), "float32", 1e-3)[0]
    assert 2 <= found <= 2.01


def test_a_deviation_counts_only_where_it_is_reached() -> None:
    def bound(hi: float) -> float:
        steps = (Affine(0, np.array([[1.0]])), Pointwise(1, functions.softplus(), 1e-2, 5.0))
        return float(error(Program((1,), steps), Box(0, hi, shape=(1,)), "float64")[0])

    assert bound(4.9) < 1e-12
    assert bound(5.1) >= 1e-2


def test_a_folded_normalisation_is_enclosed_and_its_rounding_counts() -> None:
    one = np.array([1.0], dtype=np.float32)
    affine = Affine(0, np.array([[1.0]], dtype=np.float32), one)
    normalise = BatchNorm(1, one * 0, one * 3, one, one * 0, 0.0)
    x, root = 1.0e4, 1 / np.sqrt(3.0)
    for steps, kind in (
        ((affine, normalise), "affine"),
        ((BatchNorm(0, one * 0, one * 3, one, one, 0.0),), "batch_norm"),
    ):
        program = Program((1,), steps)
        stages = lower_steps(program, "float32")
        assert stages[-1].kind == kind
        known = compose(program, stages, Box(x, x, shape=(1,)), {}, "float32")[len(steps)]
        off = abs(float(np.float32(root)) - root) * x
        assert known.error[0] >= off
        with working(160):
            ball = exact(program, np.array([x]))[0]
            assert arb(float(known.lo[0])) <= ball <= arb(float(known.hi[0]))


def test_coefficients_that_are_rounded() -> None:
    program = Program((1,), (Affine(0, np.array([[1.0]])), Combine((0, 1), (0.1, 1.0))))
    stages = lower_steps(program, "float32")
    assert stages[-1].settings["coefficients"][0] == float(np.float32(0.1))
    x = 1e4
    found = error(program, Box(x, x, shape=(1,)), "float32")[0]
    executed = float(torch.tensor(x) * float(np.float32(0.1)) + torch.tensor(x))
    assert found >= abs(executed - (0.1 * x + x))
    assert found >= abs(float(np.float32(0.1)) - 0.1) * x


def test_what_cancels_between_neurons_is_kept() -> None:
    """x - x through two layers: intervals alone would say ±2, the affine form says 0."""
    steps = (Affine(0, np.array([[1.0], [1.0]])), Affine(1, np.array([[1.0, -1.0]])))
    program = Program((1,), steps)
    known = compose(program, lower_steps(program, "float64"), Box(-1, 1, shape=(1,)), {}, "float64")[2]
    assert known.hi[0] <= 1e-12


def test_sums_that_may_overflow_promise_nothing() -> None:
    weight = np.array([[1e38, 1e38]], dtype=np.float32)
    assert np.isinf(error(Program((2,), (Affine(0, weight),)), Box(-10, 10, shape=(2,)), "float32")[0])


def test_inputs_that_are_flushed_to_zero_count() -> None:
    weight = np.array([[2.0**100]], dtype=np.float32)
    tiny = 2.0**-127
    found = error(Program((1,), (Affine(0, weight),)), Box(-tiny, tiny, shape=(1,)), "float32")[0]
    assert found >= tiny * 2.0**100


def test_tokens_are_reordered_with_their_errors() -> None:
    steps = (Affine(0, np.array([[1.0, 0.0], [0.0, 3.0]])), Reshape(1, (4,)), Affine(2, np.eye(4)))
    lo = np.array([[0.0, 1.0], [2.0, 3.0]])
    program = Program((2, 2), steps)
    known = compose(program, lower_steps(program, "float32"), Box(lo, lo), {}, "float32")[3]
    assert np.allclose(known.lo, [0, 3, 2, 9], atol=1e-9) and np.allclose(known.hi, [0, 3, 2, 9], atol=1e-9)
    assert np.argmax(known.error) == 3


def test_the_interval_of_a_folded_weight_holds_it() -> None:
    """A weight that is known within 1/4 only, on inputs of [-1, 3]."""
    x = ValueBounds(np.array([-1.0]), np.array([3.0]), np.zeros(1), np.zeros(1))
    weight, bias = (
        Enclosed(np.array([[2.0]]), np.array([[0.25]])),
        Enclosed(np.array([1.0]), np.array([0.125])),
    )
    lo, hi = affine_interval(x, weight, bias)
    assert lo[0] <= -2.25 + 1 - 0.125 and hi[0] >= 3 * 2.25 + 1 + 0.125
