"""Plots of token networks: who attends to whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from attnc.errors import ArgumentError, InputError
from attnc.network.tokens import TokenNetwork
from attnc.plot import canvas
from attnc.plot.canvas import SavePath

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 8  # heads of a figure by default
_COLUMNS = 4


def token_attention(
    net: TokenNetwork,
    sequence: Sequence[str | int] | None = None,
    *,
    heads: Sequence[str] | None = None,
    path: SavePath = None,
) -> Figure:
    """Plot the attention weights of a token network on a sequence: queries are rows, keys are columns, BOS is the first.

    `heads` selects from the names in `net.attention(…)`; by default the heads are drawn that compute a variable of the program,
    and the first steps, up to 8. Returns the Figure, saved to `path` if one is given.

    >>> from attnc import plot, zoo
    >>> net = zoo.load("induction", vocabulary=3, length=5)
    >>> [ax.get_title(loc="left") for ax in plot.token_attention(net, "abab").axes][:2]
    ['0.0 previous', '1.0 induction']
    """
    canvas.prepare(path, net, (TokenNetwork,), "token_attention", "give what attnc.tokens compiles")
    if sequence is None:
        raise ArgumentError(
            'weights are those of a sequence: give one, as in token_attention(net, sequence="abcab")'
        )
    with torch.no_grad():
        weights = net.attention(net.encode(sequence))
    chosen = _chosen(net, list(weights)) if heads is None else list(heads)
    if not chosen:
        shown = ", ".join(list(weights)[:_MOST])
        raise InputError(f"heads={chosen}: the network has the heads {shown or 'none'}")
    drawn = [weights[name] for name in chosen]
    columns = min(_COLUMNS, len(chosen))
    rows = -(-len(chosen) // columns)
    side = 1.2 + 0.28 * (len(sequence) + 1)
    figure = canvas.new_figure(columns * side + 0.6, rows * side + 0.4)
    labels = [canvas.plain(str(token)) for token in ("BOS", *sequence)]
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(len(chosen))]
    for ax, name, matrix in zip(axes, chosen, drawn, strict=True):
        image = canvas.heat_image(ax, matrix.double().numpy(), origin="upper")
        canvas.title(ax, name)
        ax.set_xticks(range(len(labels)), labels, fontsize=7)
        ax.set_yticks(range(len(labels)), labels, fontsize=7)
        ax.set_xlabel("key", fontsize=8)
        ax.set_ylabel("query", fontsize=8)
    canvas.colour_bar(image, axes, "weight")
    return canvas.finish(figure, path)


def _chosen(net: TokenNetwork, names: list[str]) -> list[str]:
    """The heads with a variable first, then steps; in the order of the network."""
    roles = [role for layer in net.numbers().layers for role in layer.roles]
    order = sorted(range(len(names)), key=lambda i: roles[i].kind == "step")
    return [names[i] for i in sorted(order[:_MOST])]
