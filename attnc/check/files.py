"""Files read by the checker itself: safetensors (a JSON header, then raw little-endian numbers) and JSON."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from attnc.errors import CertificateError, FileError
from attnc.program.step import Numbers
from attnc.records.layers import digest

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
_PLACE = re.compile(r"(?<=\.)\d+(?=\.)|\w+$")  # of layers.0.mlp.weight: 0, weight


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise FileError(f"{file} cannot be read: {problem}") from problem
    if not isinstance(found, dict):
        raise FileError(f"{file} is not a JSON object")
    return found


class TensorFile:
    """A safetensors file; its tensors are read on demand."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            with file.open("rb") as opened:
                size = int.from_bytes(opened.read(8), "little")
                self.start, self.size = 8 + size, file.stat().st_size
                if self.start > self.size:
                    raise ValueError("the header is cut off")
                header = json.loads(opened.read(size))
            self.metadata = header.pop("__metadata__", {})
            self.entries = {str(name): self._entry(entry) for name, entry in header.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise FileError(
                f"{file} is not a safetensors file, or it is damaged: {getattr(problem, 'strerror', None) or problem}"
            ) from problem

    def _entry(self, entry: dict[str, Any]) -> tuple[str, tuple[int, ...], int, int]:
        """Dtype, shape, begin and end of a tensor."""
        dtype, shape, (begin, end) = str(entry["dtype"]), tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise ValueError("a shape or an offset is not a whole number")
        known = np.dtype(_DTYPES[dtype]).itemsize if dtype in _DTYPES else None
        whole = known is None or end - begin == math.prod(shape) * known
        if not (begin <= end <= self.size - self.start and whole):
            raise ValueError("a tensor does not fit into the file")
        return dtype, shape, begin, end

    def read(self, name: str) -> Numbers:
        dtype, shape, begin, end = self.entries[name]
        with self.file.open("rb") as opened:
            opened.seek(self.start + begin)
            data = opened.read(end - begin)
        if dtype == "BF16":  # the upper half of a float32
            wide = np.frombuffer(data, "<u2").astype("<u4") << 16
            return wide.view("<f4").reshape(shape)
        if dtype not in _DTYPES:
            raise FileError(f"{self.file}: the tensor {name} has the dtype {dtype}, which is not supported")
        return np.frombuffer(data, _DTYPES[dtype]).reshape(shape)


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """The "attnc" record and the tensors of a file."""
    file = TensorFile(Path(path))
    try:
        about = json.loads(file.metadata["attnc"])
    except (KeyError, TypeError) as problem:
        raise FileError(
            f"{path} was not written by attnc: it has no 'attnc' record in its metadata"
        ) from problem
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{path}: the 'attnc' record is not JSON: {problem}") from problem
    if not isinstance(about, dict):
        raise FileError(f"{path}: the 'attnc' record must be a JSON object")
    return about, {name: np.array(file.read(name)) for name in file.entries}


class Directory:
    """The tensors of a model directory, found by name and digest."""

    def __init__(self, where: Path) -> None:
        if (where / WEIGHTS).is_file():
            files = {WEIGHTS}
        else:
            index = read_json(where / INDEX).get("weight_map")
            files = set(map(str, index.values())) if isinstance(index, dict) else set()
            if not files or any(Path(name).name != name for name in files):
                raise FileError(f"{where / INDEX} does not list the files of the weights")
        self.files = {
            name: file
            for file in map(TensorFile, (where / f for f in sorted(files)))
            for name in file.entries
        }

    def find(self, name: str, role: str, expected: str) -> Numbers:
        """The tensor of this name and digest. transformers renames some tensors when it saves a model: then it is the one with
        this digest, the same numbers and the same end in its name."""
        place = _PLACE.findall(name)
        others = [other for other in self.files if other != name and _PLACE.findall(other) == place]
        for candidate in [name] if name in self.files else others:
            array = self.files[candidate].read(candidate)
            if digest(role, array) == expected:
                return array
        if name not in self.files and not others:
            raise FileError(f"the tensor {name} is missing: convert the original model again")
        raise CertificateError(
            f"the tensor {name} is not the one that was certified: convert the model again"
        )
