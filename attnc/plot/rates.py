"""Errors against size on logarithmic axes: measured errors, the theorems' bounds, and the designs that improve on them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnc.paper.rates import Rates, Series
from attnc.plot import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GREEN, _SKY = "#009E73", "#56B4E9"
_AXES = {"p": "anchors p", "nH": "tokens × heads, n·H", "g": "anchors along each axis, g"}
_COLOURS = {"nearest": canvas.BLUE, "smooth": _GREEN, "graded": canvas.VERMILION, "lattice": canvas.VERMILION}


def rates(found: Rates, path: str | os.PathLike[str] | None = None) -> Figure:
    """One panel for each size that grows: measured errors with their fitted slopes, and the theorems' bounds.

    >>> from attnc.paper.rates import Rates, Series
    >>> one = Series("one head", "nearest", "p", (60, 120), (0.115, 0.057), (0.44, 0.22))
    >>> len(rates(Rates((one,), 0)).axes)
    1
    """
    canvas.require_matplotlib()
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    canvas.expect_kind(found, (Rates,), "rates", "give what attnc.paper.rates measures")
    if path is not None:
        canvas.picture_format(path)
    sizes = [name for name in _AXES if any(series.against == name for series in found.series)]
    figure = canvas.new_figure(4.2 * len(sizes), 3.8)
    for name, ax in zip(sizes, figure.subplots(1, len(sizes), squeeze=False)[0], strict=True):
        for series in found.series:
            if series.against == name:
                _draw(series, ax)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter(ScalarFormatter())
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel(_AXES[name])
        ax.grid(color="#dddddd", linewidth=0.5)
        ax.set_axisbelow(True)
        ax.legend(fontsize=8, frameon=False)
    figure.axes[0].set_ylabel("largest error found")
    if path is not None:
        canvas.save(figure, path)
    return figure


def _draw(series: Series, ax: Axes) -> None:
    """Measured errors as points on a line, and the theorem's bound."""
    second = series.construction == "attention-softmax"  # the same errors from another network
    colour = _SKY if second else _COLOURS.get(series.design, canvas.INK)
    name = series.construction if series.design == "nearest" else series.design
    style, label = "x--" if second else "o-", f"{name}, slope {series.slope:.2f}"
    ax.plot(series.sizes, series.errors, style, color=colour, markersize=7 if second else 4, label=label)
    if series.theorem and not second:
        ax.plot(series.sizes, series.theorem, ":", color=canvas.GREY, label="theorem's bound")
