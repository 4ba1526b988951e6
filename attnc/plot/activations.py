"""Which anchors the neurons of a converted model use: a heat map for every block, tokens against the positions of anchors."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc import functions
from attnc.errors import InputError
from attnc.network.activation import AnchorActivation
from attnc.network.gate import AnchorGate
from attnc.network.head import Head
from attnc.plot.canvas import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    WEIGHTS,
    new_figure,
    picture_format,
    plain,
    require_matplotlib,
    save,
)
from attnc.plot.sample import about
from attnc.pretrained.samples import calls, outputs
from attnc.pretrained.store import report_of
from attnc.records.numbers import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

FLOOR = 1e-5  # mean weights below it are left white
MOST_BLOCKS, MOST_TOKENS = 48, 48
_AT_ONCE = 1 << 22
_LONGEST = 14  # characters of a token


def anchors_used(
    model: nn.Module,
    inputs: object,
    path: str | os.PathLike[str] | None = None,
    *,
    tokens: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
) -> Figure:
    """For every block of a converted model the attention weights that the inputs give rise to, averaged over its neurons.

    A row is a token, a column an anchor at its position s; colours are logarithmic. Above stands the activation, and the values
    of the anchors that imitate it. `inputs` is a sample as `attnc.convert_` takes it, `tokens` names its tokens. `layers` chooses
    some of the blocks, counted from 0. With `path` the figure is also written there, as .png, .svg or .pdf.

    >>> import attnc, attnc.plot
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    >>> model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    >>> _ = attnc.convert_(model, approximation=1e-2)
    >>> figure = attnc.plot.anchors_used(model, torch.randn(1, 3, 8), tokens=["a", "real", "sentence"])
    >>> [ax.get_title(loc="left").split(":")[0] for ax in figure.axes if ax.collections and ax.get_title(loc="left")]
    ['block 1', 'block 2']
    """
    require_matplotlib()
    if path is not None:
        picture_format(path)
    figure = _figure(used(model, inputs, layers), tokens)
    if path is not None:
        save(figure, path)
    return figure


@dataclass(frozen=True, eq=False)
class Used:
    """What the neurons of one block attend to."""

    number: int  # of the block in its model, from 1
    head: Head  # of the neurons that reach farthest
    positions: Array  # (anchors,), increasing; of heads that let a token attend to itself: 0, 1
    weights: Array  # (tokens, anchors): the mean over neurons, and over heads
    ends: tuple[float, float]  # the least and the largest pre-activation
    proved: tuple[float, float] | None  # between which all lie, whatever enters
    tokens: int
    share: int  # tokens in a row


def used(model: nn.Module, inputs: object, layers: Sequence[int] | None = None) -> list[Used]:
    """The mean attention weights of every block, token by token.

    >>> used(nn.Linear(1, 1), torch.zeros(1))
    Traceback (most recent call last):
    attnc.errors.InputError: Linear holds no anchors: convert it first, attnc.convert_(model, approximation=…)
    """
    found = _activations(model)
    chosen = list(range(len(found))) if layers is None else list(layers)
    for i in chosen:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < len(found):
            raise InputError(f"layer {i!r}: the model has {len(found)} converted blocks, counted from 0")
    if not 0 < len(chosen) <= MOST_BLOCKS:
        raise InputError(f"{len(chosen)} blocks in one figure: choose 1 to {MOST_BLOCKS}, layers=[0, 1, …]")
    names = [*found]
    entering = _entering(model, [found[names[i]] for i in chosen], inputs)
    proved = _proved(model)
    return [
        _used(
            i + 1, found[names[i]], s, proved.get(names[i].removesuffix(".activation"), proved.get(names[i]))
        )
        for i, s in zip(chosen, entering, strict=True)
    ]


def _activations(model: nn.Module) -> dict[str, AnchorActivation]:
    """By name, the activations of all blocks; the squares that products are made of are not among them."""
    if not isinstance(model, nn.Module):
        raise InputError(f"plot.anchors_used draws a converted torch.nn.Module: got {type(model).__name__}")
    squares = {part.square for part in model.modules() if isinstance(part, AnchorGate)}
    found = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, AnchorActivation) and part not in squares
    }
    if not found:
        raise InputError(
            f"{type(model).__name__} holds no anchors: convert it first, attnc.convert_(model, approximation=…)"
        )
    return found


def _entering(model: nn.Module, parts: list[AnchorActivation], inputs: object) -> list[Tensor]:
    """The pre-activations of each block, (tokens, neurons), as they are executed."""
    if len(calls(inputs)) != 1:
        raise InputError("inputs is a list of several samples: a picture shows one")
    seen: list[list[Tensor]] = [[] for _ in parts]

    def note(given: tuple[Any, ...], to: list[Tensor]) -> None:
        to.append(given[0].detach().reshape(-1, given[0].shape[-1]))

    hooks = [
        part.register_forward_pre_hook(lambda _, given, to=to: note(given, to))
        for part, to in zip(parts, seen, strict=True)
    ]
    try:
        outputs(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not all(part and part[0].numel() for part in seen):
        raise InputError("these inputs reach no neuron of some block: a picture needs a token")
    return [torch.cat(part) for part in seen]


def _proved(model: nn.Module) -> dict[str, tuple[float, float]]:
    try:
        report = report_of(model)
    except InputError:
        return {}
    return {block.name: block.interval for block in report.blocks if block.proved}


def _used(number: int, part: AnchorActivation, s: Tensor, proved: tuple[float, float] | None) -> Used:
    """Groups that have an anchor at the same position share its column."""
    columns: list[Array] = []
    sums: list[Array] = []
    for neurons, head in part.groups:
        own = s if neurons is None else s.index_select(-1, neurons)
        where = np.arange(head.key.shape[1]) if head.is_gated else head.anchors.numpy().ravel()
        columns.append(np.broadcast_to(np.asarray(where, np.float64), head.key.shape[:2]).ravel())
        sums.append(_summed(head, own))
    positions, index = np.unique(np.concatenate(columns), return_inverse=True)
    total = np.zeros((len(positions), len(s)))
    np.add.at(total, index, np.concatenate(sums, axis=1).T)
    share = math.ceil(len(s) / MOST_TOKENS)
    counts = np.diff([*range(0, len(s), share), len(s)])[:, None]
    rows = np.add.reduceat(total.T, np.arange(0, len(s), share), axis=0) / counts / s.shape[1]
    return Used(
        number, part.groups[0][1], positions, rows, (float(s.min()), float(s.max())), proved, len(s), share
    )


def _summed(head: Head, s: Tensor) -> Array:
    """(tokens, heads·p): the weights of all neurons of a token added up, as shares of one head."""
    size = head.key[..., 0].numel()
    parts = []
    for part in torch.split(s, max(1, _AT_ONCE // max(1, s.shape[1] * size))):
        with torch.no_grad():
            weights = head.weights(part).to("cpu", torch.float64)
        parts.append(weights.reshape(len(part), -1, size).sum(1).numpy() / head.heads)
    return np.concatenate(parts)


def _figure(blocks: list[Used], tokens: Sequence[str] | None) -> Figure:
    rows, names = len(blocks[0].weights), _names(tokens, blocks[0])
    columns = 1 if len(blocks) < 4 else 2
    lines = math.ceil(len(blocks) / columns)
    height = max(0.9, 0.6 + 0.125 * rows)
    figure = new_figure(6.2 * columns + 0.6, 1.7 + height * lines + 0.5)
    grid = figure.add_gridspec(lines + 1, columns, height_ratios=[1.7, *[height] * lines])
    limits, most = _limits(blocks), max(float(block.weights.max()) for block in blocks)
    mesh, axes = None, []
    for column in range(columns):
        own = blocks[column * lines : (column + 1) * lines]
        top = figure.add_subplot(grid[0, column])
        draw_activation(own[0].head, top, limits)
        for r, block in enumerate(own):
            ax = figure.add_subplot(grid[r + 1, column])
            mesh = draw_used(block, ax, names if column == 0 else None, limits, most)
            axes.append(ax)
            if block is own[-1] and not block.head.is_gated:
                ax.set_xlabel("position of the anchor, s", fontsize=9)
    assert mesh is not None
    bar = figure.colorbar(mesh, ax=axes, pad=0.01, fraction=0.03, aspect=50, extend="min")
    bar.set_label("attention weight, mean over the neurons", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return figure


def _names(tokens: Sequence[str] | None, block: Used) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(0, block.tokens, block.share)]
    if len(tokens) != block.tokens:
        raise InputError(f"tokens has {len(tokens)} names: the inputs have {block.tokens} tokens, name each")
    short = [t if len(t) <= _LONGEST else f"{t[: _LONGEST - 1]}…" for t in tokens]
    return [plain(t) for t in short[:: block.share]]


def _limits(blocks: list[Used]) -> tuple[float, float] | None:
    """What to show of the axis: all anchors that some token uses, and a little more."""
    lattices = [block for block in blocks if not block.head.is_gated]
    if not lattices:
        return None
    ends = [b.positions[(b.weights >= FLOOR).any(axis=0)][[0, -1]] for b in lattices]
    low, high = min(float(e[0]) for e in ends), max(float(e[1]) for e in ends)
    room = max(0.5, 0.03 * (high - low))
    return low - room, high + room


def draw_used(
    block: Used, ax: Axes, names: Sequence[str] | None, limits: tuple[float, float] | None, most: float = 1.0
) -> QuadMesh:
    """The heat map of one block without its scale of colours; the first token is the uppermost row."""
    from matplotlib.colors import LogNorm

    rows = len(block.weights)
    shown = np.ma.masked_less(block.weights, FLOOR)
    mesh = ax.pcolormesh(
        _edges(block.positions), np.arange(rows + 1) - 0.5, shown, cmap=WEIGHTS, norm=LogNorm(FLOOR, most), shading="flat",
        rasterized=True,
    )  # fmt: skip
    ax.set_ylim(rows - 0.5, -0.5)
    ax.set_yticks(np.arange(rows), names if names is not None else [""] * rows)
    ax.tick_params(labelsize=8)
    ax.tick_params(axis="y", length=0, labelsize=7)
    if block.head.is_gated:
        ax.set_xticks(block.positions, _keys(block.head))
    elif limits is not None:
        ax.set_xlim(limits)
    low, high = block.ends
    proved = "" if block.proved is None else f", proved {block.proved[0]:.1f} to {block.proved[1]:.1f}"
    title = f"block {block.number}: s from {low:.1f} to {high:.1f}{proved}"
    ax.set_title(title.replace("-", "−"), fontsize=9, loc="left", color=INK)
    return mesh


def draw_activation(head: Head, ax: Axes, limits: tuple[float, float] | None) -> None:
    """The activation, and what the anchors hold at their positions."""
    known = about(head)
    low, high = limits or (-6.0, 6.0)
    s = np.linspace(low, high, 400)
    f = functions.get(known.function)
    ax.plot(s, f(torch.from_numpy(s)).numpy(), color=BLUE, linewidth=1.4, label=plain(known.function))
    if not head.is_gated and head.heads == 1:
        at, value = head.anchors.numpy(), head.value[0, :, 1].detach().to("cpu", torch.float64).numpy()
        value = value * float(head.output[0])
        inside = (at >= low) & (at <= high)
        ax.plot(
            at[inside], value[inside], linestyle="none", marker="o", markersize=2.6, color=VERMILION,
            label="anchors and their values",
        )  # fmt: skip
    ax.set_xlim(low, high)
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    ax.tick_params(labelsize=8)
    ax.grid(True, color=GREY, alpha=0.2, linewidth=0.6)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _edges(positions: Array) -> Array:
    """Between neighbours half way; the outer columns as wide as those beside them."""
    if len(positions) == 1:
        return np.array([positions[0] - 0.5, positions[0] + 0.5])
    middle = (positions[1:] + positions[:-1]) / 2
    return np.array([2 * positions[0] - middle[0], *middle, 2 * positions[-1] - middle[-1]])


def _keys(head: Head) -> list[str]:
    own = head.value[0, :, 0].detach().to("cpu") != 0
    return ["the token itself" if itself else "the anchor" for itself in own.tolist()]
