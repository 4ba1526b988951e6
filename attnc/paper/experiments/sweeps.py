"""Sweeps: run with joblib the settings that have no record on disk, and store each record as soon as its run ends."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnc.arguments import checked_count
from attnc.errors import AttncError, FileError, InputError
from attnc.extras import optional
from attnc.paper.experiments.protocol import Setting
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.run import run as run_setting
from attnc.parallel import as_completed
from attnc.progress import Progress, silent
from attnc.records import fields
from attnc.records.files import replacing

_NUMBERS = ("mse", "largest", "start", "bound", "theorem", "spread", "constant", "picked", "seconds")
_NO_EFFECT = {"cli", "exporters", "incontext", "plot", "pretrained", "report.py"}
Run = Callable[[Setting], Record]
Outcome = tuple[Setting, Record | str, dict[str, str]]  # the record or the error, and the worker's versions
_ALONE = threading.Lock()


def require(module: str) -> Any:
    """The module, or `MissingExtraError` if it is not installed."""
    return optional(module, "reproduce", "the experiments")


@cache
def versions() -> dict[str, str]:
    """The versions that a result depends on; `code` is a digest of the sources of attnc, without `_NO_EFFECT`."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _NO_EFFECT.isdisjoint((relative.parts[0], relative.name)):
            digest.update(relative.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {**fields.versions(), "python": platform.python_version(), "code": digest.hexdigest()[:12]}


def prepare(directory: Path) -> None:
    """Create the folder of the records, and remove what a killed sweep has not finished to write."""
    records = directory / "records"
    try:
        records.mkdir(parents=True, exist_ok=True)
        for unfinished in records.glob(".*.part"):
            unfinished.unlink()
        with tempfile.TemporaryFile(dir=records):
            pass
    except OSError as problem:
        reason = problem.strerror or problem
        raise FileError(f"cannot write to {directory} ({reason}): give a writable directory") from problem


def record_path(directory: Path, setting: Setting) -> Path:
    return directory / "records" / f"{setting.key}.json"


def save_record(directory: Path, record: Record) -> None:
    """Write a record, with the versions and a checksum over both."""
    body = {"versions": versions(), "record": asdict(record)}
    with replacing(record_path(directory, record.setting)) as temporary:
        temporary.write_text(json.dumps({**body, "sha256": _checksum(body)}) + "\n")


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
        return Record(**{**body["record"], "setting": setting})
    except FileNotFoundError:
        return None
    except (OSError, *fields.DAMAGE) as problem:
        raise FileError(f"{path.name}: {problem}") from problem


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


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
    """Write results.csv, which is the same bytes whenever the same runs are repeated, and times.csv."""
    table = frame(records)
    results = table.drop(columns="seconds").assign(**versions())
    files = {directory / "results.csv": results, directory / "times.csv": table[["key", "seconds"]]}
    for path, part in files.items():
        with replacing(path) as temporary:
            part.to_csv(temporary, index=False)
    return [*files]


class SweepError(AttncError):
    """Some runs failed, or workers were lost. `failures` maps the key of a setting to its error."""

    def __init__(self, message: str, failures: dict[str, str]) -> None:
        self.failures = failures
        listed = [f"\n  - {key}: {reason}" for key, reason in failures.items()]
        if len(listed) > 5:
            listed[5:] = [f"\n  - and {len(listed) - 5} more"]
        advice = "finished runs are stored, and the same call runs the rest"
        super().__init__(f"{message}; {advice}{''.join(listed)}")


def sweep(
    settings: Iterable[Setting],
    directory: str | os.PathLike[str],
    *,
    jobs: int = -1,
    progress: Progress = silent,
    run: Run = run_setting,
) -> tuple[Record, ...]:
    """The records of all settings, in their order. Only settings without a record in the directory are run.

    A record that is damaged, or was written by other versions, is run again with a warning. joblib runs the settings: `jobs` is
    its `n_jobs`, where -1 uses all cores, and `joblib.parallel_config(backend=…)` selects its backend (loky, dask, ray). Only
    this process writes to the directory. `progress` receives the last key and the numbers of finished runs and of all runs. A
    failing run does not stop the others; at the end `SweepError` lists the failures.

    >>> import tempfile
    >>> from dataclasses import replace
    >>> from attnc.paper.experiments.protocol import QUICK
    >>> (record,) = sweep([replace(QUICK.truncated, method="placed")], tempfile.mkdtemp(), jobs=1)
    >>> record.mse < 1e-12
    True
    """
    wanted, folder = list(dict.fromkeys(settings)), Path(directory)
    if not wanted or not all(isinstance(one, Setting) for one in wanted):
        raise InputError(f"settings: give one or more objects of type Setting, got {wanted[:1]!r}")
    if jobs != -1:
        checked_count("jobs", jobs, 1, 1024, "or -1 for all cores")
    for package in ("joblib", "pandas", "scipy", "threadpoolctl"):
        require(package)
    prepare(folder)
    records, failures = _stored(folder, wanted), {}
    progress(f"{len(records)} of {len(wanted)} runs are stored", len(records), len(wanted))
    with closing(_outcomes([one for one in wanted if one not in records], run, jobs)) as outcomes:
        for setting, result, used in outcomes:
            if isinstance(result, str):
                failures[setting.key] = result
            elif used != versions():
                failures[setting.key] = f"the worker has the versions {used}, this process has {versions()}"
            else:
                save_record(folder, result)
                records[setting] = result
            progress(setting.key, len(records), len(wanted))
    if failures:
        raise SweepError(f"{len(failures)} of {len(wanted)} runs failed", failures)
    return tuple(records[setting] for setting in wanted)


def attempt(run: Run, setting: Setting) -> Outcome:
    """Run a setting with one thread, so that no digit depends on the number of cores, and one run at a time in a process: the
    threads of a process share the precision of ball arithmetic and the clock."""
    with _ALONE:
        threads = torch.get_num_threads()
        try:
            with require("threadpoolctl").threadpool_limits(limits=1):
                torch.set_num_threads(1)
                record = run(setting)
            if not isinstance(record, Record) or record.setting != setting:
                raise InputError(f"run returned {record!r:.200}: it must return a Record of its setting")
            return setting, record, versions()
        except Exception as problem:
            frame = traceback.extract_tb(problem.__traceback__)[-1]
            place = f"{Path(frame.filename).name}, line {frame.lineno}"
            return setting, f"{type(problem).__name__}: {problem} ({place})", versions()
        finally:
            torch.set_num_threads(threads)


def _stored(folder: Path, wanted: Sequence[Setting]) -> dict[Setting, Record]:
    """The records that are on disk and can be used."""
    records, problems = {}, []
    for setting in wanted:
        try:
            if (record := load_record(folder, setting)) is not None:
                records[setting] = record
        except FileError as problem:
            problems.append(str(problem))
    if problems:
        text = f"{len(problems)} stored records cannot be used and are run again; the first: {problems[0]}"
        warnings.warn(text, stacklevel=3)
    return records


def _outcomes(todo: Sequence[Setting], run: Run, jobs: int) -> Generator[Outcome, None, None]:
    """Each outcome as soon as it is known; closing the generator stops the work."""
    joblib = require("joblib")
    calls = (joblib.delayed(attempt)(run, setting) for setting in todo)
    try:
        yield from as_completed(joblib, calls, jobs)
    except AttncError:
        raise
    except Exception as problem:
        raise SweepError(f"workers were lost ({type(problem).__name__}: {problem})", {}) from problem
