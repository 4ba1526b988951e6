"""The figure of docs/selectors.md: errors against anchors for every selector, and what the weights of each look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnc.paper.selectors import SELECTORS, select
from attnc.plot import canvas

# Okabe and Ito's colours; softmax in vermilion.
STYLES: dict[str, tuple[str, str, str]] = {
    "linear": ("#777777", "v", "-"),
    "hard": ("#222222", "s", "-"),
    "softmax at c = 4": (canvas.VERMILION, "o", ":"),
    "relu": ("#E69F00", "^", "-"),
    "sparsemax": (canvas.BLUE, "D", "-"),
    "entmax15": ("#56B4E9", "P", "-"),
    "sigmoid": ("#009E73", "x", "-"),
    "softmax": (canvas.VERMILION, "o", "-"),
    "graded": ("#CC79A7", "*", "--"),
}
LABELS = {
    "linear": "linear",
    "hard": "hard (argmax)",
    "softmax at c = 4": "softmax, the paper's sharpness",
    "relu": "ReLU",
    "sparsemax": "sparsemax",
    "entmax15": "entmax 1.5",
    "sigmoid": "sigmoid",
    "softmax": "softmax, the right sharpness",
    "graded": "softmax, anchors graded to the kink",
}
GOOD_FOR = {
    "hard": (1.0, "reads one value\nexactly: look-ups"),
    "sparsemax": (1.0, "linear interpolation;\nRange with two keys, exactly"),
    "entmax15": (2.0, "exact zeros\nwithout corners"),
    "relu": (1.0, "linear splines;\nno exponential"),
    "linear": (1.0, "sums over tokens in\nlinear time; selects nothing"),
    "sigmoid": (0.3, "no sum over keys; smooth\nfunctions, with large values"),
    "softmax": (0.3, "smooth functions, exponentially,\nwith small values"),
}
TITLES = {
    "smooth": "smooth: 1/(1 + s²)",
    "kink at an anchor": "kinked: exp(-|s|), the kink at an anchor",
    "kink between anchors": "kinked: exp(-|s|), the kink between anchors",
}


def draw(stored: dict[str, Any], path: Path) -> None:
    """Above, the largest error against p for each function; below, the weights of p = 7 anchors and what they are good for."""
    figure = canvas.new_figure(13.5, 7.6)
    canvas.heading(figure, "The same anchors and the same least squares, another selector")
    above, below = figure.subfigures(2, 1, height_ratios=(2.1, 1.0))
    axes = above.subplots(1, 3, sharey=False)
    for ax, (case, title) in zip(axes, TITLES.items(), strict=True):
        for name, (colour, marker, line) in STYLES.items():
            for row in (r for r in stored["rows"] if (r["case"], r["selector"]) == (case, name)):
                ax.plot(
                    row["sizes"], row["errors"], marker=marker, linestyle=line, color=colour, linewidth=1.6,
                    markersize=9 if name == "relu" else 5, label=LABELS[name],
                )  # fmt: skip
        _axes(ax, title)
    axes[0].set_ylabel("largest error found")
    entries = dict(zip(*reversed(axes[1].get_legend_handles_labels()), strict=True))
    axes[0].legend(entries.values(), entries, fontsize=8, frameon=False, loc="lower left")
    panels = below.subplots(1, len(GOOD_FOR))
    for ax, (name, (c, words)) in zip(panels, GOOD_FOR.items(), strict=True):
        _weights(ax, name, c, words)
    canvas.save(figure, path)


def _axes(ax: Any, title: str) -> None:
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks((4, 8, 16, 32, 64))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("anchors p")
    canvas.title(ax, title)
    canvas.style(ax)


def _weights(ax: Any, name: str, c: float, words: str) -> None:
    """The weights of seven anchors against s, one of them in colour."""
    made = select("sin", name, anchors=7, domain=(-3, 3), sharpness=c)
    s = torch.linspace(-3, 3, 1201, dtype=torch.float64)
    weights = made.weights(s).numpy()
    if not SELECTORS[name].cancels:
        weights = weights / np.abs(weights).max()
    middle = 4 if name == "linear" else 3
    for k in (k for k in range(7) if k != middle):
        ax.plot(s, weights[:, k], color=canvas.GREY, linewidth=0.7, alpha=0.5)
    ax.plot(s, weights[:, middle], color=STYLES[name][0], linewidth=2.2)
    ax.plot(made.anchors, np.full(7, ax.get_ylim()[0]), "|", color=canvas.INK, markersize=6)
    canvas.title(ax, LABELS[name].partition(",")[0])
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel(words, fontsize=8)
