"""Many runs: read the records on disk, run the rest with joblib, and write each record as soon as its run ends."""

from __future__ import annotations

import itertools
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import torch

from attnc.arguments import checked_count
from attnc.errors import AttncError, FileError, InputError
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.run import run as run_setting
from attnc.paper.experiments.settings import Setting
from attnc.paper.experiments.store import load_record, prepare, require, save_record, versions
from attnc.progress import Progress, silent

Run = Callable[[Setting], Record]
Outcome = tuple[Setting, Record | str, dict[str, str]]  # the record or the error, and the worker's versions
_ALONE = threading.Lock()


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
    >>> from attnc.paper.experiments.settings import QUICK
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
            records[setting] = load_record(folder, setting)
        except FileError as problem:
            problems.append(str(problem))
    if problems:
        text = f"{len(problems)} stored records cannot be used and are run again; the first: {problems[0]}"
        warnings.warn(text, stacklevel=3)
    return {setting: record for setting, record in records.items() if record is not None}


def _outcomes(todo: Sequence[Setting], run: Run, jobs: int) -> Generator[Outcome, None, None]:
    """Each outcome as soon as it is known; closing the generator stops the work."""
    joblib = require("joblib")
    calls = (joblib.delayed(attempt)(run, setting) for setting in todo)
    try:
        try:
            arriving = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")(calls)
        except ValueError:  # multiprocessing and ray return lists only
            with joblib.Parallel(n_jobs=jobs, batch_size=1) as parallel:
                while chunk := list(itertools.islice(calls, joblib.effective_n_jobs(jobs))):
                    yield from parallel(chunk)
            return
        try:
            for outcome in arriving:  # noqa: UP028 (`yield from` would close it outside of what follows)
                yield outcome
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # joblib warns about results that are discarded
                arriving.close()
    except AttncError:
        raise
    except Exception as problem:
        raise SweepError(f"workers were lost ({type(problem).__name__}: {problem})", {}) from problem
