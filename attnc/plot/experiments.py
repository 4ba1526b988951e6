"""The paper's experiments: test MSE of what is trained and of what is built, learning curves, and attention heat maps.

Lines are means over the seeds; bars and bands reach from the smallest to the largest. Against sizes, what is trained is dashed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from attnc.errors import InputError
from attnc.paper.experiments import Record
from attnc.paper.experiments.report.sweeps import (
    THEOREM,
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
_WEIGHTS = {
    "tokens": 2.2,
    "heads": 1.5,
    "softmax": 0.8,
}  # their errors may coincide: the later is drawn the finer
_AXES = {"heads": "heads H", "range": "width of the range, b − a", "anchors": "keys p"}


def truncated(
    records: Iterable[Record], against: str = "heads", path: str | os.PathLike[str] | None = None
) -> Figure:
    """Experiment 1: test MSE against "heads", "range" or "anchors", with fitted slopes (95 % intervals), the theorem's slope
    through the first point of the network that its proof builds, and what the paper's code gives.

    >>> truncated([], "heads")
    Traceback (most recent call last):
    attnc.errors.InputError: no runs of experiment truncated at two sizes of heads or more: run `attnc reproduce heads`
    """
    _ready(path)
    found = _needed(sweep(together(records), "truncated", against), against)
    figure = new_figure(8.6, 4.8)
    ax = figure.add_subplot()
    for line in found.lines:
        _draw(ax, line, found, slope=True)
    _theorem(ax, found)
    _paper(ax, found)
    _finish(ax, found)
    ax.set_ylabel("test MSE")
    _legend(figure, [ax])
    return _saved(figure, path)


def seq2seq(records: Iterable[Record], path: str | os.PathLike[str] | None = None) -> Figure:
    """Experiment 3: test MSE against keys and against heads, a panel each; the variance of the target is what the best
    constant reaches.

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
        for line in one.lines:
            _draw(ax, line, one, slope=False)
        _paper(ax, one)
        variance = mean(record.spread for record in one.records)
        assert variance is not None
        ax.axhline(variance, color=GREY, linewidth=0.9, linestyle=":", label="variance of the target")
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


def _draw(ax: Axes, line: Line, found: Sweep, slope: bool) -> None:
    """Means with bars from the smallest to the largest; a network of one head as a level line."""
    colour, marker = _STYLES[line.method]
    shown = [(p.size, p.mse, *p.ends) for p in line.points if p.mse and p.ends]
    label = _label(line, slope, len(shown))
    if not shown:
        ax.plot([], [], linestyle="none", label=label)
        return
    sizes, means, lows, highs = zip(*shown, strict=True)
    bars = (_differences(means, lows), _differences(highs, means))
    dashes = "--" if line.method in TRAINED else "-"
    if len(line.points) == 1 < len(found.sizes):
        ax.plot((sizes[0], found.sizes[-1]), means * 2, "-.", color=colour, linewidth=0.8)
    weight = _WEIGHTS.get(line.method, 1.0)
    ax.errorbar(sizes, means, yerr=bars, fmt="none", ecolor=colour, elinewidth=0.9, capsize=2.5)
    ax.plot(
        sizes,
        means,
        dashes,
        color=colour,
        marker=marker,
        markersize=5 * weight**0.7,
        linewidth=1.4 * weight,
        label=label,
    )


def _differences(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Never negative: a mean may round past an end."""
    return [max(a - b, 0.0) for a, b in zip(above, below, strict=True)]


def _label(line: Line, slope: bool, shown: int) -> str:
    label = line.method
    made = line.fit if slope else None
    if made is not None:
        reach = "" if made.high is None else f" ± {made.high - made.slope:.2f}"
        label += f", slope {made.slope:.2f}{reach}".replace("-0.00", "0.00").replace(" -", " −")
    diverged = sum(point.diverged for point in line.points)
    label += f", {diverged} diverged" if diverged else ""
    unseen = sum(point.mse == 0 for point in line.points)  # no place on the axis
    return label + (f", {unseen} sizes at 0" if unseen else "")


def _theorem(ax: Axes, found: Sweep) -> None:
    """The theorem's slope, as a thin line through the first point of the network that its proof builds."""
    line = found.line(THEOREM_OF[found.against])
    first = next((point for point in line.points if point.mse), None) if line else None
    if line is None or first is None or first.mse is None:
        return
    power = THEOREM[found.against]
    values = [first.mse * (size / first.size) ** power for size in found.sizes]
    sign = f"{power:g}".replace("-", "−")
    ax.plot(found.sizes, values, ":", color=INK, linewidth=1.1, label=f"theorem's slope, {sign}", zorder=4)


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
    ax.fill_between(epochs, lows, highs, color=colour, alpha=0.22, linewidth=0)
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
