"""Mutation table: one deliberate error at a time in the prover, the checker or the runtime. Do the tests notice it?

python benchmarks/mutants.py                   all mutations, some minutes; exit status 1 if one survives
python benchmarks/mutants.py --jobs 4          four at a time
python benchmarks/mutants.py --only NAME …     mutations whose name contains NAME
python benchmarks/mutants.py --list            what there is, without running anything

Each mutation is applied to a copy of the package in a temporary directory, where the tests named for it run. These tests are
first run on an unmutated copy, where they must pass. The working tree is never changed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

import flint  # noqa: F401  what every test needs is imported once, and tests run in forked processes
import numpy  # noqa: F401
import pytest
import torch  # noqa: F401
from hypothesis import HealthCheck, settings
from mutations import MUTATIONS
from mutations.mutation import ROOT, Mutation

COPIED = ("attnc", "tests", "pyproject.toml")
_FORK = multiprocessing.get_context("fork")

# a busy machine must not kill mutants
settings.register_profile("mutants", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("mutants")
ALLOWED = ("killed", "equivalent")


@dataclass(frozen=True)
class Outcome:
    """`status`: killed, survived, equivalent, timeout, or broken (the tests did not run)."""

    mutation: Mutation
    status: str
    by: str  # the test that failed first, or what went wrong
    seconds: float


def main() -> None:
    options = _options()
    chosen = [m for m in MUTATIONS if not options.only or any(name in m.name for name in options.only)]
    if not chosen:
        raise SystemExit(f"no mutation is called {' or '.join(options.only)}: --list shows them all")
    if options.list:
        for m in chosen:
            print(f"{m.name:50} {m.file:38} {m.breaks}")
        return
    start = time.perf_counter()
    _check_unmutated(chosen, options.jobs, options.timeout)
    outcomes = []
    for outcome in run(chosen, options.jobs, options.timeout):
        print(_row(outcome), flush=True)
        outcomes.append(outcome)
    counts = Counter(outcome.status for outcome in outcomes)
    text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    print(
        f"\n{len(outcomes)} mutations: {text}; {time.perf_counter() - start:.0f} s with {options.jobs} jobs"
    )
    if any(status not in ALLOWED for status in counts):
        raise SystemExit(1)


def run(mutations: Sequence[Mutation], jobs: int, timeout: float) -> Iterator[Outcome]:
    """Apply each mutation to a copy of its own and run its tests there, so many at a time; outcomes as they come."""
    waiting, running = list(reversed(mutations)), []
    while waiting or running:
        while waiting and len(running) < jobs:
            mutation = waiting.pop()
            running.append((mutation, Trial(mutation.tests, timeout, mutation)))
        for pair in list(running):
            found = pair[1].result()
            if found is not None:
                running.remove(pair)
                yield _judged(pair[0], *found)
        time.sleep(0.05)


def _judged(mutation: Mutation, status: str, by: str, seconds: float) -> Outcome:
    if status == "survived" and mutation.equivalent:
        return Outcome(mutation, "equivalent", mutation.equivalent, seconds)
    if status == "killed" and mutation.equivalent:
        return Outcome(mutation, "broken", f"called equivalent, but killed by {by}", seconds)
    return Outcome(mutation, status, by, seconds)


class Trial:
    """Tests that run in a process of their own, in a copy of the package with at most one mutation."""

    def __init__(self, tests: Sequence[str], timeout: float, mutation: Mutation | None = None) -> None:
        self.start, self.timeout = time.perf_counter(), timeout
        self.place = copied(Path(tempfile.mkdtemp(prefix="attnc-mutant-")))
        if mutation is not None:
            file = self.place / mutation.file
            file.write_text(mutation.apply(file.read_text()))
            for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
                stale.unlink()
        self.process = _FORK.Process(target=_test, args=(self.place, list(tests)))
        self.process.start()

    def result(self) -> tuple[str, str, float] | None:
        """Status, the test that failed and the seconds it took; None while the tests run."""
        seconds = time.perf_counter() - self.start
        if self.process.is_alive():
            if seconds < self.timeout:
                return None
            self.process.kill()
        self.process.join()
        output, code = (self.place / "output").read_text(), self.process.exitcode
        shutil.rmtree(self.place)
        if seconds >= self.timeout:
            return "timeout", f"no result within {self.timeout:g} s", seconds
        if code == 0:
            return "survived", "", seconds
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        if code == 1 and failed is not None:
            return "killed", failed[1], seconds
        lines = output.strip().splitlines()
        return "broken", lines[-1] if lines else f"pytest returned {code}", seconds


def _test(place: Path, tests: list[str]) -> None:
    """In a forked process: run the tests of a copy."""
    os.chdir(place)
    sys.path[0] = str(place)
    os.environ["PYTHONPATH"] = str(place)
    with open(place / "output", "w") as output, redirect_stdout(output), redirect_stderr(output):
        code = int(pytest.main(["-q", "-x", "--no-header", "--tb=no", "-rfE", *tests]))
    os._exit(code)


def copied(place: Path) -> Path:
    """A copy of what tests need. Modification times are kept, so that compiled files remain valid."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name)
        else:
            shutil.copy2(source, place / name)
    return place


def _check_unmutated(chosen: Sequence[Mutation], jobs: int, timeout: float) -> None:
    """The tests named must pass as long as nothing is mutated, or their failing would say nothing."""
    tests = sorted({test for m in chosen for test in m.tests})
    trials = [Trial(tests[i::jobs], timeout * len(tests)) for i in range(min(jobs, len(tests)))]
    for trial in trials:
        trial.process.join()
        found = trial.result()
        if found is None or found[0] != "survived":
            raise SystemExit(f"without any mutation: {found}")
    print(f"{len(tests)} groups of tests pass without any mutation\n", flush=True)


def _row(outcome: Outcome) -> str:
    m = outcome.mutation
    return f"{outcome.status:10} {m.name:50} {m.file:38} {outcome.seconds:5.1f} s  {outcome.by}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for the tests of one mutation")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
