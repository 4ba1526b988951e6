"""Two curves over the domain: the function with its imitation, and the error with what it stays below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnc.network.head import Head
from attnc.plot.canvas import BLUE, GREY, INK, VERMILION, new_axes, plain
from attnc.plot.sample import AnyFunction, Level, Sample, about, function_of, level, sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DECADES = 6


def function(head: Head, ax: Axes | None = None, f: AnyFunction | None = None) -> Axes:
    """The function in a thin line below its imitation; the anchors are ticks at the foot.

    `f` is needed only for a function of your own that is not registered. Draws into `ax`, or into a figure of
    its own, and returns the axes.

    >>> import attnc, attnc.plot
    >>> ax = attnc.plot.function(attnc.head("tanh", domain=(-8, 8), eps=1e-5))
    >>> ax.get_xlim() == (-8, 8)
    True
    """
    about(head, "function")
    seen = sample(head, function_of(head, f))
    ax = new_axes(7, 3) if ax is None else ax
    draw_function(head, ax, seen)
    return ax


def error(head: Head, ax: Axes | None = None, f: AnyFunction | None = None) -> Axes:
    """|head - f| on a logarithmic axis, with the proved bound as a line and the witness as a point.

    Where the error is only measured, the line is the largest error measured, and says so. `f` and `ax` as in
    `function`.

    >>> import attnc, attnc.plot
    >>> tanh = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    >>> [line.get_label() for line in attnc.plot.error(tanh).lines if "bound" in line.get_label()]
    ['proved bound ...e-06']
    """
    about(head, "error")
    seen = sample(head, function_of(head, f))
    ax = new_axes(7, 3) if ax is None else ax
    draw_error(head, ax, seen)
    return ax


def draw_function(head: Head, ax: Axes, seen: Sample) -> None:
    """Both curves, and a tick at the foot for each anchor of the domain."""
    known = about(head)
    ax.plot(seen.s, seen.f, color=INK, linewidth=0.9, label=plain(f"f = {known.function}"), zorder=2)
    ax.plot(seen.s, seen.head, color=BLUE, linewidth=2.4, linestyle=(0, (3, 2)), label="head", zorder=3)
    anchors = head.anchors.numpy().ravel()
    inside = anchors[(anchors >= known.domain.lo) & (anchors <= known.domain.hi)]
    some = (
        "anchors"
        if len(inside) == len(anchors)
        else f"anchors ({len(inside)} of {len(anchors)} in the domain)"
    )
    ax.margins(y=0.1)
    ax.plot(
        inside, np.full(len(inside), 0.035), transform=ax.get_xaxis_transform(), linestyle="none", marker="|",
        markersize=8, markeredgewidth=1.2, color=VERMILION, clip_on=False, label=some, zorder=4,
    )  # fmt: skip
    _finish(ax, head, "function")


def draw_error(head: Head, ax: Axes, seen: Sample) -> None:
    """The curve, the line that it stays below and the point that comes closest."""
    line = level(head, seen)
    ax.plot(seen.s, seen.error, color=BLUE, linewidth=1, label="_error")
    _set_scale(ax, seen, line)
    style = "-" if line.proved else "--"
    ax.axhline(line.height, color=VERMILION, linewidth=1.4, linestyle=style, label=line.label)
    ax.plot(
        [line.input], [line.error], linestyle="none", marker="o", markersize=6, markerfacecolor="white",
        markeredgecolor=INK, label=line.point_label, zorder=5, clip_on=False,
    )  # fmt: skip
    ax.set_ylabel("|head − f|", fontsize=9)
    _finish(ax, head, "error")


def _set_scale(ax: Axes, seen: Sample, line: Level) -> None:
    """A logarithmic axis that ends above the line; where the error is zero everywhere, a plain one."""
    shown = np.array([line.height, *seen.error])
    shown = shown[np.isfinite(shown) & (shown > 0)]
    if not len(shown):
        return
    lowest, top = float(shown.min()), float(shown.max())
    ax.set_yscale("log")
    ax.set_ylim(max(lowest / 2, top * 10.0**-_DECADES), top * 2)


def _finish(ax: Axes, head: Head, title: str) -> None:
    domain = about(head).domain
    ax.set_xlim(domain.lo, domain.hi)
    ax.set_xlabel("s", fontsize=9)
    ax.set_title(title, fontsize=10, loc="left", color=INK)
    ax.legend(
        fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, borderaxespad=0.1
    )
    ax.tick_params(labelsize=8)
    ax.grid(True, color=GREY, alpha=0.2, linewidth=0.6)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
