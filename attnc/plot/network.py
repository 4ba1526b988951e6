"""A whole network in one figure: what every layer attends to, the function that its heads imitate, and the errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from attnc.certify.measured import NetworkMeasured
from attnc.certify.network_certificate import LayerClaim, LookupClaim, NetworkCertificate
from attnc.errors import InputError
from attnc.network.describe import function_label, why_not_measured
from attnc.network.network import Network
from attnc.plot.canvas import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    expect_kind,
    new_figure,
    picture_format,
    plain,
    require_matplotlib,
    save,
)
from attnc.plot.curves import draw_function
from attnc.plot.heat_map import Neurons, Picked, draw_neurons, draw_picked, draw_values, look
from attnc.plot.sample import sample
from attnc.program.steps import Pointwise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 40
_MOST_LABELS = 9
_LONGEST, _LONGEST_LINE = 28, 100  # characters: of a name, of a line
PALE = "#bbbbbb"


def network(
    net: Network,
    x: Tensor | None = None,
    path: str | os.PathLike[str] | None = None,
    layers: Sequence[int] | None = None,
) -> Figure:
    """A row for every layer, the attention of its neurons and the function with its imitation; below, the errors.

    The neurons at the inputs x stand in order of pre-activation; over a batch, means are shown. A lookup has a row too: the
    weights of its anchors, which are points of the whole input, and their values. Without x, the input is the one with the
    largest error found or measured. `layers` chooses some of `net.layers`, and of the lookups, counted behind them. Where
    the error is only measured, the title says so. With `path` the figure is also written there, as .png, .svg or .pdf.

    >>> import attnc.plot, torch
    >>> from attnc.lower.compile import compile
    >>> from attnc.domain import Box
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    >>> figure = attnc.plot.network(compile(model, domain=Box(-1, 1, shape=(4,)), eps=1e-3))
    >>> [ax.get_title(loc="left") for ax in figure.axes if ax.get_title(loc="left")]
    ['layer 1: tanh', 'error: proved bounds']
    """
    require_matplotlib()
    if path is not None:
        picture_format(path)
    expect_kind(
        net, (Network,), "network", "give what attnc.compile returns; heads are drawn by attnc.plot.head"
    )
    chosen = list(range(len(net.layers) + len(net.selections))) if layers is None else list(layers)
    rows = [(i, seen) for i, groups in zip(chosen, look(net, x, chosen), strict=True) for seen in groups]
    if len(rows) > MOST_ROWS:
        raise InputError(
            f"{len(rows)} layers are too many for one figure: choose up to {MOST_ROWS}, layers=[0, 1, …]"
        )
    figure = _figure(net, rows)
    if path is not None:
        save(figure, path)
    return figure


def _figure(net: Network, rows: Sequence[tuple[int, Neurons | Picked]]) -> Figure:
    errors = _errors(net)
    heights = [1.9 if isinstance(seen, Neurons) else 2.8 for _, seen in rows] + [2.1] * (errors is not None)
    figure = new_figure(9.6, sum(heights) + 0.9)
    grid = figure.add_gridspec(len(heights), 2, width_ratios=(1.55, 1), height_ratios=heights)
    for r, (i, seen) in enumerate(rows):
        left, right = figure.add_subplot(grid[r, 0]), figure.add_subplot(grid[r, 1])
        if isinstance(seen, Neurons):
            image = draw_neurons(seen, left, _MOST_LABELS)
            left.set_title(plain(_row_title(net, i, seen)), fontsize=10, loc="left", color=INK)
            bar = figure.colorbar(image, ax=left, ticks=(0, 0.5, 1), pad=0.015, fraction=0.025, aspect=30)
            bar.ax.tick_params(labelsize=8)
            _draw_head(net, seen, right, with_legend=r == 0)
        else:
            _draw_lookup(net, seen, left, right)
    if errors is not None:
        draw_errors(errors, figure.add_subplot(grid[-1, :]), None if net.certificate else net.measured)
    figure.suptitle(plain(_title(net)), fontsize=11, color=INK)
    return figure


def _errors(net: Network) -> NetworkCertificate | None:
    """The bounds that there are bars for: of the network, or of the network that was fitted to f."""
    if net.certificate is not None:
        return net.certificate if net.why_not_certified() is None else None
    return None if net.measured is None or why_not_measured(net) is not None else net.measured.fitted


def _draw_head(net: Network, seen: Neurons, ax: Axes, with_legend: bool) -> None:
    """The function, the head and its anchors on the certified interval; at the top, where the neurons stand."""
    step = net.program.steps[seen.layer.value - 1]
    assert isinstance(step, Pointwise)
    if seen.head.certificate is None and seen.head.measured is None:
        ax.set_axis_off()  # on which interval is not known
        return
    draw_function(seen.head, ax, sample(seen.head, step.function))
    ax.plot(
        seen.spread, np.full(len(seen.spread), 0.965), transform=ax.get_xaxis_transform(), linestyle="none", marker="|",
        markersize=6, markeredgewidth=0.6, color=INK, alpha=0.5, label="neurons", zorder=4,
    )  # fmt: skip
    ax.set_title("", loc="left")
    ax.locator_params(axis="x", nbins=6)
    ax.legend(
        ax.lines, ("f", "head", "anchors", "neurons"), fontsize=8, frameon=False, loc="lower right",
        bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.1, handlelength=1.4, columnspacing=1.2,
    ).set_visible(with_legend)  # fmt: skip


def _draw_lookup(net: Network, seen: Picked, left: Axes, right: Axes) -> None:
    """Where softmax looks, and what it reads there for the output with the largest error."""
    known = net.certificate.witness if net.certificate is not None else net.measured
    outputs = seen.selection.values.shape[1]
    worst = known.output if known is not None and known.output < outputs else 0
    images = draw_picked(seen, left, _MOST_LABELS), draw_values(seen, right, worst, _MOST_LABELS // 2)
    label, mean = function_label(net, seen.selection), "" if seen.inputs == 1 else f", mean of {seen.inputs}"
    title = f"{seen.selection.name}: {label}, {seen.selection.anchors:,} anchors{mean}"
    left.set_title(plain(title), fontsize=10, loc="left", color=INK)
    for ax, image in zip((left, right), images, strict=True):
        bar = ax.figure.colorbar(image, ax=ax, pad=0.015, fraction=0.025, aspect=30)
        bar.ax.tick_params(labelsize=8)


def draw_errors(certificate: NetworkCertificate, ax: Axes, measured: NetworkMeasured | None = None) -> None:
    """What is proved of |executed - exact| before and behind every layer, and at the output, on a logarithmic axis.

    With `measured`, the certificate is that of a fitted network: at the output, a dashed line at what was measured against f."""
    every: list[LayerClaim | LookupClaim] = [*certificate.layers, *certificate.lookups]
    claims = sorted(every, key=lambda claim: claim.value)
    place, end, width = np.arange(len(claims)), len(claims), 0.36
    entering = [claim.error_in if isinstance(claim, LayerClaim) else 0.0 for claim in claims]
    leaving = [claim.error_out for claim in claims]
    ax.bar(place - width / 2, entering, width, color=PALE, label="into the layer")
    ax.bar(place + width / 2, leaving, width, color=BLUE, label="out of the layer")
    ax.bar([end], [certificate.bound], width, color=VERMILION)
    whose = "proved bound" if measured is None else "proved of the fitted network"
    ax.axhline(certificate.bound, color=VERMILION, linewidth=1.4, label=f"{whose} {certificate.bound:.4g}")
    seen = certificate.witness.error
    if measured is not None:
        seen, text = measured.error, f"measured against f {measured.error:.3g}"
        ax.axhline(seen, color=INK, linewidth=1.2, linestyle="--", label=text)
    elif seen > 0:
        ax.plot(
            [end], [seen], linestyle="none", marker="o", markersize=6, markerfacecolor="white", markeredgecolor=INK,
            label=f"largest error found {seen:.3g}", zorder=5,
        )  # fmt: skip
    shown = [error for error in (*entering, *leaving, certificate.bound, seen) if error > 0]
    if shown:
        ax.set_yscale("log")
        ax.set_ylim(min(shown) / 4, max(shown) * 4)
    ax.set_xlim(-0.6, end + 0.6)
    ax.set_xticks([*place, end], [*(str(i + 1) for i in place), "output"])
    title = "error: proved bounds" if measured is None else "error: not proved of f"
    ax.set_ylabel("|network − program|" if measured is None else "error", fontsize=9)
    ax.set_title(title, fontsize=10, loc="left", color=INK)
    _finish_errors(ax)


def _finish_errors(ax: Axes) -> None:
    ax.set_xlabel("layer", fontsize=9)
    ax.legend(
        fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=5, borderaxespad=0.1,
        handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip
    ax.tick_params(which="both", labelsize=8)
    ax.grid(True, axis="y", color=GREY, alpha=0.2, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _row_title(net: Network, i: int, seen: Neurons) -> str:
    """'layer 2 (encoder.act), group 1: gelu'"""
    name = seen.layer.name
    short = name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
    called = "" if name == f"layer {i + 1}" or name.isdigit() else f" ({short})"
    heads = [head for _, head in seen.layer.groups]
    group = f", group {heads.index(seen.head) + 1}" if len(heads) > 1 else ""
    step = net.program.steps[seen.layer.value - 1]
    assert isinstance(step, Pointwise)
    return f"layer {i + 1}{called}{group}: {step.function.label}"


def _title(net: Network) -> str:
    layers, lookups = len(net.layers), len(net.selections)
    parts = [f"{layers} layer{'s' * (layers != 1)} of attention"] if layers or not lookups else []
    if lookups:
        parts.append(f"{lookups} lookup{'s' * (lookups != 1)}")
    dtype = str(next(net.parameters()).dtype).removeprefix("torch.")
    return f"network of {' and '.join(parts)} on {net.domain}, {dtype}\n{error_text(net)}"


def error_text(net: Network) -> str:
    """'error at most 1e-3, proved', or what else is known of it."""
    reason = net.why_not_certified()
    if net.certificate is not None and reason is None:
        return f"error at most {net.certificate.bound:.4g}, proved"
    if net.certificate is None and net.measured is not None:
        reason = why_not_measured(net)
        if reason is None:
            seen = net.measured
            return f"error {seen.error:.3g} at {seen.points:,} random inputs: measured, not proved"
    return shorten(f"not certified: {reason}", _LONGEST_LINE, placeholder=" …")
