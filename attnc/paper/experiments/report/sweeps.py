"""Records in the order in which they are shown: the runs of one sweep, method by method, size by size."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from attnc.errors import InputError
from attnc.paper.experiments.baselines import Baseline, baseline
from attnc.paper.experiments.fits import Fit, fit
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.settings import BUILT, FIRST_SEED, METHODS, TRAINED, Setting, settings

ORDER = tuple(dict.fromkeys(method for methods in METHODS.values() for method in methods))
AGAINST: dict[str, Callable[[Setting], float]] = {
    "heads": lambda one: one.heads,
    "range": lambda one: one.b - one.a,
    "anchors": lambda one: one.p,
}
NAMES = {"heads": "heads H", "range": "width b - a", "anchors": "keys p"}
THEOREM_OF = {  # the method that the proof builds
    "heads": "many-heads",
    "range": "nearest",
    "anchors": "nearest",
}
_SAME = 1e-6  # relative: what differs by less is rounding


@dataclass(frozen=True)
class Law:
    """What is fitted against what, and the slope that the theorem gives it.

    The theorems bound the largest error by about C(b - a)/(N - 1), N = p for one head and N = (n - 2)H for many. The MSE is at
    most the square of that, but for a factor; against b - a it also grows with the share of the tokens that are not clipped."""

    of: str  # mse or largest, of a record
    size: Callable[[Setting], float]
    name: str  # of that size
    slope: float | None  # the theorem's

    @property
    def text(self) -> str:
        return f"{'test MSE' if self.of == 'mse' else 'largest error'} against {self.name}"


LAWS = {
    "heads": Law("mse", lambda one: (one.n - 2) * one.heads - 1, "(n - 2)H - 1", -2.0),
    "range": Law("mse", AGAINST["range"], "b - a", None),
    "anchors": Law("mse", lambda one: one.p - 1, "p - 1", -2.0),
}
LARGEST = Law("largest", AGAINST["range"], "b - a", 1.0)  # of nearest, against the range


@dataclass(frozen=True)
class Point:
    """All seeds of one setting."""

    size: float
    records: tuple[Record, ...]  # one or more

    @property
    def finite(self) -> tuple[Record, ...]:
        """Those whose test MSE is a number."""
        return tuple(one for one in self.records if math.isfinite(one.mse))

    @property
    def diverged(self) -> int:
        return len(self.records) - len(self.finite)

    @property
    def mse(self) -> float | None:
        """The mean over the seeds that did not diverge."""
        return mean(one.mse for one in self.finite)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The smallest and the largest test MSE."""
        found = [one.mse for one in self.finite]
        return (min(found), max(found)) if found else None

    @property
    def median(self) -> float | None:
        return median(one.mse for one in self.finite) if self.finite else None

    @property
    def constant(self) -> float | None:
        """The mean over the seeds of what the constant output reaches on the same data."""
        return mean(one.constant for one in self.records)

    @property
    def seconds(self) -> float | None:
        return mean(one.seconds for one in self.records)

    @property
    def baseline(self) -> Baseline | None:
        """What the paper's code gives in this setting."""
        return baseline(self.records[0].setting)


@dataclass(frozen=True)
class Line:
    """One method at growing sizes."""

    method: str
    points: tuple[Point, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(one for point in self.points for one in point.records)

    @property
    def same(self) -> bool:
        """Whether there are several sizes, and each seed gives the same test MSE at all of them, but for rounding."""
        by_seed: dict[int, list[float]] = defaultdict(list)
        for one in self.records:
            by_seed[one.setting.seed].append(one.mse)
        known = all(math.isfinite(one.mse) and one.mse > 0 for one in self.records)
        alike = all(max(found) - min(found) <= _SAME * max(found) for found in by_seed.values())
        return known and alike and len(self.records) > len(by_seed)

    def fit(self, law: Law) -> Fit | None:
        """Of every run; None where no seed has two sizes that can be fitted, and where the size changes nothing."""
        runs = [(law.size(one.setting), getattr(one, law.of), one.setting.seed) for one in self.records]
        usable = {(seed, size) for size, value, seed in runs if math.isfinite(value) and value > 0}
        few = len(usable) == len({seed for seed, _ in usable})
        if few or self.same or any(size <= 0 for size, _, _ in runs):
            return None
        return fit(*zip(*runs, strict=True))

    def at(self, size: float) -> Point | None:
        return next((point for point in self.points if point.size == size), None)


@dataclass(frozen=True)
class Sweep:
    """Runs that differ in method, seed and one size."""

    experiment: str
    against: str  # heads, range, anchors
    lines: tuple[Line, ...]

    @property
    def sizes(self) -> tuple[float, ...]:
        return tuple(sorted({point.size for line in self.lines for point in line.points}))

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(one for line in self.lines for one in line.records)

    @property
    def base(self) -> Setting:
        """What the runs have in common, beside method, seed and size."""
        return self.lines[0].points[0].records[0].setting

    @property
    def built(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.method not in TRAINED)

    def line(self, method: str) -> Line | None:
        return next((line for line in self.lines if line.method == method), None)

    def is_level(self, line: Line) -> bool:
        """Whether the method was run at one size because the size does not enter: one head where heads grow, and all that is
        not trained from random weights of experiment 3, whose network is built for the target alone."""
        if len(line.points) != 1 or len(self.sizes) == 1:
            return False
        if self.experiment == "seq2seq":
            return line.method != "trained"
        return self.against == "heads" and line.method in BUILT


def sweep(records: Iterable[Record], experiment: str, against: str) -> Sweep | None:
    """The largest family of runs in which only method, seed and the named size vary; None without two sizes.

    A method that was run at one size only is kept where heads grow, since it may have one head, and in experiment 3.

    >>> sweep([], "truncated", "heads") is None
    True
    """
    if against not in AGAINST:
        raise InputError(f"against={against!r}: a sweep goes over {', '.join(AGAINST)}")
    families: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for one in records:
        if one.setting.experiment == experiment:
            families[_without(one.setting, against)].append(one)
    largest = max(families.values(), key=lambda family: len(_sizes(family, against)), default=[])
    if len(_sizes(largest, against)) < 2:
        return None
    lines = (Line(method, _points(largest, method, against)) for method in METHODS[experiment])
    most = 0 if experiment == "seq2seq" or against == "heads" else 1
    return Sweep(experiment, against, tuple(line for line in lines if len(line.points) > most))


def base_points(records: Iterable[Record]) -> dict[str, Point]:
    """By method, the runs of experiment "truncated" where all its sweeps meet: fewest heads and keys, widest range."""
    found = [one for one in records if one.setting.experiment == "truncated"]
    if not found:
        return {}
    first = min(_meeting(one.setting) for one in found)
    here = [one for one in found if _meeting(one.setting) == first]
    return {
        line.method: line.points[0] for method in METHODS["truncated"] if (line := _line(here, method)).points
    }


def kind(records: Iterable[Record]) -> str:
    """Which sizes these are: "protocol", "quick" or "other".

    >>> kind([])
    'protocol'
    """
    found = {replace(one.setting, seed=FIRST_SEED) for one in records}
    for name, quick in (("protocol", False), ("quick", True)):
        if found <= set(settings("all", seeds=1, quick=quick)):
            return name
    return "other"


def together(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records, if they are of one run: no setting twice, no experiment with two amounts of data."""
    found = tuple(records)
    seen: set[Setting] = set()
    amounts: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for one in (record.setting for record in found):
        if one in seen:
            raise InputError(f"two records of {one.key}: give each run once")
        seen.add(one)
        model = () if one.experiment == "seq2seq" else (one.n, one.width)  # seq2seq has two models
        amounts[one.experiment].add((one.d, one.samples, one.epochs, one.batch, *model))
    for experiment, several in amounts.items():
        if len(several) > 1:
            raise InputError(
                f"records of {experiment} with (d, samples, epochs, batch, …) = {sorted(several)}: "
                "give those of one run, protocol size or --quick"
            )
    return found


def mean(values: Iterable[float]) -> float | None:
    """The arithmetic mean; None of nothing.

    >>> mean([1.0, 3.0]), mean([])
    (2.0, None)
    """
    found = list(values)
    return math.fsum(found) / len(found) if found else None


def _without(setting: Setting, against: str) -> tuple[Any, ...]:
    """All of a setting but its method, its seed and the named size."""
    varied = {"heads": {"heads"}, "range": {"a", "b"}, "anchors": {"p"}}[against] | {"method", "seed"}
    return tuple(value for name, value in setting.to_json().items() if name not in varied)


def _sizes(family: Sequence[Record], against: str) -> set[float]:
    return {AGAINST[against](one.setting) for one in family}


def _points(family: Sequence[Record], method: str, against: str) -> tuple[Point, ...]:
    by_size: dict[float, list[Record]] = defaultdict(list)
    for one in family:
        if one.setting.method == method:
            by_size[AGAINST[against](one.setting)].append(one)
    return tuple(Point(size, _by_seed(by_size[size])) for size in sorted(by_size))


def _by_seed(records: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(sorted(records, key=lambda one: one.setting.seed))


def _meeting(setting: Setting) -> tuple[float, float, float]:
    return setting.heads, setting.p, setting.a - setting.b


def _line(records: Sequence[Record], method: str) -> Line:
    return Line(method, _points(records, method, "heads"))
