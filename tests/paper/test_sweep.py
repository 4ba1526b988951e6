"""A sweep gives the same files however often it is killed, wherever it runs, and whatever it finds in its directory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnc.errors import FileError, InputError, MissingExtraError
from attnc.paper.experiments import backends
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.results import Results
from attnc.paper.experiments.settings import QUICK, Setting, settings
from attnc.paper.experiments.sweep import SweepError, sweep

SETTINGS = [replace(QUICK.truncated, heads=h, seed=s) for h in (1, 2, 4) for s in range(10)]
FILES = ("results.json", "results.csv")


def small_run(steps: int, fails: Callable[[Setting], bool] = lambda setting: False) -> backends.Run:
    """A little training; a closure, so that workers need not import the tests."""

    def run(setting: Setting) -> Record:
        import time

        import torch

        from attnc.paper.experiments.record import Record

        if fails(setting):
            raise ArithmeticError(f"seed {setting.seed} is unlucky")
        began, draw = time.process_time(), torch.Generator().manual_seed(setting.seed)
        x, w = torch.randn(64, 8, generator=draw), torch.zeros(8, setting.heads, requires_grad=True)
        y, losses = x.sin().sum(1, keepdim=True), []
        for _ in range(steps):
            loss = ((x @ w).tanh().sum(1, keepdim=True) - y).square().mean()
            loss.backward()
            with torch.no_grad():
                w -= 0.05 * w.grad
                w.grad = None
            losses.append(loss.item())
        seconds = time.process_time() - began
        return Record(
            setting,
            losses[-1],
            max(losses),
            losses[0],
            tuple(losses[::20]),
            None,
            None,
            8,
            None,
            1.0,
            1.0,
            None,
            None,
            "",
            seconds,
        )

    return run


def written(results: Results, directory: Path) -> list[bytes]:
    results.write(directory)
    return [(directory / name).read_bytes() for name in FILES]


def there(directory: Path) -> int:
    return len(list((directory / "records").glob("*.json")))


def killed_after(seconds: float, directory: Path, run: backends.Run) -> bool:
    """Fork, sweep in the child, and kill it; whether it was still at work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: the child uses one
        child = os.fork()
    if child == 0:
        status = 1
        try:
            sweep(SETTINGS, directory, jobs=1, run=run)
            status = 0
        finally:
            os._exit(status)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_twenty_times(tmp_path: Path) -> None:
    run, draw, began = small_run(100), random.Random(6), time.monotonic()
    undisturbed = written(sweep(SETTINGS, tmp_path / "whole", jobs=1, run=run), tmp_path / "whole")
    whole, broken, midway, counts = time.monotonic() - began, tmp_path / "broken", 0, []
    for _ in range(20):  # on average they do a twelfth of the work
        midway += killed_after(draw.uniform(0, whole / 6), broken, run)
        counts.append(there(broken))
    assert midway >= 8, (midway, counts)
    assert counts == sorted(counts) and len(set(counts)) >= 4, counts  # what is finished is kept, and goes on
    assert written(sweep(SETTINGS, broken, jobs=1, run=run), broken) == undisturbed
    assert there(broken) == len(SETTINGS) and not list((broken / "records").glob(".*"))


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    first = sweep(SETTINGS[:4], tmp_path, jobs=1, run=small_run(5), progress=lambda *now: told.append(now))
    assert told == [(0, 4, "0 of 4 runs are there"), *((k + 1, 4, SETTINGS[k].key) for k in range(4))]
    second = sweep(reversed(SETTINGS[:4]), tmp_path, jobs=1, run=small_run(5, lambda setting: True))
    assert second.records == first.records[::-1] and second.redone == ()


@pytest.mark.parametrize("damage", ["cut", "digit", "other", "versions", "empty", "directory"])
def test_damage_is_noticed_and_redone(tmp_path: Path, damage: str) -> None:
    results = sweep(SETTINGS[:3], tmp_path, jobs=1, run=small_run(5))
    undisturbed, (_, hit, other) = (
        written(results, tmp_path),
        (tmp_path / "records" / f"{one.key}.json" for one in SETTINGS[:3]),
    )
    text = hit.read_text()
    if damage == "directory":
        hit.unlink()
        hit.mkdir()
    else:
        digit = text.index('"mse": ') + 11
        changed = text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :]
        old = text.replace(str(torch.__version__), "1.13.0")
        hit.write_text(
            {"cut": text[:200], "digit": changed, "other": other.read_text(), "versions": old, "empty": ""}[
                damage
            ]
        )
    ran: list[Setting] = []
    run = small_run(5, lambda setting: ran.append(setting) is not None)
    again = sweep(SETTINGS[:3], tmp_path, jobs=1, run=run)
    assert ran == [SETTINGS[1]] and written(again, tmp_path) == undisturbed
    assert len(again.redone) == 1 and f"{SETTINGS[1].key}.json is done again: " in again.redone[0]
    assert sweep(SETTINGS[:3], tmp_path, jobs=1, run=small_run(5)).redone == ()


def test_a_run_that_fails(tmp_path: Path) -> None:
    with pytest.raises(SweepError) as caught:
        sweep(SETTINGS[:6], tmp_path, jobs=1, run=small_run(5, lambda setting: setting.seed in (1, 4)))
    assert list(caught.value.failures) == [SETTINGS[1].key, SETTINGS[4].key]
    assert "ArithmeticError: seed 4 is unlucky (test_sweep.py, line" in str(caught.value)
    assert there(tmp_path) == 4
    ran: list[Setting] = []
    sweep(SETTINGS[:6], tmp_path, jobs=1, run=small_run(5, lambda setting: ran.append(setting) is not None))
    assert ran == [SETTINGS[1], SETTINGS[4]]


@pytest.mark.parametrize("changed", [{"mse": None}, {"parameters": 1.5}, {"setting": SETTINGS[1]}])
def test_a_run_that_gives_no_record(tmp_path: Path, changed: dict[str, object]) -> None:
    run = small_run(5)
    with pytest.raises(SweepError, match="InputError"):
        sweep(SETTINGS[:1], tmp_path, jobs=1, run=lambda setting: replace(run(setting), **changed))  # type: ignore[arg-type]
    assert there(tmp_path) == 0


def test_processes_give_the_same_bytes(tmp_path: Path) -> None:
    """With loky, a failing run among them; its workers have one thread, and this process keeps its own number."""
    fails, threads = (lambda setting: setting.seed == 3), torch.get_num_threads()
    alone = sweep(SETTINGS[:6], tmp_path / "one", jobs=1, run=small_run(50))
    with pytest.raises(SweepError, match="ArithmeticError"):
        sweep(SETTINGS[:6], tmp_path / "two", run=small_run(50, fails))
    assert there(tmp_path / "two") == 5
    both = sweep(SETTINGS[:6], tmp_path / "two", run=small_run(50))
    assert written(both, tmp_path / "two") == written(alone, tmp_path / "one")
    assert torch.get_num_threads() == threads


def test_one_thread_alone_in_its_process() -> None:
    at_once, seen = [0], []

    def run(setting: Setting) -> Record:
        at_once[0] += 1
        seen.append((torch.get_num_threads(), at_once[0]))
        time.sleep(0.01)
        at_once[0] -= 1
        return small_run(1)(setting)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        workers = [threading.Thread(target=backends.attempt, args=(run, one)) for one in SETTINGS[:4]]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert seen == [(1, 1)] * 4 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_worker_of_other_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = backends.attempt
    theirs = {**backends.versions(), "torch": "1.0"}
    monkeypatch.setattr(backends, "attempt", lambda run, one: replace(attempt(run, one), versions=theirs))
    with pytest.raises(SweepError):
        sweep(SETTINGS[:1], tmp_path, jobs=1, run=small_run(1))
    assert there(tmp_path) == 0


def test_interrupted_by_hand(tmp_path: Path) -> None:
    def stop(done: int, total: int, text: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    for jobs, place in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        with pytest.raises(KeyboardInterrupt):
            sweep(SETTINGS, place, jobs=jobs, run=small_run(20), progress=stop)
        assert there(place) == 2


def test_what_is_refused(tmp_path: Path) -> None:
    run, one = small_run(1), SETTINGS[:1]
    with pytest.raises(InputError, match="'spark'"):
        sweep(one, tmp_path, backend="spark", run=run)
    with pytest.raises(InputError):
        sweep(one, tmp_path, backend="threading", run=run)
    with pytest.raises(InputError):
        sweep(one, tmp_path, address="tcp://localhost:1", run=run)
    for jobs in (0, -1, True, 1.5, "2"):
        with pytest.raises(InputError):
            sweep(one, tmp_path, jobs=jobs, run=run)  # type: ignore[arg-type]
    for wrong in ([], ["heads"]):
        with pytest.raises(InputError):
            sweep(wrong, tmp_path, run=run)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError):
        sweep(one, tmp_path / "file", run=run)


@pytest.mark.parametrize(
    ("module", "backend", "said"),
    [
        ("joblib.parallel", "loky", r"needs joblib.*pip install 'attnc\[reproduce\]'"),
        ("threadpoolctl", "loky", r"needs threadpoolctl.*pip install 'attnc\[reproduce\]'"),
        ("distributed", "dask", r"needs distributed.*pip install 'attnc\[dask\]'"),
        ("ray", "ray", r"needs ray.*pip install 'ray"),
    ],
)
def test_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, backend: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=said):
        sweep(SETTINGS[:1], tmp_path, backend=backend, run=small_run(1))


def test_a_backend_that_was_registered(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    from joblib._parallel_backends import ThreadingBackend

    joblib.register_parallel_backend("of-my-own", ThreadingBackend)
    try:
        found = sweep(SETTINGS[:5], tmp_path, backend="of-my-own", run=small_run(5))
        assert [record.setting for record in found] == SETTINGS[:5]
    finally:
        del joblib.parallel.BACKENDS["of-my-own"]


@pytest.mark.slow
def test_multiprocessing_gives_the_same_bytes(tmp_path: Path) -> None:
    wanted = [replace(QUICK.truncated, method="trained", seed=s, epochs=1) for s in range(3)]
    alone = sweep(wanted, tmp_path / "one", jobs=1)
    other = sweep(wanted, tmp_path / "two", backend="multiprocessing")
    assert written(other, tmp_path / "two") == written(alone, tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_true_sweep_killed(tmp_path: Path, how: signal.Signals) -> None:
    """In a process of its own, with workers: killed at random moments after some runs more, then left alone."""
    program = (
        "from attnc.paper.experiments.settings import settings\nfrom attnc.paper.experiments.sweep import sweep\n"
        "sweep(settings('range', seeds=1, quick=True), {0!r}).write({0!r})\n"
    )
    wanted, draw = settings("range", seeds=1, quick=True), random.Random(7)
    undisturbed = written(sweep(wanted, tmp_path / "whole"), tmp_path / "whole")
    place = tmp_path / "broken"
    command = [sys.executable, "-c", program.format(str(place))]
    for _ in range(3):
        enough, end = there(place) + draw.randint(1, 4), time.monotonic() + 120
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as child:
            while there(place) < enough and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 0.3))
            child.send_signal(how)
            assert child.wait(timeout=30) == -how
        with contextlib.suppress(ProcessLookupError):
            os.killpg(
                child.pid, signal.SIGKILL
            )  # workers, which outlive a parent that was killed by some minutes
        assert enough <= there(place) < len(wanted) and not (place / "results.json").exists()
    subprocess.run(command, check=True, timeout=300)
    assert [(place / name).read_bytes() for name in FILES] == undisturbed
    assert len(json.loads((place / "results.json").read_text())["runs"]) == len(wanted)
