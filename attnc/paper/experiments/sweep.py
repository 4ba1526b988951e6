"""Many runs: what is on disk is read, the rest is run, and each record is written the moment it is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import closing

from attnc.errors import InputError
from attnc.paper.experiments.backends import Run, SweepError, check_backend, outcomes
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.results import Results
from attnc.paper.experiments.run import run as run_setting
from attnc.paper.experiments.settings import Setting
from attnc.paper.experiments.store import Store, Unusable, difference

Progress = Callable[[int, int, str], None]
_SHOWN = 5  # failures that a message tells in full


def sweep(
    settings: Iterable[Setting],
    directory: str | os.PathLike[str],
    *,
    jobs: int = 2,
    backend: str = "loky",
    address: str | None = None,
    progress: Progress | None = None,
    run: Run = run_setting,
) -> Results:
    """Run every setting whose record the directory does not have; the records of all, in the order of the settings.

    A sweep that was interrupted or killed goes on where it stopped; a record that is damaged or of other versions is done again.
    `jobs` runs go on at once, in processes (1: in this one) or, with backend "dask" or "ray", on the cluster at the address,
    all of it. Only this process writes: workers need no access to the directory. `progress` is told how many runs are done, of
    how many, and what has just happened. A run that fails does not stop the others; `SweepError` tells of it in the end.

    >>> import tempfile
    >>> from dataclasses import replace
    >>> from attnc.paper.experiments.settings import QUICK
    >>> found = sweep([replace(QUICK.truncated, method="placed")], tempfile.mkdtemp(), jobs=1)
    >>> [record.mse < 1e-12 for record in found]
    [True]
    """
    wanted = _settings(settings)
    check_backend(backend, jobs, address)
    store, say = Store(directory), progress or (lambda done, total, text: None)
    records, redone = _kept(store, wanted)
    todo = [setting for setting in wanted if setting not in records]
    for note in redone:
        say(len(records), len(wanted), note)
    say(len(records), len(wanted), f"{len(records)} of {len(wanted)} runs are there")
    failures: dict[str, str] = {}
    if todo:
        with closing(outcomes(todo, run, jobs, backend, address)) as arriving:
            for outcome in arriving:
                key, other = outcome.setting.key, difference(outcome.versions)
                if outcome.record is None or other is not None:
                    failures[key] = (
                        outcome.problem or f"the worker's record was {other}: install the same there"
                    )
                    text = f"{key} failed: {failures[key]}"
                else:
                    store.write(outcome.record)
                    records[outcome.setting], text = outcome.record, key
                say(len(records), len(wanted), text)
    if failures:
        raise SweepError(_failed(failures, len(wanted)), failures)
    return Results(tuple(records[setting] for setting in wanted), redone=tuple(redone))


def _settings(settings: Iterable[Setting]) -> list[Setting]:
    wanted = list(dict.fromkeys(settings))
    strange = [one for one in wanted if not isinstance(one, Setting)]
    if strange or not wanted:
        raise InputError(
            f"a sweep goes through settings, one or more: got {strange[0] if strange else 'none'!r}"
        )
    return wanted


def _kept(store: Store, wanted: list[Setting]) -> tuple[dict[Setting, Record], list[str]]:
    """The records that are there, and why others are done again."""
    records, redone = {}, []
    for setting in wanted:
        found = store.read(setting)
        if isinstance(found, Record):
            records[setting] = found
        elif isinstance(found, Unusable):
            redone.append(f"{store.path(setting).name} is done again: {found.reason}")
    return records, redone


def _failed(failures: dict[str, str], total: int) -> str:
    lines = [f"  - {key}: {reason}" for key, reason in list(failures.items())[:_SHOWN]]
    if len(failures) > _SHOWN:
        lines.append(f"  - and {len(failures) - _SHOWN} more")
    return (
        f"{len(failures)} of {total} runs failed; the others are kept, and starting again does these only:\n"
        + "\n".join(lines)
    )
