"""Stages that are not what the program asks for are noticed, whatever their digests say."""

from __future__ import annotations

import numpy as np
import pytest

from attnc import functions
from attnc.program import Affine, Combine, Pointwise, Program
from attnc.records.certificate import Certificate, Status
from attnc.records.layers import Heads, Layer, NetworkNumbers, pointwise_layer
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.structure import each_neuron_once, mismatch

EYE = np.eye(3)
HEAD = HeadNumbers(
    np.array([[1.0, 0.0]]),
    np.array([[(2.0, 0.0), (0.0, 0.0)]]),
    np.array([[(0.0, 1.0), (0.0, -1.0)]]),
    np.ones(1),
    "float64",
)


def groups(*neurons: list[int] | None) -> Heads:
    return [(None if n is None else np.array(n, dtype=np.int64), HEAD) for n in neurons]


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
    assert each_neuron_once(groups(*named), 3) == whole


def test_a_value_is_read_only_after_it_is_made() -> None:
    program = Program((3,), (Affine(0, EYE), Affine(1, EYE), Combine((1, 2), (1.0, 1.0))))
    first, second = (Layer("affine", (i,), i + 1, {"weight": EYE}) for i in range(2))
    last = Layer("combine", (1, 2), 3, {}, {"coefficients": (1.0, 1.0)})

    def said(*stages: Layer) -> str | None:
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
    numbers = NetworkNumbers((pointwise_layer(0, 1, groups(None)),), "float64")

    def said(layer: str, head: str, neurons: int = 3) -> str | None:
        known = {
            "status": Status.MEASURED,
            "approximation": 0.0,
            "rounding": 0.0,
            "bound": 0.0,
            "dtype": "float64",
        }
        digests = dict.fromkeys(TENSORS, "")
        facts = {"function": head, "design": "tuned", "points": 1}
        child = Certificate(subject="head", digests=digests, facts=facts, **known)
        facts = {"function": layer, "value": 1, "neurons": [neurons], "error_in": 0.0}
        claim = Certificate(subject="layer", facts=facts, children=(child,), **known)
        return mismatch(program, numbers, Certificate(subject="model", children=(claim,), **known))

    assert said("tanh", "tanh") is None
    assert said("tanh", "sin") is not None
    assert said("sin", "tanh") is not None
    assert said("sin", "sin") is not None
    assert said("tanh", "tanh", 2) is not None
