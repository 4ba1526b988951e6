"""The heat map: which anchors a head attends to, for every input; which anchors the neurons of a layer attend to; which points of
the whole input a lookup attends to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnc.errors import InputError
from attnc.network.describe import lattice
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.network.stages import AttentionLayer, Selection
from attnc.plot.canvas import BLUE, GREY, INK, WEIGHTS, expect_kind, new_axes, require_matplotlib
from attnc.plot.sample import COLUMNS, MOST_ROWS, about, attention_columns
from attnc.records.numbers import Array

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
    right in order of pre-activation, the mean over a batch and its tokens. Lookups (`net.selections`) are counted behind the
    layers; their anchors are points of the whole input and stand as a lattice. Without x, the input is the certificate's
    witness, or where the largest error was measured. Draws into `ax`, or into a figure of its own, and returns the axes.

    >>> import attnc, attnc.plot
    >>> tanh = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    >>> attnc.plot.attention(tanh).images[0].get_array().shape[0]     # a row for each anchor
    2
    """
    require_matplotlib()
    expect_kind(head, (Head, Network), "attention", "give what attnc.head or attnc.compile returns")
    if isinstance(head, Network):
        seen = look(head, x, [0 if layer is None else layer])[0]
        if not 0 <= group < len(seen):
            raise InputError(f"group={group}: the layer has {len(seen)}, counted from 0")
        ax = new_axes(7, 3.6) if ax is None else ax
        part = seen[group]
        image = draw_neurons(part, ax) if isinstance(part, Neurons) else draw_picked(part, ax)
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


@dataclass(frozen=True)
class Picked:
    """What a lookup attends to at some inputs."""

    selection: Selection
    weights: Array  # (anchors,): the mean over the inputs
    at: Array  # (m,): what enters, the mean over the inputs
    names: list[str]  # of the m coordinates
    ends: tuple[Array, Array]  # of the m coordinates, lo and hi
    inputs: int


def look(net: Network, x: Tensor | None, layers: list[int] | None = None) -> list[list[Neurons | Picked]]:
    """By layer, by group: the neurons at the inputs x, or where the largest error was seen; behind the layers, the lookups."""
    parts: list[AttentionLayer | Selection] = [*net.layers, *net.selections]
    chosen = range(len(parts)) if layers is None else layers
    for i in chosen:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < len(parts):
            raise InputError(f"layer {i!r}: the network has {len(parts)} layers of attention, counted from 0")
    entering = _entering(net, parts, worst_input(net) if x is None else x)
    found: list[list[Neurons | Picked]] = []
    for i in chosen:
        part, s = parts[i], entering[i]
        if isinstance(part, Selection):
            found.append([_picked(net, part, s)])
            continue
        groups = [(s if n is None else s.index_select(-1, n), head) for n, head in part.groups]
        found.append([_neurons(part, head, own) for own, head in groups])
    return found


def worst_input(net: Network) -> Tensor:
    """The certificate's witness, or the input of the largest error that was measured."""
    known = net.certificate.witness if net.certificate is not None else net.measured
    if known is None:
        raise InputError("nothing is known of this network's error: give the inputs to draw, x=...")
    point = torch.tensor(known.input, dtype=torch.float64).reshape(net.program.shape)
    parameter = next(net.parameters())
    return point.to(parameter.device, parameter.dtype)


def _entering(net: Network, layers: list[AttentionLayer | Selection], x: Tensor) -> list[Tensor]:
    """What enters every layer, (inputs and tokens, neurons), as it is executed."""
    seen: list[list[Tensor]] = [[] for _ in layers]
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, parts=parts: parts.append(given[0]))
        for layer, parts in zip(layers, seen, strict=True)
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


def _picked(net: Network, selection: Selection, s: Tensor) -> Picked:
    total = torch.zeros(selection.anchors, dtype=torch.float64)
    for part in torch.split(s, max(1, _AT_ONCE // selection.anchors)):
        with torch.no_grad():
            total += selection.weights(part).to("cpu", torch.float64).sum(0)
    middle = s.to("cpu", torch.float64).mean(0).numpy()
    box, m = net.domain, s.shape[1]
    if box.size == m:
        names = [f"x[{', '.join(map(str, np.unravel_index(j, box.shape)))}]" for j in range(m)]
        ends = box.lo.reshape(-1), box.hi.reshape(-1)
    else:
        names, ends = [f"coordinate {j}" for j in range(m)], (middle - 1, middle + 1)
    return Picked(selection, total.numpy() / len(s), middle, names, ends, len(s))


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


@dataclass(frozen=True)
class Arranged:
    """An image, which axes of the lattice run up and which across, the first of each in the largest steps."""

    image: Array
    up: tuple[int, ...]
    across: tuple[int, ...]
    positions: dict[int, Array]  # of the anchors, by axis

    @property
    def axes(self) -> tuple[int, ...]:
        return (*self.up, *self.across)


def arranged(selection: Selection, numbers: Array, ends: tuple[Array, Array], mean: bool = False) -> Arranged:
    """Numbers (anchors,) in the order of the lattice; where there is none, in a row, neighbours added up or averaged where
    they are too many."""
    counts = lattice(selection)
    axes = [] if counts is None else [j for j, count in enumerate(counts) if count > 1]
    if counts is None or not axes:
        share = math.ceil(len(numbers) / COLUMNS)
        firsts = np.arange(0, len(numbers), share)
        row = np.add.reduceat(numbers, firsts)
        if mean:
            row = row / np.diff([*firsts, len(numbers)])
        return Arranged(row[None], (), (), {})
    key = selection.key.detach().to("cpu").double().numpy()
    order = np.lexsort(key.T[::-1])
    up, across = tuple(axes[: len(axes) // 2]), tuple(axes[len(axes) // 2 :])
    image = numbers[order].reshape(math.prod(counts[j] for j in up), -1)
    offset = selection.offset.detach().to("cpu").double().numpy()[order].reshape(counts)
    found = {}
    for j in axes:
        line = tuple(slice(None) if i == j else 0 for i in range(len(counts)))
        centre = float(selection.centre[j])
        lo, hi = float(ends[0][j]) - centre, float(ends[1][j]) - centre
        found[j] = centre + positions(np.unique(key[:, j]), offset[line], lo, hi)
    return Arranged(image, up, across, found)


def positions(key: Array, offset: Array, lo: float, hi: float) -> Array:
    """Where the anchors of one axis stand, from scores u_i x + o_i: the middle of the stretch in which each wins.

    Neighbours tie at x = -(o_{i+1} - o_i)/(u_{i+1} - u_i). For o_i = -u_i²/4b, u_i = 2bL_i, that is (L_i + L_{i+1})/2, and
    on a uniform axis of three anchors or more the middles are L_i. The stretches of the first and of the last end as far
    behind the tie as the neighbour stands before it; of two anchors, at lo and hi.

    >>> anchors, b = np.array([-1.0, 0.0, 1.0, 2.0]), 5.0
    >>> positions(2 * b * anchors, -b * anchors**2, -1.0, 2.0)
    array([-1.,  0.,  1.,  2.])
    """
    ties = -np.diff(offset) / np.diff(key)
    if len(ties) == 1:
        tie = float(ties[0])
        return np.array([(min(lo, tie) + tie) / 2, (tie + max(hi, tie)) / 2])
    inner = (ties[1:] + ties[:-1]) / 2
    found: Array = np.concatenate([[2 * ties[0] - inner[0]], inner, [2 * ties[-1] - inner[-1]]])
    return found


def draw_picked(seen: Picked, ax: Axes, most_labels: int = _MOST_LABELS) -> AxesImage:
    """The weights of a lookup on the lattice of its anchors, from 0 to the largest; a cross stands at the input."""
    shown = arranged(seen.selection, seen.weights, seen.ends)
    image = _draw_arranged(seen, shown, ax, most_labels, (0.0, float(seen.weights.max())))
    if seen.inputs == 1 and len(shown.axes) == 2:
        (up, rows), (across, columns) = ((seen.at[j], shown.positions[j]) for j in shown.axes)
        ax.plot(
            [np.interp(across, columns, np.arange(len(columns)))], [np.interp(up, rows, np.arange(len(rows)))],
            linestyle="none", marker="x", color=BLUE, markersize=7, markeredgewidth=1.5, label="input",
        )  # fmt: skip
    mean = "" if seen.inputs == 1 else f" (mean of {seen.inputs})"
    ax.set_title(f"attention weights{mean}", fontsize=10, loc="left", color=INK)
    return image


def draw_values(seen: Picked, ax: Axes, output: int, most_labels: int = _MOST_LABELS) -> AxesImage:
    """What the anchors of a lookup hold for one output, in the same places."""
    values = seen.selection.values.detach().to("cpu", torch.float64).numpy()[:, output]
    shown = arranged(seen.selection, values, seen.ends, mean=True)
    image = _draw_arranged(
        seen, shown, ax, most_labels, (float(values.min()), float(values.max())), "cividis"
    )
    ax.set_title(f"values of the anchors, output {output}", fontsize=10, loc="left", color=INK)
    return image


def _draw_arranged(
    seen: Picked, shown: Arranged, ax: Axes, most: int, ends: tuple[float, float], colours: str = WEIGHTS
) -> AxesImage:
    image = ax.imshow(
        shown.image, cmap=colours, vmin=ends[0], vmax=ends[1], origin="lower", aspect="auto", interpolation="nearest",
    )  # fmt: skip
    ax.set_yticks([])
    ax.set_xlabel(f"{seen.selection.anchors:,} anchors in order of their number", fontsize=9)
    for axis, sides in ((ax.yaxis, shown.up), (ax.xaxis, shown.across)):
        if not sides:
            continue
        inner = math.prod(len(shown.positions[j]) for j in sides[1:])
        positions = shown.positions[sides[0]]
        places = np.arange(0, len(positions), -(-len(positions) // most))
        axis.set_ticks(places * inner + (inner - 1) / 2, labels=_alike(positions[places]))
        axis.set_label_text(", then ".join(seen.names[j] for j in sides), fontsize=9)
        if inner > 1:
            line = ax.axvline if axis is ax.xaxis else ax.axhline
            for block in range(1, len(positions)):
                line(block * inner - 0.5, color=GREY, linewidth=0.4)
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
