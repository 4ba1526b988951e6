"""Stages that are not what the program asks for are noticed, whatever their digests say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attnc import functions
from attnc.program import Affine, Combine, Pointwise, Program
from attnc.records.network_numbers import Attention, Group, Linear, NetworkNumbers, Stage, Sum
from attnc.records.numbers import HeadNumbers
from attnc.records.structure import _whole, mismatch

EYE = np.eye(3)
HEAD = HeadNumbers(
    np.array([[1.0, 0.0]]),
    np.array([[(2.0, 0.0), (0.0, 0.0)]]),
    np.array([[(0.0, 1.0), (0.0, -1.0)]]),
    np.ones(1),
    "float64",
)


def groups(*neurons: list[int] | None) -> tuple[Group, ...]:
    return tuple(Group(None if n is None else np.array(n, dtype=np.int64), HEAD) for n in neurons)


@pytest.mark.parametrize(
    ("named", "whole"),
    [
        ([None], True),
        ([[0, 1, 2]], True),
        ([[2, 0], [1]], True),
        ([[0, 1]], False),
        ([[0, 1], [1, 2]], False),
        ([[0, 1, 2], [2]], False),
        ([[0, 1, 3]], False),
        ([None, [0]], False),
        ([None, None], False),
        ([[0, 1, -1]], False),
    ],
)
def test_every_neuron_has_one_head(named: list[list[int] | None], whole: bool) -> None:
    assert _whole(Attention(1, 2, groups(*named)), 3) == whole


def test_a_value_is_read_only_after_it_is_made() -> None:
    program = Program((3,), (Affine(0, EYE), Affine(1, EYE), Combine((1, 2), (1.0, 1.0))))
    first, second = Linear(0, 1, EYE, None), Linear(1, 2, EYE, None)
    last = Sum((1, 2), 3, (1.0, 1.0))

    def said(*stages: Stage) -> str | None:
        return mismatch(program, NetworkNumbers(stages, "float64"), None)

    assert said(first, second, last) is None
    for wrong in (
        (second, first, last),
        (first, last, second),
        (first, second),
        (first, last),
        (first, first, second, last),
    ):
        assert said(*wrong) is not None


def test_claims_are_about_the_function_of_the_program() -> None:
    program = Program((3,), (Pointwise(0, functions.tanh()),))
    numbers = NetworkNumbers((Attention(0, 1, groups(None)),), "float64")

    def said(layer: str, head: str, neurons: int = 3) -> str | None:
        group = SimpleNamespace(neurons=neurons, head=SimpleNamespace(function=head))
        claim = SimpleNamespace(value=1, name="layer", function=layer, groups=(group,))
        certificate: Any = SimpleNamespace(layers=(claim,), lookups=())
        return mismatch(program, numbers, certificate)

    assert said("tanh", "tanh") is None
    assert said("tanh", "sin") is not None
    assert said("sin", "tanh") is not None
    assert said("sin", "sin") is not None
    assert said("tanh", "tanh", 2) is not None
