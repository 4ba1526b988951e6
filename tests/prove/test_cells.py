"""Which keys matter on a cell, and how far a cell reaches: prover and checker drop no key that can come near."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flint import arb, arb_series

from attnc import functions
from attnc.arithmetic import ARITHMETIC, FLOAT32, FLOAT64
from attnc.check.cell import ORDER, _HeadCell, _kept, all_active, cell_error, still_active
from attnc.functions.balls import working
from attnc.prove.cells import Cell, _near_keys, _range, head_on_cell
from attnc.prove.supnorm import bound_cell
from attnc.records.numbers import HeadNumbers

QUERY = np.array([1.0, 0.0])


def head_of(
    keys: list[tuple[float, float]], values: list[float], dtype: str = "float64", heads: int = 1
) -> HeadNumbers:
    value = np.array([[(0.0, v) for v in values]] * heads)
    return HeadNumbers(
        np.array([[1.0, 0.0]] * heads), np.array([keys] * heads, dtype=float), value, np.ones(heads), dtype
    )


def exact(numbers: HeadNumbers, s: float, h: int = 0) -> arb:
    e = [(arb(k) * arb(s) + arb(c)).exp() for k, c in numbers.key[h]]
    total = sum((w * arb(v) for w, (_, v) in zip(e, numbers.value[h], strict=True)), arb(0))
    return total / sum(e, arb(0))


@pytest.mark.parametrize("a", [1.0, -1.0, 0.1, -3e-310, 5e200])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_cell_reaches_both_of_its_ends(a: float, steps: int) -> None:
    b = a
    for _ in range(steps):
        b = math.nextafter(b, math.inf)
    cell = Cell(a, b)
    with working(200):
        for end in (a, b):
            assert abs(arb(end) - arb(cell.middle)) <= cell.radius()


def test_a_key_that_comes_near_at_one_end_is_kept() -> None:
    """It loses by far in the middle and at the other end."""
    key = np.array([[0.0, 0.0], [100.0, -99.0]])  # 1 at s = 1, -199 at s = -1
    for cell in (Cell(-1.0, 1.0), Cell(-1.0, 0.5), Cell(-3.0, 1.0)):
        nearest = max(100 * s - 99 for s in (cell.a, cell.b))
        winner, near = _near_keys(QUERY, key, cell, 60, FLOAT64)
        assert winner == 0 and near == ([0, 1] if nearest > -60 else [0])
        numbers = HeadNumbers(QUERY[None], key[None], np.zeros((1, 2, 2)), np.ones(1), "float64")
        kept, dropped, top = _kept(numbers, 0, cell.middle, (cell.b - cell.a) / 2, 60, FLOAT64)
        assert top == 0 and dropped == 2 - len(kept)
        assert 1 in kept or nearest <= -60


def test_a_key_that_comes_near_when_executed_is_kept() -> None:
    """Exactly it loses by 75; scores of 2³⁰ in float32 err by up to 64, and executed it comes within 20 of the winner."""
    slope, lead, distance = 2.0**30 * 1.25, -75.0, 60
    intercept = float(np.float32(-slope))
    key = np.array([[0.0, 0.0], [slope, intercept]])
    middle = 1 + lead / slope
    cell = Cell(middle - 2.0**-40, middle + 2.0**-40)
    s = torch.tensor(
        np.nextafter(np.float32(middle), np.float32(2)) - np.arange(8) * 2.0**-24, dtype=torch.float32
    )
    z = s * slope + intercept
    assert float(z.max()) > -20 and float(slope * cell.b + intercept) < -(distance + 2)
    _, near = _near_keys(QUERY, key, cell, distance, FLOAT32)
    assert near == [0, 1]
    numbers = HeadNumbers(QUERY[None], key[None], np.zeros((1, 2, 2)), np.ones(1), "float32")
    kept, _, _ = _kept(numbers, 0, cell.middle, 2.0**-40, distance, FLOAT32)
    assert kept == [0, 1]


@pytest.mark.parametrize("seed", range(6))
def test_the_range_of_a_head_holds_its_values(seed: int) -> None:
    """On wide cells, where the remainder is most of it; far keys included."""
    draw = np.random.default_rng(seed)
    keys = [(float(k), float(c)) for k, c in draw.normal(size=(5, 2)) * 3] + [(0.0, -250.0)]
    numbers = head_of(keys, [*draw.normal(size=5).tolist(), 1e40])
    for order in (2, 6):
        cell = Cell(-0.2, float(draw.uniform(-0.1, 0.3)))
        with working(192, order + 1):
            model = head_on_cell(numbers, 0, cell, order, FLOAT64)
            assert model is not None and model.keys.far == 1
            for s in np.linspace(cell.a, cell.b, 33).tolist():
                assert model.value.contains(exact(numbers, s))


def test_a_range_without_higher_coefficients_is_its_remainder() -> None:
    with working(128, 3):
        found = _range(arb_series([1, 0, 0]), arb(0, 5), arb(2), 2)
        assert found.contains(arb(1) + 20) and found.contains(arb(1) - 20)


@pytest.mark.parametrize("value", [1e3, -1e60])
def test_dropped_keys_count_with_their_values(value: float) -> None:
    """One near key with value 0: what the head returns is what the far one adds."""
    keys = [(0.0, 0.0), (0.0, -float(100 + math.log(abs(value))) - 3)]
    numbers = head_of(keys, [0.0, value])
    with working(192, ORDER + 1):
        truth = abs(exact(numbers, 0.5))
        model = head_on_cell(numbers, 0, Cell(0.0, 1.0), ORDER, FLOAT64)
        assert model is not None and model.keys.far == 1
        assert 0 < truth <= model.far
        zero = arb_series([0])
        part = _HeadCell(numbers, 0, arb(0.5), arb(0.5), (zero, zero), FLOAT64)
        assert part.dropped == 1 and truth <= part.dropped_error


def test_silent_heads_count_with_their_size_and_their_rounding() -> None:
    """Two heads whose winner has value 0: neither speaks, and both are counted."""
    numbers = head_of([(0.0, 0.0), (-3.0, -180.0)], [0.0, 2.0**60], "float32", heads=2)
    a, lo, hi, draw = ARITHMETIC["float32"], -1.0, 1.0, np.random.default_rng(0)
    with working(192, ORDER + 1):
        found = still_active(numbers, lo, hi, all_active(numbers), a)
        assert found.heads == ()
        for s in draw.uniform(lo, hi, 20).tolist():
            truth = 2 * abs(exact(numbers, s))
            assert 0 < truth <= found.size
            changed = truth * (a.exp_units * arb(a.unit)) / 2  # half of what exp may be off
            assert changed <= found.rounding


def test_a_head_that_returns_a_constant_is_not_silent() -> None:
    numbers = head_of([(0.0, 0.0), (0.0, -300.0)], [0.5, 0.0], "float32", heads=2)
    with working(192, ORDER + 1):
        assert still_active(numbers, -1.0, 1.0, all_active(numbers), ARITHMETIC["float32"]).heads == (0, 1)


@pytest.mark.parametrize("value", [1e3, -1e30])
def test_far_keys_are_part_of_the_approximation(value: float) -> None:
    """Near keys with value 0 against relu, which is 0 here: all of the error is what the far key adds."""
    numbers = head_of([(0.0, 0.0), (1.0, 0.0), (0.0, -170.0)], [0.0, 0.0, value])
    branch = functions.relu().pieces(-2.0, -1.0)[0].branch
    with working(192, ORDER + 1):
        proved = bound_cell(numbers, branch, "relu", Cell(-2.0, -1.0), ORDER, FLOAT64)
        checked = cell_error(numbers, -2.0, -1.0, branch, FLOAT64, all_active(numbers))
        assert checked is not None
        for s in (-2.0, -1.5, -1.0):
            truth = abs(exact(numbers, s))
            assert 0 < truth <= arb(proved.approximation) and truth <= checked[0]


def test_nothing_is_said_of_a_cell_that_is_too_wide_or_holds_a_pole() -> None:
    switch = head_of([(1e5, 0.0), (-1e5, 0.0)], [1.0, -1.0])
    sine = functions.get("sin").pieces(-1, 1)[0].branch
    one = head_of([(0.0, 0.0)], [1.0])
    with working(192, ORDER + 1):
        assert bound_cell(switch, sine, "sin", Cell(-1.0, 1.5), ORDER, FLOAT64).bound == math.inf
        assert cell_error(switch, -1.0, 1.5, sine, FLOAT64, all_active(switch)) is None
        assert bound_cell(one, lambda x: 1 / x, "1/s", Cell(-1.0, 1.5), ORDER, FLOAT64).bound == math.inf
        assert cell_error(one, -1.0, 1.5, lambda x: 1 / x, FLOAT64, all_active(one)) is None


@pytest.mark.parametrize("weights", [[0.5], [1.0, 1.0], [2.0, -0.75]])
def test_output_weights_need_not_add_up_to_one(weights: list[float]) -> None:
    numbers = head_of([(2.0, 0.0), (0.0, 0.0)], [1.0, -1.0], heads=len(weights))
    numbers = replace(numbers, output=np.array(weights))
    f = functions.get("cos")
    branch = f.pieces(-1, 1)[0].branch
    with working(192, ORDER + 1):
        proved = bound_cell(numbers, branch, "cos", Cell(0.25, 0.5), ORDER, FLOAT64)
        checked = cell_error(numbers, 0.25, 0.5, branch, FLOAT64, all_active(numbers))
        assert checked is not None
        for s in (0.25, 0.375, 0.5):
            truth = abs(sum(map(arb, weights), arb(0)) * exact(numbers, s) - f.value(s))
            assert truth <= arb(proved.approximation) and truth <= checked[0]
