"""matplotlib without its global state: figures of our own, made when needed, and files written whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from attnc.errors import FileError, InputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 150

# Okabe and Ito's colours, and a scale of even steps in lightness: both stay apart for colour-blind readers.
INK, BLUE, VERMILION, GREY = "#222222", "#0072B2", "#D55E00", "#777777"
WEIGHTS = "magma_r"


def require_matplotlib() -> None:
    """Raise `MissingExtraError` where pictures cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError(
            f"pictures need matplotlib, which cannot be imported ({problem}): pip install 'attnc[plot]'"
        ) from problem


def expect_kind(given: object, kinds: tuple[type, ...], name: str, what: str) -> None:
    """Raise an `InputError` where something else is given than can be drawn; `what` says where to get it."""
    if not isinstance(given, kinds):
        accepted = " or ".join(kind.__name__ for kind in kinds)
        raise InputError(f"plot.{name} draws a {accepted}: got {type(given).__name__}; {what}")


def new_figure(width: float, height: float) -> Figure:
    """A figure that no backend and no pyplot knows of. Sizes in inches."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def new_axes(width: float, height: float) -> Axes:
    """One set of axes in a figure of its own."""
    return new_figure(width, height).add_subplot()


def picture_format(path: str | os.PathLike[str]) -> str:
    """The format that a file name asks for.

    >>> picture_format("gelu.png")
    'png'
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{os.fspath(path)!r} does not name a kind of picture: "
            f"accepted are the suffixes {', '.join(SUFFIXES)}"
        )
    return suffix.removeprefix(".")


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write to a temporary name beside the target, then rename: a failure leaves what was there."""
    target, kind = Path(path), picture_format(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        undated = {"Date": None} if kind == "svg" else None  # the same picture is the same file
        figure.savefig(temporary, format=kind, dpi=DOTS_PER_INCH, metadata=undated)
        temporary.replace(target)
    except OSError as problem:
        raise FileError(f"cannot write {target}: {problem.strerror or problem}") from problem
    finally:
        temporary.unlink(missing_ok=True)


def plain(text: str) -> str:
    """Text in which matplotlib reads no mathematics: a function may be called anything.

    >>> print(plain("cost in $"))
    cost in \\$
    """
    return text.replace("$", r"\$")
