"""Options that several commands share: one name and one meaning each."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.domain import Box

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
Dtype = Annotated[str, typer.Option(help="float32 or float64.")]
_OUTPUT = "Write the result and its certificate (.safetensors)."
_SAVED = "A file of `attnc head` or `attnc compile`, or a directory of `attnc convert`."
Plot = Annotated[Path | None, typer.Option(metavar="PATH", help="Draw the result (.png, .svg or .pdf).")]


def output_option(help: str, metavar: str = "PATH") -> Any:
    """-o, which every command has for what it writes."""
    return typer.Option("-o", "--save", "--output", metavar=metavar, help=help)


Output = Annotated[Path | None, output_option(_OUTPUT)]
Report = Annotated[
    Path | None, typer.Option(metavar="PATH", help="Write a page with picture and proof (.html).")
]


def write_report(value: Any, path: Path | None, progress: Any) -> None:
    """The page of --report."""
    if path is None:
        return
    from attnc.plot.report import report

    progress(f"proving again for {path}")
    report(value, path)


Saved = Annotated[Path, typer.Argument(metavar="PATH", help=_SAVED)]


def parse_dtype(name: str) -> Any:
    """The dtype that --dtype names."""
    import torch

    if name not in ("float32", "float64"):
        raise InputError(f"--dtype {name}: accepted values are float32 and float64")
    return getattr(torch, name)


def check_files(output: Path | None, plot: Path | None, force: bool, **others: Path | None) -> dict[str, str]:
    """Check, before any work, that the files can be written; return the paths by option. `others` are files of other options.

    A file that exists needs --force; its directory must exist and be writable."""
    if plot is not None:
        from attnc.plot.canvas import picture_format, require_matplotlib

        picture_format(plot)
        require_matplotlib()
    if others.get("report") is not None:
        from attnc.plot.canvas import require_matplotlib
        from attnc.plot.report import page_name

        page_name(others["report"] or "")
        require_matplotlib()
    paths = {
        name: path for name, path in (("output", output), ("plot", plot), *others.items()) if path is not None
    }
    if len({os.path.abspath(path) for path in paths.values()}) < len(paths):
        options = " and ".join(f"--{name} {path}" for name, path in paths.items())
        raise InputError(f"{options} name the same file: give different files")
    for path in paths.values():
        try:
            if path.is_dir():
                raise FileError(f"cannot write {path}: it is a directory; give the name of a file")
            if os.path.lexists(path) and not force:
                raise FileError(f"{path} exists: give --force to overwrite it, or another name")
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as problem:
            raise FileError(f"cannot write {path}: {problem.strerror or problem}") from problem
    return {name: str(path) for name, path in paths.items()}


def parse_shape(text: str) -> tuple[int, ...]:
    """16, or 4,16."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InputError(f"--shape {text}: give positive integers, as in 16, or 4,16 for 4 tokens of 16")
    return tuple(map(int, parts))


def make_box(ends: tuple[str, str], shape: tuple[int, ...] | None, source: str) -> Box:
    """The box of --domain LO HI, each one number or one for each feature, which determines a shape of None. All tokens have the
    same ends."""
    import numpy as np

    from attnc.domain import Box

    try:
        lo, hi = ([float(part) for part in end.split(",")] for end in ends)
    except ValueError:
        raise InputError(f"--domain {' '.join(ends)}: give two numbers, or lists as in -1,0 1,5") from None
    features = max(len(lo), len(hi))
    if shape is None and features == 1:
        raise InputError(f"{source} does not determine the shape of an input: give --shape, as in 16 or 4,16")
    shape = shape or (features,)
    for end in (lo, hi):
        if len(end) not in (1, shape[-1]):
            raise InputError(f"--domain has {len(end)} numbers, {source} takes {shape[-1]} features")
    low, high = (end[0] if len(end) == 1 else np.broadcast_to(end, shape) for end in (lo, hi))
    return Box(low, high, shape)
