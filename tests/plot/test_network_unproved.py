"""Figures of networks that are measured, fitted, or lookups: the weights that run, and no bar for what is not proved."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnc
from attnc import plot
from attnc.network.stages import Selection
from attnc.plot.heat_map import arranged, positions
from attnc.records.network_numbers import Selection as Numbers
from tests.plot.unproved_networks import ANCHORS, fitted_network, grid_network, lattice_network, random_inputs


def picture(ax: Any) -> Any:
    (image,) = ax.images
    return np.asarray(image.get_array())


def titles(figure: Any) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]


def gaussian(x: Any) -> Any:
    """The weights of the 11 × 9 lattice at one input, from the distances to its points."""
    far = (x[0] - ANCHORS[0][:, None]) ** 2 + (x[1] - ANCHORS[1][None]) ** 2
    weights = np.exp(-far / 0.3)
    return weights / weights.sum()


def test_the_weights_stand_on_the_lattice_of_the_anchors() -> None:
    """The anchors are stored in another order, and scores are taken from another centre."""
    x = torch.tensor([[0.3], [-0.8]], dtype=torch.float64)
    ax = plot.attention(lattice_network(), x=x)
    np.testing.assert_allclose(picture(ax), gaussian((0.3, -0.8)), atol=1e-12)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("x[0, 0]", "x[1, 0]")
    (cross,) = ax.lines
    assert cross.get_ydata()[0] == pytest.approx((0.3 + 1.5) / 0.3)
    assert cross.get_xdata()[0] == pytest.approx((-0.8 + 1.4) / 0.35)
    labels = [float(label.get_text().replace("−", "-")) for label in ax.get_yticklabels()]
    assert labels == pytest.approx([round(float(a), 3) for a in ANCHORS[0]], abs=1e-3)


def test_over_a_batch_means_are_shown() -> None:
    x = random_inputs(40)
    ax = plot.attention(lattice_network(), x=x)
    expected = np.mean([gaussian(row) for row in x.reshape(-1, 2).numpy()], axis=0)
    np.testing.assert_allclose(picture(ax), expected, atol=1e-12)
    assert len(ax.lines) == 0 and "mean of 40" in ax.get_title(loc="left")


def test_without_an_input_the_largest_measured_error_is_shown() -> None:
    net = lattice_network()
    assert net.measured is not None
    np.testing.assert_allclose(picture(plot.attention(net)), gaussian(net.measured.input), atol=1e-12)
    fitted = fitted_network()
    assert fitted.measured is not None
    at = torch.tensor(fitted.measured.input, dtype=torch.float64).float().reshape(2, 1)
    np.testing.assert_array_equal(picture(plot.attention(fitted)), picture(plot.attention(fitted, x=at)))


def test_a_measured_network_has_no_bars() -> None:
    net = lattice_network()
    figure = plot.network(net)
    assert titles(figure) == ["lookup: wave (callable), 99 anchors", "values of the anchors, output 1"]
    assert not any(ax.patches for ax in figure.axes)
    assert net.measured is not None
    assert (
        f"error {net.measured.error:.3g} at 5,000 random inputs: measured, not proved"
        in figure.get_suptitle()
    )
    assert "1 lookup on Box" in figure.get_suptitle()
    right = next(ax for ax in figure.axes if ax.get_title(loc="left").startswith("values"))
    selection = net.selections[0]
    points = {
        tuple(key): value
        for key, value in zip(selection.key.tolist(), selection.values[:, 1].tolist(), strict=True)
    }
    np.testing.assert_array_equal(picture(right).ravel(), [points[key] for key in sorted(points)])


def test_a_proved_lookup_has_its_bound() -> None:
    figure = plot.network(grid_network())
    assert "error at most 0.1414, proved" in figure.get_suptitle()
    assert titles(figure)[-1] == "error: proved bounds"
    (drawn,) = [ax for ax in figure.axes if ax.patches]
    assert [bar.get_height() for bar in drawn.patches] == [0.0, *[0.1 * 2**0.5] * 2]


def test_of_a_fitted_network_the_bars_are_called_its_own() -> None:
    net = fitted_network()
    assert net.measured is not None and net.measured.fitted is not None
    figure = plot.network(net)
    assert titles(figure) == ["layer 1: tanh", "error: not proved of f"]
    ax = figure.axes[-1]
    (claim,) = net.measured.fitted.layers
    bound = net.measured.fitted.bound
    assert [bar.get_height() for bar in ax.patches] == [claim.error_in, claim.error_out, bound]
    labels = {line.get_label(): line.get_ydata()[0] for line in ax.lines}
    assert labels == {
        f"proved of the fitted network {bound:.4g}": bound,
        f"measured against f {net.measured.error:.3g}": net.measured.error,
    }
    low, high = ax.get_ylim()
    assert low < claim.error_in < net.measured.error < high
    assert "measured, not proved" in figure.get_suptitle()
    figure.draw_without_rendering()
    title = ax.get_title(loc="left")
    assert title and ax._left_title.get_window_extent().x1 < ax.get_legend().get_window_extent().x0


@pytest.mark.parametrize("make", [lattice_network, grid_network, fitted_network])
def test_a_changed_network_has_no_bars_and_says_so(make: Any) -> None:
    net = copy.deepcopy(make())
    next(net.parameters()).data.view(-1)[0] += 1e-3
    figure = plot.network(net)
    assert not any(ax.patches for ax in figure.axes)
    assert "not certified: changed since" in figure.get_suptitle()


def test_a_network_that_knows_nothing_needs_an_input() -> None:
    net = copy.deepcopy(lattice_network())
    net.measured = None
    with pytest.raises(attnc.InputError, match=r"x=\.\.\."):
        plot.attention(net)


def test_lookups_are_counted_behind_the_layers(tmp_path: Path) -> None:
    net = lattice_network()
    assert len(titles(plot.network(net, layers=[0]))) == 2
    with pytest.raises(attnc.InputError):
        plot.network(net, layers=[1])
    plot.network(net, path=tmp_path / "net.png")
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")


def selection(points: Any, sharp: float = 3.0) -> Selection:
    at = np.asarray(points, dtype=np.float64)
    k, m = at.shape
    return Selection(Numbers(0, 1, np.zeros(m), 2 * sharp * at, -sharp * (at**2).sum(1), np.zeros((k, 1))))


@pytest.mark.parametrize(
    ("counts", "shape"), [((4,), (1, 4)), ((2, 3, 4), (2, 12)), ((2, 3, 2, 5), (6, 10)), ((3, 1, 2), (3, 2))]
)
def test_a_lattice_of_many_axes_is_laid_flat(counts: tuple[int, ...], shape: tuple[int, int]) -> None:
    axes = [np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in counts]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(counts))
    shuffle = np.random.default_rng(0).permutation(len(points))
    ends = -np.ones(len(counts)), np.ones(len(counts))
    shown = arranged(selection(points[shuffle]), shuffle.astype(np.float64), ends)
    np.testing.assert_array_equal(shown.image, np.arange(len(points)).reshape(shape))
    for j, found in shown.positions.items():
        if counts[j] > 2:
            np.testing.assert_allclose(found, axes[j], atol=1e-12)


def test_anchors_that_form_no_lattice_stand_in_a_row() -> None:
    points = np.random.default_rng(0).normal(size=(1500, 2))
    numbers = np.random.default_rng(1).random(1500)
    ends = np.zeros(2), np.ones(2)
    added = arranged(selection(points), numbers, ends)
    assert added.axes == () and added.image.shape == (1, 500)
    np.testing.assert_allclose(added.image[0], numbers.reshape(500, 3).sum(1))
    averaged = arranged(selection(points), numbers, ends, mean=True)
    np.testing.assert_allclose(averaged.image[0], numbers.reshape(500, 3).mean(1))


def test_two_anchors_share_the_interval_where_they_tie() -> None:
    np.testing.assert_allclose(
        positions(np.array([0.0, 1.0]), np.array([0.0, -0.5]), -1.0, 1.0), [-0.25, 0.75]
    )
