"""Lattice heads and gates: exact keys, exact tails, and the errors that the docstrings state."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flint import arb

from attnc import functions
from attnc.functions.balls import working
from attnc.heads.draft import forward
from attnc.heads.lattice import (
    RUNGS,
    is_gate_symmetric,
    lattice_gate,
    lattice_gates,
    sampled_error,
    self_gate,
    square_numbers,
)

GELU = functions.gelu()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rung", RUNGS, ids=str)
def test_keys_and_tails_are_exact(rung, dtype: str) -> None:
    bump, radius = 5.0, 12.0
    numbers = lattice_gate(GELU, radius, dtype, rung, bump)
    last = (numbers.anchors_per_head - 1) // 2
    k = np.arange(-last, last + 1)
    anchors, c = k * rung.spacing, rung.sharpness
    assert anchors[-1] >= radius + rung.spacing * math.sqrt(rung.cut / c)
    assert np.array_equal(numbers.query, [[1 / rung.spacing, 0]])
    assert np.array_equal(numbers.key[0], np.stack([2 * c * k, -c * k * k], axis=-1))
    assert not numbers.value[0, :, 0].any() and numbers.output.tolist() == [1]
    value = numbers.value[0, :, 1]
    assert not value[anchors < -bump].any()
    assert np.array_equal(value[anchors > bump], anchors[anchors > bump])
    assert (value[np.abs(anchors) <= bump / 2] != 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bump_is_symmetric_up_to_one_last_digit(dtype: str) -> None:
    numbers = lattice_gate(GELU, 8.0, dtype, RUNGS[1], 4.0)
    value = numbers.value[0, :, 1]
    last = (len(value) - 1) // 2
    right, left = value[last:], value[last::-1]
    off = np.abs(right - left - np.arange(last + 1) * RUNGS[1].spacing)
    assert (off <= np.abs(np.spacing(right.astype(dtype)))).all()


REACHED = [
    ("gelu", 0, 5e-5),
    ("gelu", 1, 4e-8),
    ("gelu", 2, 1.5e-8),
    ("gelu_tanh", 0, 6e-5),
    ("gelu_tanh", 1, 6e-8),
]


@pytest.mark.parametrize(("name", "rung", "most"), REACHED)
def test_float32_rungs_reach_what_they_are_for(name: str, rung: int, most: float) -> None:
    """Values rounded each on its own would cost up to 1e-7: they make up for one another."""
    f = functions.get(name)
    assert sampled_error(lattice_gate(f, 16.0, "float32", RUNGS[rung], 4.0), f, 16.0)[0] <= most


def test_float64_reaches_rounding() -> None:
    numbers = next(lattice_gates(GELU, 16.0, 1e-12, "float64"))
    assert sampled_error(numbers, GELU, 16.0)[0] < 2e-13


def test_coarse_lattices_come_first_and_the_closest_last() -> None:
    met = list(lattice_gates(GELU, 8.0, 1e-4, "float32"))
    assert [1 / n.query[0, 0] for n in met][:2] == [1.0, 0.5]
    (closest,) = lattice_gates(GELU, 8.0, 1e-13, "float32")
    assert 1e-9 < sampled_error(closest, GELU, 8.0)[0] < 1.5e-8


def test_the_ends_are_as_good_as_the_middle() -> None:
    for radius in (3.0, 9.7, 100.0):
        numbers = lattice_gate(GELU, radius, "float64", RUNGS[1], 4.0)
        ends = np.array([-radius, radius])
        assert np.abs(forward(numbers, ends) - GELU(_tensor(ends)).numpy()).max() < 2e-8


@pytest.mark.parametrize("name", [n for n in functions.names() if n != "clip"])
def test_gate_symmetry_is_what_it_says(name: str) -> None:
    f = functions.get(name)
    s = _tensor(np.linspace(0.0, 20.0, 401))
    holds = bool((f(s) - f(-s) - s).abs().max() < 1e-12) and float(f(s.new_tensor([-700.0])).abs()) < 1e-12
    assert is_gate_symmetric(f) == holds


def test_a_namesake_is_not_gate_symmetric() -> None:
    namesake = functions.Function("other", GELU.torch_form, (lambda x: x,))
    object.__setattr__(namesake, "name", "gelu")
    assert not is_gate_symmetric(namesake) and self_gate(namesake, 0.1, "float32") is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_square_values_are_exact(dtype: str) -> None:
    numbers = square_numbers(dtype)
    last = (numbers.anchors_per_head - 1) // 2
    k = np.arange(-last, last + 1)
    assert np.array_equal(64 * numbers.value[0, :, 1], k * k - 2)
    s = np.linspace(-1, 1, 2001)
    assert np.abs(forward(numbers, s) - s * s).max() < 1e-15


def test_the_relu_gate_is_as_steep_as_needed_and_no_steeper() -> None:
    for eps in (0.3, 1e-2, 1e-3, 1e-6, 0.2785 / 8):
        numbers = self_gate(functions.relu(), eps, "float32")
        steep = numbers.key[0, 1, 0]
        assert 0.2785 / steep <= eps and (steep == 1 or 0.2785 / (steep / 2) > eps)
    with working(128):
        x = arb("1.2784645427610737951")  # where s·logistic(-s) is largest
        assert arb("0.27847") > x / (1 + x.exp()) > arb("0.27846")


def test_silu_is_its_gate_and_others_have_none() -> None:
    numbers = self_gate(functions.silu(), 1e-6, "float64")
    assert numbers.gated and np.array_equal(numbers.key[0], [[0, 0], [1, 0]])
    assert self_gate(functions.get("quick_gelu"), 1e-6, "float32").key[0, 1, 0] == np.float32(1.702)
    assert self_gate(GELU, 1e-6, "float32") is None


def _tensor(x):
    import torch

    return torch.from_numpy(x)
