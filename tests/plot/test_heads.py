"""A head: the curves, the bound and the attention weights on the axes are those of the head."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from mpmath import mp, mpf

import attnc
from attnc import functions, plot
from attnc.check.execution import ROOM
from attnc.plot.heads import COLUMNS, function_of, sample_head
from tests.plot.conftest import log_gamma, picture, texts

Heads = dict[str, attnc.Head]


def curve(figure: Any, label: str) -> tuple[Any, Any]:
    lines = (line for ax in figure.axes for line in ax.lines)
    (line,) = [line for line in lines if line.get_label().startswith(label)]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def labels(figure: Any) -> str:
    return " | ".join(text for ax in figure.axes[:2] for text in texts(ax.get_legend().get_texts()))


def test_the_function_is_a_thin_line_below_the_head(heads: Heads) -> None:
    relu = heads["relu"]
    figure = plot.head(relu)
    s, y = curve(figure, "f = relu")
    np.testing.assert_array_equal(y, np.maximum(s, 0))
    at, g = curve(figure, "head")
    np.testing.assert_array_equal(g, relu(torch.from_numpy(at)).numpy())
    thin, thick, _ = figure.axes[0].lines
    assert thin.get_linewidth() < thick.get_linewidth() and thin.get_zorder() < thick.get_zorder()
    inside = [a for a in relu.anchors.tolist() if -1 <= a <= 1]
    assert sorted(curve(figure, "anchors")[0]) == sorted(inside)
    assert f"{len(inside)} of {len(relu.anchors)}" in labels(figure)
    assert figure.axes[0].get_xlim() == (-1, 1)


@pytest.mark.parametrize("name", ["tanh", "relu", "three"])
def test_the_error_reaches_the_witness_and_not_the_bound(name: str, heads: Heads) -> None:
    certificate = heads[name].certificate
    assert certificate.proved
    figure, witness = plot.head(heads[name]), certificate.witness
    assert set(curve(figure, "proved bound")[1]) == {certificate.bound}
    assert f"{certificate.bound:.4g}" in labels(figure)
    assert [xy[0] for xy in curve(figure, "witness")] == [witness.input, witness.error]
    s, error = curve(figure, "_error")
    assert error.max() <= certificate.bound
    # the batch of the picture may be summed in another order than the batch of the search
    assert error[s == witness.input] == pytest.approx(
        witness.error / ROOM, rel=1e-9, abs=2 * certificate.rounding
    )
    bottom, top = figure.axes[1].get_ylim()
    assert bottom < witness.error < certificate.bound < top
    assert figure.axes[1].get_yscale() == "log"


def test_the_error_is_accurate_below_the_resolution_of_float64(heads: Heads) -> None:
    sample = sample_head(heads["tanh"], functions.tanh())
    assert sample.error.max() < 1e-14
    with mp.workdps(50):
        pairs = zip(sample.s.tolist(), sample.head.tolist(), strict=True)
        exact = [float(abs(mpf(y) - mp.tanh(mpf(s)))) for s, y in pairs]
    np.testing.assert_allclose(sample.error, exact, rtol=1e-12)


def test_a_measured_error_is_not_called_proved(heads: Heads) -> None:
    measured = heads["measured"].certificate
    assert measured is not None
    figure = plot.head(heads["measured"], f=log_gamma)
    _, y = curve(figure, "largest measured")
    assert set(y) == {max(measured.error, curve(figure, "_error")[1].max())}
    assert y[0] == pytest.approx(measured.error, rel=1e-3)
    assert "proved bound" not in labels(figure) and "not proved" in labels(figure)


def test_a_changed_head_has_no_bound(heads: Heads) -> None:
    other = copy.deepcopy(heads["relu"])
    with torch.no_grad():
        other.value[0, 3, 1] += 0.01
    figure = plot.head(other)
    assert "proved bound" not in labels(figure)
    assert curve(figure, "largest measured")[1][0] == curve(figure, "_error")[1].max() > 1e-3
    assert "not certified" in figure.get_suptitle()


def test_an_error_of_zero_has_a_linear_axis() -> None:
    ax = plot.canvas.new_figure(4, 3).add_subplot()
    plot.canvas.log_scale(ax, [0.0, 0.0])
    assert ax.get_yscale() == "linear"


def test_the_function_must_be_known_and_the_same(heads: Heads) -> None:
    def gelu(s: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(s + 3)

    other = attnc.head(gelu, domain=(-1, 1), anchors=4, design="smooth")
    for head, name in ((heads["measured"], "log_gamma"), (other, "my_gelu")):
        with pytest.raises(attnc.errors.InputError, match=rf"'{name}'.*f="):
            plot.head(head)
    assert curve(plot.head(other, f=gelu), "_error")[1].max() < 0.1
    with pytest.raises(attnc.errors.InputError, match=r"f='gelu'.*'tanh'"):
        plot.head(heads["tanh"], f="gelu")
    assert function_of(heads["tanh"], "tanh").label == function_of(heads["tanh"], functions.tanh()).label
    with pytest.raises(attnc.errors.InputError, match="certificate"):
        plot.attention(attnc.Head(heads["tanh"].numbers(), "tuned"))


def test_three_panels_share_the_axis(heads: Heads) -> None:
    figure = plot.head(heads["relu"])
    top, middle, bottom, scale = figure.axes
    assert top.get_xlim() == middle.get_xlim() == bottom.get_xlim() == (-1, 1)
    assert (len(top.images), len(middle.images), len(bottom.images)) == (0, 0, 1)
    assert scale.get_ylim() == (0, 1)
    first, second = figure.get_suptitle().split("\n")
    assert first == "relu on [-1, 1]: 12 anchors, graded, float64" and "proved" in second


def test_names_are_not_read_as_mathematics() -> None:
    f = attnc.function(torch.sin, name="a$b_c$", enclosure=lambda x: x.sin())
    figure = plot.head(attnc.head(f, domain=(-1, 1), anchors=4, design="smooth"), f=f)
    figure.draw_without_rendering()
    assert figure.get_suptitle().startswith(r"a\$b_c\$ on")


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_a_row_for_each_anchor_by_position(name: str, heads: Heads) -> None:
    head = heads[name]
    figure = plot.attention(head)
    assert head.domain is not None
    lo, hi = head.domain.lo, head.domain.hi
    middles = torch.linspace(lo, hi, 2 * COLUMNS + 1, dtype=torch.float64)[1::2]
    expected = head.weights(middles).T[head.anchors.argsort(stable=True)]
    np.testing.assert_allclose(picture(figure), expected.numpy(), atol=1e-9)
    (image,) = figure.axes[0].images
    assert (image.get_extent()[:2], image.origin, image.get_clim()) == ([lo, hi], "lower", (0, 1))
    expected_labels = [f"{x:.3g}".replace("-", "−") for x in sorted(head.anchors.tolist())]
    assert texts(figure.axes[0].get_yticklabels()) == expected_labels


def test_several_heads_are_stacked_and_separated(heads: Heads) -> None:
    figure = plot.attention(heads["three"])
    np.testing.assert_allclose(picture(figure).reshape(3, 8, COLUMNS).sum(axis=1), 1, atol=1e-12)
    ax = figure.axes[0]
    assert [line.get_ydata()[0] for line in ax.lines] == [7.5, 15.5]
    assert texts(ax.child_axes[0].get_yticklabels()) == ["head 1", "head 2", "head 3"]


@pytest.mark.parametrize("name", ["relu", "three", "many"])
def test_labels_do_not_overlap(name: str, heads: Heads) -> None:
    figure = plot.attention(heads[name])
    figure.set_size_inches(7.5, 3.2)
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert 12 <= len(boxes) <= 20
    assert all(low.y1 <= high.y0 for low, high in pairwise(boxes))
