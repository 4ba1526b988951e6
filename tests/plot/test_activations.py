"""Anchors of a converted model: the weights of each token, groups of neurons in one map, and the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attnc
from attnc import plot
from attnc.errors import InputError
from attnc.network.pointwise import Pointwise
from attnc.plot.activations import FLOOR, MOST_NAMES, block_weights
from attnc.pretrained import report_of

TOKENS = ["a", "$mall", "s" * 30]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Two blocks; the first has neurons of very different reach, hence groups."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, activation="gelu", batch_first=True)
    made = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with torch.no_grad():
        made.layers[0].linear1.weight[::2] *= 4
    attnc.convert_(made, approximation=1e-2)
    return made


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(1))


def maps(figure: object) -> list[object]:
    return [ax for ax in figure.axes if ax.get_title(loc="left").startswith("block")]  # type: ignore[attr-defined]


def test_weights_of_a_token_add_up_to_one_and_their_mean_is_its_mean(
    model: nn.Module, x: torch.Tensor
) -> None:
    """On a lattice Σ W_k a_k = s but for the ripple: the mean weights know the mean pre-activation of each token."""
    activation = model.layers[0].activation
    assert len(activation.groups) > 1
    seen: list[torch.Tensor] = []
    hook = activation.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    first, second = block_weights(model, x)
    hook.remove()
    assert (first.number, second.number) == (1, 2)
    np.testing.assert_allclose(first.weights.sum(1), 1, atol=1e-5)
    assert (np.diff(first.positions) > 0).all()
    np.testing.assert_allclose(first.weights @ first.positions, seen[0][0].mean(-1), atol=1e-3)
    assert first.ends == (float(seen[0].min()), float(seen[0].max()))
    assert first.proved == tuple(report_of(model).blocks[0].facts["interval"])
    assert first.proved[0] < first.ends[0] and first.ends[1] < first.proved[1]


def test_anchors_at_one_position_share_a_column(model: nn.Module, x: torch.Tensor) -> None:
    activation = model.layers[0].activation
    (first,) = block_weights(model, x, layers=[0])
    apart = [head.anchors.numpy() for _, head in activation.groups]
    assert len(first.positions) == max(map(len, apart)) < sum(map(len, apart))


def test_the_map_is_the_weights_with_the_first_token_on_top(model: nn.Module, x: torch.Tensor) -> None:
    figure = plot.anchors_used(model, x=x, tokens=TOKENS)
    (first, _) = maps(figure)
    drawn = np.ma.asarray(first.collections[0].get_array())  # type: ignore[attr-defined]
    (expected, _) = block_weights(model, x)
    assert drawn.shape == expected.weights.shape
    np.testing.assert_array_equal(drawn.mask, expected.weights < FLOOR)
    np.testing.assert_array_equal(drawn.compressed(), expected.weights[expected.weights >= FLOOR])
    low, high = first.get_ylim()  # type: ignore[attr-defined]
    assert low > high
    labels = [label.get_text() for label in first.get_yticklabels()]  # type: ignore[attr-defined]
    assert labels == ["a", r"\$mall", "s" * 13 + "…"]
    left, right = first.get_xlim()  # type: ignore[attr-defined]
    shown = (expected.positions > left) & (expected.positions < right)
    assert (expected.weights[:, ~shown] < FLOOR).all()


def test_the_activation_stands_above_with_the_values_of_its_anchors(
    model: nn.Module, x: torch.Tensor
) -> None:
    (top, *_) = plot.anchors_used(model, x=x).axes
    curve, anchors = top.lines
    s = torch.from_numpy(np.asarray(curve.get_xdata()))
    np.testing.assert_allclose(curve.get_ydata(), nn.functional.gelu(s), atol=1e-12)
    head = model.layers[0].activation.groups[0][1]
    places = head.anchors.tolist()
    values = dict(zip(places, head.value[0, :, 1].tolist(), strict=True))
    assert len(anchors.get_xdata()) > 3
    for at, value in zip(anchors.get_xdata(), anchors.get_ydata(), strict=True):
        assert values[at] == value


def test_a_token_may_attend_to_itself() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 2)).eval()
    attnc.convert_(model, approximation=1e-3)
    x = torch.randn(5, 4)
    (block,) = block_weights(model, x)
    with torch.no_grad():
        s = model[1](model[0](x))
    head = block.head
    itself = int(torch.nonzero(head.value[0, :, 0])[0])
    np.testing.assert_allclose(block.weights[:, itself], torch.sigmoid(s).mean(-1), atol=1e-6)
    (ax,) = maps(plot.anchors_used(model, x=x))
    labels = [label.get_text() for label in ax.get_xticklabels()]  # type: ignore[attr-defined]
    assert labels[itself] == "the token itself" and sorted(labels) == ["the anchor", "the token itself"]


def test_of_many_tokens_some_are_named(model: nn.Module) -> None:
    x = torch.randn(1, 2 * MOST_NAMES + 5, 8, generator=torch.Generator().manual_seed(2))
    names = [f"t{i}" for i in range(x.shape[1])]
    (ax,) = maps(plot.anchors_used(model, x=x, layers=[1], tokens=names))
    assert [label.get_text() for label in ax.get_yticklabels()] == names[::3]  # type: ignore[attr-defined]


def test_without_a_report_nothing_is_called_proved(model: nn.Module) -> None:
    head = model.layers[1].activation.groups[0][1]
    (block,) = block_weights(nn.Sequential(Pointwise([(None, head)])), torch.zeros(2, 3))
    assert block.proved is None and block.ends == (0.0, 0.0)
    (ax,) = maps(plot.anchors_used(nn.Sequential(Pointwise([(None, head)])), x=torch.zeros(2, 3)))
    assert "proved" not in ax.get_title(loc="left")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": ["one"]}, "tokens has 1.*3"),
        ({"layers": [2]}, "layers: 2"),
        ({"layers": []}, "layers: 0"),
        ({"x": [torch.zeros(1, 1, 8)] * 2}, "x is a list"),
        ({"x": torch.zeros(1, 0, 8)}, "x holds no"),
    ],
)
def test_bad_arguments_are_refused(
    change: dict[str, Any], words: str, model: nn.Module, x: torch.Tensor
) -> None:
    with pytest.raises(InputError, match=words):
        plot.anchors_used(model, **{"x": x, **change})
