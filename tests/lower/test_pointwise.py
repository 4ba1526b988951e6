"""Layers of heads: groups of neurons, and the errors of the heads of each."""

from __future__ import annotations

import numpy as np
import pytest

from attnc import functions
from attnc.domain import Interval
from attnc.lower.pointwise import HeadGroup, by_reach, executed_error, head_errors
from attnc.network.engines import closed_form_of
from attnc.prove.bounds import ValueBounds
from attnc.prove.window import window_bound
from tests.lower.exact_heads import activation_head


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "approximation"), [("gelu", 1e-4), ("silu", 1e-6)])
def test_the_error_of_a_closed_form_covers_its_window(name: str, approximation: float, dtype: str) -> None:
    f = functions.get(name)
    head = activation_head(f, Interval(-8.0, 8.0), approximation, dtype)
    window = closed_form_of(head)
    assert window is not None
    proved = window_bound(window, f, head.certificate.interval).bound
    assert (
        proved <= executed_error(head, f, "closed-form") <= max(1.1 * proved, head.certificate.approximation)
    )
    assert executed_error(head, f, "softmax") <= head.certificate.bound


def test_a_neuron_outside_the_domain_of_its_head_has_no_bound() -> None:
    f = functions.relu()
    head = activation_head(f, Interval(-2.0, 2.0), 1e-3, "float32")
    zero = np.zeros(3)
    x = ValueBounds(np.array([-1.0, -2.0, -1.0]), np.array([1.0, 1.0, 2.0]), zero, np.array([0.0, 0.1, 0.1]))
    errors = head_errors([HeadGroup(None, head)], f, x)
    assert np.isfinite(errors.error).tolist() == [True, False, False]
    assert np.isfinite(errors.approximation).tolist() == [True, False, False]


def test_neurons_are_grouped_by_their_reach() -> None:
    lo = np.array([-1.0, -100.0, -1.5, 0.0, -9.0])
    groups = by_reach(lo, np.array([1.0, 90.0, 1.5, 0.01, 3.0]), most=3)
    assert [radius for radius, _ in groups] == [128.0, 16.0, 2.0]
    assert [neurons.tolist() for _, neurons in groups if neurons is not None] == [[1], [4], [0, 2, 3]]
    assert by_reach(lo[:1], lo[:1] + 2, most=3) == [(1.0, None)]
    tokens = by_reach(np.array([[-1.0, -1.0], [-30.0, -1.0]]), np.ones((2, 2)), most=4, least=2.0**-40)
    assert [(radius, None if n is None else n.tolist()) for radius, n in tokens] == [(32.0, [0]), (1.0, [1])]
