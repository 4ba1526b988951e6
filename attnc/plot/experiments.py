"""The paper's experiments: test MSE of what is trained and of what is built, learning curves, and attention heat maps.

Lines are means over the seeds; bars and bands reach from the smallest to the largest; a dot, or a thin line against epochs, is a
run. Against sizes, what is trained is dashed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnc.errors import InputError
from attnc.paper.experiments import Record
from attnc.paper.experiments.report.sweeps import (
    LAWS,
    THEOREM_OF,
    Line,
    Point,
    Sweep,
    base_points,
    mean,
    sweep,
    together,
)
from attnc.paper.experiments.settings import TRAINED
from attnc.plot.canvas import BLUE, GREY, INK, VERMILION, new_figure, picture_format, require_matplotlib
from attnc.plot.experiment_maps import heat_maps, save_same

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREEN, _SKY, _ORANGE, _PURPLE = "#009E73", "#56B4E9", "#E69F00", "#CC79A7"  # of the same palette
_STYLES = {  # method -> colour, marker
    "trained": (INK, "o"),
    "fine-tuned": (_ORANGE, "s"),
    "from-anchors": (_PURPLE, "^"),
    "nearest": (BLUE, "D"),
    "smooth": (_GREEN, "v"),
    "graded": (VERMILION, "P"),
    "placed": (GREY, "X"),
    "many-heads": (_SKY, "h"),
    "tokens": (BLUE, "D"),
    "heads": (_SKY, "h"),
    "softmax": (_GREEN, "v"),
}
_CONSTANT = "#AAAAAA"
_ASIDE = 7.5  # points to the right of its size: where a run is drawn, clear of the marker of the mean
_EQUAL = 0.01  # relative: nearer than that, two lines are one on paper
_NAMED = {"nearest": "nearest, c = 4", "smooth": "smooth, c = 1"}
_AXES = {"heads": "heads H", "range": "width of the range, b − a", "anchors": "keys p"}


def truncated(
    records: Iterable[Record], against: str = "heads", path: str | os.PathLike[str] | None = None
) -> Figure:
    """Experiment 1: test MSE against "heads", "range" or "anchors", with fitted slopes (95 % intervals), the theorem's bound
    for the network that its proof builds, what the constant output reaches, and what the paper's code gives.

    >>> truncated([], "heads")
    Traceback (most recent call last):
    attnc.errors.InputError: no runs of experiment truncated at two sizes of heads or more: run `attnc reproduce heads`
    """
    _ready(path)
    found = _needed(sweep(together(records), "truncated", against), against)
    figure = new_figure(8.6, 4.8)
    ax = figure.add_subplot()
    for line in found.lines:
        _draw(ax, line, found, _NAMED.get(line.method, line.method), slope=True)
    _theorem(ax, found)
    _paper(ax, found)
    _constant(ax, found)
    _finish(ax, found)
    ax.set_ylabel("test MSE")
    _legend(figure, [ax])
    return _saved(figure, path)


def seq2seq(records: Iterable[Record], path: str | os.PathLike[str] | None = None) -> Figure:
    """Experiment 3: test MSE against keys and against heads, a panel each, with what the constant output reaches.

    >>> seq2seq([])
    Traceback (most recent call last):
    attnc.errors.InputError: no runs of experiment seq2seq at two sizes or more: run `attnc reproduce seq2seq`
    """
    _ready(path)
    known = together(records)
    found = [one for against in ("anchors", "heads") if (one := sweep(known, "seq2seq", against))]
    if not found:
        raise InputError("no runs of experiment seq2seq at two sizes or more: run `attnc reproduce seq2seq`")
    figure = new_figure(2.2 + 3.6 * len(found), 4.2)
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for ax, one in zip(panels, found, strict=True):
        for line, name in _merged(one.lines):
            _draw(ax, line, one, name, slope=False)
        _paper(ax, one)
        _constant(ax, one)
        _finish(ax, one)
        beside = f"{one.base.heads} heads" if one.against == "anchors" else f"p = {one.base.p}"
        ax.set_title(f"n = {one.base.n}, {beside}", fontsize=10)
    panels[0].set_ylabel("test MSE")
    _legend(figure, panels)
    return _saved(figure, path)


def learning_curves(records: Iterable[Record], path: str | os.PathLike[str] | None = None) -> Figure:
    """Test MSE at the start and after each epoch, where the sweeps of experiment 1 meet: from random weights, from the built
    network, from its anchors; and the built network itself.

    >>> learning_curves([])
    Traceback (most recent call last):
    attnc.errors.InputError: no training of experiment truncated: run `attnc reproduce heads`
    """
    _ready(path)
    points = base_points(together(records))
    learnt = {m: points[m] for m in TRAINED if m in points and any(one.curve for one in points[m].records)}
    if not learnt:
        raise InputError("no training of experiment truncated: run `attnc reproduce heads`")
    figure = new_figure(7.4, 4.2)
    ax = figure.add_subplot()
    for method, point in learnt.items():
        _curve(ax, method, point)
    if "placed" in points and points["placed"].mse:
        ax.axhline(points["placed"].mse, color=GREY, linewidth=1.2, label="placed, not trained")
    constant = mean(one.constant for point in learnt.values() for one in point.records)
    if constant:
        ax.axhline(constant, color=_CONSTANT, linewidth=0.9, label="constant")
    base = next(iter(learnt.values())).records[0].setting
    heads = "1 head" if base.heads == 1 else f"{base.heads} heads"
    ax.set_title(f"{heads}, p = {base.p}, [a, b] = [{base.a:g}, {base.b:g}]".replace("-", "−"), fontsize=10)
    ax.set_yscale("log")
    ax.set_xlim(0, base.epochs)
    ax.set_xlabel("epoch")
    ax.set_ylabel("test MSE")
    _grid(ax)
    _legend(figure, [ax])
    return _saved(figure, path)


DRAWINGS: dict[str, Callable[[Sequence[Record], str | os.PathLike[str] | None], Figure]] = {
    "heads": lambda records, path: truncated(records, "heads", path),
    "range": lambda records, path: truncated(records, "range", path),
    "anchors": lambda records, path: truncated(records, "anchors", path),
    "learning-curves": learning_curves,
    "heat-maps": heat_maps,
    "seq2seq": seq2seq,
}


def draw(name: str, records: Iterable[Record], path: str | os.PathLike[str] | None = None) -> Figure:
    """A figure of the report by its name there, which is one of `attnc.paper.experiments.report.FIGURES`.

    >>> draw("tails", [])
    Traceback (most recent call last):
    attnc.errors.InputError: there is no figure 'tails': there are heads, range, anchors, learning-curves, heat-maps, seq2seq
    """
    if name not in DRAWINGS:
        raise InputError(f"there is no figure {name!r}: there are {', '.join(DRAWINGS)}")
    return DRAWINGS[name](tuple(records), path)


def _ready(path: str | os.PathLike[str] | None) -> None:
    """Raise before any work where nothing could be drawn or written."""
    require_matplotlib()
    if path is not None:
        picture_format(path)


def _saved(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    if path is not None:
        save_same(figure, path)
    return figure


def _needed(found: Sweep | None, against: str) -> Sweep:
    if found is None:
        raise InputError(
            f"no runs of experiment truncated at two sizes of {against} or more: run `attnc reproduce {against}`"
        )
    return found


def _draw(ax: Axes, line: Line, found: Sweep, name: str, slope: bool) -> None:
    """Every run as a dot, means with bars from the smallest to the largest; a level line where the size does not enter."""
    colour, marker = _STYLES[line.method]
    shown = [(p.size, p.mse, *p.ends) for p in line.points if p.mse and p.ends]
    label = name + _label(line, found.against, slope)
    if not shown:
        ax.plot([], [], linestyle="none", label=label)
        return
    sizes, means, lows, highs = zip(*shown, strict=True)
    bars = (_differences(means, lows), _differences(highs, means))
    dashes = "--" if line.method in TRAINED else "-"
    if found.is_level(line):
        ax.plot((found.sizes[0], found.sizes[-1]), means * 2, "-.", color=colour, linewidth=0.8)
    _dots(ax, line, colour)
    ax.errorbar(sizes, means, yerr=bars, fmt="none", ecolor=colour, elinewidth=0.9, capsize=2.5)
    ax.plot(
        sizes,
        means,
        dashes,
        color=colour,
        marker=marker,
        markersize=5,
        linewidth=1.4,
        label=label,
    )


def _dots(ax: Axes, line: Line, colour: str) -> None:
    """Every run, a little to the right of its size."""
    from matplotlib.transforms import offset_copy

    runs = [(p.size, one.mse) for p in line.points for one in p.finite if one.mse > 0]
    aside = offset_copy(ax.transData, fig=ax.get_figure(root=True), x=_ASIDE, units="points")
    name = f"_runs of {line.method}"
    ax.plot(*zip(*runs, strict=True), ".", color=colour, markersize=4, transform=aside, label=name)


def _merged(lines: Sequence[Line]) -> list[tuple[Line, str]]:
    """Lines with their names, those that coincide as one with the names of all."""
    groups: list[list[Line]] = []
    for line in lines:
        for group in groups:
            if _coincide(line, group[0]):
                group.append(line)
                break
        else:
            groups.append([line])
    return [(group[0], " = ".join(line.method for line in group)) for group in groups]


def _coincide(one: Line, other: Line) -> bool:
    """Whether the runs of two methods are the same but for a hundredth, at every size and seed."""
    values = [{replace(r.setting, method="trained"): r.mse for r in line.records} for line in (one, other)]
    return values[0].keys() == values[1].keys() and all(
        math.isclose(mse, values[1][setting], rel_tol=_EQUAL) for setting, mse in values[0].items()
    )


def _differences(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Never negative: a mean may round past an end."""
    return [max(a - b, 0.0) for a, b in zip(above, below, strict=True)]


def _label(line: Line, against: str, slope: bool) -> str:
    """What follows the name: the fitted slope, and what is not on the figure."""
    label = ""
    made = line.fit(LAWS[against]) if slope else None
    if made is not None:
        reach = "" if made.high is None else f" ± {_reach(made.high - made.slope)}"
        label += f", slope {made.slope:.2f}{reach}".replace("-0.00", "0.00").replace(" -", " −")
    diverged = sum(point.diverged for point in line.points)
    label += f", {diverged} diverged" if diverged else ""
    unseen = sum(point.mse == 0 for point in line.points)  # no place on the axis
    return label + (f", {unseen} sizes at 0" if unseen else "")


def _reach(half: float) -> str:
    """Two decimals of half an interval, which is never shown as nothing."""
    return f"{half:.2f}" if half >= 0.005 else "<0.01"


def _theorem(ax: Axes, found: Sweep) -> None:
    """The theorem's bound B of the largest error as one of the MSE, B²/width: the target is one of so many coordinates."""
    line = found.line(THEOREM_OF[found.against])
    known = [(p.size, *_squares(p)) for p in line.points if _squares(p)] if line else []
    if line is None or not known:
        return
    power = LAWS[found.against].slope
    slope = "" if power is None else f", slope {power:g}".replace("-", "−")
    sizes, bounds = zip(*known, strict=True)
    ax.plot(
        sizes,
        bounds,
        ":",
        color=INK,
        linewidth=1.1,
        label=f"theorem's bound of {line.method}{slope}",
        zorder=4,
    )


def _squares(point: Point) -> tuple[float, ...]:
    """The largest of the seeds' bounds of the MSE, if there is one."""
    found = [one.theorem**2 / one.setting.width for one in point.records if one.theorem is not None]
    return (max(found),) if found else ()


def _constant(ax: Axes, found: Sweep) -> None:
    """What the constant output reaches: the mean over the seeds, at every size that was run."""
    line = found.line("trained") or found.lines[0]
    known = [(p.size, p.constant) for p in line.points if p.constant]
    if len(known) == 1:
        known = [(size, known[0][1]) for size in (found.sizes[0], found.sizes[-1])]
    if known:
        ax.plot(*zip(*known, strict=True), "-", color=_CONSTANT, linewidth=0.9, label="constant", zorder=1)


def _paper(ax: Axes, found: Sweep) -> None:
    """What the paper's code gives, as open circles, with bars where its seeds are far apart."""
    line = found.line("trained")
    known = [(p.size, b) for p in line.points if (b := p.baseline)] if line else []
    if not known:
        return
    for size, one in known:
        if one.low is not None and one.high is not None:
            bars = ([one.mse - one.low], [one.high - one.mse])
            ax.errorbar([size], [one.mse], yerr=bars, fmt="none", ecolor=GREY, elinewidth=0.9, capsize=5)
    ax.plot(
        [size for size, _ in known],
        [one.mse for _, one in known],
        "o",
        color=INK,
        markersize=10,
        markerfacecolor="none",
        markeredgewidth=1.1,
        label="trained by the paper's code",
        zorder=3,
    )


def _curve(ax: Axes, method: str, point: Point) -> None:
    """The mean over the seeds, epoch by epoch, and a band from the smallest to the largest."""
    colour, _ = _STYLES[method]
    runs = [one for one in point.records if one.curve]
    started = all(one.start is not None for one in runs)
    rows = [((one.start,) if started else ()) + one.curve for one in runs]
    epochs, means, lows, highs = [], [], [], []
    for epoch, column in enumerate(zip(*rows, strict=True), 0 if started else 1):
        values = [v for v in column if v is not None and math.isfinite(v) and v > 0]
        if values:
            epochs.append(epoch)
            means.append(math.fsum(values) / len(values))
            lows.append(min(values))
            highs.append(max(values))
    diverged = f", {point.diverged} diverged" if point.diverged else ""
    ax.plot(epochs, means, color=colour, linewidth=1.4, label=method + diverged)
    ax.fill_between(epochs, lows, highs, color=colour, alpha=0.18, linewidth=0)
    for row in rows:
        shown = [(k, v) for k, v in enumerate(row, 0 if started else 1) if v and math.isfinite(v)]
        if shown:
            ax.plot(*zip(*shown, strict=True), color=colour, linewidth=0.5, alpha=0.6, label="_run")
    if started and epochs and epochs[0] == 0:
        ax.plot([0], means[:1], "o", color=colour, markersize=5, clip_on=False, zorder=3)


def _finish(ax: Axes, found: Sweep) -> None:
    """Logarithmic axes, with the sizes of the sweep as ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(FixedLocator(found.sizes))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel(_AXES[found.against])
    _grid(ax)


def _grid(ax: Axes) -> None:
    ax.grid(color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, to the right of them."""
    named: dict[str, Artist] = {}
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(
        list(named.values()),
        list(named),
        loc="outside right upper",
        fontsize=8.5,
        frameon=False,
        labelspacing=0.7,
    )
