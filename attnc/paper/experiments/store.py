"""Records on disk: one sealed JSON file per run, whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attnc.errors import AttncError, FileError, InputError
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.settings import Setting
from attnc.records import fields

FORMAT = 1
PART = ".part"  # how the name of a file ends that is being written
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # JSON has no numbers for these
_TRIES = 3
_SOURCES = (
    *(
        f"{folder}/**/*.py"
        for folder in ("functions", "program", "records", "prove", "heads", "network", "lower")
    ),
    *(f"{folder}/*.py" for folder in ("frontends", "paper", "paper/experiments")),
)


@dataclass(frozen=True)
class Unusable:
    """A record that is there and cannot be taken: the run is done again."""

    reason: str


class Store:
    """The records of a directory, in `records/<setting.key>.json`: format, versions, record and a seal over all three.

    A file is written under a temporary name and renamed, so that a process that is killed leaves no half of one.

    >>> import tempfile
    >>> from attnc.paper.experiments import settings
    >>> Store(tempfile.mkdtemp()).read(settings("heads")[0]) is None
    True
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = _directory(directory)
        self._records = self.directory / "records"
        try:
            self._records.mkdir(parents=True, exist_ok=True)
            for leftover in self._records.glob(f".*{PART}"):
                leftover.unlink(missing_ok=True)
            with tempfile.TemporaryFile(dir=self._records):
                pass
        except OSError as problem:
            raise FileError(
                f"cannot keep records in {self.directory}: {problem.strerror or problem}; give a directory "
                "that can be written to, or a name that is free"
            ) from problem

    def path(self, setting: Setting) -> Path:
        """The file of a run."""
        return self._records / f"{setting.key}.json"

    def read(self, setting: Setting) -> Record | Unusable | None:
        """The record of a run; why what is there cannot be taken; or None where there is nothing."""
        try:
            text = self.path(setting).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as problem:
            return Unusable(f"it cannot be read: {getattr(problem, 'strerror', None) or problem}")
        try:
            return _opened(text, setting)
        except (AttncError, ValueError, TypeError, RecursionError) as problem:
            return Unusable(str(problem))

    def write(self, record: Record) -> None:
        """Keep a record, in place of what was there. A directory of that name is set aside, not deleted."""
        check(record)
        body = {"format": FORMAT, "versions": versions(), "record": to_plain(record.to_json())}
        path = self.path(record.setting)
        if path.is_dir() and not path.is_symlink():
            set_aside(path)
        write_whole(path, json.dumps({**body, "sha256": _seal(body)}, allow_nan=False) + "\n")


def versions() -> dict[str, str]:
    """What decides the digits of a result; `code` is a digest of attnc's own sources.

    >>> list(versions())
    ['attnc', 'torch', 'numpy', 'python-flint', 'python', 'code']
    """
    return {**fields.versions(), "python": platform.python_version(), "code": _code()}


@cache
def _code() -> str:
    """Of all that builds, trains and measures: records of one version are not mixed with those of another."""
    found, root = hashlib.sha256(), Path(fields.__file__).parents[1]
    for path in sorted(path for pattern in _SOURCES for path in root.glob(pattern)):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def difference(theirs: Any) -> str | None:
    """How the versions given differ from those here, or None.

    >>> difference({**versions(), "numpy": "1.0"}).split(",")[0]
    'made with numpy 1.0'
    """
    here = versions()
    if theirs == here:
        return None
    if not isinstance(theirs, dict) or set(theirs) != set(here):
        return f"made with other versions: {theirs!r}, and here are {here!r}"
    others = [name for name in here if theirs[name] != here[name]]
    made, have = (", ".join(f"{name} {which[name]}" for name in others) for which in (theirs, here))
    return f"made with {made}, and here is {have}"


def to_plain(value: Any) -> Any:
    """With "nan", "inf" and "-inf" for what JSON has no numbers for; a training that diverged is a result too.

    >>> to_plain({"mse": math.inf, "curve": (1.5, math.nan)})
    {'mse': 'inf', 'curve': [1.5, 'nan']}
    """
    if isinstance(value, dict):
        return {name: to_plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(one) for one in value]
    return str(float(value)) if isinstance(value, float) and not math.isfinite(value) else value


def from_plain(record: Any) -> Record:
    """The record that `Record.to_json` and `to_plain` were given; raises `InputError` where it is none."""
    if not isinstance(record, dict):
        raise InputError(f"a record is an object: got {type(record).__name__}")
    numbers = {name: _numbers(one) for name, one in record.items() if name != "setting"}
    made = Record.from_json({**record, **numbers})
    check(made)
    return made


def check(record: Record) -> None:
    """Raise `InputError` unless every field has its type; errors of a test may be NaN or infinite, sizes and bounds not NaN."""
    wrong = [name for name, right in _RIGHT.items() if not right(getattr(record, name))]
    if not isinstance(record.setting, Setting) or wrong:
        found = {name: getattr(record, name) for name in wrong}
        raise InputError(f"this is no record of a run: {found or record.setting!r}")


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name beside it, to the disk, then rename: a failure leaves what was there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        for tries in range(1, _TRIES + 1):
            with open(temporary, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            try:
                temporary.replace(path)
                return
            except FileNotFoundError:  # a sweep that started this moment took it for a leftover
                if tries == _TRIES:
                    raise
    except OSError as problem:
        raise FileError(f"cannot write {path}: {problem.strerror or problem}") from problem
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def set_aside(path: Path) -> None:
    """Give what is in the way another name."""
    names = (path.with_name(f"{path.name}.set-aside-{count}") for count in range(1, 1000))
    try:
        path.rename(next(name for name in names if not os.path.lexists(name)))
    except (OSError, StopIteration) as problem:
        raise FileError(f"{path} is a directory, where a record must be written: move it away") from problem


def no_constant(name: str) -> Any:
    """For `json.loads(parse_constant=…)`: JSON has no NaN and no Infinity."""
    raise ValueError(f"it is not JSON: {name} is no number of JSON")


def _directory(directory: object) -> Path:
    if not isinstance(directory, (str, os.PathLike)) or not str(directory):
        raise InputError(f"a directory is given by its path: got {directory!r}")
    return Path(directory)


def _opened(text: str, setting: Setting) -> Record:
    """The record of a file; raises with the reason where the file is damaged or of another origin."""
    try:
        body = json.loads(text, parse_constant=no_constant)
    except json.JSONDecodeError as problem:
        raise FileError(f"it is not JSON: {problem}") from problem
    if not isinstance(body, dict):
        raise FileError("it is not a record")
    if type(body.get("format")) is not int or body["format"] != FORMAT:
        raise FileError(f"it is of format {body.get('format')!r}, and this version writes {FORMAT}")
    seal = body.pop("sha256", None)
    if set(body) != {"format", "versions", "record"} or seal != _seal(body):
        raise FileError("it is damaged: its seal does not fit what it holds")
    other = difference(body["versions"])
    if other is not None:
        raise FileError(f"it was {other}")
    record = from_plain(body["record"])
    if record.setting != setting:
        raise FileError(f"it is the record of another run: {record.setting.key}")
    return record


def _seal(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _is_float(value: object) -> bool:
    return isinstance(value, float)


def _is_error(value: object) -> bool:
    return isinstance(value, float) and not value < 0


def _is_size(value: object) -> bool:
    return isinstance(value, float) and 0 <= value < math.inf


def _is_bound(value: object) -> bool:
    return value is None or (isinstance(value, float) and value >= 0)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_floats(value: object, depth: int = 1) -> bool:
    if depth == 0:
        return _is_float(value)
    return isinstance(value, tuple) and all(_are_floats(one, depth - 1) for one in value)


_RIGHT: dict[str, Callable[[object], bool]] = {
    "mse": _is_error,
    "largest": _is_error,
    "start": lambda value: value is None or _is_error(value),
    "curve": _are_floats,
    "bound": _is_bound,
    "theorem": _is_bound,
    "parameters": _is_count,
    "anchors": lambda value: value is None or _is_count(value),
    "spread": _is_size,
    "constant": _is_size,
    "cpu": lambda value: isinstance(value, str),
    "weights": lambda value: value is None or _are_floats(value, 3),
    "picked": lambda value: value is None or _is_float(value),
    "seconds": _is_size,
}
