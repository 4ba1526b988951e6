"""Heads that share a range, proved stretch by stretch: what the silent ones add is counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import arb

from attnc import functions
from attnc.arithmetic import FLOAT32, Arithmetic
from attnc.domain import Interval
from attnc.functions.balls import working
from attnc.prove.cells import Cell
from attnc.prove.supnorm import SupNorm, _inactive, _joined, by_stretches
from attnc.records.numbers import HeadNumbers


def flat(values: list[float]) -> HeadNumbers:
    """Heads with one key each, which return a constant."""
    heads = len(values)
    value = np.array([[(0.0, v)] for v in values])
    return HeadNumbers(
        np.array([[1.0, 0.0]] * heads), np.zeros((heads, 1, 2)), value, np.ones(heads), "float32"
    )


@pytest.mark.parametrize("size", [0.0, 3.0])
@pytest.mark.parametrize("rounding", [0.0, 2.0])
@pytest.mark.parametrize("leak", [0.0, 1.0])
@pytest.mark.parametrize("error", [0.0, 0.5])
def test_what_inactive_heads_add_is_counted(size: float, rounding: float, leak: float, error: float) -> None:
    """Speaking heads off by `rounding`, silent ones `leak` ± `error`, and a sum that rounds every term H times upwards."""
    heads = 9
    a = Arithmetic("float32", 2.0**-8, 0.0, 2.0**126, 0)
    numbers, part = (
        flat([size] + [0.0] * (heads - 1)),
        SupNorm(0.125 + rounding, 0.125, rounding, 0.0, 0.0, 1),
    )
    silent = [(arb(leak), arb(error))] * (heads - 1)
    with working(128):
        found = _joined(part, numbers, [0], silent, a)
        growth = (1 + arb(a.unit)) ** heads
        f = arb(size) - arb(0.125)  # the exact head is 1/8 above it
        executed = growth * (arb(size) + arb(rounding) + (heads - 1) * (arb(leak) + arb(error)))
        assert executed - f <= arb(found.bound)
        assert executed - f >= arb(0.999) * arb(found.bound)
        assert arb(0.125) + (heads - 1) * arb(leak) <= arb(found.approximation)


def test_only_heads_whose_winner_has_value_zero_are_inactive() -> None:
    numbers = HeadNumbers(
        np.array([[1.0, 0.0]] * 3),
        np.array([[(0.0, 0.0), (0.0, -200.0)]] * 3),
        np.array([[(0.0, 0.0), (0.0, 1.0)], [(0.0, 0.5), (0.0, 0.0)], [(1.0, 0.0), (0.0, 0.0)]]),
        np.ones(3),
        "float32",
    )
    with working(128, 11):
        found = _inactive(numbers, Cell(0.0, 1.0), FLOAT32)
        assert set(found) == {0}
        size, rounding = found[0]
        assert size.upper() >= arb(-200).exp() and rounding.upper() > 0


def test_every_stretch_is_proved() -> None:
    """A head that is s where f is s up to 1 and 1 beyond: it errs by 1 at the end of the last stretch."""
    numbers = HeadNumbers(
        np.array([[1.0, 0.0]]), np.zeros((1, 1, 2)), np.array([[(1.0, 0.0)]]), np.ones(1), "float64"
    )
    f = functions.get("clip(-1,1)")
    for ends in ([0.5], [0.5, 1.5], [1.0], []):
        proof = by_stretches(numbers, f, Interval(-0.5, 2.0), ends, 0.0)
        assert 1 <= proof.bound <= 1.3 and math.isclose(proof.attained, 1.0, rel_tol=0.3)
    assert by_stretches(numbers, f, Interval(-0.5, 1.0), [0.25], 0.0).bound < 1e-12
