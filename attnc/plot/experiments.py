"""Figures of the paper's experiments: test MSE of trained and of built networks, learning curves, and attention heat maps.

Lines are means over the seeds, bars and bands reach from the smallest to the largest, dots and thin lines are single runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnc.arguments import checked_choice
from attnc.errors import InputError
from attnc.paper.experiments import Record, report
from attnc.paper.experiments.protocol import TRAINED
from attnc.paper.experiments.report import TITLES, figure_names
from attnc.plot.canvas import BLUE, GREY, INK, VERMILION, WEIGHTS, new_figure, picture_format, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREEN, _SKY, _ORANGE, _PURPLE, _PALE = "#009E73", "#56B4E9", "#E69F00", "#CC79A7", "#AAAAAA"
_STYLES = {  # method: colour, marker
    **{"trained": (INK, "o"), "fine-tuned": (_ORANGE, "s"), "from-anchors": (_PURPLE, "^")},
    **{"nearest": (BLUE, "D"), "smooth": (_GREEN, "v"), "graded": (VERMILION, "P"), "placed": (GREY, "X")},
    **{"many-heads": (_SKY, "h"), "tokens": (BLUE, "D"), "heads": (_SKY, "h"), "softmax": (_GREEN, "v")},
}
_ASIDE = 7.5  # points between the marker of a mean and the dots of its runs


def draw(name: str, records: Iterable[Record], path: str | os.PathLike[str] | None = None) -> Figure:
    """A figure of the report by its name, written to the path if one is given."""
    checked_choice("name", name, tuple(TITLES))
    if path is not None:
        picture_format(path)
    found, others = tuple(records), {"learning-curves": _learning_curves, "heat-maps": _heat_maps}
    if name not in figure_names(found):
        sweep = {"learning-curves": "heads", "heat-maps": "heatmaps"}.get(name, name)
        raise InputError(f"the records do not suffice for the figure {name!r}: run `attnc reproduce {sweep}`")
    figure = others[name](found) if name in others else _sweep(name, found)
    if path is not None:
        from matplotlib import rc_context

        with rc_context({"svg.hashsalt": "attnc"}):  # the same figure gives the same file
            save(figure, path)
    return figure


def _sweep(name: str, records: Sequence[Record]) -> Figure:
    """Test MSE against a size; experiment 3 has a panel for the keys and one for the heads."""
    table, seq2seq = report.checked_frame(records), name == "seq2seq"
    experiment, sizes = ("seq2seq", ("anchors", "heads")) if seq2seq else ("truncated", (name,))
    found = {size: runs for size in sizes if len(runs := report.sweep_runs(table, experiment, size))}
    figure = new_figure(2.2 + 3.6 * len(found), 4.2) if seq2seq else new_figure(8.6, 4.8)
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for ax, (against, runs) in zip(panels, found.items(), strict=True):
        _draw_sweep(ax, runs, against, rates=not seq2seq)
        if seq2seq:
            beside = f"{runs.heads.iloc[0]} heads" if against == "anchors" else f"p = {runs.p.iloc[0]}"
            ax.set_title(f"n = {runs.n.iloc[0]}, {beside}", fontsize=10)
    _finish(figure, panels)
    return figure


def _draw_sweep(ax: Axes, runs: Any, against: str, rates: bool) -> None:
    """All methods, the theorem's bound B of the largest error as the bound B²/width of the MSE, the constant output, and the
    paper's results."""
    table, sizes = report.summarise(runs), sorted(runs["size"].unique())
    groups: dict[tuple[str, ...], list[str]] = {}  # methods with equal means are drawn as one line
    for method, rows in table.groupby("method", observed=True):
        groups.setdefault(tuple(f"{mse:.2e}" for mse in rows.mse), []).append(str(method))
    for methods in groups.values():
        these = runs[runs.method == methods[0]]
        fit = report.fit_rate(these, against) if rates else None
        slope = f", slope {fit.slope:.2f} ± {fit.high - fit.slope:.2f}" if fit else ""
        _draw_method(ax, these, table[table.method == methods[0]], " = ".join(methods) + slope, sizes)
    theorem = table[(table.method == report.THEOREM_OF[against]) & table.theorem.notna()]
    if rates and len(theorem):
        slope = "" if report.RATES[against] is None else f", slope {report.RATES[against]:g}"
        label = f"theorem's bound of {report.THEOREM_OF[against]}{slope}"
        bounds = theorem.theorem**2 / runs.width.iloc[0]
        ax.plot(theorem["size"], bounds, ":", color=INK, linewidth=1.1, label=label, zorder=4)
    trained = table[table.method == "trained"]
    ax.plot(trained["size"], trained.constant, "-", color=_PALE, linewidth=0.9, label="constant", zorder=1)
    paper = trained[trained.paper_mse.notna()]
    if len(paper):
        bars = [paper.paper_mse - paper.paper_low, paper.paper_high - paper.paper_mse]
        ring: dict[str, Any] = {"markersize": 10, "markerfacecolor": "none", "capsize": 5, "zorder": 3}
        label = "trained by the paper's code"
        ax.errorbar(paper["size"], paper.paper_mse, yerr=bars, fmt="o", color=INK, label=label, **ring)
    ax.set_xscale("log")
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
    ax.set_xticks([], minor=True)
    ax.set_xlabel(report.SIZES[against])


def _draw_method(ax: Axes, runs: Any, rows: Any, label: str, sizes: Sequence[float]) -> None:
    """Means with bars, and every run as a dot to the right of its size; a level line if the size does not apply."""
    from matplotlib.transforms import offset_copy

    method = rows.method.iloc[0]
    (colour, marker), dashes = _STYLES[method], "--" if method in TRAINED else "-"
    label += f", {rows.diverged.sum()} diverged" if rows.diverged.any() else ""
    rows, runs = rows[rows.mse > 0], runs[(runs.mse > 0) & np.isfinite(runs.mse)]
    if rows.level.any():
        ax.plot((sizes[0], sizes[-1]), [rows.mse.iloc[0]] * 2, "-.", color=colour, linewidth=0.8)
    aside = offset_copy(ax.transData, fig=ax.get_figure(root=True), x=_ASIDE, units="points")
    own = f"_runs of {method}"
    ax.plot(runs["size"], runs.mse, ".", color=colour, transform=aside, markersize=4, label=own)
    bars = np.maximum([rows.mse - rows.low, rows.high - rows.mse], 0.0)  # a mean may round past an end
    lines: dict[str, Any] = {"color": colour, "markersize": 5, "linewidth": 1.4, "elinewidth": 0.9}
    ax.errorbar(rows["size"], rows.mse, bars, fmt=marker + dashes, capsize=2.5, label=label, **lines)


def _learning_curves(records: Sequence[Record]) -> Figure:
    """Test MSE at the start and after each epoch, for the runs that the sweeps of experiment 1 share."""
    found = report.learning_runs(records)
    learned = {method: runs for method in TRAINED if (runs := found.get(method)) and runs[0].curve}
    figure = new_figure(7.4, 4.2)
    ax = figure.add_subplot()
    for method, runs in learned.items():
        curves = np.array([(one.start, *one.curve) for one in runs], dtype=float)
        curves[~(np.isfinite(curves) & (curves > 0))] = np.nan
        epochs, colour = np.flatnonzero(np.isfinite(curves).any(0)), _STYLES[method][0]
        known, diverged = curves[:, epochs], sum(not np.isfinite(one.mse) for one in runs)
        label = method + (f", {diverged} diverged" if diverged else "")
        ax.plot(epochs, np.nanmean(known, 0), color=colour, linewidth=1.4, label=label)
        band = np.nanmin(known, 0), np.nanmax(known, 0)
        ax.fill_between(epochs, *band, color=colour, alpha=0.18, linewidth=0)
        ax.plot(np.arange(curves.shape[1]), curves.T, color=colour, linewidth=0.5, alpha=0.6, label="_run")
    levels = {"placed, not trained": (GREY, [one.mse for one in found.get("placed", ()) if one.mse > 0])}
    levels["constant"] = (_PALE, [one.constant for runs in learned.values() for one in runs])
    for label, (colour, values) in levels.items():
        if values:
            ax.axhline(float(np.mean(values)), color=colour, linewidth=1.1, label=label)
    base = next(iter(learned.values()))[0].setting
    ax.set_title(f"heads {base.heads}, p = {base.p}, [a, b] = [{base.a:g}, {base.b:g}]", fontsize=10)
    ax.set_xlim(0, base.epochs)
    ax.set_xlabel("epoch")
    _finish(figure, [ax])
    return figure


def _heat_maps(records: Sequence[Record]) -> Figure:
    """Attention weights of three test samples of the first seed for each width of the range: a row of pixels is a token, a column
    an anchor. Both methods show the tokens in the order of the anchors that the built head attends to."""
    found: dict[tuple[str, float], Record] = {}
    for one in sorted(records, key=lambda one: one.setting.seed):
        if one.weights:
            found.setdefault((one.setting.method, one.setting.b - one.setting.a), one)
    methods, widths = sorted({one for one, _ in found}, reverse=True), sorted({one for _, one in found})
    figure = new_figure(0.9 + 4.2 * len(widths), 0.5 + 1.75 * len(methods))
    maps, beside = figure.subfigures(1, 2, squeeze=False, width_ratios=(4.2 * len(widths), 0.75))[0]
    parts = maps.subfigures(len(methods), len(widths), squeeze=False)
    for (method, width), one in found.items():
        guide, weights = np.asarray(found.get(("nearest", width), one).weights), np.asarray(one.weights)
        order = np.argsort(guide @ np.arange(guide.shape[-1]), axis=-1, kind="stable")
        part = parts[methods.index(method)][widths.index(width)]
        name = "built" if method == "nearest" else method
        picked = f"nearest picked {100 * (one.picked or 0):.1f} %"
        part.suptitle(f"{name}, b − a = {width:g}, {picked}", fontsize=9)
        axes = part.subplots(1, len(weights), squeeze=False)[0]
        for ax, sample in zip(axes, np.take_along_axis(weights, order[..., None], 1), strict=True):
            image = ax.imshow(sample, cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            image.set_clip_on(False)  # the name of a clip path in an SVG is not reproducible
            ax.set(xticks=[], yticks=[])
            ax.set_xlabel("anchors", fontsize=8)
        axes[0].set_ylabel("tokens", fontsize=8)
    beside.colorbar(image, cax=beside.add_axes((0.05, 0.15, 0.22, 0.7)), label="attention weight")
    return figure


def _finish(figure: Figure, panels: Sequence[Axes]) -> None:
    """A logarithmic axis of the MSE, a grid, and one legend for all panels on the right."""
    named: dict[str, Any] = {}
    for ax in panels:
        ax.set_yscale("log")
        style(ax)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    panels[0].set_ylabel("test MSE")
    figure.legend([*named.values()], [*named], loc="outside right upper", fontsize=8.5, frameon=False)
