"""A network in one figure, and in slices: what is drawn is what runs, and only proved bounds are called so."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attnc
from attnc import plot
from attnc.network.network import Network
from attnc.network.pointwise import Pointwise
from attnc.plot.heads import same_decimals
from attnc.plot.network import POINTS
from attnc.records.certificate import Certificate
from tests.plot.conftest import picture, texts, titles
from tests.plot.unproved_networks import (
    fitted_network,
    grid_network,
    lattice_network,
    slow,
    wave,
)


@pytest.fixture(scope="module")
def net() -> Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 6), nn.Tanh(), nn.Linear(6, 2))
    return attnc.compile(model.eval(), domain=attnc.Box(-1, 1, shape=(4, 3)), eps=1e-3)


@pytest.fixture(scope="module")
def grouped(net: Network) -> Network:
    """Two groups of neurons in the first layer, one with many anchors; the certificate no longer applies."""
    many = attnc.head("tanh", domain=(-4, 4), anchors=40, design="nearest")
    few, stages = net.layers[0].groups[0][1], list(net.stages)
    groups = [(np.arange(5), few), (np.arange(5, 40), many)]
    stages[1] = Pointwise(groups, name="block.act", inputs=(1,), value=2)
    return Network(stages, net.program, net.certificate)  # type: ignore[arg-type]


def inputs(*lead: int) -> torch.Tensor:
    return torch.rand(*lead, 4, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1


def curves(ax: Any) -> list[Any]:
    return [np.asarray(line.get_ydata()) for line in ax.lines]


@pytest.mark.parametrize("lead", [(), (1,), (2, 3)])
def test_weights_are_means_over_inputs_and_tokens_by_pre_activation(
    net: Network, lead: tuple[int, ...]
) -> None:
    x = inputs(*lead)
    figure = plot.network(net, x=x, layers=[0])
    s = net.stages[0](x).reshape(-1, 40)
    order = s.double().mean(0).argsort(stable=True)
    head = net.layers[0].groups[0][1]
    weights = head.weights(s).double().mean(0)[order][:, head.anchors.argsort()]
    np.testing.assert_allclose(picture(figure), weights.T.numpy(), atol=1e-7)
    left, right, *_ = figure.axes
    assert f"mean of {len(s)}" in left.get_xlabel()
    first = float(s.double().mean(0).min())
    assert float(texts(left.get_xticklabels())[0].replace("−", "-")) == pytest.approx(first, rel=0.02)
    f, executed, _, neurons = right.lines
    np.testing.assert_allclose(f.get_ydata(), np.tanh(np.asarray(f.get_xdata())), atol=1e-12)
    np.testing.assert_allclose(executed.get_ydata(), f.get_ydata(), atol=1e-4)
    assert (neurons.get_xdata()[0], neurons.get_xdata()[-1]) == (float(s.min()), float(s.max()))
    assert right.get_xlim() == (head.domain.lo, head.domain.hi)


def test_a_row_for_every_layer_and_the_bounds_below(net: Network) -> None:
    assert net.certificate.proved
    figure = plot.network(net)
    assert titles(figure) == ["layer 1: tanh", "layer 2: tanh", "error: proved bounds"]
    assert f"{net.certificate.bound:.4g}, proved" in figure.get_suptitle()
    ax, claims, witness = figure.axes[-1], net.certificate.parts("layer"), net.certificate.witness
    expected = [c.facts["error_in"] for c in claims] + [c.bound for c in claims] + [net.certificate.bound]
    assert [bar.get_height() for bar in ax.patches] == expected
    assert [y[0] for y in curves(ax)] == [net.certificate.bound, witness.error]
    low, high = ax.get_ylim()
    assert ax.get_yscale() == "log" and low < witness.error < max(expected) < high
    assert texts(ax.get_xticklabels()) == ["1", "2", "output"]


def test_attention_draws_one_layer_and_one_group(net: Network, grouped: Network) -> None:
    x = inputs(5)
    whole = plot.network(net, x=x)
    for layer in (0, 1):
        np.testing.assert_array_equal(picture(plot.attention(net, x=x, layer=layer)), picture(whole, layer))
    assert len(picture(plot.attention(grouped, x=x, layer=0, group=1))) == 40


def test_the_default_input_has_the_largest_known_error(net: Network) -> None:
    fitted = fitted_network()
    assert net.certificate.proved
    for one, known in ((net, net.certificate.witness), (fitted, fitted.certificate.witness)):
        like = next(one.parameters())
        x = torch.tensor(known.input, dtype=torch.float64).to(like.dtype).reshape(one.program.shape)
        np.testing.assert_array_equal(picture(plot.attention(one)), picture(plot.attention(one, x=x)))
    unknown = copy.deepcopy(fitted)
    unknown.certificate = Certificate.unknown("network", "float64")
    with pytest.raises(attnc.errors.InputError, match="x="):
        plot.attention(unknown)


def test_errors_of_zero_can_be_drawn() -> None:
    """A layer that reads the input itself has no error before it."""
    model = nn.Sequential(nn.Tanh(), nn.Linear(3, 2)).eval()
    figure = plot.network(attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-3))
    figure.draw_without_rendering()
    assert figure.axes[-1].patches[0].get_height() == 0


def test_groups_have_rows_and_a_changed_network_has_no_bound(grouped: Network) -> None:
    figure = plot.network(grouped)
    assert titles(figure) == [
        "layer 1 (block.act), group 1: tanh", "layer 1 (block.act), group 2: tanh", "layer 2: tanh",
    ]  # fmt: skip
    figure.draw_without_rendering()
    (text,) = [t for t in figure.texts if "not certified" in t.get_text()]
    assert 0 <= text.get_window_extent().x0 <= text.get_window_extent().x1 <= figure.bbox.width


def test_labels_do_not_overlap(net: Network, grouped: Network) -> None:
    for figure in (plot.network(net, x=inputs(3)), plot.network(grouped)):
        figure.draw_without_rendering()
        for ax in (ax for ax in figure.axes if ax.images):
            across = [label.get_window_extent() for label in ax.get_xticklabels()]
            up = [label.get_window_extent() for label in ax.get_yticklabels()]
            assert all(a.x1 < b.x0 for a, b in pairwise(across))
            assert all(a.y1 <= b.y0 for a, b in pairwise(up))
            assert len(across) >= 5 and min(box.x0 for box in (*across, *up)) >= 0


def test_numbers_of_one_axis_have_the_same_decimals() -> None:
    assert same_decimals(np.array([-0.603, -0.00764, 0.2])) == ["−0.603", "−0.008", "0.2"]
    assert same_decimals(np.array([-1e-9, 2048.4])) == ["0", "2050"]
    assert same_decimals(np.zeros(1)) == ["0"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda net: plot.network(net, layers=[2]), "layers: 2"),
        (lambda net: plot.network(net, layers=[0] * 41), "41"),
        (lambda net: plot.network(net, x=torch.zeros(0, 4, 3)), "x holds no"),
        (lambda net: plot.network(net, x=torch.zeros(3)), "shape"),
        (lambda net: plot.attention(net, layer=-1), "layers: -1"),
        (lambda net: plot.attention(net, layer=0, group=1), "group=1"),
        (lambda net: plot.attention(net.layers[0][0], layer=0), "layer"),
        (lambda _: plot.network(lattice_network()), "no neurons: use attnc.plot.tokens_and_anchors"),
        (lambda _: plot.attention(lattice_network()), "no neurons: use attnc.plot.tokens_and_anchors"),
        (lambda _: plot.slices(lattice_network(), f=lambda x: x[:, :1]), "2"),
        (lambda _: plot.slices(lattice_network(), f=lambda x: torch.cat([x, x], 2)), r"\(2, 2\)"),
        (lambda _: plot.slices(lattice_network(), f=lambda x: x / 0), "finite"),
        (lambda _: plot.slices(lattice_network(), f=wave, coordinates=[2]), "coordinates: 2"),
        (lambda _: plot.slices(lattice_network(), f=wave, coordinates=[(0, 1)]), r"coordinates: \(0, 1\)"),
        (lambda _: plot.slices(lattice_network(), f=wave, outputs=[-1]), "outputs: -1"),
        (lambda _: plot.slices(lattice_network(), f=wave, coordinates=[]), "coordinates: 0"),
        (lambda _: plot.slices(lattice_network(), f=wave, x=torch.tensor([[2.0], [0.0]])), "x must"),
        (lambda _: plot.slices(lattice_network(), f=wave, x=torch.zeros(2)), "x must"),
    ],
)
def test_bad_arguments_are_refused(net: Network, call: Any, words: str) -> None:
    with pytest.raises(attnc.errors.InputError, match=words):
        call(net)
    assert not any(layer._forward_pre_hooks for layer in net.layers)


def test_bounds_of_a_fitted_network_are_not_called_bounds_for_f() -> None:
    net = fitted_network()
    fitted = net.certificate.claims
    assert fitted is not None and not net.certificate.proved
    figure = plot.network(net)
    assert titles(figure) == ["layer 1: tanh", "error: not proved for f"]
    ax, bound, (claim,) = figure.axes[-1], fitted.bound, fitted.parts("layer")
    assert [bar.get_height() for bar in ax.patches] == [claim.facts["error_in"], claim.bound, bound]
    assert [y[0] for y in curves(ax)] == [bound, net.certificate.error]
    assert [("fitted" in line.get_label(), line.get_linestyle()) for line in ax.lines] == [
        (True, "-"), (False, "--"),
    ]  # fmt: skip
    low, high = ax.get_ylim()
    assert low < claim.facts["error_in"] < net.certificate.error < high
    figure.draw_without_rendering()
    assert ax._left_title.get_window_extent().x1 < ax.get_legend().get_window_extent().x0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "f"), [(lattice_network, wave), (grid_network, slow), (fitted_network, wave)]
)
def test_a_changed_network_has_no_bound_and_no_measured_error(make: Any, f: Any) -> None:
    net = copy.deepcopy(make())
    next(net.parameters()).data.view(-1)[0] += 1e-3
    lines = plot.slices(net, f=f)
    assert [len(ax.lines) for ax in lines.axes[2:]] == [1, 1]
    figures = [lines, plot.network(net)] if net.layers else [lines]
    assert not any(ax.patches for figure in figures[1:] for ax in figure.axes)
    assert all("not certified: changed" in figure.get_suptitle() for figure in figures)


def test_slices_show_f_the_network_and_the_error_along_every_coordinate() -> None:
    net = lattice_network()
    figure = plot.slices(net, f=wave)
    top, other, bottom, _ = figure.axes
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "", "x[0, 0]", "x[1, 0]"]
    s = np.linspace(-1, 1, POINTS)
    first, executed, *_ = curves(top)
    np.testing.assert_allclose(np.asarray(top.lines[0].get_xdata()), s, atol=1e-15)
    np.testing.assert_allclose(first, np.exp(np.sin(2 * s)), atol=1e-14)
    at = torch.stack([torch.from_numpy(s), torch.zeros(POINTS, dtype=torch.float64)], 1)[..., None]
    np.testing.assert_allclose(executed, net(at)[:, 0, 0].numpy(), atol=1e-14)
    np.testing.assert_allclose(curves(other)[0], np.ones(POINTS), atol=1e-15)
    error = np.abs(net(at).numpy() - wave(at).numpy()).reshape(POINTS, -1).max(1)
    np.testing.assert_allclose(curves(bottom)[0], error, atol=1e-14)
    assert bottom.get_yscale() == "log" and top.get_ylabel() == "y[0, 0], y[1, 0]"


def test_slices_call_only_proved_bounds_proved() -> None:
    measured, proved = plot.slices(lattice_network(), f=wave), plot.slices(grid_network(), f=slow)
    for figure, words, height, style in (
        (measured, "not proved", lattice_network().certificate.error, "--"),
        (proved, "proved bound 0.1414", 0.1 * 2**0.5, "-"),
    ):
        for ax in figure.axes[2:]:
            (line,) = [line for line in ax.lines if words in line.get_label()]
            assert (line.get_ydata()[0], line.get_linestyle()) == (height, style)
            low, high = ax.get_ylim()
            assert low < height < high
    assert "proved bound" not in str([line.get_label() for ax in measured.axes for line in ax.lines])


def test_slices_take_a_point_coordinates_and_outputs() -> None:
    x = torch.tensor([[0.5], [-0.25]])
    figure = plot.slices(lattice_network(), f=wave, x=x, coordinates=[(1, 0)], outputs=[1])
    top, bottom = figure.axes
    assert (len(top.lines), top.get_ylabel(), bottom.get_xlabel()) == (2, "y[1, 0]", "x[1, 0]")
    np.testing.assert_allclose(curves(top)[0], 0.5 * np.linspace(-1, 1, POINTS), atol=1e-15)


def test_slices_of_a_model_of_features_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 6)).eval()
    box = attnc.Box(torch.tensor([-1.0, 0.0, 0.5, -1.0, -1.0]), torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0]))
    net = attnc.compile(model, domain=box, eps=1e-3)
    figure = plot.slices(net, f=model)
    assert [ax.get_xlabel() for ax in figure.axes[3:]] == ["x[0]", "x[2]", "x[3]"], "x[1] is constant"
    assert [ax.get_xlim() for ax in figure.axes[3:]] == [(-1, 1), (0.5, 2), (-1, 1)]
    assert len(figure.axes[0].lines) == 2 * 4, "four of six outputs"
    assert net.certificate.proved
    assert max(max(ax.lines[0].get_ydata()) for ax in figure.axes[3:]) <= net.certificate.bound
