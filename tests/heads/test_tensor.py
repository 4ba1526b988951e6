"""Tensor lattices: what they compute, how large they get, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from attnc.domain import Array
from attnc.errors import ConvergenceError
from attnc.heads.tensor import Axis, Lattice, counts_for
from attnc.heads.tensor_search import LatticeFit, tensor_lattice


def wave(x: Array) -> Array:
    return np.exp(np.sin(2 * x[:, :1]) * np.cos(x[:, 1:]))


def softmax(x: Array) -> Array:
    e = np.exp(x)
    return e / e.sum(1, keepdims=True)


def inverse(x: Array) -> Array:
    (a, b), (c, d) = (2 + x[:, 0], x[:, 1]), (x[:, 2], 2 + x[:, 3])
    return np.stack([d, -b, -c, a], 1) / (a * d - b * c)[:, None]


def dense(lattice: Lattice, x: Array) -> Array:
    """The definition: a softmax over all anchors of Σ_j (2 b_j x_j L_j - b_j L_j²)."""
    points = np.stack(np.meshgrid(*(a.points for a in lattice.axes), indexing="ij"), -1).reshape(
        lattice.anchors, -1
    )
    b = np.array([a.sharpness for a in lattice.axes])
    scores = 2 * (x * b) @ points.T - (b * points**2).sum(1)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights @ lattice.values / weights.sum(1, keepdims=True)


def error(found: LatticeFit, f: object, lo: float, hi: float, points: int, dtype: str = "float64") -> float:
    """The largest error at points that the search has not seen, run in the dtype with its own keys."""
    m = len(found.lattice.axes)
    x = np.random.default_rng(987).uniform(lo, hi, (points, m)).astype(dtype).astype(np.float64)
    centre = np.full(m, (lo + hi) / 2)
    return float(np.abs(found.lattice.run(x, centre, dtype) - f(x)).max())  # type: ignore[operator]


LATTICE = Lattice(
    (Axis(-1.0, 0.5, 5, 1.7), Axis(2.0, 0.25, 3, 9.0), Axis(7.0, 0.0, 1, 0.0)),
    np.random.default_rng(0).normal(size=(15, 2)),
)


def test_separable_dense_and_keys_agree() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate(
        [rng.uniform(-1, 1, (40, 1)), rng.uniform(2, 2.5, (40, 1)), rng.normal(size=(40, 1))], 1
    )
    np.testing.assert_allclose(LATTICE(x), dense(LATTICE, x), rtol=0, atol=1e-13)
    for centre in (np.zeros(3), np.array([0.0, 2.25, 7.0])):
        key, offset = LATTICE.keys(centre)
        assert key.shape == (15, 3) and offset.shape == (15,)
        scores = x @ key.T + offset
        weights = np.exp(scores - scores.max(1, keepdims=True))
        by_keys = weights @ LATTICE.values / weights.sum(1, keepdims=True)
        np.testing.assert_allclose(by_keys, dense(LATTICE, x), rtol=0, atol=1e-12)
        np.testing.assert_allclose(LATTICE.run(x, centre, "float64"), by_keys, rtol=0, atol=1e-12)


def test_keys_are_those_of_the_docstring() -> None:
    centre = np.array([0.1, 2.2, 7.0])
    key, offset = LATTICE.keys(centre)
    k = 2 * 3 + 1  # C order: third point of axis 0, second of axis 1
    at = np.array([0.0, 2.25, 7.0])
    b = np.array([1.7, 9.0, 0.0])
    np.testing.assert_allclose(key[k], 2 * b * (at - centre), atol=1e-14)
    np.testing.assert_allclose(offset[k], -(b * (at**2 - centre**2)).sum(), atol=1e-13)


def test_rounded_numbers_are_evaluated_as_rounded() -> None:
    """The separable evaluation with rounded keys and offsets against the dense one with the same numbers, in float64."""
    x = np.random.default_rng(3).uniform([-1, 2, 0], [1, 2.5, 1], (50, 3))
    centre = np.array([0.013, 2.2, 0.3])
    key, offset = LATTICE.keys(centre, "float32")
    assert (key == key.astype(np.float32)).all() and (offset == offset.astype(np.float32)).all()
    scores = x @ key.T + offset
    weights = np.exp(scores - scores.max(1, keepdims=True))
    rounded = weights @ LATTICE.values / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(LATTICE(x, centre, "float32"), rounded, rtol=0, atol=1e-13)
    assert np.abs(rounded - dense(LATTICE, x)).max() > 1e-9


def test_two_variables() -> None:
    found = tensor_lattice(wave, -np.ones(2), np.ones(2), 1e-6)
    assert found.lattice.anchors <= 200
    assert error(found, wave, -1, 1, 30_000) <= 1e-6 and found.measured <= 1e-6
    assert found.lattice.counts[0] > found.lattice.counts[1]  # it bends more along x


def test_softmax_of_three_tokens() -> None:
    found = tensor_lattice(softmax, -np.ones(3), np.ones(3), 1e-6)
    assert found.lattice.anchors <= 1000
    assert error(found, softmax, -1, 1, 30_000) <= 1e-6


def test_inverse_of_a_matrix() -> None:
    found = tensor_lattice(inverse, -0.5 * np.ones(4), 0.5 * np.ones(4), 1e-3)
    assert found.lattice.anchors <= 1000
    assert error(found, inverse, -0.5, 0.5, 30_000) <= 1e-3


@pytest.mark.parametrize(("f", "m"), [(wave, 2), (softmax, 3)])
def test_float32_keeps_its_promise_when_run_in_float32(f: object, m: int) -> None:
    found = tensor_lattice(f, -np.ones(m), np.ones(m), 1e-4, dtype="float32")  # type: ignore[arg-type]
    assert np.abs(found.lattice.values).max() < 100
    assert (found.lattice.values == found.lattice.values.astype(np.float32)).all()
    assert error(found, f, -1, 1, 30_000, "float32") <= 1e-4


def test_sorting_two_numbers() -> None:
    found = tensor_lattice(lambda x: np.sort(x, 1), np.zeros(2), np.ones(2), 1e-2)
    assert found.lattice.anchors <= 400
    assert error(found, lambda x: np.sort(x, 1), 0, 1, 200_000) <= 1e-2


@pytest.mark.slow
def test_sorting_three_numbers() -> None:
    found = tensor_lattice(lambda x: np.sort(x, 1), np.zeros(3), np.ones(3), 1e-2)
    assert found.lattice.anchors <= 8000
    for part in range(10):
        x = np.random.default_rng([5, part]).random((100_000, 3))
        assert np.abs(found.lattice(x) - np.sort(x, 1)).max() < 1e-2


def test_axes_that_do_not_matter_get_one_anchor() -> None:
    found = tensor_lattice(lambda x: np.sin(5 * x[:, 2:3]), -np.ones(4), np.ones(4), 1e-6)
    assert (
        found.lattice.counts[:2] == (1, 1) and found.lattice.counts[3] == 1 and found.lattice.counts[2] <= 16
    )
    constant = tensor_lattice(lambda x: np.full((len(x), 2), 3.0), -np.ones(4), np.ones(4), 1e-9)
    assert constant.lattice.counts == (1, 1, 1, 1) and constant.measured == 0
    degenerate = tensor_lattice(
        lambda x: x[:, :1] ** 2 + x[:, 1:], np.array([0.0, 2.0]), np.array([1.0, 2.0]), 1e-6
    )
    assert degenerate.lattice.counts[1] == 1 and degenerate.measured <= 1e-6


def test_affine_functions_take_two_anchors_an_axis() -> None:
    found = tensor_lattice(lambda x: x @ np.arange(6.0).reshape(3, 2) + 3, -np.ones(3), np.ones(3), 1e-6)
    assert max(found.lattice.counts) == 2 and found.measured <= 1e-6


def test_boxes_away_from_zero_and_large_values() -> None:
    far = tensor_lattice(
        lambda x: np.sin(3 * (x - 100.5)), np.array([100.0]), np.array([101.0]), 1e-4, dtype="float32"
    )
    assert far.measured <= 1e-4
    assert error(far, lambda x: np.sin(3 * (x - 100.5)), 100, 101, 20_000, "float32") <= 1e-4
    large = tensor_lattice(lambda x: 1e6 * np.cos(x.sum(1, keepdims=True)), -np.ones(2), np.ones(2), 0.1)
    assert error(large, lambda x: 1e6 * np.cos(x.sum(1, keepdims=True)), -1, 1, 20_000) <= 0.1


def test_it_repeats_by_seed() -> None:
    one, two, other = (tensor_lattice(wave, -np.ones(2), np.ones(2), 1e-3, seed=s) for s in (4, 4, 5))
    np.testing.assert_array_equal(one.lattice.values, two.lattice.values)
    assert one.measured == two.measured != other.measured


def test_a_jump_does_not_converge() -> None:
    with pytest.raises(ConvergenceError) as caught:
        tensor_lattice(lambda x: np.sign(x[:, :1] - 0.3) + x[:, 1:], -np.ones(2), np.ones(2), 1e-2)
    found = caught.value.found
    assert isinstance(found, LatticeFit) and abs(found.worst[0] - 0.3) < 0.05
    assert caught.value.reachable == found.measured > 0.5


def test_a_needle_between_the_slices_is_not_missed() -> None:
    """Nearly all slices miss the bump; fresh points find it."""

    def f(x: Array) -> Array:
        return x[:, :1] + np.exp(-(((x - 0.4137) / 0.05) ** 2).sum(1, keepdims=True))

    with pytest.raises(ConvergenceError) as caught:
        tensor_lattice(f, -np.ones(3), np.ones(3), 1e-3, most=4000)
    assert caught.value.reachable is not None and caught.value.reachable > 0.5


def test_too_few_anchors_are_told() -> None:
    with pytest.raises(ConvergenceError, match="20") as caught:
        tensor_lattice(wave, -np.ones(2), np.ones(2), 1e-6, most=20)
    found = caught.value.found
    assert isinstance(found, LatticeFit) and found.lattice.anchors <= 20
    assert 1e-4 < found.measured < 0.5


def test_cells_are_nearly_cubes_and_as_few_as_the_bound_allows() -> None:
    assert counts_for(np.zeros(2), np.array([1.0, 2.0]), 1.0, 0.05) == [14, 29]
