"""Attention weights as heat maps: of a head, of the neurons of a layer, and of a lookup over the whole input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.domain import Array
from attnc.errors import InputError
from attnc.heads.chain import anchor_positions
from attnc.network.describe import lattice
from attnc.network.head import Head
from attnc.network.lookup import LookupLayer
from attnc.network.network import Network
from attnc.network.pointwise import AttentionLayer
from attnc.plot import canvas
from attnc.plot.canvas import Index, SavePath
from attnc.plot.known import worst_input
from attnc.records.certificate import Certificate, Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

COLUMNS, MOST_ROWS = 600, 256  # of an image
_MOST_LABELS, _MOST_NEURONS = 18, 8
_AT_ONCE = 1 << 22  # attention weights in memory


def attention(
    model: Head | Network, *, x: Tensor | None = None, layer: int | None = None, group: int = 0,
    ax: Axes | None = None, path: SavePath = None,
) -> Figure:  # fmt: skip
    """Plot attention weights. For a head: s from left to right, the anchors by position from bottom to top, head above head.

    For a network: `net.layers[layer]` at the inputs `x`, one `group` of its neurons from left to right by pre-activation,
    averaged over the batch and its tokens. Lookups (`net.selections`) are counted after the layers; their anchors are points
    of the whole input and form a lattice. The default `x` is the certificate's witness, or the input of the largest measured
    error. Draws into `ax` or a new figure. Returns the Figure, saved to `path` if one is given.

    >>> import attnc, attnc.plot
    >>> figure = attnc.plot.attention(attnc.head("tanh", domain=(-8, 8), eps=1e-5))
    >>> figure.axes[0].images[0].get_array().shape[0]     # a row for each anchor
    2
    """
    canvas.prepare(path)
    canvas.expect_kind(model, (Head, Network), "attention", "give what attnc.head or attnc.compile returns")
    parts: list[NeuronWeights | LookupWeights] = []
    if isinstance(model, Network):
        (parts,) = layer_weights(model, x, [0 if layer is None else layer])
        if not 0 <= group < len(parts):
            raise InputError(f"group={group}: the layer has {len(parts)} groups, counted from 0")
    elif x is not None or layer is not None or group:
        raise InputError("x, layer and group select a part of a network: omit them for a head")
    ax = canvas.axes(ax, 7, 3.6)
    image = draw_head_attention(model, ax) if isinstance(model, Head) else parts[group].draw(ax)
    canvas.colour_bar(image, ax, "attention weight", pad=0.02, fraction=0.04, aspect=20)
    return canvas.finish(ax, path)


def record_of(head: Head, plot: str = "head") -> Certificate:
    """The certificate, which names the function and its domain. `plot` is the name of the caller."""
    instead = "give what attnc.head or attnc.load returns; use attnc.plot.network for a network"
    canvas.expect_kind(head, (Head,), plot, instead)
    record = head.certificate
    if record.status is Status.UNKNOWN:
        raise InputError(
            "this head has no certificate, so its function and domain are unknown: "
            "draw a head that attnc.head or attnc.load returned"
        )
    return record


def entering(parts: Sequence[nn.Module], run: Callable[[], object]) -> list[Tensor]:
    """What enters each part while `run` executes the model: (inputs and tokens, neurons)."""
    seen: list[list[Tensor]] = [[] for _ in parts]

    def hook(own: list[Tensor]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda _, given: own.append(given[0].detach().reshape(-1, given[0].shape[-1]))

    hooks = [part.register_forward_pre_hook(hook(own)) for part, own in zip(parts, seen, strict=True)]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in hooks:
            handle.remove()
    if not all(own and own[0].numel() for own in seen):
        raise InputError("x holds no input or no token: give at least one")
    return [torch.cat(own) for own in seen]


def mean_weights(weights: Callable[[Tensor], Tensor], s: Tensor, size: int) -> Array:
    """(rows, size): the weights at s (rows, inputs, …), averaged over the inputs; `size` is how many weights an input has."""
    rows, inputs = s.shape[:2]
    total = torch.zeros(rows, size, dtype=torch.float64)
    step = max(1, _AT_ONCE // (inputs * size))
    for first in range(0, rows, step):
        for part in torch.split(s[first : first + step], max(1, _AT_ONCE // size), 1):
            with torch.no_grad():
                found = weights(part).to("cpu", torch.float64)
            total[first : first + step] += found.reshape(*part.shape[:2], size).sum(1)
    mean: Array = total.numpy() / inputs
    return mean


def anchor_rows(head: Head, s: Tensor) -> tuple[Array, list[Array], int]:
    """Mean weights at s (columns, inputs) as an image, each head's anchor positions, and how many anchors share a row.

    The rows are the anchors by position, head after head. If there are more than `MOST_ROWS`, neighbours share a row, which
    shows the sum of their weights."""
    positions = np.atleast_2d(head.anchors.numpy())
    heads, p = positions.shape
    order = np.argsort(positions, axis=1, kind="stable")
    weights = mean_weights(head.weights, s, positions.size).reshape(-1, heads, p)
    share = math.ceil(p / max(1, MOST_ROWS // heads))
    ordered = np.take_along_axis(weights, order[None], axis=2)
    rows = np.add.reduceat(ordered, np.arange(0, p, share), axis=2).reshape(len(s), -1)
    return rows.T, list(np.take_along_axis(positions, order, axis=1)), share


def draw_head_attention(head: Head, ax: Axes) -> AxesImage:
    """The heat map of a head over its domain, without a colour bar."""
    domain = record_of(head).interval
    middles = domain.lo + domain.width * ((np.arange(COLUMNS) + 0.5) / COLUMNS)
    s = torch.from_numpy(middles).to(head.key.device, head.key.dtype)
    rows, positions, share = anchor_rows(head, s[:, None])
    image = _draw_rows(ax, rows, positions, share, (domain.lo, domain.hi), _MOST_LABELS)
    ax.set_xlabel("s", fontsize=9)
    return image


def _draw_rows(
    ax: Axes, rows: Array, positions: list[Array], share: int, ends: tuple[float, float], most: int
) -> AxesImage:
    """Anchors from bottom to top with their positions, or every n-th position; a line between heads."""
    heads, in_head = len(positions), len(rows) // len(positions)
    image = canvas.heat_image(ax, rows, extent=(*ends, -0.5, len(rows) - 0.5))
    step = -(-in_head // max(1, most // heads))
    labelled = range(0, heads, -(-heads // most))
    places = [(h, k) for h in labelled for k in range(0, in_head, step)]
    labels = [canvas.number(positions[h][k * share]) for h, k in places]
    ax.set_yticks([h * in_head + k for h, k in places], labels)
    if heads > 1:
        for h in range(1, heads):
            ax.axhline(h * in_head - 0.5, color=canvas.BLUE, linewidth=1.5)
        side = ax.secondary_yaxis("right")
        side.set_yticks([(h + 0.5) * in_head - 0.5 for h in labelled], [f"head {h + 1}" for h in labelled])
        side.tick_params(labelsize=8, length=0, labelcolor=canvas.GREY)
    ax.set_ylabel("anchor at" if share == 1 else f"anchors from ({share} in a row)", fontsize=9)
    ax.tick_params(labelsize=8)
    canvas.title(ax, "attention weights")
    return image


def layer_weights(
    net: Network, x: Tensor | None, layers: Sequence[Index] | None = None
) -> list[list[NeuronWeights | LookupWeights]]:
    """By layer and group, the attention weights at the inputs x; the lookups are counted after the layers."""
    parts: list[AttentionLayer | LookupLayer] = [*net.layers, *net.selections]
    chosen = canvas.selected(layers, (len(parts),), range(len(parts)), "layers")
    point = worst_input(net) if x is None else x
    inputs = entering([parts[i] for i in chosen], lambda: net(point, strict=False))
    found: list[list[NeuronWeights | LookupWeights]] = []
    for i, s in zip(chosen, inputs, strict=True):
        part = parts[i]
        if isinstance(part, LookupLayer):
            found.append([LookupWeights(net, part, s)])
        else:
            groups = [(s if own is None else s.index_select(-1, own), head) for own, head in part.groups]
            found.append([NeuronWeights(part, head, own) for own, head in groups])
    return found


@dataclass(frozen=True)
class NeuronWeights:
    """The neurons that share a head, at some inputs."""

    layer: AttentionLayer
    head: Head
    s: Tensor  # (inputs, neurons): the pre-activations

    @property
    def spread(self) -> Array:
        """The pre-activations of all inputs, increasing; some of them if there are many."""
        every = np.sort(self.s.to("cpu", torch.float64).numpy(), axis=None)
        some: Array = every[np.unique(np.linspace(0, len(every) - 1, COLUMNS).astype(int))]
        return some

    def draw(self, ax: Axes, most_labels: int = _MOST_LABELS) -> AxesImage:
        """Neurons from left to right by mean pre-activation; neighbours share a column if there are many."""
        inputs, count = self.s.shape
        means = self.s.to("cpu", torch.float64).mean(0).numpy()
        order = np.argsort(means, kind="stable")
        rows, positions, share = anchor_rows(self.head, self.s.T[torch.from_numpy(order)])
        columns = np.array_split(rows, min(count, COLUMNS), axis=1)
        image = np.stack([part.mean(1) for part in columns], axis=1)
        drawn = _draw_rows(ax, image, positions, share, (-0.5, count - 0.5), most_labels)
        few = np.arange(0, count, -(-count // _MOST_NEURONS))
        ranks = few if count <= 3 * _MOST_NEURONS else np.linspace(0, count - 1, _MOST_NEURONS).astype(int)
        ax.set_xticks(ranks, same_decimals(means[order][ranks]))
        mean = "" if inputs == 1 else f" (mean of {inputs})"
        ax.set_xlabel(f"{count} neuron{'s' * (count != 1)}, by pre-activation s{mean}", fontsize=9)
        return drawn


@dataclass(frozen=True)
class LookupWeights:
    """A lookup at some inputs."""

    net: Network
    selection: LookupLayer
    s: Tensor  # (inputs, m): what enters

    def draw(self, ax: Axes, most_labels: int = _MOST_LABELS) -> AxesImage:
        """The mean weights on the lattice of the anchors, from 0 to the largest; a cross at the input."""
        inputs = len(self.s)
        weights = mean_weights(self.selection.weights, self.s[None], self.selection.anchors)[0]
        image, up, across = on_lattice(self.selection, weights)
        drawn = canvas.heat_image(ax, image, 0, float(weights.max()))
        self._label(ax, up, across, most_labels)
        if inputs == 1 and len(up) == len(across) == 1:
            ((j, rows),), ((k, columns),) = up.items(), across.items()
            x = np.interp(float(self.s[0, k]), columns, np.arange(len(columns)))
            y = np.interp(float(self.s[0, j]), rows, np.arange(len(rows)))
            ax.plot([x], [y], "x", color=canvas.BLUE, markersize=7, markeredgewidth=1.5, label="input")
        canvas.title(ax, "attention weights" + f" (mean of {inputs})" * (inputs > 1))
        return drawn

    def draw_values(self, ax: Axes, output: int, most_labels: int = _MOST_LABELS) -> AxesImage:
        """The values of the anchors for one output, at the same places."""
        values = self.selection.values.detach().to("cpu", torch.float64).numpy()[:, output]
        image, up, across = on_lattice(self.selection, values, mean=True)
        drawn = canvas.heat_image(ax, image, float(values.min()), float(values.max()), cmap="cividis")
        self._label(ax, up, across, most_labels)
        canvas.title(ax, f"values of the anchors, output {output}")
        return drawn

    def _label(self, ax: Axes, up: dict[int, Array], across: dict[int, Array], most: int) -> None:
        ax.set_yticks([])
        ax.set_xlabel(f"{self.selection.anchors:,} anchors by index", fontsize=9)
        ax.tick_params(labelsize=8)
        whole = self.net.domain.size == self.s.shape[1]
        for axis, line, sides in ((ax.yaxis, ax.axhline, up), (ax.xaxis, ax.axvline, across)):
            if not sides:
                continue
            outer, *others = sides.values()
            inner = math.prod(map(len, others))
            places = np.arange(0, len(outer), -(-len(outer) // most))
            axis.set_ticks(places * inner + (inner - 1) / 2, labels=same_decimals(outer[places]))
            names = [canvas.coordinate("x", j, self.net.domain.shape) if whole else str(j) for j in sides]
            axis.set_label_text(", then ".join(names), fontsize=9)
            for block in range(1, len(outer) if inner > 1 else 1):
                line(block * inner - 0.5, color=canvas.GREY, linewidth=0.4)


def on_lattice(
    selection: LookupLayer, numbers: Array, mean: bool = False
) -> tuple[Array, dict[int, Array], dict[int, Array]]:
    """Numbers (anchors,) as an image of the lattice; the positions along each axis that runs up, and across, outermost first.

    Anchors that form no lattice are put in one row; if there are too many, neighbours are added up, or averaged with `mean`."""
    counts = lattice(selection)
    axes = [j for j, count in enumerate(counts or ()) if count > 1]
    if counts is None or not axes:
        firsts = np.arange(0, len(numbers), math.ceil(len(numbers) / COLUMNS))
        row = np.add.reduceat(numbers, firsts)
        return (row / np.diff([*firsts, len(numbers)]) if mean else row)[None], {}, {}
    key, offset = (t.detach().to("cpu").double().numpy() for t in (selection.key, selection.offset))
    order = np.lexsort(key.T[::-1])
    scores = np.concatenate([key, offset[:, None]], 1)[order].reshape(*counts, -1)
    positions = {}
    for j in axes:
        line = tuple(slice(None) if i == j else 0 for i in range(len(counts)))
        positions[j] = float(selection.centre[j]) + anchor_positions(scores[line][:, [j, -1]])
    up, across = ({j: positions[j] for j in half} for half in np.split(axes, [len(axes) // 2]))
    return numbers[order].reshape(math.prod(map(len, up.values())), -1), up, across


def same_decimals(positions: Array) -> list[str]:
    """Three digits of the largest number, and as many decimals of the others."""
    decimals = 2 - math.floor(math.log10(max(float(np.abs(positions).max()), 1e-300)))
    return [f"{round(float(s), decimals) + 0.0:g}".replace("-", "−") for s in positions]
