"""A cluster of dask takes the sweep unchanged, and gives the same bytes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attnc.errors import InputError
from attnc.paper.experiments import backends
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.settings import QUICK, Setting, settings
from attnc.paper.experiments.sweep import SweepError, sweep

distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
WANTED = [
    replace(one, epochs=1, seed=seed)
    for one in (QUICK.truncated, QUICK.heat_map, QUICK.few)
    for seed in (1, 2)
]
FILES = ("results.json", "results.csv")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster that is there already: one worker, of two threads, and a task that kills it is given up at once."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, dashboard_address=None, silence_logs=logging.CRITICAL
        ) as cluster,
    ):
        yield cluster.scheduler_address


@pytest.mark.slow
def test_a_local_cluster_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, how in (("here", {"jobs": 1}), ("dask", {"backend": "dask", "jobs": 2})):
        sweep(WANTED, tmp_path / name, **how).write(tmp_path / name)  # type: ignore[arg-type]
    for file in FILES:
        assert (tmp_path / "dask" / file).read_bytes() == (tmp_path / "here" / file).read_bytes()


def test_a_cluster_by_its_address(tmp_path: Path, address: str) -> None:
    for name, how in (("here", {"jobs": 1}), ("dask", {"backend": "dask", "address": address})):
        sweep(WANTED[:3], tmp_path / name, **how).write(tmp_path / name)  # type: ignore[arg-type]
    for file in FILES:
        assert (tmp_path / "dask" / file).read_bytes() == (tmp_path / "here" / file).read_bytes()


def _deadly(seed: int, how: str) -> backends.Run:
    def run(setting: Setting) -> Record:
        import os

        from attnc.paper.experiments.record import Record

        if setting.seed == seed and how == "killed":
            os._exit(1)
        if setting.seed == seed:
            raise ArithmeticError("unlucky")
        return Record(setting, 0.5, 1.0, None, (), None, None, 1, None, 1.0, 1.0, None, None, "", 0.0)

    return run


def test_a_run_that_fails(tmp_path: Path, address: str) -> None:
    with pytest.raises(SweepError, match="ArithmeticError"):
        sweep(
            settings("range", seeds=4, quick=True)[:8],
            tmp_path,
            backend="dask",
            address=address,
            run=_deadly(1235, "raised"),
        )
    assert len(list((tmp_path / "records").glob("*.json"))) == 6


def test_a_worker_that_is_killed(tmp_path: Path, address: str) -> None:
    """It ends with an error, and does not wait for ever."""
    with pytest.raises(SweepError, match="KilledWorker"):
        sweep([QUICK.truncated], tmp_path, backend="dask", address=address, run=_deadly(1234, "killed"))


def test_nobody_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_PATIENCE", 1)
    for wrong in ("tcp://127.0.0.1:9", "nonsense://x"):
        with pytest.raises(InputError):
            sweep(WANTED, tmp_path, backend="dask", address=wrong)
