"""Files: tensors in safetensors, and a JSON record in the metadata under "attnc". Reading executes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes

from attnc.errors import FileError, InputError


def write_file(
    path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]
) -> None:
    """Write to a temporary name beside the target, then rename: a failure leaves what was there."""
    target = _path(path)
    data = save_bytes(dict(tensors), metadata={"attnc": json.dumps(about)})
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    except (OSError, ValueError) as problem:
        raise FileError(
            f"cannot write {target}: {getattr(problem, 'strerror', None) or problem}"
        ) from problem
    finally:
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The record and the tensors; whatever is wrong with the file is said."""
    source = _path(path)
    try:
        data = source.read_bytes()
    except (OSError, ValueError) as problem:
        raise FileError(f"cannot read {source}: {getattr(problem, 'strerror', None) or problem}") from problem
    about = _about(source, data)
    try:
        return about, load_bytes(data)
    except (SafetensorError, ValueError, RuntimeError, KeyError) as problem:
        raise FileError(f"{source} is damaged: {problem}") from problem


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a file is given by its path: got {type(path).__name__}")
    return Path(path)


def _about(source: Path, data: bytes) -> dict[str, Any]:
    """The JSON record of the metadata, from the header alone."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        if size > len(data) - 8:
            raise ValueError("the header is cut off")
        header = json.loads(data[8 : 8 + size])
        metadata = header.get("__metadata__", {})
    except (struct.error, ValueError, AttributeError, RecursionError) as problem:
        raise FileError(f"{source} is not a safetensors file, or it is damaged: {problem}") from problem
    if not isinstance(metadata, dict) or "attnc" not in metadata:
        raise FileError(
            f"{source} is a safetensors file, but not one that attnc wrote: it has no 'attnc' record in its metadata"
        )
    try:
        about = json.loads(metadata["attnc"])
    except (ValueError, TypeError, RecursionError) as problem:
        raise FileError(f"{source}: the 'attnc' record is not JSON: {problem}") from problem
    if not isinstance(about, dict):
        raise FileError(f"{source}: the 'attnc' record must be a JSON object")
    return about
