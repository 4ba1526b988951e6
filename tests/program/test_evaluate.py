"""The oracle itself: against rational numbers where they suffice, against mpmath where they do not. No slack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from flint import arb, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from attnc import functions
from attnc.errors import InputError
from attnc.functions.balls import working
from attnc.program import (
    Affine,
    BatchNorm,
    Combine,
    Norm,
    Pointwise,
    Product,
    Program,
    Reshape,
    Step,
    integer_product,
)
from attnc.program.evaluate import approximate, exact

WIDE = 2400  # bits: sums of float64 are exact in them
number = st.floats(-1e6, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1e-300, 1e300, 5e-324, 0.1])


def rational(q: Fraction) -> arb:
    return arb(fmpq(q.numerator, q.denominator))


def fractions(values: Sequence[float]) -> list[Fraction]:
    return [Fraction(float(v)) for v in values]


def matrix(draw: st.DrawFn, rows: int, columns: int) -> list[list[float]]:
    return draw(st.lists(st.lists(number, min_size=columns, max_size=columns), min_size=rows, max_size=rows))


@st.composite
def affine_programs(draw: st.DrawFn) -> tuple[Program, list[float], list[Fraction]]:
    """Two affine maps, a combination of their values and a reshape, with the result in rational numbers."""
    n, m = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    w, v, b = matrix(draw, m, n), matrix(draw, m, n), matrix(draw, 1, m)[0]
    x = matrix(draw, 1, n)[0]
    c = matrix(draw, 1, 2)[0]
    steps: tuple[Step, ...] = (
        Affine(0, np.array(w), np.array(b)),
        Affine(0, np.array(v)),
        Combine((2, 1), (c[0], c[1])),
        Reshape(3, (m, 1)),
    )
    first = [
        sum((p * q for p, q in zip(fractions(row), fractions(x), strict=True)), Fraction(t))
        for row, t in zip(w, b, strict=True)
    ]
    second = [
        sum((p * q for p, q in zip(fractions(row), fractions(x), strict=True)), Fraction(0)) for row in v
    ]
    result = [Fraction(c[0]) * q + Fraction(c[1]) * p for p, q in zip(first, second, strict=True)]
    return Program((n,), steps), x, result


@settings(max_examples=60, deadline=None)
@given(affine_programs())
def test_affine_parts_are_exact(case: tuple[Program, list[float], list[Fraction]]) -> None:
    program, x, truth = case
    with working(WIDE):
        for precision in (64, 192):
            balls = exact(program, np.array(x), precision)
            assert balls.shape == (len(truth), 1)
            assert all(ball.contains(rational(t)) for ball, t in zip(balls[:, 0], truth, strict=True))


def test_at_enough_bits_nothing_is_lost() -> None:
    """Tightness beside soundness: one third of float32 numbers, added up, is one ball of radius zero."""
    weight = np.array([[1 / 3, 1e-30, 7.0]], dtype=np.float32)
    x = [0.1, 1e20, -3.5]
    truth = sum(p * q for p, q in zip(fractions(weight[0]), fractions(x), strict=True))
    with working(WIDE):
        ball = exact(Program((3,), (Affine(0, weight),)), np.array(x), WIDE)[0]
        assert ball == rational(truth) and ball.rad() == 0


def test_tokens_are_rows() -> None:
    weight, bias = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]]), np.array([0.5, 0.0, -1.0])
    program = Program((2, 2), (Affine(0, weight, bias), Reshape(1, (6,)), Reshape(2, (3, 2))))
    x = np.array([[1.0, 2.0], [-3.0, 0.25]])
    expected = (x @ weight.T + bias).reshape(3, 2)
    assert [float(b.mid()) for b in exact(program, x).flat] == expected.reshape(-1).tolist()
    np.testing.assert_array_equal(approximate(program, np.stack([x, -x]))[0], expected)
    np.testing.assert_array_equal(approximate(program, x), expected)


def test_normalisation_in_many_digits() -> None:
    parts = {"mean": [0.1, -2.0], "variance": [0.3, 1e-9], "gain": [1.5, -0.7], "shift": [0.2, 3.0]}
    step = BatchNorm(0, **{k: np.array(v, dtype=np.float32) for k, v in parts.items()}, epsilon=1e-5)
    x = np.array([0.7, 11.0])
    balls = exact(Program((2,), (step,)), x, 256)
    with working(256), mpmath.workdps(70):
        for i in range(2):
            mean, variance, gain, shift = (mpmath.mpf(float(step.tensors()[k][i])) for k in parts)
            truth = (mpmath.mpf(x[i]) - mean) / mpmath.sqrt(variance + mpmath.mpf(1e-5)) * gain + shift
            gap = abs(balls[i] - arb(mpmath.nstr(truth, 65)))
            assert gap <= arb(10) ** -55 * abs(balls[i]), "the same number, to 55 digits"
    np.testing.assert_allclose(
        approximate(Program((2,), (step,)), x), [float(b.mid()) for b in balls], rtol=1e-14
    )


@pytest.mark.parametrize("label", ["relu", "gelu", "softplus(2)", "clip(-1,1)", "sin", "square", "mish"])
def test_two_precisions_overlap(label: str) -> None:
    layer = Affine(0, np.array([[1.0, -2.0], [0.3, 0.7]]))
    program = Program((2,), (layer, Pointwise(1, functions.get(label)), layer.__class__(2, layer.weight)))
    for x in (np.array([0.5, 0.25]), np.array([0.0, 0.0]), np.array([1.0, 0.5]), np.array([-7.0, 3.0])):
        coarse, fine = exact(program, x, 64), exact(program, x, 400)
        with working(400):
            assert all(a.overlaps(b) for a, b in zip(coarse, fine, strict=True))
            assert all(b.rad() <= 1e-100 for b in fine), "and is not too wide"
        np.testing.assert_allclose(approximate(program, x), [float(b.mid()) for b in fine], atol=1e-13)


def test_deviation_widens_only_beyond() -> None:
    program = Program((3,), (Pointwise(0, functions.softplus(), deviation=0.125, beyond=2.0),))
    below, at, above = exact(program, np.array([1.0, 2.0, 2.5]))
    assert below.rad() < 1e-50 and at.rad() < 1e-50
    assert 0.125 <= float(above.rad()) < 0.126
    with working(192):
        assert above.contains(
            exact(Program((3,), (Pointwise(0, functions.softplus()),)), np.array([1.0, 2.0, 2.5]))[2]
        )


def test_shapes_of_the_input() -> None:
    program = Program((2,), (Affine(0, np.eye(2)),))
    for x in (np.zeros(3), np.zeros((2, 1)), np.array(1.0)):
        for run in (exact, approximate):
            with pytest.raises(InputError):
                run(program, x)
    assert approximate(program, np.zeros((4, 5, 2))).shape == (4, 5, 2)
    batch = np.arange(12.0).reshape(2, 3, 2)
    assert [float(b.mid()) for b in exact(program, batch).flat] == batch.reshape(-1).tolist()
    assert exact(program, batch).shape == (2, 3, 2)


def test_large_weights_by_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short cut for large weights encloses the same rational numbers, behind values that are balls themselves."""
    monkeypatch.setattr(integer_product, "SMALL", -1)
    draw = np.random.default_rng(0)
    for seed in range(20):
        n, m = draw.integers(1, 40, 2)
        scale = 10.0 ** draw.integers(-6, 7, (m, n))
        weight, bias = draw.normal(size=(m, n)) * scale, draw.normal(size=m)
        weight = weight.astype(np.float32) if seed % 2 else weight
        x = draw.normal(size=n)
        thirds = [Fraction(float(v)) / 3 for v in x]
        truth = [
            sum((p * q for p, q in zip(fractions(row), thirds, strict=True)), Fraction(float(t)))
            for row, t in zip(weight, bias, strict=True)
        ]
        three = np.full(n, 3.0)
        third = [BatchNorm(i, three * 0, three, three / 3, three * 0, 0.0) for i in (0, 1)]  # x/√3/√3
        program = Program((int(n),), (*third, Affine(2, weight, bias)))
        with working(WIDE):
            for precision in (64, 192):
                for ball, t, row in zip(exact(program, x, precision), truth, weight, strict=True):
                    assert ball.contains(rational(t))
                    assert ball.rad() <= 1e-15 * (1 + float(np.abs(row) @ np.abs(x))), "and is not too wide"


def test_norms_of_balls_around_zero() -> None:
    thirds = BatchNorm(0, np.zeros(2), np.full(2, 3.0), np.ones(2), np.zeros(2), 0.0)
    program = Program(
        (2,),
        (
            thirds,
            Affine(1, np.array([[1.0, -1.0], [1.0, 1.0]])),
            Norm(2, np.ones(2), np.zeros(2), 1e-5, False),
        ),
    )
    found = exact(program, np.array([0.1, 0.1]), 128)
    assert all(ball.is_finite() and ball.rad() < 1e-30 for ball in found) and found[0].contains(0)


def test_the_working_precision_is_restored() -> None:
    with working(77):
        exact(Program((1,), (Pointwise(0, functions.exp()),)), np.array([math.pi]), 300)
        assert (arb(1) / 3).rad() > 1e-30


def balls_of(balls: np.ndarray) -> np.ndarray:
    return np.array([float(b.mid()) for b in balls.flat]).reshape(balls.shape)


def test_a_product_encloses_what_torch_computes() -> None:
    x = np.random.default_rng(3).normal(size=(2, 5, 4))
    program = Program((5, 4), (Product((0, 0)),))
    found = exact(program, x)
    assert all(float(b.rad()) < 1e-40 for b in found.flat)
    np.testing.assert_allclose(balls_of(found), x**2, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(approximate(program, x), x**2, rtol=1e-12, atol=1e-13)
