"""A sweep gives the same files however often it is killed, whichever backend runs it, and whatever its directory holds."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnc.errors import FileError, InputError, MissingExtraError
from attnc.paper.experiments import sweep as sweep_function
from attnc.paper.experiments.protocol import QUICK, Setting, settings
from attnc.paper.experiments.run import Record
from attnc.paper.experiments.sweeps import Run, SweepError, attempt, sweep, write_results

joblib = pytest.importorskip("joblib")
pytest.importorskip("pandas")
SETTINGS = [replace(QUICK.truncated, heads=h, seed=s) for h in (1, 2, 4) for s in range(10)]
FILES = ("results.csv",)


def small_run(steps: int, fails: Callable[[Setting], bool] = lambda setting: False) -> Run:
    """A short training; a closure, so that workers need not import the tests."""

    def run(setting: Setting) -> Record:
        import time

        import torch

        from attnc.paper.experiments import Record

        if fails(setting):
            raise ArithmeticError(f"seed {setting.seed}")
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
        return Record(setting, losses[-1], max(losses), 8, 1.0, 1.0, "", seconds, losses[0], losses[::20])

    return run


def written(records: Sequence[Record], directory: Path) -> list[bytes]:
    write_results(records, directory)
    return [(directory / name).read_bytes() for name in FILES]


def stored(directory: Path) -> int:
    return len(list((directory / "records").glob("*.json")))


def killed_after(seconds: float, directory: Path, run: Run) -> bool:
    """Fork, sweep in the child, and kill it; whether it was still running."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # about forking beside threads: the child uses one
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
    (tmp_path / "whole").mkdir()
    undisturbed = written(sweep(SETTINGS, tmp_path / "whole", jobs=1, run=run), tmp_path / "whole")
    whole, broken, midway, counts = time.monotonic() - began, tmp_path / "broken", 0, []
    for _ in range(20):  # on average they do a twelfth of the work
        midway += killed_after(draw.uniform(0, whole / 6), broken, run)
        counts.append(stored(broken))
    assert midway >= 8, (midway, counts)
    assert counts == sorted(counts) and len(set(counts)) >= 4, counts  # finished runs are kept
    assert written(sweep(SETTINGS, broken, jobs=1, run=run), broken) == undisturbed
    assert stored(broken) == len(SETTINGS) and not list((broken / "records").glob(".*"))


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    first = sweep(SETTINGS[:4], tmp_path, jobs=1, run=small_run(5), progress=lambda *now: calls.append(now))
    assert [now[1:] for now in calls] == [(k, 4) for k in range(5)]
    assert [now[0] for now in calls[1:]] == [one.key for one in SETTINGS[:4]]
    assert (
        sweep(reversed(SETTINGS[:4]), tmp_path, jobs=1, run=small_run(5, lambda setting: True)) == first[::-1]
    )


@pytest.mark.parametrize("damage", ["cut", "digit", "other", "versions", "empty"])
def test_damaged_records_are_run_again_with_a_warning(tmp_path: Path, damage: str) -> None:
    undisturbed = written(sweep(SETTINGS[:3], tmp_path, jobs=1, run=small_run(5)), tmp_path)
    _, hit, other = (tmp_path / "records" / f"{one.key}.json" for one in SETTINGS[:3])
    text = hit.read_text()
    digit = text.index('"mse": ') + 11
    changed = text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :]
    texts = {"cut": text[:200], "digit": changed, "other": other.read_text(), "empty": ""}
    hit.write_text({**texts, "versions": text.replace(str(torch.__version__), "1.13.0")}[damage])
    ran: list[Setting] = []
    with pytest.warns(UserWarning, match=SETTINGS[1].key):
        again = sweep(
            SETTINGS[:3], tmp_path, jobs=1, run=small_run(5, lambda one: ran.append(one) is not None)
        )
    assert ran == [SETTINGS[1]] and written(again, tmp_path) == undisturbed
    sweep(SETTINGS[:3], tmp_path, jobs=1, run=small_run(5, lambda setting: True))


def test_a_failing_run_does_not_stop_the_others(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="2 of 6") as caught:
        sweep(SETTINGS[:6], tmp_path, jobs=1, run=small_run(5, lambda setting: setting.seed in (1, 4)))
    assert list(caught.value.failures) == [SETTINGS[1].key, SETTINGS[4].key]
    assert "ArithmeticError: seed 4 (test_sweep.py, line" in str(caught.value)
    ran: list[Setting] = []
    sweep(SETTINGS[:6], tmp_path, jobs=1, run=small_run(5, lambda setting: ran.append(setting) is not None))
    assert ran == [SETTINGS[1], SETTINGS[4]]


@pytest.mark.parametrize("result", [None, "setting"])
def test_a_run_must_return_its_record(tmp_path: Path, result: str | None) -> None:
    wrong = small_run(5)(SETTINGS[1]) if result else None
    with pytest.raises(SweepError, match="InputError"):
        sweep(SETTINGS[:1], tmp_path, jobs=1, run=lambda setting: wrong)  # type: ignore[arg-type,return-value]
    assert stored(tmp_path) == 0


@pytest.mark.parametrize(
    "backend", ["loky", "threading", pytest.param("multiprocessing", marks=pytest.mark.slow)]
)
def test_backends_give_the_same_bytes(tmp_path: Path, backend: str) -> None:
    """With a failing run among them; the runs have one thread, and this process keeps its own number."""
    fails, threads, run = (lambda setting: setting.seed == 3), torch.get_num_threads(), small_run(50)
    alone = sweep(SETTINGS[:6], tmp_path / "one", jobs=1, run=run)
    with joblib.parallel_config(backend=backend):
        if backend == "multiprocessing":  # which cannot send a closure
            both = sweep(settings("heatmaps", 1, True), tmp_path / "two", jobs=2)
            alone = sweep(settings("heatmaps", 1, True), tmp_path / "one", jobs=1)
        else:
            with pytest.raises(SweepError, match="1 of 6"):
                sweep(SETTINGS[:6], tmp_path / "two", jobs=2, run=small_run(50, fails))
            assert stored(tmp_path / "two") == 5
            both = sweep(SETTINGS[:6], tmp_path / "two", jobs=2, run=run)
    assert written(both, tmp_path / "two") == written(alone, tmp_path / "one")
    assert torch.get_num_threads() == threads


def test_runs_have_one_thread_and_are_alone_in_their_process() -> None:
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
        workers = [threading.Thread(target=attempt, args=(run, one)) for one in SETTINGS[:4]]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert seen == [(1, 1)] * 4 and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_worker_with_other_versions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[sweep.__module__]
    other = lambda run, setting: (setting, run(setting), {"torch": "1.0"})  # noqa: E731
    monkeypatch.setattr(module, "attempt", other)
    with pytest.raises(SweepError, match=r"'torch': '1\.0'"):
        sweep(SETTINGS[:1], tmp_path, jobs=1, run=small_run(1))
    assert stored(tmp_path) == 0


def test_interrupted_by_hand(tmp_path: Path) -> None:
    def stop(message: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    for jobs, place in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        with pytest.raises(KeyboardInterrupt):
            sweep(SETTINGS, place, jobs=jobs, run=small_run(20), progress=stop)
        assert stored(place) == 2


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    run, one = small_run(1), SETTINGS[:1]
    for jobs in (0, -2, True, 1.5, "2"):
        with pytest.raises(InputError, match="jobs="):
            sweep(one, tmp_path, jobs=jobs, run=run)  # type: ignore[arg-type]
    for wrong in ([], ["heads"]):
        with pytest.raises(InputError, match="settings"):
            sweep(wrong, tmp_path, run=run)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError):
        sweep(one, tmp_path / "file", run=run)
    assert sweep is sweep_function


@pytest.mark.parametrize("package", ["joblib", "pandas", "scipy", "threadpoolctl"])
def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*attnc\[reproduce\]"):
        sweep(SETTINGS[:1], tmp_path, run=small_run(1))
    assert stored(tmp_path) == 0


def test_attnc_does_not_import_the_extra() -> None:
    program = "import sys, attnc, attnc.cli, attnc.paper.experiments.report\n"
    program += "print(*{'joblib', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_real_sweep_killed(tmp_path: Path, how: signal.Signals) -> None:
    """In a process of its own, with workers: killed at random moments, then run to the end."""
    program = (
        "from pathlib import Path\nfrom attnc.paper.experiments import settings, sweep\n"
        "from attnc.paper.experiments.sweeps import write_results\n"
        "write_results(sweep(settings('range', 1, True), {0!r}, jobs=2), Path({0!r}))\n"
    )
    wanted, draw = settings("range", seeds=1, quick=True), random.Random(7)
    undisturbed = written(sweep(wanted, tmp_path / "whole", jobs=2), tmp_path / "whole")
    place = tmp_path / "broken"
    command = [sys.executable, "-c", program.format(str(place))]
    for _ in range(3):
        enough, end = stored(place) + draw.randint(1, 4), time.monotonic() + 120
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as child:
            while stored(place) < enough and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 0.3))
            child.send_signal(how)
            assert child.wait(timeout=30) == -how
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # workers outlive a killed parent by some minutes
        assert enough <= stored(place) < len(wanted) and not (place / "results.csv").exists()
    subprocess.run(command, check=True, timeout=300)
    assert [(place / name).read_bytes() for name in FILES] == undisturbed
    assert len((place / "results.csv").read_text().splitlines()) == 1 + len(wanted)
