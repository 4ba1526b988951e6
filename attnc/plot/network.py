"""Plots of a network: all its layers in one figure, and slices of the function and the network along lines of the box."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnc.domain import Array
from attnc.errors import InputError
from attnc.frontends.callable_source import CallableSource
from attnc.network.describe import function_label
from attnc.network.network import Network
from attnc.plot import canvas
from attnc.plot.canvas import BLUE, INK, VERMILION, Index, SavePath, known_error
from attnc.plot.heads import COLUMNS, LayerInput, draw_function, draw_neurons, layer_inputs, sample_head
from attnc.program import Pointwise
from attnc.records.certificate import Certificate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 40
POINTS = 401  # of one slice
_MOST_LABELS, _LONGEST_NAME = 9, 28
_SLICES, _OUTPUTS, _MOST = 3, 4, 8  # by default, and at most


def network(
    net: Network, *, x: Tensor | None = None, layers: Sequence[int] | None = None, path: SavePath = None
) -> Figure:
    """Plot a row for every layer, its attention weights beside the function and the head, and the error bounds below.

    The neurons are ordered by pre-activation at the inputs `x`; a batch is averaged. The default `x` is the input of the largest
    known error. `layers` selects from `net.layers`. The title tells whether the error is proved or measured. Returns the Figure,
    saved to `path` if one is given.

    >>> import attnc, attnc.plot
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    >>> net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-3)
    >>> [ax.get_title(loc="left") for ax in attnc.plot.network(net).axes if ax.get_title(loc="left")]
    ['layer 1: tanh', 'error: proved bounds']
    """
    instead = "give what attnc.compile returns; use attnc.plot.head for a head"
    canvas.prepare(path, net, (Network,), "network", instead)
    numbers = range(len(net.layers)) if layers is None else layers
    parts = layer_inputs(net, x, numbers)
    rows = [(i, part) for i, groups in zip(numbers, parts, strict=True) for part in groups]
    if len(rows) > MOST_ROWS:
        raise InputError(f"a figure holds at most {MOST_ROWS} rows: got {len(rows)}; give layers=[0, 1, …]")
    known, bounds = known_error(net), net.certificate.claims  # of the network, or of that fitted to f
    heights = [1.9] * len(rows)
    if bounds is not None and known.value is not None:
        heights.append(2.1)
    figure = canvas.new_figure(9.6, sum(heights) + 0.9)
    grid = figure.add_gridspec(len(heights), 2, width_ratios=(1.55, 1), height_ratios=heights)
    for r, (i, part) in enumerate(rows):
        left, right = figure.add_subplot(grid[r, 0]), figure.add_subplot(grid[r, 1])
        canvas.colour_bar(draw_neurons(part, left, _MOST_LABELS), left, ticks=(0, 0.5, 1))
        canvas.title(left, _row_title(net, i, part))
        _draw_head(net, part, right, with_legend=r == 0)
    if bounds is not None and known.value is not None:
        measured = None if net.certificate.proved else net.certificate
        _draw_bounds(bounds, figure.add_subplot(grid[-1, :]), measured)
    sizes = f"{len(net.layers)} layer{'s' * (len(net.layers) != 1)}"
    dtype = str(next(net.parameters()).dtype).removeprefix("torch.")
    canvas.heading(figure, f"network of {sizes} on {net.domain}, {dtype}\n{known.text}")
    return canvas.finish(figure, path)


def _row_title(net: Network, i: int, part: LayerInput) -> str:
    """'layer 2 (encoder.act), group 1: gelu'"""
    name, heads = part.layer.name, [head for _, head in part.layer.groups]
    short = name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
    called = "" if name == f"layer {i + 1}" or name.isdigit() else f" ({short})"
    group = f", group {heads.index(part.head) + 1}" if len(heads) > 1 else ""
    return f"layer {i + 1}{called}{group}: {function_label(net, part.layer)}"


def _draw_head(net: Network, part: LayerInput, ax: Axes, with_legend: bool) -> None:
    """The function, the head and its anchors on the certified interval; marks at the top show the neurons."""
    step, head = net.program.steps[part.layer.value - 1], part.head
    assert isinstance(step, Pointwise)
    if head.domain is None:
        ax.set_axis_off()  # the interval is unknown
        return
    draw_function(head, ax, sample_head(head, step.function))
    every = np.sort(part.s.to("cpu", torch.float64).numpy(), axis=None)
    some = every[np.unique(np.linspace(0, len(every) - 1, COLUMNS).astype(int))]
    mark = {"markersize": 6, "markeredgewidth": 0.6, "color": INK, "alpha": 0.5}
    canvas.rug(ax, some, 0.965, label="neurons", **mark)
    ax.set_xlabel("s", fontsize=9)
    ax.locator_params(axis="x", nbins=6)
    names = ("f", "head", "anchors", "neurons")
    legend = canvas.legend_above(ax, ax.lines, names, columns=4, handlelength=1.4, columnspacing=1.2)
    legend.set_visible(with_legend)


def _draw_bounds(certificate: Certificate, ax: Axes, measured: Certificate | None) -> None:
    """The proved bounds of |executed - exact| before and after every layer, and at the output, on a logarithmic axis.

    With `measured`, the certificate is that of the network fitted to f; a dashed line shows the error measured against f."""
    claims = sorted(certificate.children, key=lambda claim: int(claim.facts["value"]))
    place, end, width = np.arange(len(claims)), len(claims), 0.36
    into = [claim.facts.get("error_in", 0.0) for claim in claims]
    out, bound = [claim.bound for claim in claims], certificate.bound
    ax.bar(place - width / 2, into, width, color="#bbbbbb", label="into the layer")
    ax.bar(place + width / 2, out, width, color=BLUE, label="out of the layer")
    ax.bar([end], [bound], width, color=VERMILION)
    whose = "proved bound" if measured is None else "proved for the fitted network"
    ax.axhline(bound, color=VERMILION, linewidth=1.4, label=f"{whose} {bound:.4g}")
    seen = (measured or certificate).error or 0.0
    if measured is not None:
        ax.axhline(seen, color=INK, linewidth=1.2, linestyle="--", label=f"measured against f {seen:.3g}")
    elif seen > 0:
        canvas.open_circle(ax, end, seen, f"largest error found {seen:.3g}")
    canvas.log_scale(ax, (*into, *out, bound, seen), room=4, decades=math.inf)
    ax.set_xlim(-0.6, end + 0.6)
    ax.set_xticks([*place, end], [*(str(i + 1) for i in place), "output"])
    ax.set_xlabel("layer", fontsize=9)
    ax.set_ylabel("|network − program|" if measured is None else "error", fontsize=9)
    canvas.title(ax, "error: proved bounds" if measured is None else "error: not proved for f")
    canvas.legend_above(ax, columns=5, handlelength=1.4, columnspacing=1.2)
    canvas.style(ax, grid="y")
    ax.set_axisbelow(True)


def slices(
    net: Network, *, f: Callable[[Tensor], Tensor], x: Tensor | None = None, coordinates: Sequence[Index] | None = None,
    outputs: Sequence[Index] | None = None, path: SavePath = None,
) -> Figure:  # fmt: skip
    """Plot `f` and its network along lines of the box; below, the largest |network - f| over all outputs.

    Each line varies one coordinate of the input `x`, by default the centre of the box. `coordinates` and `outputs` select
    places in one input and in one output, (token, feature), or flat indices. The proved bound is a solid line; if the error
    is only measured, a dashed line shows the largest. Returns the Figure, saved to `path` if one is given.

    >>> import attnc, attnc.plot
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    >>> net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-3)
    >>> [ax.get_xlabel() for ax in attnc.plot.slices(net, f=model, coordinates=[0, 3]).axes]
    ['', '', 'x[0]', 'x[3]']
    """
    canvas.prepare(path, net, (Network,), "slices", "give what attnc.compile returns")
    box, shape = net.domain, net.program.shapes[-1]
    free = [j for j in range(box.size) if box.lo.flat[j] < box.hi.flat[j]]
    columns = canvas.selected(coordinates, box.shape, free[:_SLICES], "coordinates", _MOST)
    chosen = canvas.selected(outputs, shape, range(min(_OUTPUTS, math.prod(shape))), "outputs", _MOST)
    lines = _lines(net, f, x, columns)
    known, errors = known_error(net), [np.abs(executed - exact).max(1) for _, exact, executed in lines]
    figure = canvas.new_figure(max(4.6, 3.3 * len(columns)), 4.9)
    axes = figure.subplots(2, len(columns), squeeze=False, height_ratios=(1.25, 1))
    for (s, exact, executed), error, top, bottom in zip(lines, errors, *axes, strict=True):
        for k in chosen:
            hidden = "_" * (k != chosen[0])
            canvas.curve_pair(top, s, exact[:, k], executed[:, k], (f"{hidden}f", f"{hidden}network"))
        top.margins(y=0.1)
        bottom.plot(s, error, color=BLUE, linewidth=1, label="_error")
        known.draw(bottom)
        canvas.log_scale(bottom, (*np.concatenate(errors), known.value or 0.0))
        for ax in (top, bottom):
            canvas.style(ax)
            if s[0] < s[-1]:
                ax.set_xlim(float(s[0]), float(s[-1]))
    for j, bottom in zip(columns, axes[1], strict=True):
        bottom.set_xlabel(canvas.coordinate("x", j, box.shape), fontsize=9)
    axes[0][0].set_ylabel(", ".join(canvas.coordinate("y", k, shape) for k in chosen), fontsize=9)
    axes[1][0].set_ylabel("|network − f|", fontsize=9)
    for ax in (row[-1] for row in axes if row[-1].get_legend_handles_labels()[1]):
        canvas.legend_above(ax, columns=2)
    canvas.heading(figure, f"on {box}\n{known.text}")
    return canvas.finish(figure, path)


def _lines(
    net: Network, f: Callable[[Tensor], Tensor], x: Tensor | None, columns: Sequence[int]
) -> list[tuple[Array, Array, Array]]:
    """For each coordinate, its values in the network's dtype, and there f and the executed network, (points, outputs)."""
    box, shape, parameter = net.domain, net.program.shapes[-1], next(net.parameters())
    checked = CallableSource(f, box, shape[0] if len(box.shape) == 2 and len(shape) == 2 else None)
    if checked.shape != shape:
        raise InputError(f"f returns the shape {checked.shape} for an input: the network returns {shape}")
    middle = torch.from_numpy(box.lo / 2 + box.hi / 2) if x is None else torch.as_tensor(x).double().cpu()
    if tuple(middle.shape) != box.shape or not bool(box.contains(middle)):
        raise InputError(f"x must be one input in {box}: got a tensor of shape {tuple(middle.shape)}")
    found = []
    for j in columns:
        rows = middle.reshape(1, -1).repeat(POINTS, 1)
        rows[:, j] = torch.from_numpy(np.linspace(box.lo.flat[j], box.hi.flat[j], POINTS))
        points = rows.reshape(POINTS, *box.shape).to(parameter.dtype)
        points = points[box.contains(points)]
        if not len(points):
            raise InputError(f"no {parameter.dtype} point of this slice lies in {box}: give another x")
        held = points.double().numpy().reshape(len(points), -1)
        with torch.no_grad():
            executed = net(points.to(parameter.device)).to("cpu", torch.float64).reshape(len(points), -1)
        found.append((held[:, j], checked(held), executed.numpy()))
    return found
