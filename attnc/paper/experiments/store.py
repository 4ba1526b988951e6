"""Records on disk: one JSON file per run with a checksum, and the results of a sweep as JSON and CSV."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from attnc.errors import FileError, MissingExtraError
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.settings import Setting
from attnc.records import fields

_NUMBERS = ("mse", "largest", "start", "bound", "theorem", "spread", "constant", "picked", "seconds")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no such numbers
_NO_EFFECT = {"cli", "exporters", "incontext", "plot", "pretrained", "analysis.py", "report.py"}


def require(module: str) -> Any:
    """The module, or `MissingExtraError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        advice = f"the experiments need {module} ({problem}): pip install 'attnc[reproduce]'"
        raise MissingExtraError(advice) from problem


@cache
def versions() -> dict[str, str]:
    """The versions that a result depends on; `code` is a digest of the sources of attnc, without `_NO_EFFECT`.

    >>> list(versions())
    ['attnc', 'torch', 'numpy', 'python-flint', 'python', 'code']
    """
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _NO_EFFECT.isdisjoint((relative.parts[0], relative.name)):
            digest.update(relative.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {**fields.versions(), "python": platform.python_version(), "code": digest.hexdigest()[:12]}


def prepare(directory: Path) -> None:
    """Create the folder of the records; raise `FileError` if nothing can be written there."""
    try:
        (directory / "records").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory / "records"):
            pass
    except OSError as problem:
        reason = problem.strerror or problem
        raise FileError(f"cannot write to {directory} ({reason}): give a writable directory") from problem


def record_path(directory: Path, setting: Setting) -> Path:
    return directory / "records" / f"{setting.key}.json"


def save_record(directory: Path, record: Record) -> None:
    """Write a record, with the versions and a checksum over both."""
    body = {"versions": versions(), "record": to_json(record)}
    text = json.dumps({**body, "sha256": _checksum(body)}, allow_nan=False)
    write_text(record_path(directory, record.setting), text + "\n")


def load_record(directory: Path, setting: Setting) -> Record | None:
    """The stored record of a run, or None. Raises `FileError` if the file is damaged, or if other versions wrote it."""
    path = record_path(directory, setting)
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body.pop("sha256") != _checksum(body):
            raise ValueError("the checksum does not match")
        if body["versions"] != versions():
            raise ValueError(f"it was written with {body['versions']}, the current versions are {versions()}")
        if body["record"]["setting"] != asdict(setting):
            raise ValueError(f"it holds the record of {body['record']['setting']}")
        values = {name: _restored(value) for name, value in body["record"].items()}
        return Record(**{**values, "setting": setting})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as problem:
        raise FileError(f"{path.name}: {problem}") from problem


def to_json(record: Record) -> dict[str, Any]:
    """The record as values of JSON; a training that diverged has "nan" or "inf"."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def frame(records: Sequence[Record]) -> Any:
    """A pandas DataFrame with one row per run: key, setting and results. A missing number is NaN.

    >>> list(frame([]).columns[:4])
    ['key', 'experiment', 'method', 'seed']
    """
    rows = [{"key": one.setting.key, **vars(one.setting), **vars(one)} for one in records]
    names = ["key", *Setting.__dataclass_fields__, *_NUMBERS, "parameters", "anchors"]
    table = require("pandas").DataFrame(rows, columns=names)
    return table.astype({**dict.fromkeys(_NUMBERS, float), "anchors": "Int64"})


def write_results(records: Sequence[Record], directory: Path) -> list[Path]:
    """Write results.json and results.csv, which are the same bytes whenever the same runs are repeated, and times.csv."""
    table, lines = frame(records), []
    for one in records:
        row = {"key": one.setting.key, **to_json(one)}
        del row["seconds"]
        lines.append(json.dumps(row, allow_nan=False))
    texts = {
        "results.json": f'{{"versions": {json.dumps(versions())}, "runs": [\n' + ",\n".join(lines) + "\n]}\n",
        "results.csv": table.drop(columns="seconds").assign(**versions()).to_csv(index=False),
        "times.csv": table[["key", "seconds"]].to_csv(index=False),
    }
    for name, text in texts.items():
        write_text(directory / name, text)
    return [directory / name for name in texts]


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it: an interruption leaves no partial file under the name."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        raise FileError(f"cannot write {path}: {problem.strerror or problem}") from problem


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_restored(one) for one in value)
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
