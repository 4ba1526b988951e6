"""Boxes: what is accepted, and every refusal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnc.domain import Box
from attnc.errors import InputError


@pytest.mark.parametrize(
    ("lo", "hi", "shape", "found"),
    [
        (-1, 1, (16,), (16,)),
        (-1, 1, 16, (16,)),
        (-1.5, 2, [2, 3], (2, 3)),
        (0.5, 0.5, (1,), (1,)),
        ([0, 1], 2, None, (2,)),
        (0, torch.ones(2, 3), None, (2, 3)),
        (torch.zeros(2, dtype=torch.int32), np.ones(2, dtype=np.float32), None, (2,)),
        (np.zeros(2), torch.ones(2, dtype=torch.float16), (2,), (2,)),
        (torch.zeros(2, requires_grad=True), 1, None, (2,)),
        (np.float64(-1), 2**60, (1,), (1,)),
    ],
)
def test_accepted(lo: Any, hi: Any, shape: Any, found: tuple[int, ...]) -> None:
    box = Box(lo, hi, shape)
    assert box.shape == found and box.lo.shape == box.hi.shape == found and box.size == math.prod(found)
    assert box.lo.dtype == box.hi.dtype == np.float64 and (box.lo <= box.hi).all()


@pytest.mark.parametrize(
    ("lo", "hi", "shape", "told"),
    [
        (1, -1, (2,), r"empty: lo=1 exceeds hi=-1 at coordinate \(0,\); give lo <= hi"),
        ([[0, 0], [0, 5]], 1, None, r"lo=5 exceeds hi=1 at coordinate \(1, 1\)"),
        (math.nan, 1, (2,), "lo is not finite"),
        (0, math.nan, (2,), "hi is not finite"),
        (0, math.inf, (2,), "hi is not finite"),
        (torch.tensor([0.0, -math.inf]), 1, None, "lo is not finite"),
        (-1, 1, None, r"a box needs a shape: Box\(-1, 1, shape=\(d,\)\)"),
        (-1, 1, (), "give the shape of one input"),
        (-1, 1, (0,), "give the shape of one input"),
        (-1, 1, (2.0,), "give the shape of one input"),
        (-1, 1, (True,), "give the shape of one input"),
        (-1, 1, "2", "give the shape of one input"),
        (torch.zeros(3), 1, (2,), r"lo has the shape \(3,\), the box \(2,\)"),
        (torch.zeros(1), 1, (2,), r"lo has the shape \(1,\), the box \(2,\)"),
        (0, torch.ones(2, 1), (2,), r"hi has the shape \(2, 1\)"),
        (True, 2, (2,), "lo is a number or a tensor of numbers: got True"),
        (torch.tensor([True]), 2, None, r"lo is a tensor of torch.bool"),
        (np.array([False]), 2, None, "lo is a number"),
        ("0", 1, (2,), "lo is a number or a tensor of numbers: got '0'"),
        (None, 1, (2,), "lo is a number"),
        (0, 1j, (2,), "hi is a number"),
        (0, torch.ones(1, dtype=torch.complex64), None, "hi is a tensor of torch.complex64"),
        (torch.zeros(2, device="meta"), 1, None, "on meta"),
        ([[0], [1, 2]], 3, None, "lo is a number"),
        (0, 2**53 + 1, (1,), "hi holds a whole number that no float equals"),
    ],
)
def test_refused(lo: Any, hi: Any, shape: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        Box(lo, hi, shape)


def test_contains() -> None:
    box = Box(torch.tensor([0.0, -1.0]), 1)
    x = torch.tensor(
        [
            [0.5, 0.0],
            [0.0, -1.0],
            [1.0, 1.0],
            [-1e-9, 0.0],
            [0.5, 1.0000001],
            [math.nan, 0.0],
            [math.inf, 0.0],
        ]
    )
    assert box.contains(x).tolist() == [True, True, True, False, False, False, False]
    assert box.contains(x[0]).item() is True and box.contains(x.reshape(7, 1, 2)).shape == (7, 1)
    assert box.contains(torch.zeros(0, 2)).shape == (0,)
    tokens = Box(0, 1, shape=(2, 3))
    assert tokens.contains(torch.full((4, 2, 3), 0.5)).tolist() == [True] * 4
    for wrong in (torch.zeros(3), torch.zeros(2, 1), torch.tensor(0.0)):
        with pytest.raises(InputError):
            box.contains(wrong)


def test_repr_eq_and_hash() -> None:
    assert repr(Box(-1, 1, shape=(16,))) == "Box(-1, 1, shape=(16,))"
    assert repr(Box(torch.tensor([0.0, -1.0]), 2)) == "Box(-1…0, 2, shape=(2,))"
    same = Box(-1, 1, (2,)), Box([-1.0, -1.0], torch.ones(2))
    assert same[0] == same[1] and hash(same[0]) == hash(same[1]) and len({*same}) == 1
    for other in (Box(-1, 2, (2,)), Box(-2, 1, (2,)), Box(-1, 1, (3,)), Box(-1, 1, (1, 2)), "box", None):
        assert same[0] != other


def test_the_ends_are_its_own() -> None:
    given = torch.zeros(2)
    box = Box(given, 1)
    given += 5
    assert box.lo.tolist() == [0, 0]
    for end in (box.lo, box.hi):
        with pytest.raises(ValueError, match="read-only"):
            end[0] = 3


@given(st.lists(st.tuples(st.floats(-1e300, 1e300), st.floats(0, 1e300)), min_size=1, max_size=4))
def test_corners_and_middle_lie_inside(ends: list[tuple[float, float]]) -> None:
    lo = np.array([a for a, _ in ends])
    hi = np.array([a + w for a, w in ends])
    box = Box(lo, hi)
    inside = torch.from_numpy(np.stack([lo, hi, lo / 2 + hi / 2]))
    assert box.contains(inside[:2]).all() and box == Box(box.lo, box.hi)
    outside = torch.from_numpy(np.nextafter(hi, np.inf))
    assert not box.contains(outside)


def test_data_rounded_to_float32_stays_inside() -> None:
    """With zero slack, for numbers that float32 rounds up and down."""
    x = np.random.default_rng(0).uniform(-1, 1, (50, 40))
    for scale in (1.0, 1e-40, 1e300):
        box = Box.from_data(scale * x)
        for data in (torch.from_numpy(scale * x), torch.from_numpy(scale * x).float()):
            assert bool(box.contains(data[data.isfinite().all(-1)]).all())
    exact = x.astype(np.float32)
    assert np.array_equal(Box.from_data(exact).lo, exact.min(0)) and np.array_equal(
        Box.from_data(exact).hi, exact.max(0)
    )
