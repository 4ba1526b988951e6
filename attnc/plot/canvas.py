"""What all plots share: figures without matplotlib's global state, saving, the style, and the error that is known."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnc.domain import Array
from attnc.errors import InputError, MissingExtraError
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.records.certificate import Status
from attnc.records.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.legend import Legend

SavePath = str | os.PathLike[str] | None
Index = int | tuple[int, ...]
SUFFIXES = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 150

# Okabe and Ito's colours, and a perceptually uniform colour map: readers with colour blindness can tell them apart.
INK, BLUE, VERMILION, GREY = "#222222", "#0072B2", "#D55E00", "#777777"
WEIGHTS = "magma_r"


def require_matplotlib() -> None:
    """Raise `MissingExtraError` if matplotlib cannot be imported."""
    try:
        import matplotlib  # noqa: F401
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError(f"plots need matplotlib ({problem}): pip install 'attnc[plot]'") from problem


def prepare(path: SavePath, given: object, kinds: tuple[type, ...], plot: str, what: str) -> None:
    """Raise before any work if the plot cannot be drawn or saved; `what` tells where to get one of `kinds`."""
    require_matplotlib()
    if path is not None:
        picture_format(path)
    if not isinstance(given, kinds):
        accepted = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(f"plot.{plot} draws a {accepted}: got {type(given).__name__}; {what}")


def new_figure(width: float, height: float) -> Figure:
    """A figure that is not registered with pyplot. Sizes in inches."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def finish(drawn: Figure | Axes, path: SavePath) -> Figure:
    """The figure that holds `drawn`, saved to `path` if one is given."""
    figure: Any = drawn.get_figure(root=True)
    if path is not None:
        save(figure, path)
    return figure  # type: ignore[no-any-return]


def picture_format(path: str | os.PathLike[str]) -> str:
    """The file format, from the suffix."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"path={os.fspath(path)!r}: the suffix must be one of {', '.join(SUFFIXES)}")
    return suffix.removeprefix(".")


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write the file; an existing file is replaced only when the new one is complete."""
    kind = picture_format(path)
    undated = {"Date": None} if kind == "svg" else None  # equal figures give equal files
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=DOTS_PER_INCH, metadata=undated)


def plain(text: str) -> str:
    """Text without matplotlib's math mode: names may contain a dollar sign."""
    return text.replace("$", r"\$")


def selected(
    given: Sequence[Index] | None,
    shape: tuple[int, ...],
    default: Sequence[int],
    name: str,
    most: float = math.inf,
) -> list[int]:
    """Places in an array of this shape, given as tuples or as flat indices, as flat indices."""
    found = []
    for place in default if given is None else given:
        index, sizes = (place, shape) if isinstance(place, tuple) else ((place,), (math.prod(shape),))
        try:
            found.append(int(np.ravel_multi_index(index, sizes)))
        except (TypeError, ValueError):
            raise InputError(f"{name}: {place!r} is not an index into the shape {shape}") from None
    if not 1 <= len(found) <= most:
        raise InputError(f"{name}: {len(found)} were selected; select from 1 to {most:g}")
    return found


def coordinate(letter: str, place: int, shape: tuple[int, ...]) -> str:
    """'x[2, 1]'"""
    return f"{letter}[{', '.join(str(int(i)) for i in np.unravel_index(place, shape))}]"


def title(ax: Axes, text: str) -> None:
    ax.set_title(plain(text), fontsize=10, loc="left", color=INK)


def heading(figure: Figure, text: str) -> None:
    figure.suptitle(plain(text), fontsize=11, color=INK)


def style(ax: Axes, grid: Any = "both") -> None:
    """Small tick labels, a faint grid, no frame at the top and the right."""
    ax.tick_params(which="both", labelsize=8)
    if grid is not None:
        ax.grid(True, axis=grid, color=GREY, alpha=0.2, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)


def legend_above(ax: Axes, *entries: Any, columns: int = 3, **options: Any) -> Legend:
    where: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.1}
    return ax.legend(*entries, fontsize=8, frameon=False, ncols=columns, **where, **options)


def colour_bar(image: ScalarMappable, axes: Axes | list[Axes], label: str = "", **layout: Any) -> None:
    figure = (axes if isinstance(axes, list) else [axes])[0].figure
    bar = figure.colorbar(image, ax=axes, **{"pad": 0.015, "fraction": 0.025, "aspect": 30, **layout})
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def heat_image(ax: Axes, image: Array, low: float = 0, high: float = 1, **options: Any) -> AxesImage:
    """An image whose first row is at the bottom, without a colour bar."""
    ax.tick_params(labelsize=8)
    fixed = {"origin": "lower", "aspect": "auto", "interpolation": "antialiased", "cmap": WEIGHTS}
    return ax.imshow(image, vmin=low, vmax=high, **{**fixed, **options})


def curve_pair(ax: Axes, s: Array, exact: Array, executed: Array, names: tuple[str, str]) -> None:
    """The exact function as a thin black line, what is executed as a thick dashed blue line."""
    ax.plot(s, exact, color=INK, linewidth=0.9, label=plain(names[0]), zorder=2)
    ax.plot(s, executed, color=BLUE, linewidth=2.4, linestyle=(0, (3, 2)), label=plain(names[1]), zorder=3)


def rug(ax: Axes, at: Array, height: float, **options: Any) -> None:
    """Short vertical marks at a fraction `height` of the axes."""
    place: dict[str, Any] = {"transform": ax.get_xaxis_transform(), "zorder": 4}
    ax.plot(at, np.full(len(at), height), "|", **place, **options)


def open_circle(ax: Axes, x: float, y: float, label: str) -> None:
    fill: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": INK, "linestyle": "none"}
    ax.plot([x], [y], marker="o", markersize=6, label=label, zorder=5, clip_on=False, **fill)


def log_scale(ax: Axes, numbers: Iterable[float], room: float = 2, decades: float = 6) -> None:
    """A logarithmic y axis that ends above the largest number; a linear one if no number is positive."""
    positive = [x for x in numbers if 0 < x < np.inf]
    if positive:
        ax.set_yscale("log")
        top = max(positive)
        ax.set_ylim(max(min(positive) / room, top * 10.0**-decades), top * room)


@dataclass(frozen=True)
class KnownError:
    """A bound that is proved, or the largest error measured; None if neither holds for the numbers as they are."""

    value: float | None
    proved: bool
    text: str  # one line for a title

    def draw(self, ax: Axes) -> None:
        """A solid line at the proved bound, or a dashed line at the largest measured error."""
        if self.value is not None:
            measured = f"largest measured {self.value:.3g}, not proved"
            label = f"proved bound {self.value:.4g}" if self.proved else measured
            style = "-" if self.proved else "--"
            ax.axhline(self.value, color=VERMILION, linewidth=1.4, linestyle=style, label=label)


def known_error(model: Head | Network) -> KnownError:
    """The error of `model`, and whether it is proved."""
    certificate, reason = model.certificate, model.why_not_certified()
    if reason is None:
        return KnownError(certificate.bound, True, f"error at most {certificate.bound:.4g}, proved")
    if certificate.status is Status.MEASURED:
        reason = model.why_changed() if isinstance(model, Network) else None
        if reason is None:
            error, points = certificate.bound, certificate.facts["points"]
            return KnownError(error, False, f"error {error:.3g} measured at {points:,} points, not proved")
    return KnownError(None, False, shorten(f"not certified: {reason}", 100, placeholder=" …"))


def worst_input(net: Network) -> Tensor:
    """The certificate's witness, or the input of the largest measured error."""
    known = net.certificate.witness
    if known is None:
        raise InputError("this network has no certificate and no measurement: give the inputs to draw, x=...")
    point = torch.tensor(known.input, dtype=torch.float64).reshape(net.program.shape)
    return point.to(next(net.parameters()))
