"""The files that a command will write are looked at before any work begins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attnc.errors import FileError, InputError


def check_targets(paths: Sequence[Path], force: bool) -> None:
    """Refuse a file that exists (unless forced), a directory that does not, or that is not writable."""
    if len({os.path.abspath(path) for path in paths}) < len(paths):
        raise InputError(f"{paths[0]} is named twice: give every file a name of its own")
    for path in paths:
        try:
            _check_target(path, force)
        except OSError as problem:
            raise FileError(f"cannot write {path}: {problem.strerror or problem}") from problem


def _check_target(path: Path, force: bool) -> None:
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a directory; give the name of a file")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: the directory {path.parent} does not exist; make it first")
    if os.path.lexists(path) and not force:
        raise FileError(f"{path} exists and is left as it is: give --force to overwrite it, or another name")
    with tempfile.TemporaryFile(dir=path.parent):
        pass
