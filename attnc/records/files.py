"""Files: tensors in safetensors, and a JSON record in the metadata under "attnc". Reading executes nothing."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from attnc.errors import FileError, InputError
from attnc.program.step import Numbers


def write_file(
    path: str | os.PathLike[str], tensors: Mapping[str, ArrayLike], about: Mapping[str, Any]
) -> None:
    """Write a file; an existing file is replaced only when the new one is complete."""
    arrays = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        temporary.write_bytes(save(arrays, metadata={"attnc": json.dumps(about)}))


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside the target, renamed to it at the end; a failure leaves what was there."""
    target = _path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(target)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise FileError(f"cannot write {target}: {reason}") from problem
    finally:
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """The record and the tensors; a file that is not attnc's, or is damaged, raises `FileError`."""
    source = _path(path)
    try:
        with safe_open(source, framework="numpy") as file:
            metadata = file.metadata() or {}
            if "attnc" not in metadata:
                raise FileError(f"{source} was not written by attnc: its metadata have no 'attnc' record")
            about = json.loads(metadata["attnc"])
            tensors = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except OSError as problem:
        raise FileError(f"cannot read {source}: {problem.strerror or problem}") from problem
    except (SafetensorError, ValueError, RuntimeError, KeyError, TypeError) as problem:
        raise FileError(f"{source} is not a safetensors file, or it is damaged: {problem}") from problem
    if not isinstance(about, dict):
        raise FileError(f"{source}: the 'attnc' record must be a JSON object")
    return about, tensors


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a file is given by its path: got {type(path).__name__}")
    return Path(path)
