"""All three pictures of a head in one figure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnc.network.head import Head
from attnc.network.show import head_facts
from attnc.plot.canvas import INK, new_figure, picture_format, plain, save
from attnc.plot.curves import draw_error, draw_function
from attnc.plot.heat_map import draw_attention
from attnc.plot.sample import AnyFunction, about, function_of, sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def head(head: Head, path: str | os.PathLike[str] | None = None, f: AnyFunction | None = None) -> Figure:
    """The function with its imitation, the error with its bound, and the attention weights, over one axis.

    With `path` the figure is also written there, as .png, .svg or .pdf. `f` is needed only for a function of
    your own that is not registered.

    >>> import attnc, attnc.plot
    >>> figure = attnc.plot.head(attnc.head("tanh", domain=(-8, 8), eps=1e-5))
    >>> [ax.get_title(loc="left") for ax in figure.axes[:3]]
    ['function', 'error', 'attention weights']
    """
    if path is not None:
        picture_format(path)
    about(head, "head")
    seen = sample(head, function_of(head, f))
    figure = new_figure(7.5, 8.5)
    grid = figure.add_gridspec(3, 2, width_ratios=(1, 0.025), height_ratios=(1, 1, 1.3))
    top = figure.add_subplot(grid[0, 0])
    middle = figure.add_subplot(grid[1, 0], sharex=top)
    bottom = figure.add_subplot(grid[2, 0], sharex=top)
    draw_function(head, top, seen)
    draw_error(head, middle, seen)
    image = draw_attention(head, bottom)
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[2, 1]))
    bar.ax.tick_params(labelsize=8)
    for ax in (top, middle):
        ax.tick_params(labelbottom=False)
        ax.set_xlabel("")
    figure.suptitle(plain(_title(head)), fontsize=11, color=INK)
    if path is not None:
        save(figure, path)
    return figure


def _title(head: Head) -> str:
    facts = head_facts(head)
    what = f"{facts['function']} on {facts['on']}"
    how = f"{facts['anchors']} anchors, {facts['design']}, {facts['dtype']}"
    known = facts["error"] if facts["error"].startswith("not certified") else f"error {facts['error']}"
    return f"{what}: {how}\n{known}"
