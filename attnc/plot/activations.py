"""Plots of a converted model: which anchors the neurons of each block use, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from attnc import functions
from attnc.domain import Array
from attnc.errors import InputError
from attnc.network.head import Head
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.plot import canvas
from attnc.plot.canvas import SavePath
from attnc.plot.heads import entering, mean_weights, record_of
from attnc.pretrained.inputs import calls, outputs
from attnc.pretrained.store import report_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

FLOOR = 1e-5  # smaller mean weights are left white
MOST_BLOCKS, MOST_NAMES = 48, 48
_LONGEST = 14  # characters of a token
Ends = tuple[float, float]


def anchors_used(
    model: nn.Module, *, x: object, tokens: Sequence[str] | None = None, layers: Sequence[int] | None = None,
    path: SavePath = None,
) -> Figure:  # fmt: skip
    """Plot, for every block of a converted model, the attention weights of the tokens, averaged over the neurons.

    A row is a token, a column an anchor at its position s; colours are logarithmic. The top panel shows the activation and the
    values of its anchors. `x` is one sample, as `attnc.convert_` takes it; `tokens` are the names of its tokens. `layers`
    selects blocks, counted from 0. Returns the Figure, saved to `path` if one is given.

    >>> import attnc, attnc.plot
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> _ = attnc.convert_(model, approximation=1e-2)
    >>> figure = attnc.plot.anchors_used(model, x=torch.randn(1, 3, 8), tokens=["a", "real", "sentence"])
    >>> [ax.get_title(loc="left").split(":")[0] for ax in figure.axes if ax.collections and ax.get_title(loc="left")]
    ['block 1', 'block 2']
    """
    canvas.prepare(path, model, (nn.Module,), "anchors_used", "give a model that attnc.convert_ converted")
    blocks = block_weights(model, x, layers)
    rows = len(blocks[0].weights)
    names = [str(i) for i in range(rows)] if tokens is None else tokens
    if len(names) != rows:
        raise InputError(f"tokens has {len(names)} names: give one for each of the {rows} tokens of x")
    columns = 1 if len(blocks) < 4 else 2
    lines = math.ceil(len(blocks) / columns)
    height = max(0.9, 0.6 + 0.125 * min(rows, MOST_NAMES))
    figure = canvas.new_figure(6.2 * columns + 0.6, 1.7 + height * lines + 0.5)
    grid = figure.add_gridspec(lines + 1, columns, height_ratios=[1.7, *[height] * lines])
    limits, most = _limits(blocks), max(float(block.weights.max()) for block in blocks)
    axes = []
    for i, block in enumerate(blocks):
        column, row = divmod(i, lines)
        if row == 0:
            _draw_activation(block.head, figure.add_subplot(grid[0, column]), limits)
        axes.append(figure.add_subplot(grid[row + 1, column]))
        mesh = _draw_block(block, axes[-1], names if column == 0 else [""] * rows, limits, most)
        if (row == lines - 1 or block is blocks[-1]) and not block.head.is_gated:
            axes[-1].set_xlabel("position of the anchor, s", fontsize=9)
    label = "attention weight, mean over the neurons"
    canvas.colour_bar(mesh, axes, label, pad=0.01, fraction=0.03, aspect=50, extend="min")
    return canvas.finish(figure, path)


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """The attention weights of the neurons of one block."""

    number: int  # of the block in its model, from 1
    head: Head  # of the neurons with the largest interval
    positions: Array  # (anchors,), increasing; 0, 1 for a head in which a token attends to itself
    weights: Array  # (tokens, anchors): the mean over neurons and heads
    ends: Ends  # the smallest and the largest pre-activation
    proved: Ends | None  # the proved interval, for every input


def block_weights(model: nn.Module, x: object, layers: Sequence[int] | None = None) -> list[BlockWeights]:
    """The mean attention weights of every block, token by token."""
    squares = {part.product.square for part in model.modules() if isinstance(part, GatedBlock)}
    layered = ((n, m) for n, m in model.named_modules() if isinstance(m, Pointwise) and not m.inputs)
    named = [(name, part) for name, part in layered if part not in squares]
    if not named:
        kind = type(model).__name__
        raise InputError(f"{kind} has no anchors: convert it first, attnc.convert_(model, approximation=…)")
    samples = calls(x)
    if len(samples) != 1:
        raise InputError("x is a list of several samples: give one")
    chosen = canvas.selected(layers, (len(named),), range(len(named)), "layers", MOST_BLOCKS)
    found = entering([named[i][1] for i in chosen], lambda: outputs(model, samples))
    proved: dict[str, Ends] = {}  # the intervals that are proved for every input
    with suppress(InputError):
        proved = {b.name: tuple(b.facts["interval"]) for b in report_of(model).blocks if b.proved}
    blocks = []
    for i, s in zip(chosen, found, strict=True):
        name, part = named[i]
        interval = proved.get(name.removesuffix(".activation"), proved.get(name))
        blocks.append(_block(i + 1, part, s, interval))
    return blocks


def _block(number: int, part: Pointwise, s: Tensor, proved: Ends | None) -> BlockWeights:
    """Anchors of different groups at the same position share a column."""
    columns: list[Array] = []
    means: list[Array] = []
    for neurons, head in part.groups:
        own = s if neurons is None else s.index_select(-1, neurons)
        where = np.arange(head.key.shape[1]) if head.is_gated else head.anchors.numpy()
        columns.append(np.broadcast_to(np.asarray(where, np.float64), head.key.shape[:2]).ravel())
        share_of_neurons = own.shape[1] / s.shape[1] / head.heads
        means.append(mean_weights(head.weights, own, head.key[..., 0].numel()) * share_of_neurons)
    positions, index = np.unique(np.concatenate(columns), return_inverse=True)
    total = np.zeros((len(positions), len(s)))
    np.add.at(total, index, np.concatenate(means, axis=1).T)
    ends = float(s.min()), float(s.max())
    return BlockWeights(number, part.groups[0][1], positions, total.T, ends, proved)


def _limits(blocks: list[BlockWeights]) -> Ends | None:
    """The range of the anchors that some token uses, with a margin; None if no block has anchors along an axis."""
    used = [b.positions[(b.weights >= FLOOR).any(axis=0)] for b in blocks if not b.head.is_gated]
    if not used:
        return None
    low, high = min(float(at[0]) for at in used), max(float(at[-1]) for at in used)
    room = max(0.5, 0.03 * (high - low))
    return low - room, high + room


def _draw_block(
    block: BlockWeights, ax: Axes, names: Sequence[str], limits: Ends | None, most: float
) -> QuadMesh:
    """The heat map of one block, the first token in the top row, without a colour bar."""
    from matplotlib.colors import LogNorm

    rows, at = len(block.weights), block.positions
    mesh = ax.pcolormesh(
        at, np.arange(rows), np.ma.masked_less(block.weights, FLOOR), cmap=canvas.WEIGHTS, norm=LogNorm(FLOOR, most),
        shading="nearest", rasterized=True,
    )  # fmt: skip
    ax.set_ylim(rows - 0.5, -0.5)
    short = [canvas.plain(t if len(t) <= _LONGEST else f"{t[: _LONGEST - 1]}…") for t in names]
    step = math.ceil(rows / MOST_NAMES)
    ax.set_yticks(np.arange(0, rows, step), short[::step])
    ax.tick_params(labelsize=8)
    ax.tick_params(axis="y", length=0, labelsize=7)
    if block.head.is_gated:
        own = (block.head.value[0, :, 0].detach().to("cpu") != 0).tolist()
        ax.set_xticks(at, ["the token itself" if itself else "the anchor" for itself in own])
    elif limits is not None:
        ax.set_xlim(limits)
    proved = "" if block.proved is None else f", proved {block.proved[0]:.1f} to {block.proved[1]:.1f}"
    text = f"block {block.number}: s from {block.ends[0]:.1f} to {block.ends[1]:.1f}{proved}"
    canvas.title(ax, text.replace("-", "−"))
    return mesh


def _draw_activation(head: Head, ax: Axes, limits: Ends | None) -> None:
    """The activation, and the values of the anchors at their positions."""
    name, (low, high) = record_of(head).facts["function"], limits or (-6.0, 6.0)
    s = np.linspace(low, high, 400)
    f = functions.get(name)
    ax.plot(s, f(torch.from_numpy(s)).numpy(), color=canvas.BLUE, linewidth=1.4, label=canvas.plain(name))
    if not head.is_gated and head.heads == 1:
        at, value = head.anchors.numpy(), head.value[0, :, 1].detach().to("cpu", torch.float64).numpy()
        inside = (at >= low) & (at <= high)
        values, label = value[inside] * float(head.output[0]), "anchors and their values"
        ax.plot(at[inside], values, "o", markersize=2.6, color=canvas.VERMILION, label=label)
    ax.set_xlim(low, high)
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    canvas.style(ax)
