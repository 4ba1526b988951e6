"""Options that several commands share: one name and one meaning each."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    import torch

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]
Dtype = Annotated[str, typer.Option(help="float32 or float64.")]
_OUTPUT = "Write the result and its certificate (.safetensors)."
_SAVED = "A file of `attnc head` or `attnc compile`, or a directory of `attnc convert`."
Plot = Annotated[Path | None, typer.Option(metavar="PATH", help="Draw the result (.png, .svg or .pdf).")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="PATH", help=_OUTPUT)]
Saved = Annotated[Path, typer.Argument(metavar="PATH", help=_SAVED)]
_DTYPES = ("float32", "float64")


def parse_dtype(name: str) -> torch.dtype:
    """The dtype that --dtype names.

    >>> parse_dtype("float64")
    torch.float64
    """
    import torch

    if name not in _DTYPES:
        raise InputError(f"--dtype {name}: accepted values are {' and '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def check_files(output: Path | None, plot: Path | None, force: bool) -> dict[str, str]:
    """Check, before any work, that the files can be written; return the paths by option.

    A file that exists needs --force; its directory must exist and be writable."""
    if plot is not None:
        from attnc.plot.canvas import picture_format, require_matplotlib

        picture_format(plot)
        require_matplotlib()
    paths = {name: path for name, path in (("output", output), ("plot", plot)) if path is not None}
    if len({os.path.abspath(path) for path in paths.values()}) < len(paths):
        raise InputError(f"--output and --plot are both {output}: give two different files")
    for path in paths.values():
        try:
            _check_file(path, force)
        except OSError as problem:
            raise FileError(f"cannot write {path}: {problem.strerror or problem}") from problem
    return {name: str(path) for name, path in paths.items()}


def _check_file(path: Path, force: bool) -> None:
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a directory; give the name of a file")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: the directory {path.parent} does not exist; create it first")
    if os.path.lexists(path) and not force:
        raise FileError(f"{path} exists: give --force to overwrite it, or another name")
    with tempfile.TemporaryFile(dir=path.parent):
        pass
