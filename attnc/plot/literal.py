"""Plots of the literal form: the self-attention weights over data tokens and anchors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnc.arguments import checked_count
from attnc.domain import Array
from attnc.errors import InputError
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.network import Network
from attnc.plot import canvas
from attnc.plot.canvas import SavePath, worst_input

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

_MOST = 8  # heads of a layer


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
    checked_count("heads", heads, 1, _MOST)
    literal = net.as_self_attention() if isinstance(net, Network) else net
    if x is None:
        if not isinstance(net, Network):
            raise InputError("a literal form has no default input: give the inputs to draw, x=...")
        x = worst_input(net)
    with torch.no_grad():
        found = literal.attention(x)
    if not found or not all(weights.numel() for weights in found.values()):
        raise InputError("there are no weights to draw: no attention layer, or x is an empty batch")
    layers = {name: _means(weights, name)[:heads] for name, weights in found.items()}
    most = max(map(len, layers.values()))
    figure = canvas.new_figure(max(4.4, 1.0 + 2.7 * most), 0.4 + 2.9 * len(layers))
    grid = figure.add_gridspec(len(layers), most)
    for r, (name, images) in enumerate(layers.items()):
        count = found[name].shape[-3] if found[name].ndim > 2 else 1
        row = [figure.add_subplot(grid[r, h]) for h in range(len(images))]
        for h, (ax, weights) in enumerate(zip(row, images, strict=True)):
            mesh = _draw(ax, weights, _data_tokens(literal, name), name, float(images.max()))
            canvas.title(ax, f"{name}, head {h + 1} of {count}" if name != "softmax" and count > 1 else name)
        canvas.colour_bar(mesh, row, pad=0.02, fraction=0.05, aspect=20)
    return canvas.finish(figure, path)


def _means(weights: Tensor, name: str) -> Array:
    """(heads, rows, columns): means over the inputs. The softmax over columns has no heads."""
    wide = weights.detach().to("cpu", torch.float64)
    if name == "softmax":
        wide = wide.unsqueeze(-3)
    found: Array = wide.reshape(-1, *wide.shape[-3:]).mean(0).numpy()
    return found


def _data_tokens(literal: SelfAttentionNetwork, name: str) -> int | None:
    """The number of tokens before the anchors; None if all tokens are of one kind."""
    tokens = literal.layout_before(name).tokens
    data = sum(not token.startswith("anchor") for token in tokens)
    return data if name != "softmax" and data < len(tokens) else None


def _draw(ax: Axes, weights: Array, data: int | None, name: str, top: float) -> QuadMesh:
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
        behind = len(edges) - 1 - border
        ticks = [
            *range(0, border, -(-border // 4) or 1),
            *range(border, len(edges) - 1, -(-behind // 6) or 1),
        ]
        axis.set_ticks([(edges[i] + edges[i + 1]) / 2 for i in ticks], labels=list(map(str, ticks)))
    ax.tick_params(labelsize=8)
    return mesh


def _edges(count: int, data: int | None) -> Array:
    """The edges of the tokens on an axis; a few data tokens are drawn wider, a quarter of the axis in all.

    >>> _edges(3, None), _edges(7, 1)
    (array([0., 1., 2., 3.]), array([0., 2., 3., 4., 5., 6., 7., 8.]))
    """
    sizes = np.ones(count)
    if data and data < count / 4:
        sizes[:data] = (count - data) / (3 * data)
    return np.concatenate([[0.0], np.cumsum(sizes)])
