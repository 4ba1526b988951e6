"""Linear steps of a transformer: mixtures of tokens, scales and tables, in the prover and in the checker."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flint import arb

from attnc.arithmetic import ARITHMETIC, FLOAT32
from attnc.check.values import CheckError
from attnc.functions.balls import working
from attnc.program import Embed, Mix, Program, Scale
from tests.prove.one_step import COARSE, FINE, WHO, Given, derived

OFF = 2.0**-26


def fine(monkeypatch: pytest.MonkeyPatch, unit: float = FINE, tiny: float = 0.0) -> None:
    monkeypatch.setitem(ARITHMETIC, "float32", replace(FLOAT32, unit=unit, tiny=tiny))


def mix(*row: float) -> Program:
    return Program((len(row), 1), (Mix(0, np.array([row])),))


@WHO
def test_errors_of_tokens_add_up(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine(monkeypatch)
    e = np.array([[0.5], [0.25]])
    made = derived(who, mix(3.0, -2.0), [Given(np.ones((2, 1)), e, e, 0.125)])
    for error in (made.error, made.approximation):
        assert 2.0 <= error[0, 0] <= 2.0001
    assert 0.374 <= made.lo[0, 0] <= 0.375 and 1.625 <= made.hi[0, 0] <= 1.6251


@WHO
def test_rounded_numbers_cost(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine(monkeypatch)
    table = Program((2,), (Embed(0, np.array([[1.0], [1 - OFF]])),))
    for program, x in ((mix(1 - OFF), np.ones((1, 1))), (table, np.array([0.0, 1.0]))):
        made = derived(who, program, [Given(x)])
        assert OFF <= made.error.max() <= 1.001 * OFF


@WHO
def test_roundings_of_a_mixture(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine(monkeypatch, COARSE)
    row = [1.0] + [2.0**-20] * 6
    made = derived(who, mix(*row), [Given(np.ones((7, 1)))])
    with working(128):
        u, total = arb(COARSE), arb(0)
        for i, m in enumerate(row):
            term = arb(m) * (1 + u)
            total = term if i == 0 else (total + term) * (1 + u)
        lost = abs(total - sum(map(arb, row), arb(0)))
        assert arb(0.8) * arb(float(made.error[0, 0])) <= lost <= arb(float(made.error[0, 0]))


@WHO
def test_an_input_that_underflows(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine(monkeypatch, tiny=2.0**-20)
    made = derived(who, mix(2.0**10), [Given(np.full((1, 1), 2.0**-21))])
    assert made.error[0, 0] >= 2.0**-11


@WHO
def test_sums_that_may_overflow_promise_nothing(who: str) -> None:
    assert derived(who, mix(1e38, 1e38), [Given(np.full((2, 1), 10.0))]).error.max() == np.inf


@WHO
def test_a_scale_has_a_row_for_every_token(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fine(monkeypatch)
    factor, shift = np.array([[1.0, -2.0], [3.0, 0.5]]), np.array([[1.0, 1 - OFF], [0.0, 2.0]])
    x, e = np.array([[1.0, 2.0], [3.0, 4.0]]), 0.125
    made = derived(who, Program((2, 2), (Scale(0, factor, shift),)), [Given(x, e, e)])
    y = factor * x + shift
    assert (made.lo <= y).all() and (y <= made.hi).all() and np.abs(made.hi - made.lo).max() < 1e-12
    assert (np.abs(factor) * e <= made.error).all() and (made.error <= np.abs(factor) * e + 2 * OFF).all()


@WHO
def test_ids_beyond_the_table_promise_nothing(who: str) -> None:
    program = Program((2,), (Embed(0, np.eye(3)),))
    made = derived(who, program, [Given(np.array([0.0, 2.0]))])
    assert made.lo.min() == 0 and made.hi.max() == 1 and made.error.max() == 0
    for ids in ([0.0, 3.0], [-1.0, 0.0]):
        if who == "prover":
            assert derived(who, program, [Given(np.array(ids))]).error.max() == np.inf
        else:
            with pytest.raises(CheckError):
                derived(who, program, [Given(np.array(ids))])
