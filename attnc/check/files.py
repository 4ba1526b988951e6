"""Files read by the checker itself: tensors in safetensors, and JSON. Reading executes nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from attnc.errors import CertificateError, FileError
from attnc.program.step import Numbers
from attnc.records.numbers import digest

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_PLACE = re.compile(r"(?<=\.)\d+(?=\.)|\w+$")  # of layers.0.mlp.weight: 0, weight


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise FileError(f"cannot read {file}: {getattr(problem, 'strerror', None) or problem}") from problem
    if not isinstance(found, dict):
        raise FileError(f"{file} is not a JSON object")
    return found


class TensorFile:
    """A safetensors file; its tensors are read on demand."""

    def __init__(self, file: Path) -> None:
        try:
            opened: Any = safe_open(file, "pt")
            self.opened, self.names = opened, [str(name) for name in opened.keys()]  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as problem:
            raise FileError(f"{file} is not a safetensors file, or it is damaged: {problem}") from problem

    def read(self, name: str) -> Numbers:
        tensor = self.opened.get_tensor(name)
        found: Numbers = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        return found


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """The "attnc" record and the tensors of a file."""
    file = TensorFile(Path(path))
    metadata = file.opened.metadata() or {}
    if "attnc" not in metadata:
        raise FileError(f"{path} was not written by attnc: it has no 'attnc' record in its metadata")
    try:
        about = json.loads(metadata["attnc"])
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{path}: the 'attnc' record is not JSON: {problem}") from problem
    if not isinstance(about, dict):
        raise FileError(f"{path}: the 'attnc' record must be a JSON object")
    return about, {name: file.read(name) for name in file.names}


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
        opened = [TensorFile(where / name) for name in sorted(files)]
        self.files = {name: file for file in opened for name in file.names}

    def find(self, name: str, role: str, expected: str) -> Numbers:
        """The tensor of this name and digest. transformers renames some tensors when it saves a model: then it is the one with
        this digest, the same numbers and the same end in its name."""
        place = _PLACE.findall(name)
        others = [other for other in self.files if _PLACE.findall(other) == place]
        for candidate in [name] if name in self.files else others:
            array = self.files[candidate].read(candidate)
            if digest(role, array) == expected:
                return array
        if not others:
            raise FileError(f"the tensor {name} is missing: convert the original model again")
        raise CertificateError(f"the tensor {name} changed since it was certified: convert the model again")
