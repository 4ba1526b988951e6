"""Independent calls in parallel, by joblib and whatever backend it is configured for."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Generator, Iterator
from typing import Any


def as_completed(joblib: Any, calls: Iterator[Any], jobs: int) -> Generator[Any, None, None]:
    """The result of each call of `joblib.delayed` as soon as it is known. Closing the generator stops the work."""
    try:
        arriving = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")(calls)
    except ValueError:  # multiprocessing and ray return lists only
        with joblib.Parallel(n_jobs=jobs, batch_size=1) as parallel:
            while chunk := list(itertools.islice(calls, joblib.effective_n_jobs(jobs))):
                yield from parallel(chunk)
        return
    try:
        for result in arriving:  # noqa: UP028 (`yield from` would close it outside of what follows)
            yield result
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # joblib warns about results that are discarded
            arriving.close()
