"""A norm as a step of a network: every term of the bound is needed, in the prover and in the checker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flint import arb

from attnc.arithmetic import ARITHMETIC, FLOAT32
from attnc.check.values import CheckError
from attnc.functions.balls import working
from attnc.program import Norm, Program
from attnc.program.evaluate import approximate
from tests.prove.one_step import COARSE, FINE, WHO, Given, derived

D, EPSILON = 4, 2.0**-6


def norm(centred: bool = False, gain: float = 1.0, shift: float = 0.0) -> Program:
    return Program((1, D), (Norm(0, np.full(D, gain), np.full(D, shift), EPSILON, centred),))


def unit(i: int = 0) -> np.ndarray:
    return np.eye(D)[i : i + 1]


@pytest.fixture
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARITHMETIC, "float32", replace(FLOAT32, unit=FINE, tiny=0.0))


@WHO
@pytest.mark.usefixtures("fine")
@pytest.mark.parametrize("centred", [False, True])
def test_errors_of_the_input_pass_with_the_slope_at_the_smallest_token(centred: bool, who: str) -> None:
    """At 0 the derivative is 1/√ε."""
    direction = np.array([[1.0, -1.0, 0.0, 0.0]]) if centred else unit()
    e = 2.0**-12 * np.abs(direction)
    made = derived(who, norm(centred, gain=3.0), [Given(np.zeros((1, D)), e, e)])
    moved = approximate(norm(centred, gain=3.0), 2.0**-12 * direction)
    for error in (made.error, made.approximation):
        assert 0.7 * error[0, 0] <= moved[0, 0] <= error[0, 0]


@WHO
@pytest.mark.usefixtures("fine")
def test_the_slope_is_that_of_the_tokens_that_may_enter(who: str) -> None:
    """A token of 100 with an error of 1 keeps its direction up to a hundredth."""
    made = derived(who, norm(), [Given(np.full((1, D), 100.0), unit(1), unit(1))])
    assert 0.0025 <= made.error[0, 0] <= 0.0103
    wide = derived(who, norm(), [Given(np.full((1, D), 100.0), unit(1), unit(1), 100.0)])
    assert wide.error[0, 0] > 1


@WHO
@pytest.mark.usefixtures("fine")
def test_no_error_exceeds_the_spread(who: str) -> None:
    made = derived(who, norm(gain=2.0), [Given(np.zeros((1, D)), 1e3, 1e3)])
    assert 4 * np.sqrt(D) <= made.error.max() <= 4.001 * np.sqrt(D)


@WHO
@pytest.mark.usefixtures("fine")
def test_the_relative_error_of_the_root_counts_times_the_output(who: str) -> None:
    x = np.array([[3.0, 0.0, 0.0, 0.0]])
    made = derived(who, norm(gain=5.0), [Given(x)], relative=2.0**-10)
    moved = 2.0**-10 * approximate(norm(gain=5.0), x)[0, 0]
    for error in (made.error, made.approximation):
        assert 0.99 * error[0, 0] <= moved <= error[0, 0]


@WHO
def test_roundings_after_the_root(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARITHMETIC, "float32", replace(FLOAT32, unit=COARSE, tiny=0.0))
    x = np.array([[3.0, 0.0, 0.0, 0.0]])
    made = derived(who, norm(shift=7.0), [Given(x)])
    with working(128):
        u, y = arb(COARSE), arb(9) / (arb(9) / 4 + arb(EPSILON)).sqrt() / 3
        lost = y * ((1 + u) ** 3 - 1) + 7 * u
        assert arb(0.99) * arb(float(made.error[0, 0])) <= lost <= arb(float(made.error[0, 0]))


@WHO
@pytest.mark.usefixtures("fine")
def test_rounded_gains_and_shifts_cost(who: str) -> None:
    x, off = np.array([[3.0, 0.0, 0.0, 0.0]]), 2.0**-26
    made = derived(who, norm(gain=1 - off), [Given(x)])
    assert 0.99 * made.error[0, 0] <= off * approximate(norm(), x)[0, 0] <= made.error[0, 0]
    made = derived(who, norm(shift=1 - off), [Given(x)])
    assert 0.99 * made.error[0, 0] <= off <= made.error[0, 0]


@WHO
def test_subtracting_the_mean_loses_what_its_size_loses(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All numbers are 1: z is 0, but the executed mean may be off by d + 1 roundings, and 1/√ε amplifies it."""
    monkeypatch.setitem(ARITHMETIC, "float32", replace(FLOAT32, unit=COARSE, tiny=0.0))
    made = derived(who, norm(centred=True), [Given(np.ones((1, D)))])
    off = ((1 + COARSE) ** (D + 1) - 1) * (1 + COARSE)
    moved = off / np.sqrt(off**2 + EPSILON)
    assert 0.2 * made.error[0, 0] <= moved <= made.error[0, 0]
    plain = derived(who, norm(), [Given(np.ones((1, D)))])
    assert plain.error[0, 0] < 0.1 * made.error[0, 0]


@WHO
@pytest.mark.parametrize("centred", [False, True])
def test_tokens_that_may_exceed_the_heads_promise_nothing(centred: bool, who: str) -> None:
    """|z|²/d + ε counts, of tokens as executed."""
    x = np.array([[4.0, -4.0, 4.0, -4.0]])
    for error, enough in ((0.0, 16.0 + EPSILON), (0.0625, 4.0625**2 + EPSILON)):
        given = Given(x, error)
        assert np.isfinite(derived(who, norm(centred), [given], most=1.05 * enough).error).all()
        short = enough - EPSILON / 2
        if who == "prover":
            assert not np.isfinite(derived(who, norm(centred), [given], most=short).error).any()
        else:
            with pytest.raises(CheckError):
                derived(who, norm(centred), [given], most=short)


@WHO
def test_outputs_are_normed_only_if_they_are_executed_well(who: str) -> None:
    x = Given(np.zeros((1, D)), 0.0, 0.0, 1.0)
    assert derived(who, norm(), [x]).normed
    assert not derived(who, norm(), [x], relative=2.0**-9).normed
    assert derived(who, norm(gain=0.0, shift=1.0), [x]).normed


@pytest.mark.parametrize("seed", range(20))
def test_values_and_errors_of_random_tokens_are_within_both_bounds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    d, centred = int(draw.integers(2, 9)), bool(seed % 2)
    gain, shift = draw.normal(size=(2, d))
    program = Program((2, d), (Norm(0, gain, shift, 10.0 ** draw.uniform(-6, 0), centred),))
    x = draw.normal(size=(2, d)) * 10.0 ** draw.uniform(-2, 1)
    half = draw.random((2, d)) * 10.0 ** draw.uniform(-3, 1)
    e = draw.random((2, d)) * 10.0 ** draw.uniform(-9, 0)
    found = [derived(who, program, [Given(x, e, e, half)]) for who in ("prover", "checker")]
    for _ in range(200):
        exact = x + half * draw.uniform(-1, 1, x.shape) ** 3
        off = exact + e * draw.choice([-1.0, 1.0], x.shape)
        y, moved = (approximate(program, part) for part in (exact, off))
        for one in found:
            assert (one.lo <= y + 1e-12).all() and (y <= one.hi + 1e-12).all()
            assert (np.abs(moved - y) <= one.approximation + 1e-12).all()
    assert (found[1].error / found[0].error > 0.98).all() and (found[1].error / found[0].error < 1.001).all()
