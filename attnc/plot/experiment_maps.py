"""Experiment 2: attention weights of test samples over the anchors, trained above built."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError
from attnc.paper.experiments import Record
from attnc.paper.experiments.report.sweeps import together
from attnc.plot.canvas import WEIGHTS, new_figure, picture_format, require_matplotlib, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Indices = NDArray[np.intp]

SAMPLES = 3
_ROWS = {"trained": "trained", "nearest": "built"}


def heat_maps(records: Iterable[Record], path: str | os.PathLike[str] | None = None) -> Figure:
    """Weights of three test samples for each width of the range, of the first seed: a row of pixels is a token, a column an
    anchor. The tokens stand in the order in which the built head attends, in both rows alike.

    >>> heat_maps([])
    Traceback (most recent call last):
    attnc.errors.InputError: no attention weights of experiment heat-map: run `attnc reproduce heatmaps`
    """
    require_matplotlib()
    if path is not None:
        picture_format(path)
    found = _first_seed(together(records))
    if not found:
        raise InputError("no attention weights of experiment heat-map: run `attnc reproduce heatmaps`")
    widths = sorted({width for width, _ in found})
    methods = [method for method in _ROWS if any((width, method) in found for width in widths)]
    figure = new_figure(0.9 + 4.2 * len(widths), 0.5 + 1.75 * len(methods))
    maps, beside = figure.subfigures(1, 2, squeeze=False, width_ratios=(4.2 * len(widths), 0.75))[0]
    parts = maps.subfigures(len(methods), len(widths), squeeze=False)
    image = None
    for i, method in enumerate(methods):
        for j, width in enumerate(widths):
            if (width, method) in found:
                image = _panels(parts[i][j], found[width, method], _order(found, width))
    beside.colorbar(image, cax=beside.add_axes((0.05, 0.15, 0.22, 0.7)), label="attention weight")
    _unclipped(figure)
    if path is not None:
        save_same(figure, path)
    return figure


def save_same(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Save, with names inside an SVG that are the same whenever the same figure is saved."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "attnc"}):
        save(figure, path)


def _unclipped(figure: Figure) -> None:
    """Images fill their axes, nothing is cut off. A clip is named in an SVG after a position to its last bit, which the layout
    does not give twice the same."""
    for ax in figure.get_axes():
        for one in ax.get_children():
            one.set_clip_on(False)


def _first_seed(records: Iterable[Record]) -> dict[tuple[float, str], Record]:
    """By width and method, the run of the smallest seed that has weights."""
    found: dict[tuple[float, str], Record] = {}
    for one in sorted(records, key=lambda one: one.setting.seed):
        if one.setting.experiment == "heat-map" and one.weights:
            found.setdefault((one.setting.b - one.setting.a, one.setting.method), one)
    return found


def _order(found: dict[tuple[float, str], Record], width: float) -> list[Indices]:
    """For each sample, the tokens from the first anchor to the last, by the mean anchor that the built head attends to."""
    guide = found.get((width, "nearest")) or found[width, "trained"]
    weights = np.asarray(guide.weights)
    centres = weights @ np.arange(weights.shape[-1])
    return [np.argsort(row, kind="stable") for row in centres]


def _panels(part: Any, one: Record, order: list[Indices]) -> Any:
    """The samples of one run side by side, under a title."""
    weights = np.asarray(one.weights)[:SAMPLES]
    picked = "" if one.picked is None else f", nearest picked {100 * one.picked:.1f} %"
    part.suptitle(
        f"{_ROWS[one.setting.method]}, b − a = {one.setting.b - one.setting.a:g}{picked}", fontsize=9
    )
    for k, (ax, sample) in enumerate(
        zip(part.subplots(1, len(weights), squeeze=False)[0], weights, strict=True)
    ):
        image = ax.imshow(
            sample[order[k]], cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto", interpolation="nearest"
        )
        ax.set_xticks([])
        ax.set_yticks([])
        if k == 0:
            ax.set_ylabel("tokens", fontsize=8)
        ax.set_xlabel("anchors", fontsize=8)
    return image
