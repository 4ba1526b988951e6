"""The literal form: the self-attention weights over data tokens and anchors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attnc
from attnc import plot
from attnc.plot.heads import _edges
from tests.plot.unproved_networks import fitted_network, grid_network, lattice_network


@pytest.fixture(scope="module")
def net() -> attnc.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1)).eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4, 2)), eps=1e-3)


def images(figure: Any) -> dict[str, Any]:
    titled = [ax for ax in figure.axes if ax.get_title(loc="left")]
    return {ax.get_title(loc="left"): np.asarray(ax.collections[0].get_array()) for ax in titled}


@pytest.mark.parametrize("lead", [(), (5,)])
def test_weights_of_every_token_over_every_token(net: attnc.Network, lead: tuple[int, ...]) -> None:
    x = torch.rand(*lead, 4, 2, generator=torch.Generator().manual_seed(0))
    literal = net.as_self_attention()
    means = {
        n: w.double().reshape(-1, *w.shape[-3:]).mean(0).numpy() for n, w in literal.attention(x).items()
    }
    figure = plot.tokens_and_anchors(net, x=x)
    drawn = images(figure)
    assert list(drawn) == [
        *(f"layer 1, head {h} of 6" for h in range(1, 5)), *(f"layer 2, head {h} of 3" for h in range(1, 4)),
    ]  # fmt: skip
    for title, image in drawn.items():
        name, _, head = title.partition(", head ")
        np.testing.assert_array_equal(image, means[name][int(head[0]) - 1])
    (first, *_) = images(plot.tokens_and_anchors(literal, x=x)).values()
    np.testing.assert_array_equal(first, drawn["layer 1, head 1 of 6"])
    ax = figure.axes[0]
    row, column = ax.lines
    assert row.get_ydata()[0] == column.get_xdata()[0] == 4
    assert ax.get_xlabel() == f"4 data tokens, {len(literal.tokens) - 4} anchors"
    assert ax.yaxis_inverted(), "the first token is at the top"


def test_the_default_input_is_the_witness(net: attnc.Network) -> None:
    assert net.certificate.proved
    witness = torch.tensor(net.certificate.witness.input).reshape(4, 2)
    drawn, expected = (images(plot.tokens_and_anchors(net, x=x)) for x in (None, witness))
    for title in expected:
        np.testing.assert_array_equal(drawn[title], expected[title])


def test_the_networks_of_theorems() -> None:
    gather, anchors = images(plot.tokens_and_anchors(lattice_network())).values()
    np.testing.assert_allclose(gather, np.full((2, 2), 0.5))
    assert anchors.shape == (101, 101)
    np.testing.assert_allclose(anchors[0, :2], 0)
    x = torch.tensor([[0.0], [0.5]], dtype=torch.float64)
    scores, softmax = images(plot.tokens_and_anchors(grid_network(), x=x)).values()
    assert (scores.shape, softmax.shape) == ((2, 2), (441, 1))
    assert float(softmax[10 * 21 + 15, 0]) == pytest.approx(1)
    figure = plot.tokens_and_anchors(fitted_network(), heads=2)
    assert list(images(figure)) == ["gather", "anchors, head 1 of 6", "anchors, head 2 of 6"]
    assert "2 data tokens, 2 anchors" in [ax.get_xlabel() for ax in figure.axes]


def test_neurons_as_tokens_are_counted_as_data_tokens() -> None:
    net = copy.deepcopy(fitted_network())
    net.layout = "tokens"
    figure = plot.tokens_and_anchors(net)
    labels = [ax.get_xlabel() for ax in figure.axes if ax.get_title(loc="left")]
    assert labels == ["6 data tokens, 2 anchors", "6 tokens"]


def test_few_data_tokens_take_a_quarter_of_the_axis() -> None:
    edges = _edges(302, 2)
    assert edges[2] / edges[-1] == pytest.approx(0.25)
    np.testing.assert_array_equal(np.diff(edges)[2:], 1)
    np.testing.assert_array_equal(_edges(6, 4), np.arange(7))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plot.tokens_and_anchors(lattice_network(), heads=0), "heads=0"),
        (
            lambda: plot.tokens_and_anchors(lattice_network(), x=torch.zeros(0, 2, 1).double()),
            "x is an empty",
        ),
        (lambda: plot.tokens_and_anchors(lattice_network().as_self_attention()), "x="),
    ],
)
def test_bad_arguments_are_refused(call: Any, words: str) -> None:
    with pytest.raises(attnc.errors.InputError, match=words):
        call()
