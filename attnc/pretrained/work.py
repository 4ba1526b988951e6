"""The unfinished work of `attnc convert`: a hidden directory beside the output, from which a later run resumes.

Each file is complete or absent, since it is written under a temporary name and renamed. The last step renames the finished
directory to its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from attnc.errors import AttncError, FileError
from attnc.pretrained.alone import Converted
from attnc.program.step import Numbers
from attnc.records.files import (
    CONVERTED_INDEX,
    INDEX,
    WEIGHTS,
    Directory,
    read_file,
    read_json,
    replacing,
    write_file,
)

ANCHORS = "model-anchors.safetensors"
_PLAN, _BLOCKS, _MODEL = "plan.json", "blocks", "model"
_RENAMED = {
    WEIGHTS: "model-weights.safetensors"
}  # transformers would open a model.safetensors as the original model


class Work:
    """The results of the blocks that are finished, and the new directory as far as it is written."""

    def __init__(self, out: Path, plan: Mapping[str, Any]) -> None:
        self.out, self.where = out, work_directory(out)
        self.blocks, self.model = self.where / _BLOCKS, self.where / _MODEL
        self.plan = json.loads(json.dumps(plan))

    def is_own(self) -> bool:
        """Whether the directory is of this input and these options."""
        try:
            return bool(read_json(self.where / _PLAN) == self.plan)
        except FileError:
            return False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make or resume the directory. A failure that would repeat itself removes it; a lack of space, or the end of the
        process, keeps what is finished."""
        if not self.is_own() and (self.where / _PLAN).exists():
            what = f"{self.where} holds the unfinished work of another conversion to {self.out}"
            raise FileError(
                f"{what} (another input, other options or versions): finish that one, or delete it"
            )
        try:
            if not self.is_own():
                shutil.rmtree(
                    self.where, ignore_errors=True
                )  # left by a process that ended before or after its work
            for folder in (self.blocks, self.model):
                folder.mkdir(parents=True, exist_ok=True)
                for stale in folder.glob(".*.part"):
                    stale.unlink()
            if not self.is_own():
                write_json(self.where / _PLAN, self.plan)
            yield
        except OSError as problem:
            raise self._failed(f"{problem.strerror or problem}") from problem
        except FileError as problem:
            raise self._failed(str(problem)) from problem
        except AttncError:
            self.discard()
            raise

    def _failed(self, reason: str) -> FileError:
        done = len(list(self.blocks.glob("[!.]*")))
        if not done:
            self.discard()
            return FileError(f"cannot write {self.out}: {reason}; nothing was written")
        kept = f"{done} finished blocks are kept in {self.where}"
        return FileError(f"cannot write {self.out}: {reason}; {kept}: run the same command again to resume")

    def finished(self, names: Sequence[str]) -> dict[str, Converted]:
        """The stored results, by the names of their blocks; a damaged file counts as absent."""
        found = {}
        for i, name in enumerate(names):
            try:
                about, tensors = read_file(self._block(i))
            except FileError:
                continue
            if about.get("record", {}).get("name") == name:
                found[name] = Converted(tensors, about)
        return found

    def store(self, i: int, converted: Converted) -> None:
        write_file(self._block(i), converted.tensors, converted.about)

    def _block(self, i: int) -> Path:
        return self.blocks / f"{i:05d}.safetensors"

    def write_weights(self, stored: Directory, source: Path, anchors: Mapping[str, Numbers]) -> None:
        """Hard links of the original files, or copies where there cannot be links; one more file with the anchors; and an index
        of all, under a name that transformers does not look for."""
        for name in stored.names:
            place_file(source / name, self.model / _RENAMED.get(name, name))
        with replacing(self.model / ANCHORS) as temporary:
            temporary.write_bytes(
                save({n: np.ascontiguousarray(a) for n, a in anchors.items()}, {"format": "pt"})
            )
        files = {name: file.path.name for name, file in stored.files.items()}
        placed = {name: _RENAMED.get(file, file) for name, file in files.items()}
        about = read_json(source / INDEX).get("metadata") if (source / INDEX).is_file() else None
        about = about if isinstance(about, dict) else {}
        size = about.get("total_size", sum((source / name).stat().st_size for name in stored.names))
        size = int(size) + sum(array.nbytes for array in anchors.values())
        index = {
            "metadata": {**about, "total_size": size},
            "weight_map": dict(sorted({**placed, **dict.fromkeys(anchors, ANCHORS)}.items())),
        }
        write_json(self.model / CONVERTED_INDEX, index)

    def finish(self) -> None:
        self.model.rename(self.out)
        self.discard()

    def discard(self) -> None:
        """Remove the directory, its plan last."""
        shutil.rmtree(self.blocks, ignore_errors=True)
        shutil.rmtree(self.where, ignore_errors=True)


def work_directory(out: Path) -> Path:
    return out.with_name(f".{out.name}.attnc")


def place_file(source: Path, target: Path) -> None:
    """A hard link of a file, or a copy."""
    if target.exists():
        return
    try:
        os.link(source.resolve(), target)
    except OSError:
        with replacing(target) as temporary:
            shutil.copyfile(source, temporary)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", encoding="utf-8")
