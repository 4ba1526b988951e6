"""Files: tensors in safetensors, and JSON; those of attnc have a record in their metadata. Reading executes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from attnc.errors import CertificateError, FileError, InputError
from attnc.program.step import Numbers
from attnc.records.merged import NUMBER, merged
from attnc.records.numbers import digest

NOT_QUANTISED = "save the model with weights in float32, float64, bfloat16 or float16"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONVERTED, CONVERTED_INDEX = "attnc.safetensors", "attnc.safetensors.index.json"  # of a converted model
_PICKLED = "the suffix is that of torch's own format, torch.save"
OTHER_FORMATS = {
    **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt", ".pkl"), _PICKLED),
    ".onnx": "for an ONNX file call attnc.export(x, path)",
    ".html": "for a page call attnc.plot.report(x, path)",
}
_FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors names them
_PLACE = re.compile(rf"{NUMBER.pattern}|\w+$")  # of layers.0.mlp.weight: 0, weight
_MAPS = ("first", "second", "up")  # roles of tensors that experts may have


def write_file(
    path: str | os.PathLike[str], tensors: Mapping[str, ArrayLike], about: Mapping[str, Any]
) -> None:
    """Write a file; an existing file is replaced only when the new one is complete. Suffixes of other formats are refused."""
    if (kind := OTHER_FORMATS.get(_path(path).suffix.lower())) is not None:
        raise InputError(
            f"{os.fspath(path)!r}: {kind}, and this file is in safetensors: use a name that ends in .safetensors"
        )
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
        if isinstance(problem, FileNotFoundError) and not target.parent.is_dir():
            reason = f"the directory {target.parent} does not exist; make it first"
        raise FileError(f"cannot write {target}: {reason}") from problem
    finally:
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)


def read_json(file: Path, *, once: bool = False) -> dict[str, Any]:
    """A JSON object. With `once`, no object in it may have a name twice; otherwise the last of them counts."""
    try:
        return _object(file.read_text(encoding="utf-8"), str(file), _without_repetition if once else None)
    except (OSError, ValueError) as problem:
        raise FileError(f"cannot read {file}: {getattr(problem, 'strerror', None) or problem}") from problem


def _object(text: str | bytes, where: str, pairs: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as problem:
        raise FileError(f"{where} cannot be read as JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise FileError(f"{where} is not a JSON object")
    return found


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
        raise ValueError(f"it lists {twice} twice")
    return found


def _why_unreadable(path: Path, problem: Exception) -> str:
    """Why a path was not read as a safetensors file, and what to do."""
    if os.path.isdir(path):
        return "it is a directory; a converted transformer is read by attnc.from_pretrained(directory)"
    if isinstance(problem, FileNotFoundError):
        return "No such file or directory"
    if isinstance(problem, OSError):
        return str(problem)
    if path.suffix == ".onnx":
        return f"attnc writes ONNX files and does not read them; load or verify the file that it was exported from: {problem}"
    foreign = path.suffix in (".pt", ".pth", ".bin", ".pkl", ".joblib")
    why = " (files of torch.save or joblib are never read, because they can run code)" if foreign else ""
    return f"it is not safetensors, or damaged{why}: {problem}"


class TensorFile:
    """A safetensors file; its tensors are read on demand."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _path(path)
        try:
            opened: Any = safe_open(self.path, "pt")
            self.opened, self.names = opened, [str(name) for name in opened.keys()]  # noqa: SIM118
        except (SafetensorError, OSError, ValueError) as problem:
            raise FileError(f"cannot read {self.path}: {_why_unreadable(self.path, problem)}") from problem

    def check_header(self) -> None:
        """Refuse a file that lists a tensor twice: safetensors takes the last one."""
        with self.path.open("rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            _object(opened.read(size), f"the header of {self.path}", _without_repetition)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor that is a map of the file: its pages are read when they are used, and released with it."""
        try:
            found: torch.Tensor = self.opened.get_tensor(name)
        except (SafetensorError, ValueError, RuntimeError, TypeError) as problem:
            raise FileError(f"{self.path}: tensor {name!r} cannot be read: {problem}") from problem
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read."""
        return tuple(self.opened.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """The dtype of a tensor by its name in safetensors: F32, BF16, I8, …"""
        return str(self.opened.get_slice(name).get_dtype())

    def read(self, name: str) -> Numbers:
        """A copy of a tensor; bfloat16 becomes float32, since numpy has no such numbers. It is read by a map of its own: the
        pages of a map stay in memory as long as the map."""
        try:
            tensor = TensorFile(self.path).tensor(name)
            wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor.clone()
            found: Numbers = wide.numpy()
        except (SafetensorError, ValueError, RuntimeError, TypeError) as problem:
            raise FileError(f"{self.path}: tensor {name!r} cannot be read: {problem}") from problem
        return found


def read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Numbers]]:
    """The record and the tensors; a file that is not attnc's, or is damaged, raises `FileError`."""
    file = TensorFile(path)
    metadata = file.opened.metadata() or {}
    if "attnc" not in metadata:
        raise FileError(f"{path} was not written by attnc: its metadata have no 'attnc' record")
    about = _object(metadata["attnc"], f"{path}: the 'attnc' record")
    return about, {name: file.read(name) for name in file.names}


class Directory:
    """The tensors of a model directory, found by name and digest. Those of a converted model are in files of other names."""

    def __init__(self, where: Path) -> None:
        index = None
        converted = (where / CONVERTED).is_file() or (where / CONVERTED_INDEX).is_file()
        single, several = (CONVERTED, CONVERTED_INDEX) if converted else (WEIGHTS, INDEX)
        if not (where / single).is_file():
            index = read_json(where / several, once=True).get("weight_map")
            listed = set(map(str, index.values())) if isinstance(index, dict) else set()
            if not isinstance(index, dict) or not listed or any(Path(name).name != name for name in listed):
                raise FileError(f"{where / several} does not list the files of the weights")
        self.names = [single] if index is None else sorted(listed)
        self.files: dict[str, TensorFile] = {}
        for file in (TensorFile(where / name) for name in self.names):
            file.check_header()
            twice = [name for name in file.names if name in self.files]
            if twice:
                both = f"{self.files[twice[0]].path.name} and {file.path.name}"
                raise FileError(f"{where}: the tensor {twice[0]} is in {both}: one of them must not have it")
            self.files |= dict.fromkeys(file.names, file)
        for name in () if index is None else index.keys() | self.files.keys():
            found = self.files[name].path.name if name in self.files else "no file"
            if index is not None and index.get(name) != found:
                said = f"in {index[name]}" if name in index else "in no file"
                raise FileError(f"{where / several} says that the tensor {name} is {said}: it is in {found}")

    def check_floats(self, parameters: Iterable[str] = ()) -> None:
        """Refuse numbers of 8 bits, and parameters that are stored as integers: without the scales of their quantisation they
        mean nothing. The names of a model may have a prefix that those in the files do not have, or the other way round."""
        odd = [name for name, file in self.files.items() if file.dtype(name) not in _FLOATS]
        known = [f".{name}" for name in parameters] if odd else []
        for name in odd:
            kind, own = self.files[name].dtype(name), f".{name}"
            if kind.startswith("F8") or any(own.endswith(one) or one.endswith(own) for one in known):
                what = f"{self.files[name].path}: {name} is quantised, it is stored as {kind}"
                raise FileError(f"{what}: {NOT_QUANTISED}")

    def find(self, name: str, role: str, expected: str) -> Numbers:
        """The tensor of this name and digest. transformers renames some tensors when it saves a model: then it is the one with
        this digest, the same numbers and the same end in its name. Those of experts are stored one by one, and merged here."""
        place, changed = _PLACE.findall(name), name in self.files
        others = [other for other in self.files if _PLACE.findall(other) == place]
        for one in [name] if changed else others:
            if digest(role, array := self.files[one].read(one)) == expected:
                return array
        for array in merged(self.files, name, role) if not changed and role.startswith(_MAPS) else ():
            if digest(role, array) == expected:
                return array
            changed = True
        if not changed:
            raise FileError(f"the tensor {name} is missing: convert the original model again")
        raise CertificateError(f"the tensor {name} changed since it was certified: convert the model again")


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f"a file is given by its path: got {type(path).__name__}")
    return Path(path)
