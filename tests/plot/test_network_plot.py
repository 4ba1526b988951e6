"""A network in one figure: rows that show what runs, bars that show what is proved."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attnc
from attnc import plot
from attnc.domain import Box
from attnc.lower.compile import compile
from attnc.network.network import Network
from attnc.network.stages import AttentionLayer
from attnc.plot.heat_map import _alike
from attnc.plot.sample import COLUMNS


@pytest.fixture(scope="module")
def net() -> Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 6), nn.Tanh(), nn.Linear(6, 2))
    return compile(model.eval(), domain=Box(-1, 1, shape=(4, 3)), eps=1e-3)


@pytest.fixture(scope="module")
def grouped(net: Network) -> Network:
    """Two groups of neurons in the first layer, one with many anchors; so the certificate applies no longer."""
    many = attnc.head("tanh", on=(-4, 4), anchors=40, design="nearest")
    few, stages = net.layers[0].groups[0][1], list(net.stages)
    groups = [(np.arange(5), few), (np.arange(5, 40), many)]
    stages[1] = AttentionLayer(1, 2, groups, "block.act")
    return Network(stages, net.program, net.certificate)  # type: ignore[arg-type]


def inputs(*lead: int) -> torch.Tensor:
    return torch.rand(*lead, 4, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1


def picture(ax: Any) -> Any:
    (image,) = ax.images
    return np.asarray(image.get_array())


def titles(figure: Any) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]


def test_a_row_for_every_layer_and_the_errors_below(net: Network) -> None:
    figure = plot.network(net)
    assert titles(figure) == ["layer 1: tanh", "layer 2: tanh", "error: proved bounds"]
    assert f"error at most {net.certificate.bound:.4g}, proved" in figure.get_suptitle()
    assert [len(picture(ax)[0]) for ax in figure.axes if ax.images] == [40, 6]
    assert titles(plot.network(net, layers=[1]))[0] == "layer 2: tanh"


@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 3)])
def test_weights_are_means_over_inputs_and_tokens_in_order_of_pre_activation(
    net: Network, lead: tuple[int, ...]
) -> None:
    x = inputs(*lead)
    (ax,) = [ax for ax in plot.network(net, x, layers=[0]).axes if ax.images]
    s = net.stages[0](x).reshape(-1, 40)
    order = s.double().mean(0).argsort(stable=True)
    head = net.layers[0].groups[0][1]
    weights = head.weights(s).double().mean(0)[order][:, head.anchors.argsort()]
    np.testing.assert_allclose(picture(ax), weights.T.numpy(), atol=1e-7)
    np.testing.assert_allclose(picture(ax).sum(0), 1, atol=1e-6)
    assert f"(mean of {len(s)})" in ax.get_xlabel()
    first = float(s.double().mean(0).min())
    assert float(ax.get_xticklabels()[0].get_text().replace("−", "-")) == pytest.approx(first, rel=0.02)


def test_one_layer_alone(net: Network, grouped: Network) -> None:
    x = inputs(5)
    whole = [picture(ax) for ax in plot.network(net, x).axes if ax.images]
    for layer in (0, 1):
        np.testing.assert_array_equal(picture(plot.attention(net, x=x, layer=layer)), whole[layer])
    assert len(picture(plot.attention(grouped, x=x, layer=0, group=1))) == 40
    ax = plot.attention(net).figure.add_subplot()
    assert plot.attention(net, ax, layer=1) is ax


def test_without_an_input_the_witness_is_shown(net: Network) -> None:
    witness = torch.tensor(net.certificate.witness.input).reshape(4, 3)
    np.testing.assert_array_equal(picture(plot.attention(net)), picture(plot.attention(net, x=witness)))


def test_bars_are_the_certificate(net: Network) -> None:
    ax = plot.network(net).axes[-1]
    claims = net.certificate.layers
    expected = [c.error_in for c in claims] + [c.error_out for c in claims] + [net.certificate.bound]
    assert [bar.get_height() for bar in ax.patches] == expected
    bound, witness = ax.lines
    assert set(bound.get_ydata()) == {net.certificate.bound}
    assert list(witness.get_ydata()) == [net.certificate.witness.error]
    assert ax.get_yscale() == "log"
    low, high = ax.get_ylim()
    assert low < net.certificate.witness.error < max(expected) < high
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "output"]


def test_errors_of_zero_can_be_drawn(net: Network) -> None:
    """A layer that reads the input itself is given it without an error."""
    model = nn.Sequential(nn.Tanh(), nn.Linear(3, 2)).eval()
    figure = plot.network(compile(model, domain=Box(-1, 1, shape=(3,)), eps=1e-3))
    figure.draw_without_rendering()
    assert figure.axes[-1].patches[0].get_height() == 0


def test_the_function_is_drawn_on_the_certified_interval(net: Network) -> None:
    x = inputs(3)
    figure = plot.network(net, x, layers=[0])
    ax = figure.axes[1]
    domain = net.certificate.layers[0].groups[0].head.domain
    assert ax.get_xlim() == (domain.lo, domain.hi)
    f, head, _, neurons = ax.lines
    np.testing.assert_allclose(f.get_ydata(), np.tanh(np.asarray(f.get_xdata())), atol=1e-12)
    np.testing.assert_allclose(head.get_ydata(), f.get_ydata(), atol=1e-4)
    s = net.stages[0](x).double()
    assert neurons.get_xdata()[0] == float(s.min())
    assert neurons.get_xdata()[-1] == float(s.max())


def test_groups_have_rows_of_their_own_and_no_bound_that_does_not_apply(grouped: Network) -> None:
    figure = plot.network(grouped)
    assert titles(figure) == [
        "layer 1 (block.act), group 1: tanh", "layer 1 (block.act), group 2: tanh", "layer 2: tanh",
    ]  # fmt: skip
    assert "not certified: changed since" in figure.get_suptitle()
    figure.draw_without_rendering()
    width = figure.bbox.width
    (text,) = [t for t in figure.texts if "not certified" in t.get_text()]
    assert 0 <= text.get_window_extent().x0 <= text.get_window_extent().x1 <= width


def test_labels_do_not_overlap(net: Network, grouped: Network) -> None:
    for figure in (plot.network(net, inputs(3)), plot.network(grouped)):
        figure.draw_without_rendering()
        for ax in (ax for ax in figure.axes if ax.images):
            across = [label.get_window_extent() for label in ax.get_xticklabels()]
            up = [label.get_window_extent() for label in ax.get_yticklabels()]
            assert all(a.x1 < b.x0 for a, b in pairwise(across))
            assert all(a.y1 <= b.y0 for a, b in pairwise(up))
            assert len(across) >= 5
            assert min(box.x0 for box in (*across, *up)) >= 0


def test_numbers_of_one_axis_have_the_same_decimals() -> None:
    assert _alike(np.array([-0.603, -0.00764, 0.2])) == ["−0.603", "−0.008", "0.2"]
    assert _alike(np.array([-1e-9, 2048.4])) == ["0", "2050"]
    assert _alike(np.zeros(1)) == ["0"]


def test_a_crowd_of_neurons_shares_columns() -> None:
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(2, 700), nn.Tanh(), nn.Linear(700, 1)).eval()
    ax = plot.attention(compile(wide, domain=Box(-1, 1, shape=(2,)), eps=1e-1))
    assert picture(ax).shape == (2, COLUMNS)
    assert ax.get_xlabel().startswith("700 neurons")


def test_it_is_written_whole(net: Network, tmp_path: Path) -> None:
    plot.network(net, path=tmp_path / "net.png")
    assert (tmp_path / "net.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda net: plot.network(net, path="net.docx"), r"\.png"),
        (lambda net: plot.network(net.layers[0][0]), "got Head"),
        (lambda net: plot.network(net, layers=[2]), "2 layers of attention, counted from 0"),
        (lambda net: plot.network(net, layers=[0] * 41), "too many"),
        (lambda net: plot.network(net, torch.zeros(0, 4, 3)), "needs an input"),
        (lambda net: plot.network(net, torch.zeros(3)), "shape"),
        (lambda net: plot.attention(net, layer=-1), "layer -1"),
        (lambda net: plot.attention(net, layer=0, group=1), "group=1"),
        (lambda net: plot.attention(net.layers[0][0], layer=0), "within a network"),
    ],
)
def test_what_cannot_be_drawn_is_refused(net: Network, call: Any, words: str) -> None:
    with pytest.raises(attnc.InputError, match=words):
        call(net)
    assert not any(layer._forward_pre_hooks for layer in net.layers)


def test_without_matplotlib_it_says_what_to_install(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(attnc.MissingExtraError, match=r"pip install 'attnc\[plot\]'"):
        plot.network(net)
