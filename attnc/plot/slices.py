"""Pictures for a gallery: a function beside its network along lines, and literal self-attention over tokens and anchors."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnc.domain import Box
from attnc.errors import InputError
from attnc.frontends.asked import Asked
from attnc.network.describe import why_not_measured
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.network import Network
from attnc.plot.canvas import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    WEIGHTS,
    expect_kind,
    new_figure,
    picture_format,
    plain,
    require_matplotlib,
    save,
)
from attnc.plot.heat_map import worst_input
from attnc.plot.network import error_text
from attnc.records.numbers import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

Index = int | tuple[int, ...]
POINTS = 401  # of one slice
_SLICES, _OUTPUTS, _MOST = 3, 4, 8  # shown unless others are asked for, and at most
_HEADS, _DECADES = 4, 6


def slices(
    net: Network,
    f: Callable[[Tensor], Tensor],
    path: str | os.PathLike[str] | None = None,
    *,
    through: Tensor | None = None,
    coordinates: Sequence[Index] | None = None,
    outputs: Sequence[Index] | None = None,
) -> Figure:
    """f and its network along lines of the box; below, the largest |network - f| of all outputs on a logarithmic axis.

    A line runs along one coordinate of the input, through the middle of the box or through a point of it. `coordinates` and
    `outputs` are places in one input and in one output, (token, feature), or numbers that count row by row. The proved bound
    is a line; where the error is only measured, the largest one is a dashed line and called so. With `path` the figure is
    also written there, as .png, .svg or .pdf.

    >>> import attnc.plot, torch
    >>> from attnc.compile import compile
    >>> from attnc.domain import Box
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    >>> figure = attnc.plot.slices(compile(model, domain=Box(-1, 1, shape=(4,)), eps=1e-3), model, coordinates=[0, 3])
    >>> [ax.get_xlabel() for ax in figure.axes]
    ['', '', 'x[0]', 'x[3]']
    """
    require_matplotlib()
    if path is not None:
        picture_format(path)
    expect_kind(net, (Network,), "slices", "give what attnc.compile returns")
    box, made = net.domain, net.program.shapes[-1]
    free = [j for j in range(box.size) if box.lo.flat[j] < box.hi.flat[j]]
    columns = _places(coordinates, box.shape, free[:_SLICES], "coordinates")
    shown = _places(outputs, made, range(min(_OUTPUTS, math.prod(made))), "outputs")
    asked = _asked(net, f)
    figure = new_figure(max(4.6, 3.3 * len(columns)), 4.9)
    grid = figure.add_gridspec(2, len(columns), height_ratios=(1.25, 1))
    axes = [[figure.add_subplot(grid[r, c]) for c in range(len(columns))] for r in range(2)]
    middle, seen = _through(through, box), []
    for j, top in zip(columns, axes[0], strict=True):
        s, exact, executed = _along(net, asked, middle, j)
        _draw_outputs(top, s, exact[:, shown], executed[:, shown])
        seen.append((s, np.abs(executed - exact).max(1)))
    for j, bottom, (s, error) in zip(columns, axes[1], seen, strict=True):
        bottom.plot(s, error, color=BLUE, linewidth=1, label="_error")
        bottom.set_xlabel(_named("x", j, box.shape), fontsize=9)
    _draw_level(net, axes[1], np.concatenate([error for _, error in seen]))
    axes[0][0].set_ylabel(", ".join(_named("y", k, made) for k in shown), fontsize=9)
    axes[1][0].set_ylabel("|network − f|", fontsize=9)
    for row in axes:
        _legend(row[-1])
    figure.suptitle(plain(f"on {box}\n{error_text(net)}"), fontsize=11, color=INK)
    if path is not None:
        save(figure, path)
    return figure


def _asked(net: Network, f: Callable[[Tensor], Tensor]) -> Asked:
    """f, checked to be a function of the network's inputs with the network's outputs."""
    made = net.program.shapes[-1]
    asked = Asked(f, net.domain, made[0] if len(net.domain.shape) == 2 and len(made) == 2 else None)
    if asked.shape != made:
        raise InputError(
            f"f returns the shape {asked.shape} for an input, the network {made}: give the function that it was made for"
        )
    return asked


def _through(point: Tensor | None, box: Box) -> Array:
    if point is None:
        return (box.lo / 2 + box.hi / 2).reshape(-1)
    given = torch.as_tensor(point, dtype=torch.float64)
    if tuple(given.shape) != box.shape or not bool(box.contains(given)):
        raise InputError(f"through is one input in {box}: got a tensor of shape {tuple(given.shape)}")
    return given.cpu().numpy().reshape(-1)


def _along(net: Network, asked: Asked, middle: Array, j: int) -> tuple[Array, Array, Array]:
    """Points of coordinate j in the network's dtype, and there f and the network as it runs, (points, outputs)."""
    box, parameter = net.domain, next(net.parameters())
    rows = np.repeat(middle[None], POINTS, 0)
    rows[:, j] = np.linspace(box.lo.flat[j], box.hi.flat[j], POINTS)
    x = torch.from_numpy(rows.reshape(POINTS, *box.shape)).to(parameter.dtype)
    x = x[box.contains(x)]
    if not len(x):
        raise InputError(f"no {parameter.dtype} of this slice lies in {box}: give another point, through=...")
    held = x.double().numpy().reshape(len(x), -1)
    with torch.no_grad():
        executed = net(x.to(parameter.device)).to("cpu", torch.float64).reshape(len(x), -1).numpy()
    return held[:, j], asked(held), executed


def _draw_outputs(ax: Axes, s: Array, exact: Array, executed: Array) -> None:
    for k in range(exact.shape[1]):
        hidden = "_" * (k > 0)
        ax.plot(s, exact[:, k], color=INK, linewidth=0.9, label=f"{hidden}f", zorder=2)
        ax.plot(
            s, executed[:, k], color=BLUE, linewidth=2.4, linestyle=(0, (3, 2)), label=f"{hidden}network", zorder=3,
        )  # fmt: skip
    ax.margins(y=0.1)
    _plain_axes(ax, s)


def _draw_level(net: Network, axes: Sequence[Axes], errors: Array) -> None:
    """The proved bound, or the largest error measured, over axes that share their scale."""
    level, style, label = None, "-", ""
    if net.certificate is not None and net.why_not_certified() is None:
        level, label = net.certificate.bound, f"proved bound {net.certificate.bound:.4g}"
    elif net.certificate is None and net.measured is not None and why_not_measured(net) is None:
        level, style = net.measured.error, "--"
        label = f"largest measured {level:.3g}, not proved"
    heights = np.array([*errors, 0.0 if level is None else level])
    heights = heights[np.isfinite(heights) & (heights > 0)]
    for ax in axes:
        if level is not None:
            ax.axhline(level, color=VERMILION, linewidth=1.4, linestyle=style, label=label)
        if len(heights):
            ax.set_yscale("log")
            top = float(heights.max())
            ax.set_ylim(max(float(heights.min()) / 2, top * 10.0**-_DECADES), top * 2)
        _plain_axes(ax, np.asarray(ax.lines[0].get_xdata()))


def tokens_and_anchors(
    net: Network | SelfAttentionNetwork,
    x: Tensor | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    heads: int = _HEADS,
) -> Figure:
    """Literal self-attention: for every layer, every token's weights over every token, data tokens first, anchors behind a line.

    `net.as_self_attention()` is drawn: a row for each of its layers, an image for each of its first `heads` heads; over a batch,
    means. Few data tokens are drawn larger than anchors. A softmax over columns is drawn as it is. Without x, the input is the
    one with the largest error found or measured. With `path` the figure is also written there, as .png, .svg or .pdf.

    >>> import attnc.plot, torch
    >>> from attnc.compile import compile
    >>> from attnc.domain import Box
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).eval()
    >>> figure = attnc.plot.tokens_and_anchors(compile(model, domain=Box(-1, 1, shape=(4, 2)), eps=1e-3))
    >>> figure.axes[0].collections[0].get_array().shape             # 4 data tokens and 2 anchors
    (6, 6)
    """
    require_matplotlib()
    if path is not None:
        picture_format(path)
    if isinstance(heads, bool) or not isinstance(heads, int) or not 1 <= heads <= _MOST:
        raise InputError(f"heads={heads!r}: from 1 to {_MOST} heads of a layer are drawn")
    kinds = (Network, SelfAttentionNetwork)
    expect_kind(net, kinds, "tokens_and_anchors", "give a network, or what its as_self_attention() returns")
    literal = net.as_self_attention() if isinstance(net, Network) else net
    if x is None:
        if not isinstance(net, Network):
            raise InputError(
                "give the inputs to draw, x=...: only a network knows where its error is largest"
            )
        x = worst_input(net)
    with torch.no_grad():
        found = literal.attention(x)
    if not found or not all(weights.numel() for weights in found.values()):
        raise InputError("there is nothing to draw: no layer of attention, or an empty batch of inputs")
    figure = _weights_figure(literal, found, heads)
    if path is not None:
        save(figure, path)
    return figure


def _weights_figure(literal: SelfAttentionNetwork, found: dict[str, Tensor], heads: int) -> Figure:
    batch = {name: _means(weights, name)[:heads] for name, weights in found.items()}
    most = max(map(len, batch.values()))
    figure = new_figure(max(4.4, 1.0 + 2.7 * most), 0.4 + 2.9 * len(batch))
    grid = figure.add_gridspec(len(batch), most)
    for r, (name, images) in enumerate(batch.items()):
        count, top = found[name].shape[-3] if found[name].ndim > 2 else 1, float(images.max())
        row: list[Axes] = []
        for h, weights in enumerate(images):
            row.append(figure.add_subplot(grid[r, h]))
            of = f", head {h + 1} of {count}" if name != "softmax" and count > 1 else ""
            image = _draw_tokens(row[-1], weights, _data_tokens(literal, name), plain(f"{name}{of}"), top)
        bar = figure.colorbar(image, ax=row, pad=0.02, fraction=0.05)
        bar.ax.tick_params(labelsize=8)
    return figure


def _means(weights: Tensor, name: str) -> Array:
    """(heads, rows, columns): means over the inputs. A softmax over columns has no heads."""
    wide = weights.detach().to("cpu", torch.float64)
    if name == "softmax":
        wide = wide.unsqueeze(-3)
    found: Array = wide.reshape(-1, *wide.shape[-3:]).mean(0).numpy()
    return found


def _data_tokens(literal: SelfAttentionNetwork, name: str) -> int | None:
    """How many tokens stand before the anchors; None where all tokens are of one kind."""
    tokens = literal.layout_before(name).tokens
    data = sum(not token.startswith("anchor") for token in tokens)
    return data if name != "softmax" and data < len(tokens) else None


def _draw_tokens(ax: Axes, weights: Array, data: int | None, title: str, top: float) -> QuadMesh:
    """Rows attend to columns, the first row at the top. A softmax over columns has anchors in its rows."""
    rows, columns = weights.shape
    up, across = _edges(rows, data), _edges(columns, data)
    image = ax.pcolormesh(across, up, weights, cmap=WEIGHTS, vmin=0, vmax=top)
    ax.invert_yaxis()
    if data is None:
        kinds = ("token", "token") if title != "softmax" else ("anchor", "column")
        ax.set_xlabel(f"{columns} {kinds[1]}{'s' * (columns != 1)}", fontsize=9)
        ax.set_ylabel(f"{rows} {kinds[0]}{'s' * (rows != 1)}", fontsize=9)
    else:
        for line in (ax.axhline, ax.axvline):
            line(up[data], color=BLUE, linewidth=1.2)
        ax.set_xlabel(f"{data} data token{'s' * (data != 1)}, {columns - data} anchors", fontsize=9)
        ax.set_ylabel("a token's weights in its row", fontsize=9)
    for axis, edges in ((ax.yaxis, up), (ax.xaxis, across)):
        places = _ticks(len(edges) - 1, data)
        axis.set_ticks((edges[places] + edges[places + 1]) / 2, labels=list(map(str, places)))
    ax.set_title(title, fontsize=10, loc="left", color=INK)
    ax.tick_params(labelsize=8)
    return image


def _edges(count: int, data: int | None) -> Array:
    """Where tokens begin and end on an axis; few data tokens are drawn larger, so that they have a quarter of it.

    >>> _edges(3, None), _edges(7, 1)
    (array([0., 1., 2., 3.]), array([0., 2., 3., 4., 5., 6., 7., 8.]))
    """
    sizes = np.ones(count)
    if data and data < count / 4:
        sizes[:data] = (count - data) / (3 * data)
    return np.concatenate([[0.0], np.cumsum(sizes)])


def _ticks(count: int, data: int | None) -> NDArray[np.int64]:
    """Some tokens of each kind, the first of them always."""
    border = data or 0
    few = [
        np.arange(0, border, max(1, -(-border // 4))),
        np.arange(border, count, max(1, -(-(count - border) // 6))),
    ]
    return np.concatenate(few)


def _places(
    given: Sequence[Index] | None, shape: tuple[int, ...], usual: Sequence[int], what: str
) -> list[int]:
    """Places of an array as numbers that count row by row."""
    if given is None:
        chosen = list(usual)
    else:
        chosen = []
        for place in given:
            index = (place,) if isinstance(place, int) else tuple(place)
            over = (math.prod(shape),) if isinstance(place, int) else shape
            if len(index) != len(over) or not all(
                type(i) is int and 0 <= i < n for i, n in zip(index, over, strict=True)
            ):
                raise InputError(f"{what}: {place!r} is no place in the shape {shape}, counted from 0")
            chosen.append(int(np.ravel_multi_index(index, over)))
    if not 1 <= len(chosen) <= _MOST:
        raise InputError(f"{what}: {len(chosen)} were chosen; from 1 to {_MOST} can be drawn")
    return chosen


def _named(letter: str, place: int, shape: tuple[int, ...]) -> str:
    """
    >>> _named("x", 5, (3, 2))
    'x[2, 1]'
    """
    return f"{letter}[{', '.join(str(int(i)) for i in np.unravel_index(place, shape))}]"


def _plain_axes(ax: Axes, s: Array) -> None:
    if s[0] < s[-1]:
        ax.set_xlim(float(s[0]), float(s[-1]))
    ax.tick_params(which="both", labelsize=8)
    ax.grid(True, color=GREY, alpha=0.2, linewidth=0.6)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[1]:
        ax.legend(
            fontsize=8,
            frameon=False,
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            ncols=2,
            borderaxespad=0.1,
        )
