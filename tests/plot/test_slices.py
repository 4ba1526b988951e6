"""Slices of a function and its network, and literal self-attention over tokens and anchors."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attnc
from attnc import plot
from attnc.plot.slices import POINTS, _edges
from tests.plot.unproved_networks import fitted_network, grid_network, lattice_network, slow, wave


def curves(ax: Any) -> list[tuple[Any, Any]]:
    return [(np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in ax.lines]


def test_f_and_the_network_along_every_coordinate() -> None:
    net = lattice_network()
    figure = plot.slices(net, wave)
    top, other, bottom, _ = figure.axes
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "", "x[0, 0]", "x[1, 0]"]
    s = np.linspace(-1, 1, POINTS)
    (x, first), (_, executed), *_ = curves(top)
    np.testing.assert_allclose(x, s, atol=1e-15)
    np.testing.assert_allclose(first, np.exp(np.sin(2 * s)), atol=1e-14)
    at = torch.stack([torch.from_numpy(s), torch.zeros(POINTS, dtype=torch.float64)], 1)[..., None]
    np.testing.assert_allclose(executed, net(at)[:, 0, 0].numpy(), atol=1e-14)
    np.testing.assert_allclose(curves(other)[0][1], np.ones(POINTS), atol=1e-15)
    error = np.abs(net(at).numpy() - wave(at).numpy()).reshape(POINTS, -1).max(1)
    np.testing.assert_allclose(curves(bottom)[0][1], error, atol=1e-14)
    assert bottom.get_yscale() == "log" and top.get_ylabel() == "y[0, 0], y[1, 0]"


def test_only_what_is_proved_is_called_so() -> None:
    measured, proved = plot.slices(lattice_network(), wave), plot.slices(grid_network(), slow)
    assert lattice_network().measured is not None
    for figure, words, height, style in (
        (measured, "not proved", lattice_network().measured.error, "--"),
        (proved, "proved bound 0.1414", 0.1 * 2**0.5, "-"),
    ):
        for ax in figure.axes[2:]:
            (line,) = [line for line in ax.lines if words in line.get_label()]
            assert (line.get_ydata()[0], line.get_linestyle()) == (height, style)
            low, high = ax.get_ylim()
            assert low < height < high
    assert "proved bound" not in str([line.get_label() for ax in measured.axes for line in ax.lines])
    assert "measured, not proved" in measured.get_suptitle()
    assert "error at most 0.1414, proved" in proved.get_suptitle()


def test_a_network_that_was_changed_has_no_line() -> None:
    net = copy.deepcopy(grid_network())
    net.selections[0].values.data[0, 0] += 1e-3
    figure = plot.slices(net, slow)
    assert [len(ax.lines) for ax in figure.axes[2:]] == [1, 1]
    assert "not certified" in figure.get_suptitle()


def test_the_point_the_coordinates_and_the_outputs_are_chosen(tmp_path: Path) -> None:
    through = torch.tensor([[0.5], [-0.25]])
    figure = plot.slices(
        lattice_network(), wave, tmp_path / "a.svg", through=through, coordinates=[(1, 0)], outputs=[1]
    )
    top, bottom = figure.axes
    s = np.linspace(-1, 1, POINTS)
    assert (len(top.lines), top.get_ylabel(), bottom.get_xlabel()) == (2, "y[1, 0]", "x[1, 0]")
    np.testing.assert_allclose(curves(top)[0][1], 0.5 * s, atol=1e-15)
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


def test_a_model_of_features_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 6)).eval()
    box = attnc.Box(torch.tensor([-1.0, 0.0, 0.5, -1.0, -1.0]), torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0]))
    net = attnc.compile(model, domain=box, eps=1e-3)
    figure = plot.slices(net, model)
    assert [ax.get_xlabel() for ax in figure.axes[3:]] == ["x[0]", "x[2]", "x[3]"], "x[1] is one number"
    assert [ax.get_xlim() for ax in figure.axes[3:]] == [(-1, 1), (0.5, 2), (-1, 1)]
    assert len(figure.axes[0].lines) == 2 * 4, "four of six outputs"
    for ax in figure.axes[3:]:
        assert max(ax.lines[0].get_ydata()) <= net.certificate.bound


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: plot.slices(lattice_network(), wave, "a.docx"), r"\.png"),
        (lambda: plot.slices(wave, wave), "got function"),
        (lambda: plot.slices(lattice_network(), lambda x: x[:, :1]), "2 were announced"),
        (lambda: plot.slices(lattice_network(), lambda x: torch.cat([x, x], 2)), r"shape \(2, 2\)"),
        (lambda: plot.slices(lattice_network(), lambda x: x / 0), "finite"),
        (lambda: plot.slices(lattice_network(), wave, coordinates=[2]), "2 is no place"),
        (lambda: plot.slices(lattice_network(), wave, coordinates=[(0, 1)]), "no place"),
        (lambda: plot.slices(lattice_network(), wave, outputs=[-1]), "-1 is no place"),
        (lambda: plot.slices(lattice_network(), wave, coordinates=[]), "0 were chosen"),
        (lambda: plot.slices(lattice_network(), wave, through=torch.tensor([[2.0], [0.0]])), "one input in"),
        (lambda: plot.slices(lattice_network(), wave, through=torch.zeros(2)), "one input in"),
        (lambda: plot.tokens_and_anchors(wave), "got function"),
        (lambda: plot.tokens_and_anchors(lattice_network(), heads=0), "heads=0"),
        (lambda: plot.tokens_and_anchors(lattice_network(), torch.zeros(0, 2, 1).double()), "empty"),
        (lambda: plot.tokens_and_anchors(lattice_network().as_self_attention()), "x="),
        (lambda: plot.tokens_and_anchors(lattice_network(), path="a"), r"\.png"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(call: Any, words: str) -> None:
    with pytest.raises(attnc.InputError, match=words):
        call()


@pytest.mark.parametrize("draw", [lambda: plot.slices(0, wave), lambda: plot.tokens_and_anchors(0)])
def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, draw: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(attnc.MissingExtraError, match=r"'attnc\[plot\]'"):
        draw()


def images(figure: Any) -> dict[str, Any]:
    titled = [ax for ax in figure.axes if ax.get_title(loc="left")]
    return {ax.get_title(loc="left"): np.asarray(ax.collections[0].get_array()) for ax in titled}


@pytest.fixture(scope="module")
def plain_net() -> attnc.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1)).eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4, 2)), eps=1e-3)


@pytest.mark.parametrize("lead", [(), (5,)])
def test_literal_self_attention(plain_net: attnc.Network, lead: tuple[int, ...]) -> None:
    x = torch.rand(*lead, 4, 2, generator=torch.Generator().manual_seed(0))
    literal = plain_net.as_self_attention()
    expected = {
        name: w.double().reshape(-1, *w.shape[-3:]).mean(0) for name, w in literal.attention(x).items()
    }
    figure = plot.tokens_and_anchors(plain_net, x)
    drawn = images(figure)
    assert list(drawn) == [
        *(f"layer 1, head {h} of 6" for h in range(1, 5)), *(f"layer 2, head {h} of 3" for h in range(1, 4)),
    ]  # fmt: skip
    for title, image in drawn.items():
        name, _, head = title.partition(", head ")
        np.testing.assert_array_equal(image, expected[name][int(head[0]) - 1].numpy())
    np.testing.assert_array_equal(
        images(plot.tokens_and_anchors(literal, x))["layer 1, head 1 of 6"], drawn["layer 1, head 1 of 6"]
    )
    ax = figure.axes[0]
    assert (
        [line.get_ydata()[0] for line in ax.lines[:1]]
        == [line.get_xdata()[0] for line in ax.lines[1:]]
        == [4]
    )
    assert ax.get_xlabel() == f"4 data tokens, {len(literal.tokens) - 4} anchors"
    assert ax.yaxis_inverted(), "the first token is at the top"


def test_without_an_input_the_worst_is_drawn(plain_net: attnc.Network) -> None:
    witness = torch.tensor(plain_net.certificate.witness.input).reshape(4, 2)
    drawn, expected = (images(plot.tokens_and_anchors(plain_net, x)) for x in (None, witness))
    for title in expected:
        np.testing.assert_array_equal(drawn[title], expected[title])


def test_the_networks_of_theorems(tmp_path: Path) -> None:
    gather, anchors = images(plot.tokens_and_anchors(lattice_network(), path=tmp_path / "t.png")).values()
    np.testing.assert_allclose(gather, np.full((2, 2), 0.5))
    assert anchors.shape == (101, 101)
    np.testing.assert_allclose(anchors[0, :2], 0)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    x = torch.tensor([[0.0], [0.5]], dtype=torch.float64)
    scores, softmax = images(plot.tokens_and_anchors(grid_network(), x)).values()
    assert (scores.shape, softmax.shape) == ((2, 2), (441, 1))
    assert float(softmax[10 * 21 + 15, 0]) == pytest.approx(1)
    figure = plot.tokens_and_anchors(fitted_network(), heads=2)
    assert list(images(figure)) == ["gather", "anchors, head 1 of 6", "anchors, head 2 of 6"]
    assert "2 data tokens, 2 anchors" in [ax.get_xlabel() for ax in figure.axes]


def test_neurons_as_tokens_have_a_border_of_their_own() -> None:
    net = copy.deepcopy(fitted_network())
    net.layout = "tokens"
    figure = plot.tokens_and_anchors(net)
    labels = [ax.get_xlabel() for ax in figure.axes if ax.get_title(loc="left")]
    assert labels == ["6 data tokens, 2 anchors", "6 tokens"]


def test_few_data_tokens_have_a_quarter_of_the_axis() -> None:
    edges = _edges(302, 2)
    assert edges[2] / edges[-1] == pytest.approx(0.25)
    np.testing.assert_array_equal(np.diff(edges)[2:], 1)
    np.testing.assert_array_equal(_edges(6, 4), np.arange(7))
