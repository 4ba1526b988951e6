"""Plots of attention weights: of a head with its function and its error, of the neurons of a layer, and of the literal form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from flint import arb
from torch import Tensor, nn

from attnc.arguments import checked_count
from attnc.domain import Array
from attnc.errors import InputError
from attnc.functions import Function, get
from attnc.functions import function as make_function
from attnc.functions.balls import working
from attnc.network.head import Head
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.network import Network
from attnc.network.pointwise import Pointwise
from attnc.plot import canvas
from attnc.plot.canvas import Index, SavePath, known_error, worst_input
from attnc.prove.traced_function import stated_function_of
from attnc.records.certificate import Certificate, Status

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

AnyFunction = str | Function | Callable[[Tensor], Tensor]

POINTS, COLUMNS = 800, 600  # of a curve, and of the image of a head
_PRECISION = 128
_MOST_LABELS, _MOST_NEURONS, _MOST_HEADS = 18, 8, 8
_AT_ONCE = 1 << 22  # attention weights in memory


def head(head: Head, *, f: AnyFunction | None = None, path: SavePath = None) -> Figure:
    """Plot the function and the head with a mark for each anchor, the error with its bound, and the attention weights.

    The proved bound is a solid line and the witness a circle; if the error is only measured, the line is dashed, at the largest
    measured error. `f` is needed only if the function is not registered. Returns the Figure, saved to `path` if one is given.

    >>> import attnc, attnc.plot
    >>> figure = attnc.plot.head(attnc.head("tanh", domain=(-8, 8), eps=1e-5))
    >>> [ax.get_title(loc="left") for ax in figure.axes[:3]]
    ['function', 'error', 'attention weights']
    """
    instead = "give what attnc.head or attnc.load returns; use attnc.plot.network for a network"
    canvas.prepare(path, head, (Head,), "head", instead)
    record, sample = record_of(head), sample_head(head, function_of(head, f))
    figure = canvas.new_figure(7.5, 8.5)
    grid = figure.add_gridspec(3, 2, width_ratios=(1, 0.025), height_ratios=(1, 1, 1.3))
    top = figure.add_subplot(grid[0, 0])
    middle, bottom = (figure.add_subplot(grid[row, 0], sharex=top) for row in (1, 2))
    draw_function(head, top, sample)
    _draw_error(head, middle, sample)
    image = _draw_head_attention(head, bottom)
    figure.colorbar(image, cax=figure.add_subplot(grid[2, 1])).ax.tick_params(labelsize=8)
    for ax, title in ((top, "function"), (middle, "error")):
        ax.tick_params(labelbottom=False)
        canvas.title(ax, title)
    anchors = f"{head.heads} heads of " * (head.heads > 1) + f"{head.key.shape[1]} anchors"
    text = f"{record.facts['function']} on [{record.interval.lo:g}, {record.interval.hi:g}]: {anchors}, {head.design}"
    dtype = str(head.key.dtype).removeprefix("torch.")
    canvas.heading(figure, f"{text}, {dtype}\n{known_error(head).text}")
    return canvas.finish(figure, path)


class HeadSample(NamedTuple):
    """The executed head and f at points of the domain, and |head - f|."""

    s: Array
    head: Array
    f: Array
    error: Array


def record_of(head: Head) -> Certificate:
    """The certificate, which names the function and its domain."""
    if head.certificate.status is Status.UNKNOWN:
        raise InputError("this head has no certificate: draw a head that attnc.head or attnc.load returned")
    return head.certificate


def function_of(head: Head, f: AnyFunction | None) -> Function:
    """The function of a head: the one given, or the one that the certificate states, or names if it is registered."""
    record, found = record_of(head), None
    label = record.facts["function"]
    if f is not None:
        found = get(f) if isinstance(f, str) else f if isinstance(f, Function) else make_function(f)
        if found.label != label:
            raise InputError(f"f={found.label!r} is not the function of this head: give {label!r}, or omit f")
        return found
    if (stated := stated_function_of(record)) is not None:
        return stated
    with suppress(InputError):
        found = get(label)
    # A measured head approximates a bare callable, whose name may be that of a built-in function.
    if found is None or (not record.proved and found.provable):
        raise InputError(f"the function {label!r} of this head is not registered: give it, f=...")
    return found


def sample_head(head: Head, f: Function) -> HeadSample:
    """The head and f at evenly spaced points, and near the ends, the kinks and the largest known error.

    If f has an enclosure, the difference is computed in ball arithmetic: it is accurate far below the resolution of float64."""
    record = record_of(head)
    lo, hi, width = record.interval.lo, record.interval.hi, record.interval.width
    special = [lo, hi, *(() if record.witness is None else record.witness.input), *f.kinks]
    near = [x + sign * width * 2.0**-j for x in special for j in range(5, 40) for sign in (-1, 1)]
    points = torch.tensor([*np.linspace(lo, hi, POINTS).tolist(), *special, *near], dtype=torch.float64)
    held = np.unique(points.to(head.key.dtype).double().numpy())
    wide = torch.from_numpy(held[(held >= lo) & (held <= hi)])
    with torch.no_grad():
        executed = head(wide.to(head.key.device, head.key.dtype), strict=False).to("cpu", torch.float64)
    if not f.provable:
        exact = f(wide)
        return HeadSample(wide.numpy(), executed.numpy(), exact.numpy(), (executed - exact).abs().numpy())
    with working(_PRECISION):
        values = [f.value(x) for x in wide.tolist()]
        error = [float(abs(arb(g) - v).mid()) for g, v in zip(executed.tolist(), values, strict=True)]
        middles = [float(v.mid()) for v in values]
    return HeadSample(wide.numpy(), executed.numpy(), np.array(middles), np.array(error))


def draw_function(head: Head, ax: Axes, sample: HeadSample) -> None:
    """Both curves, and a mark for each anchor in the domain."""
    record = record_of(head)
    canvas.curve_pair(ax, sample.s, sample.f, sample.head, (f"f = {record.facts['function']}", "head"))
    anchors = head.anchors.numpy().ravel()
    inside = anchors[(anchors >= record.interval.lo) & (anchors <= record.interval.hi)]
    some = f" ({len(inside)} of {len(anchors)} in the domain)" if len(inside) < len(anchors) else ""
    ax.margins(y=0.1)
    mark = {"markersize": 8, "markeredgewidth": 1.2, "color": canvas.VERMILION, "clip_on": False}
    canvas.rug(ax, inside, 0.035, label=f"anchors{some}", **mark)
    ax.set_xlim(record.interval.lo, record.interval.hi)
    canvas.legend_above(ax)
    canvas.style(ax)


def _draw_error(head: Head, ax: Axes, sample: HeadSample) -> None:
    """The error, the line that bounds it, and the input with the largest known error."""
    known, worst, witness = known_error(head), int(sample.error.argmax()), head.certificate.witness
    at, error, label = float(sample.s[worst]), float(sample.error[worst]), "at"
    if not known.proved and (known.value is None or known.value < error):
        known = replace(known, value=error)  # the sample found a larger error
    elif witness is not None:
        at, error = witness.input[0], witness.error
        label = f"witness: {error:.3g} at" if known.proved else label
    ax.plot(sample.s, sample.error, color=canvas.BLUE, linewidth=1, label="_error")
    known.draw(ax)
    canvas.log_scale(ax, [known.value or 0.0, *sample.error])
    canvas.open_circle(ax, at, error, f"{label} s = {at:.8g}")
    ax.set_ylabel("|head − f|", fontsize=9)
    canvas.legend_above(ax)
    canvas.style(ax)


def attention(
    model: Head | Network, *, x: Tensor | None = None, layer: int | None = None, group: int = 0,
    ax: Axes | None = None, path: SavePath = None,
) -> Figure:  # fmt: skip
    """Plot attention weights. For a head: s from left to right, the anchors by position from bottom to top, head above head.

    For a network: `net.layers[layer]` at the inputs `x`, one `group` of its neurons from left to right by pre-activation,
    averaged over the batch and its tokens. The default `x` is the certificate's witness, or the input of the largest measured
    error. Draws into `ax` or a new figure. Returns the Figure, saved to `path` if one is given.

    >>> import attnc, attnc.plot
    >>> figure = attnc.plot.attention(attnc.head("tanh", domain=(-8, 8), eps=1e-5))
    >>> figure.axes[0].images[0].get_array().shape[0]     # a row for each anchor
    2
    """
    canvas.prepare(path, model, (Head, Network), "attention", "give what attnc.head or attnc.compile returns")
    parts: list[LayerInput] = []
    if isinstance(model, Network):
        (parts,) = layer_inputs(model, x, [0 if layer is None else layer])
        if not 0 <= group < len(parts):
            raise InputError(f"group={group}: the layer has {len(parts)} groups, counted from 0")
    elif x is not None or layer is not None or group:
        raise InputError("x, layer and group select a part of a network: omit them for a head")
    else:
        record_of(model)
    ax = canvas.new_figure(7, 3.6).add_subplot() if ax is None else ax
    image = draw_neurons(parts[group], ax) if parts else _draw_head_attention(cast(Head, model), ax)
    canvas.colour_bar(image, ax, "attention weight", pad=0.02, fraction=0.04, aspect=20)
    return canvas.finish(ax, path)


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
    return total.numpy() / inputs


def _anchor_rows(head: Head, s: Tensor) -> tuple[Array, Array]:
    """Mean weights at s (columns, inputs) as an image whose rows are the anchors by position, head after head; the positions."""
    positions = np.atleast_2d(head.anchors.numpy())  # (heads, anchors)
    order = np.argsort(positions, axis=1, kind="stable")
    weights = mean_weights(head.weights, s, positions.size).reshape(-1, *positions.shape)
    rows = np.take_along_axis(weights, order[None], axis=2).reshape(len(s), -1)
    return rows.T, np.take_along_axis(positions, order, axis=1)


def _draw_head_attention(head: Head, ax: Axes) -> AxesImage:
    """The heat map of a head over its domain, without a colour bar."""
    domain = record_of(head).interval
    middles = domain.lo + domain.width * ((np.arange(COLUMNS) + 0.5) / COLUMNS)
    s = torch.from_numpy(middles).to(head.key.device, head.key.dtype)
    image = _draw_rows(ax, *_anchor_rows(head, s[:, None]), (domain.lo, domain.hi), _MOST_LABELS)
    ax.set_xlabel("s", fontsize=9)
    return image


def _draw_rows(ax: Axes, rows: Array, positions: Array, ends: tuple[float, float], most: int) -> AxesImage:
    """Anchors from bottom to top with their positions, or every n-th position; a line between heads."""
    heads, p = positions.shape
    image = canvas.heat_image(ax, rows, extent=(*ends, -0.5, len(rows) - 0.5))
    labelled = range(0, heads, -(-heads // most))
    places = [(h, k) for h in labelled for k in range(0, p, -(-p // max(1, most // heads)))]
    labels = [f"{positions[place]:.3g}".replace("-", "−") for place in places]
    ax.set_yticks([h * p + k for h, k in places], labels)
    for h in range(1, heads):
        ax.axhline(h * p - 0.5, color=canvas.BLUE, linewidth=1.5)
    if heads > 1:
        side = ax.secondary_yaxis("right")
        side.set_yticks([(h + 0.5) * p - 0.5 for h in labelled], [f"head {h + 1}" for h in labelled])
        side.tick_params(labelsize=8, length=0, labelcolor=canvas.GREY)
    ax.set_ylabel("anchor at", fontsize=9)
    canvas.title(ax, "attention weights")
    return image


class LayerInput(NamedTuple):
    """The neurons of a layer that share a head, and what enters them at some inputs."""

    layer: Pointwise
    head: Head
    s: Tensor  # (inputs, neurons)


def layer_inputs(net: Network, x: Tensor | None, layers: Sequence[Index] | None) -> list[list[LayerInput]]:
    """By layer and group."""
    if not net.layers:
        raise InputError("there are no neurons: use attnc.plot.tokens_and_anchors or attnc.plot.slices")
    every = range(len(net.layers))
    chosen = [net.layers[i] for i in canvas.selected(layers, (len(every),), every, "layers")]
    point = worst_input(net) if x is None else x
    found = entering(chosen, lambda: net(point, strict=False))
    return [
        [LayerInput(part, h, s if own is None else s.index_select(-1, own)) for own, h in part.groups]
        for part, s in zip(chosen, found, strict=True)
    ]


def draw_neurons(part: LayerInput, ax: Axes, most_labels: int = _MOST_LABELS) -> AxesImage:
    """Neurons from left to right by mean pre-activation."""
    s, (inputs, count) = part.s, part.s.shape
    means = s.to("cpu", torch.float64).mean(0).numpy()
    order = np.argsort(means, kind="stable")
    rows = _anchor_rows(part.head, s.T[torch.from_numpy(order)])
    image = _draw_rows(ax, *rows, (-0.5, count - 0.5), most_labels)
    few = np.arange(0, count, -(-count // _MOST_NEURONS))
    ranks = few if count <= 3 * _MOST_NEURONS else np.linspace(0, count - 1, _MOST_NEURONS).astype(int)
    ax.set_xticks(ranks, same_decimals(means[order][ranks]))
    mean = "" if inputs == 1 else f" (mean of {inputs})"
    ax.set_xlabel(f"{count} neuron{'s' * (count != 1)}, by pre-activation s{mean}", fontsize=9)
    return image


def same_decimals(positions: Array) -> list[str]:
    """Three digits of the largest number, and as many decimals of the others."""
    decimals = 2 - math.floor(math.log10(max(float(np.abs(positions).max()), 1e-300)))
    return [f"{round(float(s), decimals) + 0.0:g}".replace("-", "−") for s in positions]


def tokens_and_anchors(
    net: Network | SelfAttentionNetwork, *, x: Tensor | None = None, heads: int = 4, path: SavePath = None
) -> Figure:  # fmt: skip
    """Plot, for every layer of `net.as_self_attention()`, the weights of every token over every token: data tokens first, then
    the anchors, separated by a line.

    A row of images shows the first `heads` heads of a layer; a batch is averaged. A few data tokens are drawn wider than the
    anchors. The default `x` is the input of the largest known error. Returns the Figure, saved to `path` if one is given.

    >>> import attnc, attnc.plot
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).eval()
    >>> net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4, 2)), eps=1e-3)
    >>> attnc.plot.tokens_and_anchors(net).axes[0].collections[0].get_array().shape      # 4 data tokens and 2 anchors
    (6, 6)
    """
    kinds, instead = (Network, SelfAttentionNetwork), "give a network or its as_self_attention()"
    canvas.prepare(path, net, kinds, "tokens_and_anchors", instead)
    checked_count("heads", heads, 1, _MOST_HEADS)
    literal = net.as_self_attention() if isinstance(net, Network) else net
    if x is None:
        if not isinstance(net, Network):
            raise InputError("a literal form has no default input: give the inputs to draw, x=...")
        x = worst_input(net)
    with torch.no_grad():
        found = {name: weights.to("cpu", torch.float64) for name, weights in literal.attention(x).items()}
    if "softmax" in found:  # over columns: it has no heads
        found["softmax"] = found["softmax"].unsqueeze(-3)
    if not found or not all(weights.numel() for weights in found.values()):
        raise InputError("there are no weights to draw: no attention layer, or x is an empty batch")
    layers = {n: w.reshape(-1, *w.shape[-3:]).mean(0).numpy()[:heads] for n, w in found.items()}
    most = max(map(len, layers.values()))
    figure = canvas.new_figure(max(4.4, 1.0 + 2.7 * most), 0.4 + 2.9 * len(layers))
    grid = figure.add_gridspec(len(layers), most)
    for r, (name, images) in enumerate(layers.items()):
        count = found[name].shape[-3]
        row = [figure.add_subplot(grid[r, h]) for h in range(len(images))]
        for h, (ax, weights) in enumerate(zip(row, images, strict=True)):
            mesh = _draw_tokens(ax, weights, _data_tokens(literal, name), name, float(images.max()))
            canvas.title(ax, f"{name}, head {h + 1} of {count}" if count > 1 else name)
        canvas.colour_bar(mesh, row, pad=0.02, fraction=0.05, aspect=20)
    return canvas.finish(figure, path)


def _data_tokens(literal: SelfAttentionNetwork, name: str) -> int | None:
    """The number of tokens before the anchors; None if all tokens are of one kind."""
    tokens = literal.layout_before(name).tokens
    data = sum(not token.startswith("anchor") for token in tokens)
    return data if name != "softmax" and data < len(tokens) else None


def _draw_tokens(ax: Axes, weights: Array, data: int | None, name: str, top: float) -> QuadMesh:
    """Rows attend to columns, the first row at the top. In the softmax over columns, the rows are anchors."""
    rows, columns = weights.shape
    up, across = _edges(rows, data), _edges(columns, data)
    mesh = ax.pcolormesh(across, up, weights, cmap=canvas.WEIGHTS, vmin=0, vmax=top)
    ax.invert_yaxis()
    if data is None:
        kinds = ("token", "token") if name != "softmax" else ("anchor", "column")
        ax.set_xlabel(f"{columns} {kinds[1]}{'s' * (columns != 1)}", fontsize=9)
        ax.set_ylabel(f"{rows} {kinds[0]}{'s' * (rows != 1)}", fontsize=9)
    else:
        for line in (ax.axhline, ax.axvline):
            line(up[data], color=canvas.BLUE, linewidth=1.2)
        ax.set_xlabel(f"{data} data token{'s' * (data != 1)}, {columns - data} anchors", fontsize=9)
        ax.set_ylabel("weights of a token in its row", fontsize=9)
    border = data or 0
    for axis, edges in ((ax.yaxis, up), (ax.xaxis, across)):
        count = len(edges) - 1
        ticks = [
            *range(0, border, -(-border // 4) or 1),
            *range(border, count, -(-(count - border) // 6) or 1),
        ]
        axis.set_ticks([(edges[i] + edges[i + 1]) / 2 for i in ticks], labels=list(map(str, ticks)))
    ax.tick_params(labelsize=8)
    return mesh


def _edges(count: int, data: int | None) -> Array:
    """The edges of the tokens on an axis; a few data tokens are drawn wider, a quarter of the axis in all."""
    sizes = np.ones(count)
    if data and data < count / 4:
        sizes[:data] = (count - data) / (3 * data)
    return np.concatenate([[0.0], np.cumsum(sizes)])
