"""The heat map: which anchors a head attends to, for every input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnc.certify.numbers import Array
from attnc.network.head import Head
from attnc.plot.canvas import BLUE, GREY, INK, WEIGHTS, new_axes
from attnc.plot.sample import about, attention_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_MOST_LABELS = 18


def attention(head: Head, ax: Axes | None = None) -> Axes:
    """The attention weights: s from left to right, the anchors in order of position from below, head on head.

    Draws into `ax`, or into a figure of its own, and returns the axes.

    >>> import attnc, attnc.plot
    >>> tanh = attnc.head("tanh", on=(-8, 8), eps=1e-5)
    >>> attnc.plot.attention(tanh).images[0].get_array().shape[0]     # a row for each anchor
    2
    """
    ax = new_axes(7, 3.6) if ax is None else ax
    image = draw_attention(head, ax)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.04)
    bar.set_label("attention weight", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    return ax


def draw_attention(head: Head, ax: Axes) -> AxesImage:
    """The heat map without its scale of colours."""
    domain = about(head).domain
    weights, positions, share = attention_columns(head)
    rows = len(weights)
    image = ax.imshow(
        weights, cmap=WEIGHTS, vmin=0, vmax=1, origin="lower", aspect="auto", interpolation="nearest",
        extent=(domain.lo, domain.hi, -0.5, rows - 0.5),
    )  # fmt: skip
    in_head = rows // head.heads
    _label_anchors(ax, [row[::share] for row in positions])
    if head.heads > 1:
        _separate_heads(ax, head.heads, in_head)
    ax.set_xlabel("s", fontsize=9)
    ax.set_ylabel("anchor at" if share == 1 else f"anchors from ({share} in a row)", fontsize=9)
    ax.set_title("attention weights", fontsize=10, loc="left", color=INK)
    ax.tick_params(labelsize=8)
    return image


def _label_anchors(ax: Axes, positions: list[Array]) -> None:
    """The position of every anchor, or of every n-th where they would overlap."""
    in_head = len(positions[0])
    each = max(1, _MOST_LABELS // len(positions))
    step = -(-in_head // each)
    heads = range(0, len(positions), -(-len(positions) // _MOST_LABELS))
    places = [(h * in_head + k, positions[h][k]) for h in heads for k in range(0, in_head, step)]
    ax.set_yticks([row for row, _ in places], [_short(position) for _, position in places])


def _separate_heads(ax: Axes, heads: int, in_head: int) -> None:
    """A line between heads, and their numbers at the right."""
    for h in range(1, heads):
        ax.axhline(h * in_head - 0.5, color=BLUE, linewidth=1.5)
    shown = range(0, heads, -(-heads // _MOST_LABELS))
    side = ax.secondary_yaxis("right")
    side.set_yticks([(h + 0.5) * in_head - 0.5 for h in shown], [f"head {h + 1}" for h in shown])
    side.tick_params(labelsize=8, length=0, labelcolor=GREY)


def _short(position: float) -> str:
    return f"{position:.3g}".replace("-", "−")
