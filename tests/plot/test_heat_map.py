"""The heat map: a row for each anchor, in order, and the weights of every column add up to one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import attnc
from attnc import plot
from attnc.plot.sample import COLUMNS, MOST_ROWS


def image(head: attnc.Head) -> np.ndarray:  # type: ignore[type-arg]
    (drawn,) = plot.attention(head).images
    return np.asarray(drawn.get_array())


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_a_row_for_each_anchor_in_order_of_position(name: str, request: pytest.FixtureRequest) -> None:
    head = request.getfixturevalue(name)
    rows = image(head)
    assert rows.shape == (len(head.anchors), COLUMNS)
    lo, hi = head.certificate.domain.lo, head.certificate.domain.hi
    middles = torch.linspace(lo, hi, 2 * COLUMNS + 1, dtype=torch.float64)[1::2]
    expected = head.weights(middles).T[head.anchors.argsort(stable=True)]
    np.testing.assert_allclose(rows, expected.numpy(), atol=1e-9)


@pytest.mark.parametrize("name", ["tanh", "relu", "crowd", "measured"])
def test_weights_add_up_to_one(name: str, request: pytest.FixtureRequest) -> None:
    np.testing.assert_allclose(image(request.getfixturevalue(name)).sum(axis=0), 1, atol=1e-6)


def test_several_heads_are_stacked_and_separated(three_heads: attnc.Head) -> None:
    ax = plot.attention(three_heads)
    rows = np.asarray(ax.images[0].get_array())
    assert rows.shape == (24, COLUMNS)
    np.testing.assert_allclose(rows.reshape(3, 8, COLUMNS).sum(axis=1), 1, atol=1e-12)
    assert [line.get_ydata()[0] for line in ax.lines] == [7.5, 15.5]
    (side,) = ax.child_axes
    assert [label.get_text() for label in side.get_yticklabels()] == ["head 1", "head 2", "head 3"]


def test_the_input_runs_along_the_axis(relu: attnc.Head) -> None:
    (drawn,) = plot.attention(relu).images
    assert tuple(drawn.get_extent())[:2] == (-1, 1)
    assert drawn.origin == "lower"
    assert drawn.get_clim() == (0, 1)


def test_anchors_are_labelled_with_their_positions(relu: attnc.Head) -> None:
    labels = [label.get_text() for label in plot.attention(relu).get_yticklabels()]
    expected = [f"{x:.3g}".replace("-", "−") for x in sorted(relu.anchors.tolist())]
    assert labels == expected


@pytest.mark.parametrize("name", ["relu", "three_heads", "crowd"])
def test_labels_do_not_overlap(name: str, request: pytest.FixtureRequest, bump_function: Any) -> None:
    head = request.getfixturevalue(name)
    f = bump_function if head.measured else None
    figure = plot.head(head, f=f)
    figure.draw_without_rendering()
    (ax,) = [ax for ax in figure.axes if ax.images]
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert 12 <= len(boxes) <= 20
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))


def test_a_crowd_of_anchors_shares_rows(crowd: attnc.Head) -> None:
    ax = plot.attention(crowd)
    rows = np.asarray(ax.images[0].get_array())
    assert len(rows) == 200 <= MOST_ROWS
    assert "3 in a row" in ax.get_ylabel()
    assert rows.max() > 0.99


def test_it_draws_into_the_axes_given(tanh: attnc.Head) -> None:
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    assert plot.attention(tanh, ax) is ax
    assert len(ax.images) == 1
