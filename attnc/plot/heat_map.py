"""The heat map: which anchors a head attends to, for every input; which anchors the neurons of a layer attend to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnc.certify.numbers import Array
from attnc.errors import InputError
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.network.stages import AttentionLayer
from attnc.plot.canvas import BLUE, GREY, INK, WEIGHTS, new_axes, require_matplotlib
from attnc.plot.sample import COLUMNS, MOST_ROWS, about, attention_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_MOST_LABELS, _MOST_NEURONS = 18, 8
_AT_ONCE = 1 << 22


def attention(
    head: Head | Network,
    ax: Axes | None = None,
    *,
    x: Tensor | None = None,
    layer: int | None = None,
    group: int = 0,
) -> Axes:
    """The attention weights: s from left to right, the anchors in order of position from below, head on head.

    Of a network, those of `net.layers[layer]` (of one group of its neurons) at the inputs x: the neurons from left to
    right in order of pre-activation, the mean over a batch and its tokens. Without x, at the certificate's witness.
    Draws into `ax`, or into a figure of its own, and returns the axes.

    >>> import attnc, attnc.plot
    >>> tanh = attnc.head("tanh", on=(-8, 8), eps=1e-5)
    >>> attnc.plot.attention(tanh).images[0].get_array().shape[0]     # a row for each anchor
    2
    """
    require_matplotlib()
    if isinstance(head, Network):
        seen = look(head, x, [0 if layer is None else layer])[0]
        if not 0 <= group < len(seen):
            raise InputError(f"group={group}: the layer has {len(seen)}, counted from 0")
        ax = new_axes(7, 3.6) if ax is None else ax
        image = draw_neurons(seen[group], ax)
    else:
        if x is not None or layer is not None or group:
            raise InputError("x, layer and group choose within a network: a head takes none of them")
        ax = new_axes(7, 3.6) if ax is None else ax
        image = draw_attention(head, ax)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.04)
    bar.set_label("attention weight", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return ax


@dataclass(frozen=True)
class Neurons:
    """What the neurons that share a head do at some inputs, in order of their mean pre-activations."""

    layer: AttentionLayer
    head: Head
    s: Array  # (neurons,), increasing
    spread: Array  # pre-activations of all inputs, some of them where there are many, increasing
    weights: (
        Array  # (rows, columns): neighbours share a column where neurons are many, a row where anchors are
    )
    positions: list[Array]
    share: int  # anchors in a row
    inputs: int


def look(net: Network, x: Tensor | None, layers: list[int] | None = None) -> list[list[Neurons]]:
    """By layer, by group: the neurons at the inputs x, or at the certificate's witness."""
    chosen = range(len(net.layers)) if layers is None else layers
    for i in chosen:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < len(net.layers):
            raise InputError(
                f"layer {i!r}: the network has {len(net.layers)} layers of attention, counted from 0"
            )
    if x is None:
        dtype = next(net.parameters()).dtype
        x = (
            torch.tensor(net.certificate.witness.input, dtype=torch.float64)
            .to(dtype)
            .reshape(net.program.shape)
        )
    entering = _entering(net, x)
    found = []
    for i in chosen:
        layer, s = net.layers[i], entering[i]
        groups = [(s if n is None else s.index_select(-1, n), head) for n, head in layer.groups]
        found.append([_neurons(layer, head, part) for part, head in groups])
    return found


def _entering(net: Network, x: Tensor) -> list[Tensor]:
    """The pre-activations of every layer, (inputs and tokens, neurons), as they are executed."""
    seen: list[list[Tensor]] = [[] for _ in net.layers]
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, parts=parts: parts.append(given[0]))
        for layer, parts in zip(net.layers, seen, strict=True)
    ]
    try:
        with torch.no_grad():
            outputs = net(x, strict=False)
    finally:
        for hook in hooks:
            hook.remove()
    if not outputs.numel():
        raise InputError(f"a picture needs an input: got a batch of the shape {tuple(x.shape)}")
    return [torch.cat([part.reshape(-1, part.shape[-1]) for part in parts]) for parts in seen]


def _neurons(layer: AttentionLayer, head: Head, s: Tensor) -> Neurons:
    positions = np.atleast_2d(head.anchors.numpy())
    order = np.argsort(positions, axis=1, kind="stable")
    heads, p = positions.shape
    total = torch.zeros(s.shape[1], heads, p, dtype=torch.float64)
    for part in torch.split(s, max(1, _AT_ONCE // (s.shape[1] * positions.size))):
        with torch.no_grad():
            total += head.weights(part).to("cpu", torch.float64).reshape(-1, *total.shape).sum(0)
    wide = s.to("cpu", torch.float64)
    mean = wide.mean(0).numpy()
    rank = np.argsort(mean, kind="stable")
    in_order = np.take_along_axis(total.numpy()[rank] / len(s), order[None], axis=2)
    share = math.ceil(p / max(1, MOST_ROWS // heads))
    rows = np.add.reduceat(in_order, np.arange(0, p, share), axis=2).reshape(len(rank), -1)
    columns = [part.mean(0) for part in np.array_split(rows, min(len(rows), COLUMNS))]
    spread = np.sort(wide.numpy(), axis=None)
    spread = spread[np.unique(np.linspace(0, len(spread) - 1, COLUMNS).astype(int))]
    ordered = list(np.take_along_axis(positions, order, axis=1))
    return Neurons(layer, head, mean[rank], spread, np.stack(columns, axis=1), ordered, share, len(s))


def draw_neurons(seen: Neurons, ax: Axes, most_labels: int = _MOST_LABELS) -> AxesImage:
    """The heat map of a layer without its scale of colours."""
    rows, count = len(seen.weights), len(seen.s)
    image = ax.imshow(
        seen.weights, cmap=WEIGHTS, vmin=0, vmax=1, origin="lower", aspect="auto", interpolation="nearest",
        extent=(-0.5, count - 0.5, -0.5, rows - 0.5),
    )  # fmt: skip
    _label_anchors(ax, [row[:: seen.share] for row in seen.positions], most_labels)
    if seen.head.heads > 1:
        _separate_heads(ax, seen.head.heads, rows // seen.head.heads)
    few = np.arange(0, count, -(-count // _MOST_NEURONS))
    ranks = few if count <= 3 * _MOST_NEURONS else np.linspace(0, count - 1, _MOST_NEURONS).astype(int)
    ax.set_xticks(ranks, _alike(seen.s[ranks]))
    mean = "" if seen.inputs == 1 else f" (mean of {seen.inputs})"
    ax.set_xlabel(f"{count} neuron{'s' * (count != 1)}, by pre-activation s{mean}", fontsize=9)
    ax.set_ylabel("anchor at" if seen.share == 1 else f"anchors from ({seen.share} in a row)", fontsize=9)
    ax.set_title("attention weights", fontsize=10, loc="left", color=INK)
    ax.tick_params(labelsize=8)
    return image


def draw_attention(head: Head, ax: Axes) -> AxesImage:
    """The heat map without its scale of colours."""
    domain = about(head).domain
    weights, positions, share = attention_columns(head)
    rows = len(weights)
    image = ax.imshow(
        weights, cmap=WEIGHTS, vmin=0, vmax=1, origin="lower", aspect="auto", interpolation="nearest",
        extent=(domain.lo, domain.hi, -0.5, rows - 0.5),
    )  # fmt: skip
    in_head = rows // head.heads
    _label_anchors(ax, [row[::share] for row in positions])
    if head.heads > 1:
        _separate_heads(ax, head.heads, in_head)
    ax.set_xlabel("s", fontsize=9)
    ax.set_ylabel("anchor at" if share == 1 else f"anchors from ({share} in a row)", fontsize=9)
    ax.set_title("attention weights", fontsize=10, loc="left", color=INK)
    ax.tick_params(labelsize=8)
    return image


def _label_anchors(ax: Axes, positions: list[Array], most: int = _MOST_LABELS) -> None:
    """The position of every anchor, or of every n-th where they would overlap."""
    in_head = len(positions[0])
    each = max(1, most // len(positions))
    step = -(-in_head // each)
    heads = range(0, len(positions), -(-len(positions) // most))
    places = [(h * in_head + k, positions[h][k]) for h in heads for k in range(0, in_head, step)]
    ax.set_yticks([row for row, _ in places], [_short(position) for _, position in places])


def _separate_heads(ax: Axes, heads: int, in_head: int) -> None:
    """A line between heads, and their numbers at the right."""
    for h in range(1, heads):
        ax.axhline(h * in_head - 0.5, color=BLUE, linewidth=1.5)
    shown = range(0, heads, -(-heads // _MOST_LABELS))
    side = ax.secondary_yaxis("right")
    side.set_yticks([(h + 0.5) * in_head - 0.5 for h in shown], [f"head {h + 1}" for h in shown])
    side.tick_params(labelsize=8, length=0, labelcolor=GREY)


def _short(position: float) -> str:
    return f"{position:.3g}".replace("-", "−")


def _alike(positions: Array) -> list[str]:
    """Three digits of the largest, and as many decimals of the others."""
    decimals = 2 - math.floor(math.log10(max(float(np.abs(positions).max()), 1e-300)))
    return [f"{round(float(s), decimals) + 0.0:g}".replace("-", "−") for s in positions]
