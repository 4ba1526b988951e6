"""Files: tensors in safetensors, and a JSON record in the metadata under "attnc". Reading executes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load, save

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
        data = source.read_bytes()
    except (OSError, ValueError) as problem:
        raise FileError(f"cannot read {source}: {getattr(problem, 'strerror', None) or problem}") from problem
    about = _about(source, data)
    try:
        return about, {name: np.array(array) for name, array in load(data).items()}
    except (SafetensorError, ValueError, RuntimeError, KeyError, TypeError) as problem:
        raise FileError(f"{source} is damaged: {problem}") from problem


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a file is given by its path: got {type(path).__name__}")
    return Path(path)


def _about(source: Path, data: bytes) -> dict[str, Any]:
    """The JSON record of the metadata, from the header alone."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__", {})
    except (struct.error, ValueError, AttributeError, RecursionError) as problem:
        raise FileError(f"{source} is not a safetensors file, or it is damaged: {problem}") from problem
    if not isinstance(metadata, dict) or "attnc" not in metadata:
        raise FileError(f"{source} was not written by attnc: it has no 'attnc' record in its metadata")
    try:
        about = json.loads(metadata["attnc"])
    except (ValueError, TypeError, RecursionError) as problem:
        raise FileError(f"{source}: the 'attnc' record is not JSON: {problem}") from problem
    if not isinstance(about, dict):
        raise FileError(f"{source}: the 'attnc' record must be a JSON object")
    return about
