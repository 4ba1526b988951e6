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
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutations import MUTATIONS
from mutations.mutation import ROOT, Mutation

COPIED = ("attnc", "tests", "pyproject.toml")
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
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = []
        for outcome in pool.map(lambda m: run(m, options.timeout), chosen):
            print(_row(outcome), flush=True)
            outcomes.append(outcome)
    counts = Counter(outcome.status for outcome in outcomes)
    text = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    print(f"\n{len(outcomes)} mutations: {text}; {time.perf_counter() - start:.0f} s with {options.jobs} jobs")
    if any(status not in ALLOWED for status in counts):
        raise SystemExit(1)


def run(mutation: Mutation, timeout: float) -> Outcome:
    """Apply one mutation to a copy and run its tests there."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="attnc-mutant-") as name:
        place = copied(Path(name))
        file = place / mutation.file
        file.write_text(mutation.apply(file.read_text()))
        for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            stale.unlink()
        status, by = _tested(place, mutation.tests, timeout)
    if status == "survived" and mutation.equivalent:
        status, by = "equivalent", mutation.equivalent
    elif status == "killed" and mutation.equivalent:
        status, by = "broken", f"called equivalent, but killed by {by}"
    return Outcome(mutation, status, by, time.perf_counter() - start)


def copied(place: Path) -> Path:
    """A copy of what tests need. Modification times are kept, so that compiled files remain valid."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name)
        else:
            shutil.copy2(source, place / name)
    return place


def _tested(place: Path, tests: Sequence[str], timeout: float) -> tuple[str, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no", "-rfE", *tests]
    env = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "timeout", f"no result within {timeout:g} s"
    if done.returncode == 0:
        return "survived", ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed is not None:
        return "killed", failed[1]
    lines = (done.stdout + done.stderr).strip().splitlines()
    return "broken", lines[-1] if lines else f"pytest returned {done.returncode}"


def _check_unmutated(chosen: Sequence[Mutation], jobs: int, timeout: float) -> None:
    """The tests named must pass as long as nothing is mutated, or their failing would say nothing."""
    tests = sorted({test for m in chosen for test in m.tests})
    parts = [tests[i::jobs] for i in range(jobs) if tests[i::jobs]]
    with tempfile.TemporaryDirectory(prefix="attnc-unmutated-") as name, ThreadPoolExecutor(jobs) as pool:
        place = copied(Path(name))
        found = list(pool.map(lambda part: _tested(place, part, timeout * len(part)), parts))
    for status, by in found:
        if status != "survived":
            raise SystemExit(f"without any mutation: {status} {by}")
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
