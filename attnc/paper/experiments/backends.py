"""Where runs are executed: this process, other processes, or a cluster that joblib knows."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import threading
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnc.errors import AttncError, InputError, MissingExtraError
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.settings import Setting
from attnc.paper.experiments.store import check, versions

Run = Callable[[Setting], Record]
NAMES = ("loky", "multiprocessing", "dask", "ray", "sequential")
_CLUSTERS = ("dask", "ray")
_INSTALL = {"distributed": "pip install 'attnc[dask]'", "ray": "pip install 'ray[default]'"}
_PATIENCE = 30  # seconds that a cluster has to answer
_ALONE = threading.Lock()


class SweepError(AttncError):
    """Runs that failed, or workers that were lost; `failures` has the reason by the key of the setting."""

    def __init__(self, message: str, failures: dict[str, str] | None = None) -> None:
        self.failures = failures or {}
        super().__init__(message)


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back: a record or a problem, and its versions."""

    setting: Setting
    record: Record | None
    problem: str | None
    versions: dict[str, str] = field(default_factory=versions)


def attempt(run: Run, setting: Setting) -> Outcome:
    """Run a setting with one thread, so that no digit depends on the number of cores, and alone in its process: the precision of
    ball arithmetic and the clock of a process are shared by its threads."""
    with _ALONE:
        threads = torch.get_num_threads()
        try:
            with need("threadpoolctl").threadpool_limits(limits=1):
                torch.set_num_threads(1)
                record = run(setting)
            if not isinstance(record, Record) or record.setting != setting:
                raise InputError(f"the run gave something else than a record of its setting: {record!r:.200}")
            check(record)
            return Outcome(setting, record, None)
        except Exception as problem:
            return Outcome(setting, None, _said(problem))
        finally:
            torch.set_num_threads(threads)


def check_backend(backend: str, jobs: int, address: str | None) -> None:
    """Raise for what cannot be used, before anything is done.

    >>> check_backend("loky", 2, None)
    >>> check_backend("threading", 2, None)
    Traceback (most recent call last):
    attnc.errors.InputError: backend='threading': threads of a process share the precision of ball arithmetic ...
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= 1024:
        raise InputError(f"jobs={jobs!r}: give a whole number from 1 to 1024")
    if backend == "threading":
        raise InputError(
            "backend='threading': threads of a process share the precision of ball arithmetic and the clock, so that runs "
            "could only take turns: use backend='loky', or jobs=1"
        )
    need("threadpoolctl")
    known = sorted({*NAMES, *need("joblib.parallel").BACKENDS} - {"threading"})
    if backend not in known:
        raise InputError(f"there is no backend {backend!r}: there are {', '.join(known)}")
    if address is not None and backend not in _CLUSTERS:
        raise InputError(
            f"address={address!r}: the backend {backend} has none; {' and '.join(_CLUSTERS)} have"
        )
    if backend == "dask":
        need("distributed")
    if backend == "ray":
        need("ray")


def need(name: str) -> Any:
    """The module, or `MissingExtraError` with what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        package = name.split(".")[0]
        extra = _INSTALL.get(package, "pip install 'attnc[reproduce]'")
        raise MissingExtraError(
            f"the sweep needs {package}, which cannot be imported ({problem}): {extra}"
        ) from problem


def outcomes(
    todo: Sequence[Setting], run: Run, jobs: int, backend: str, address: str | None
) -> Generator[Outcome, None, None]:
    """The outcome of each setting as soon as it is there. Close it, and what runs is given up."""
    if backend == "sequential" or (jobs == 1 and backend in ("loky", "multiprocessing")):
        yield from (attempt(run, setting) for setting in todo)
        return
    try:
        with (
            _workers(backend, jobs, address) as (which, count),
            closing(_parallel(todo, run, which, count)) as them,
        ):
            yield from them
    except AttncError:
        raise
    except Exception as problem:
        raise SweepError(
            f"the workers of the backend {backend} were lost ({_said(problem)}): what is finished is kept, and starting again "
            "does the rest"
        ) from problem


def _parallel(todo: Sequence[Setting], run: Run, which: Any, count: int) -> Generator[Outcome, None, None]:
    joblib = need("joblib")
    calls = (joblib.delayed(attempt)(run, setting) for setting in todo)
    try:
        parallel = joblib.Parallel(n_jobs=count, backend=which, batch_size=1, return_as="generator_unordered")
    except ValueError:  # multiprocessing, ray: results come in lists only
        with joblib.Parallel(n_jobs=count, backend=which, batch_size=1) as parallel:
            while chunk := list(itertools.islice(calls, count)):
                yield from parallel(chunk)
        return
    found = parallel(calls)
    try:
        for one in found:  # noqa: UP028 (`yield from` would close it, outside of what follows)
            yield one
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of finished runs that are given up, which is meant
            found.close()


@contextmanager
def _workers(backend: str, jobs: int, address: str | None) -> Iterator[tuple[Any, int]]:
    """What joblib takes as a backend, and the number of runs at once."""
    if backend == "dask":
        with _dask_client(jobs, address) as client:
            yield _dask_backend(client), max(1, sum(client.ncores().values()))
    elif backend == "ray":
        with _ray_cluster(jobs, address) as count:
            yield backend, count
    else:
        yield multiprocessing.get_context("spawn") if backend == "multiprocessing" else backend, jobs


@contextmanager
def _dask_client(jobs: int, address: str | None) -> Iterator[Any]:
    """A client of the scheduler at the address, or of a cluster of this machine that ends with it."""
    distributed = need("distributed")
    local = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**local) if address is None else nullcontext() as cluster:
        try:
            client = distributed.Client(cluster or address, timeout=_PATIENCE, set_as_default=False)
        except (OSError, ValueError) as problem:
            raise InputError(
                f"no dask scheduler answers at {address!r} ({problem}): start it, or give its address"
            ) from problem
        with client:
            _greet(client)
            yield client


def _greet(client: Any) -> None:
    """Wait for a worker, and see that workers have attnc: joblib would wait for a task that they cannot read."""
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
        theirs = client.run(versions)
    except Exception as problem:
        raise InputError(
            f"the workers of the dask cluster cannot run attnc ({_said(problem)}): install it there, in the same version"
        ) from problem
    for worker, found in theirs.items():
        if found != versions():
            raise InputError(
                f"the worker {worker} has {found}, and here is {versions()}: install the same there"
            )


def _dask_backend(client: Any) -> Any:
    """joblib's backend, which waits for ever for a task whose worker was killed: this one raises."""
    base: Any = need("joblib._dask").DaskDistributedBackend

    class Backend(base):  # type: ignore[misc]
        def submit(self, func: Any, callback: Any = None) -> Any:
            future = super().submit(func, callback)
            future.add_done_callback(lambda done: done.exception() and callback(done.exception()))
            return future

        def retrieve_result_callback(self, out: Any) -> Any:
            if isinstance(out, BaseException):
                raise out
            return super().retrieve_result_callback(out)

    return Backend(client=client)


@contextmanager
def _ray_cluster(jobs: int, address: str | None) -> Iterator[int]:
    """joblib taught to use ray, connected to the cluster at the address or to one of this machine; a connection that was there
    is used and left."""
    ray = need("ray")
    need("ray.util.joblib").register_ray()
    connected = ray.is_initialized()
    if not connected:
        try:
            ray.init(address=address) if address else ray.init(num_cpus=jobs, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as problem:
            raise InputError(
                f"no ray cluster answers at {address!r} ({problem}): start it, or give its address"
            ) from problem
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", jobs)))
    finally:
        if not connected:
            ray.shutdown()


def _said(problem: BaseException) -> str:
    """The error and its place."""
    frames = traceback.extract_tb(problem.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(problem).__name__}: {problem}{place}"
