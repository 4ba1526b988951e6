"""The plot of rates: errors and bounds against the size of a construction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnc.paper.rates import Rates
from attnc.plot import canvas
from attnc.plot.canvas import SavePath

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rates(rates: Rates, *, path: SavePath = None) -> Figure:
    """Plot errors and bounds against sizes, both axes logarithmic: a power law is a straight line.

    Returns the Figure, saved to `path` if one is given.

    >>> import attnc
    >>> found = attnc.paper.rates(lambda p: attnc.head("relu", domain=(-1, 1), anchors=p, design="nearest"), (4, 8))
    >>> attnc.plot.rates(found).axes[0].get_xlabel()
    'size'
    """
    canvas.prepare(path, rates, (Rates,), "rates", "attnc.paper.rates(build, sizes) returns them")
    figure = canvas.new_figure(5.6, 3.8)
    ax = figure.add_subplot()
    lines = {
        "theorem's bound": (rates.theorem, ":", canvas.GREY),
        "proved bound": (rates.proved, "o-", canvas.VERMILION),
        "largest error found": (rates.found, "o-", canvas.BLUE),
    }
    for label, (errors, style, colour) in lines.items():
        points = [(size, error) for size, error in zip(rates.sizes, errors, strict=True) if error is not None]
        if points:
            ax.plot(*zip(*points, strict=True), style, color=colour, markersize=4, label=label)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xlabel("size", fontsize=9)
    ax.set_ylabel("error", fontsize=9)
    canvas.title(ax, "slopes: " + ", ".join(f"{name} {slope:.2f}" for name, slope in rates.slopes.items()))
    ax.legend(fontsize=8, frameon=False)
    canvas.style(ax)
    return canvas.finish(figure, path)
