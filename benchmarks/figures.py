"""The pictures of docs/heads.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from head_rates import Fit

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

Record = dict[str, Any]
# Okabe and Ito's colours, told apart by marker too
STYLE = {
    "nearest": ("#0072B2", "o"),
    "smooth": ("#009E73", "s"),
    "graded": ("#D55E00", "^"),
    "tuned": ("#8E4585", "D"),
}
GREY = "#777777"
LOWEST, HIGHEST = 1e-16, 20.0
TICKS = (2, 4, 8, 16, 32, 64, 256, 1024)
# where a design's name stands: at its n-th point from the end, moved by points of type, aligned so
LABELS = {
    "nearest": (1, (6, -20), "right"),
    "smooth": (1, (6, 3), "left"),
    "graded": (2, (7, 3), "left"),
    "tuned": (1, (-4, -17), "left"),
}
SPECIAL_LABELS = {
    ("relu", "smooth"): (6, (0, -20), "left"),
    ("clip(-25,25)", "smooth"): (6, (0, -20), "left"),
    ("tanh", "tuned"): (1, (8, -3), "left"),
    ("sin", "tuned"): (1, (9, -15), "left"),
}


def rates(curves: list[Record], path: Path) -> None:
    """A panel for each function, both axes logarithmic: bound, witness, fitted law, the paper's line."""
    functions = list(dict.fromkeys(c["function"] for c in curves))
    columns = 3
    lines = -(-(len(functions) + 1) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(13, 4.3 * lines), squeeze=False, sharex=True, sharey=True
    )
    panels = list(grid.flat)
    key = panels.pop(min(2, len(functions)))
    for axes, function in zip(panels, functions, strict=False):
        _panel(axes, function, [c for c in curves if c["function"] == function])
    for axes in panels[len(functions) :]:
        axes.set_axis_off()
    _reading_key(key)
    for axes in grid[:, 0]:
        axes.set_ylabel("largest error")
    for axes in grid[-1]:
        axes.set_xlabel("anchors p")
    _save(figure, path)


def _panel(axes: Axes, function: str, curves: list[Record]) -> None:
    lo, hi = curves[0]["rows"][0]["lo"], curves[0]["rows"][0]["hi"]
    axes.set_title(f"{function} on [{lo:g}, {hi:g}]", loc="left", fontsize=11)
    axes.set(xscale="log", yscale="log", ylim=(LOWEST, HIGHEST))
    axes.set_xticks(TICKS, [str(p) for p in TICKS])
    axes.minorticks_off()
    axes.grid(color="#e6e6e6", linewidth=0.6)
    for c in curves:
        _curve(axes, c)


def _curve(axes: Axes, c: Record) -> None:
    colour, marker = STYLE[c["design"]]
    rows = [r for r in c["rows"] if r["bound"] is not None and r["bound"] < 1e3]
    p, bound = [r["anchors"] for r in rows], [r["bound"] for r in rows]
    axes.plot(p, bound, marker, color=colour, markersize=5, zorder=3)
    axes.plot(p, [r["measured"] for r in rows], "_", color="black", markersize=7, markeredgewidth=1, zorder=4)
    if c["fit"]:
        _fitted(axes, Fit(**c["fit"]), colour)
    else:
        axes.plot(p, bound, color=colour, linewidth=0.8, alpha=0.5)
    if c["paper"]:
        axes.plot([r["anchors"] for r in c["rows"]], c["paper"], color=GREY, linewidth=1.2, linestyle=":")
    back, offset, side = SPECIAL_LABELS.get((c["function"], c["design"]), LABELS[c["design"]])
    at = max(0, len(p) - back)
    text = f"{c['design']}  {_law(c['fit'])}" if c["fit"] else c["design"]
    axes.annotate(
        text,
        (p[at], bound[at]),
        offset,
        textcoords="offset points",
        ha=side,
        color=colour,
        fontsize=9,
        zorder=5,
    )


def _fitted(axes: Axes, fit: Fit, colour: str) -> None:
    x = np.geomspace(fit.first, fit.last, 100)
    axes.plot(x, [fit(float(v)) for v in x], "-", color=colour, linewidth=1.2)


def _law(fit: Record) -> str:
    k = f"{fit['k']:.2f}"
    return {
        "p^-k": f"$p^{{-{k}}}$",
        "exp(-k p)": f"$e^{{-{k}p}}$",
        "exp(-k sqrt p)": rf"$e^{{-{k}\sqrt{{p}}}}$",
    }[fit["law"]]


def _reading_key(axes: Axes) -> None:
    """The empty panel says how to read the others."""
    axes.set_axis_off()
    shown = [
        Line2D([], [], color=c, marker=m, linestyle="", label=f"{d}: proved bound")
        for d, (c, m) in STYLE.items()
    ]
    shown += [
        Line2D(
            [],
            [],
            color="black",
            marker="_",
            linestyle="",
            markersize=8,
            label="error at the witness, executed",
        ),
        Line2D([], [], color="black", label="fitted law, over the p it was fitted to"),
        Line2D([], [], color=GREY, linestyle=":", label="hard limit (b-a)/(2(p-1))"),
    ]
    axes.legend(handles=shown, loc="center left", frameon=False, fontsize=11, labelspacing=0.9)


def floor(records: list[Record], path: Path) -> None:
    """One line a function: the lowest bound proved in float32 and in float64, with and without the gate."""
    functions = list(dict.fromkeys(r["function"] for r in records))
    figure, axes = plt.subplots(figsize=(9, 0.3 * len(functions) + 1.4))
    looks = {"float32": STYLE["graded"][0], "float64": STYLE["nearest"][0]}
    for r in records:
        gated = r["design"] == "gated"
        y = functions.index(r["function"])
        if gated and r["bound"] >= _alone(records, r):
            continue
        face = "white" if gated else looks[r["dtype"]]
        axes.plot(
            r["bound"], y, "D" if gated else "o", color=looks[r["dtype"]], markerfacecolor=face, markersize=7
        )
    axes.set_yticks(range(len(functions)), functions)
    axes.set_ylim(len(functions) - 0.4, -1.1)
    axes.set_xscale("log")
    axes.set_xlabel("lowest proved bound, rounding included")
    axes.grid(color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    for dtype, colour in looks.items():
        middle = np.exp(np.median([np.log(r["bound"]) for r in records if r["dtype"] == dtype]))
        axes.annotate(
            dtype, (middle, -0.55), color=colour, ha="center", va="center", fontsize=11, fontweight="bold"
        )
    shown = [
        Line2D([], [], color=GREY, marker="o", linestyle="", label="anchors alone"),
        Line2D(
            [],
            [],
            color=GREY,
            marker="D",
            markerfacecolor="white",
            linestyle="",
            label="gated, where it is lower",
        ),
    ]
    axes.legend(handles=shown, frameon=False, loc="upper right", bbox_to_anchor=(1.0, 1.08), ncols=2)
    _save(figure, path)


def _alone(records: list[Record], like: Record) -> float:
    """The bound of the head over anchors alone for the same function and dtype."""
    same = [r for r in records if (r["function"], r["dtype"]) == (like["function"], like["dtype"])]
    return min((r["bound"] for r in same if r["design"] != "gated"), default=float("inf"))


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=110, format="png", metadata={"Software": None})
    temporary.replace(path)
    plt.close(figure)
