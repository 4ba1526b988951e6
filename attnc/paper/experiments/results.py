"""The records of a sweep together: selected, written as JSON and CSV, and read back."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from attnc.errors import AttncError, FileError, InputError
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.settings import Setting
from attnc.paper.experiments.store import from_plain, no_constant, to_plain, versions, write_whole

FORMAT = 1
_SETTING = tuple(one.name for one in fields(Setting))
_MEASURED = ("mse", "largest", "start", "bound", "theorem", "parameters", "anchors", "spread", "picked")
_TIMES = ("key", "seconds")


@dataclass(frozen=True)
class Results:
    """Records in the order of their settings, and the versions that made them. `redone` says which records were found and not
    taken, and why; it is not written."""

    records: tuple[Record, ...]
    versions: Mapping[str, str] = field(default_factory=versions)
    redone: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def where(self, **wanted: Any) -> Results:
        """Those whose settings have these values; of a list, a tuple or a set any one of them.

        >>> Results(()).where(experiment="truncated", heads=(1, 2)).records
        ()
        """
        unknown = sorted(set(wanted) - set(_SETTING))
        if unknown:
            raise InputError(f"a setting has no {', '.join(unknown)}: it has {', '.join(_SETTING)}")
        choices = {
            name: value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
            for name, value in wanted.items()
        }
        kept = (r for r in self.records if all(getattr(r.setting, n) in c for n, c in choices.items()))
        return replace(self, records=tuple(kept))

    def write(self, directory: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
        """results.json and results.csv, which are the same bytes whenever the same is run, and times.csv, which is not.

        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> [path.name for path in Results(()).write(folder)], len(Results.read(folder))
        (['results.json', 'results.csv', 'times.csv'], 0)
        """
        folder = Path(directory)
        names = ("results.json", "results.csv", "times.csv")
        for name, text in zip(names, (self._json(), self._table(), self._times()), strict=True):
            write_whole(folder / name, text)
        return folder / names[0], folder / names[1], folder / names[2]

    @classmethod
    def read(cls, directory: str | os.PathLike[str]) -> Results:
        """What `write` wrote, from results.json and times.csv."""
        folder = Path(directory)
        seconds = _read_times(folder / "times.csv")
        path = folder / "results.json"
        try:
            body = json.loads(_text(path), parse_constant=no_constant)
            if not isinstance(body, dict) or set(body) != {"format", "versions", "runs"}:
                raise FileError("it must hold format, versions and runs")
            if type(body["format"]) is not int or body["format"] != FORMAT:
                raise FileError(f"it is of format {body['format']!r}, and this version reads {FORMAT}")
            records = tuple(from_plain(_with_seconds(one, seconds)) for one in body["runs"])
            return cls(records, {str(name): str(value) for name, value in body["versions"].items()})
        except (AttncError, ValueError, TypeError, AttributeError, RecursionError) as problem:
            raise FileError(f"{path} cannot be read as results: {problem}") from problem

    def _json(self) -> str:
        """A line a run."""
        head = json.dumps(dict(self.versions))
        lines = []
        for record in self.records:
            plain = {"key": record.setting.key, **to_plain(record.to_json())}
            del plain["seconds"]
            lines.append(json.dumps(plain, allow_nan=False))
        return f'{{"format": {FORMAT}, "versions": {head}, "runs": [\n' + ",\n".join(lines) + "\n]}\n"

    def _table(self) -> str:
        rows: list[list[str]] = [["key", *_SETTING, *_MEASURED, *self.versions]]
        for r in self.records:
            values = [r.setting.key, *(getattr(r.setting, name) for name in _SETTING)]
            values += [getattr(r, name) for name in _MEASURED]
            rows.append([_cell(value) for value in values] + list(self.versions.values()))
        return _comma_separated(rows)

    def _times(self) -> str:
        return _comma_separated([list(_TIMES)] + [[r.setting.key, _cell(r.seconds)] for r in self.records])


def _cell(value: object) -> str:
    if value is None:
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def _comma_separated(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise FileError(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from problem


def _read_times(path: Path) -> dict[str, float]:
    try:
        head, *rows = csv.reader(io.StringIO(_text(path)))
        found = {key: float(seconds) for key, seconds in rows}
    except (csv.Error, ValueError) as problem:
        raise FileError(f"{path} cannot be read as times: {problem}") from problem
    if tuple(head) != _TIMES or not all(math.isfinite(one) for one in found.values()):
        raise FileError(
            f"{path} cannot be read as times: its columns are key and seconds, numbers in the second"
        )
    return found


def _with_seconds(run: dict[str, Any], seconds: Mapping[str, float]) -> dict[str, Any]:
    key = run.get("key")
    if Setting.from_json(run.get("setting", {})).key != key:
        raise FileError(f"a run is named {key!r}, and its setting is another")
    if not isinstance(key, str) or key not in seconds:
        raise FileError(f"times.csv has no seconds for {key!r}: the two files are not of one sweep")
    return {**{name: value for name, value in run.items() if name != "key"}, "seconds": seconds[key]}
