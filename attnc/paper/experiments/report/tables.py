"""The tables and the computed sentences of the report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from attnc.paper.experiments.baselines import CLOSE, Baseline
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.report.page import Table, Text
from attnc.paper.experiments.report.sweeps import NAMES, ORDER, Line, Point, Sweep, mean
from attnc.paper.experiments.settings import TRAINED

NOTHING, MEASURED = "—", "measured"
APART = 3.0  # the largest of the seeds over the smallest


def number(value: float | None) -> str:
    """Three digits, or a dash.

    >>> number(0.14382), number(1.7e-10), number(60), number(None), number(math.nan)
    ('0.144', '1.7e-10', '60', '—', 'no number')
    """
    if value is None:
        return NOTHING
    return "no number" if math.isnan(value) else f"{value:.3g}"


def ratio(above: float | None, below: float | None) -> str:
    """above / below, or a dash where that is no number.

    >>> ratio(0.15, 0.144), ratio(1.0, 0.0), ratio(None, 1.0)
    ('1.04', '—', '—')
    """
    if above is None or below is None or below == 0 or not math.isfinite(above / below):
        return NOTHING
    return f"{above / below:.3g}" if above / below < 1e5 else f"{above / below:.2e}"


def spread(point: Point | None) -> str:
    """The mean test MSE, with the smallest and the largest where there are several, and how many diverged."""
    if point is None:
        return NOTHING
    if point.ends is None:
        return f"{count(len(point.records), 'run')}, diverged"
    text = number(point.mse)
    if len(point.finite) > 1:
        text += f" ({number(point.ends[0])} … {number(point.ends[1])})"
    return text + (f", {point.diverged} of {len(point.records)} diverged" if point.diverged else "")


def paper_table(found: Sweep, protocol: bool) -> Table | None:
    """The trained networks, beside what the paper's code gives where the sizes are the protocol's."""
    line = found.line("trained")
    if line is None:
        return None
    columns = _paper_columns(found.experiment == "seq2seq", protocol)
    rows = tuple(tuple(show(point) for show in columns.values()) for point in line.points)
    title = "Test MSE of the trained networks" + (", the paper's and ours" if protocol else "")
    return Table(title, (NAMES[found.against], *list(columns)[1:]), rows)


def _paper_columns(varies: bool, protocol: bool) -> dict[str, Callable[[Point], str]]:
    """What is shown of a point, by the head of its column. In experiment 3 the target differs from seed to seed and from the
    paper's, so that what compares is the share of its variance; no limit is set there."""
    columns: dict[str, Callable[[Point], str]] = {"size": lambda point: number(point.size)}
    columns |= {"paper's code": lambda point: _paper_figure(point.baseline)} if protocol else {}
    columns |= {"trained here": spread, "median": lambda point: number(point.median)}
    if protocol:
        columns["ours / paper's"] = lambda point: _beside(point)
    if protocol and not varies:
        columns["within the limit"] = _within
    columns["ours / constant"] = lambda point: ratio(point.mse, mean(one.constant for one in point.finite))
    if protocol and varies:
        columns["paper's / variance"] = lambda point: _share(point.baseline)
    if varies:
        columns["ours / variance"] = lambda point: ratio(point.mse, mean(one.spread for one in point.finite))
    return columns


def _beside(point: Point) -> str:
    return ratio(point.mse, point.baseline.mse) if point.baseline else NOTHING


def _within(point: Point) -> str:
    """Whether the mean is as near to the paper's figure as it is to be."""
    known = point.baseline
    if known is None or point.mse is None:
        return NOTHING
    if known.factors is None:
        return "no limit (unstable)"
    limit = "±35 %" if known.factors == CLOSE else f"{known.factors[0]:g} … {known.factors[1]:g}"
    return f"{'yes' if known.holds(point.mse) else 'no'} ({limit})"


def _share(known: Baseline | None) -> str:
    return ratio(known.mse, known.variance) if known else NOTHING


def _paper_figure(known: Baseline | None) -> str:
    if known is None:
        return NOTHING
    ends = "" if known.low is None else f" ({number(known.low)} … {number(known.high)})"
    return number(known.mse) + ends


def apart_text(found: Sweep) -> Text | None:
    """Where the seeds of trained lie so far apart that a mean says little."""
    line = found.line("trained")
    apart = (
        [point for point in line.points if point.ends and point.ends[1] > APART * point.ends[0]]
        if line
        else []
    )
    if not apart or found.experiment == "seq2seq":  # there each seed has another target
        return None
    sizes = ", ".join(number(point.size) for point in apart)
    return Text(
        f"Seeds of trained lie apart by more than a factor of {APART:g} at {NAMES[found.against]} = {sizes}: see the median "
        "beside the mean, and the dots of the figure."
    )


def built_table(found: Sweep) -> Table | None:
    """What was built, with its promises, and its size and time beside those of the trained network."""
    trained = found.line("trained")
    rows = [_built_row(found, line, point, trained) for line in found.built for point in line.points]
    head = (
        "method",
        NAMES[found.against],
        "test MSE",
        "largest error",
        "proved bound",
        "theorem's bound",
        "anchors",
        "parameters",
        "of the trained",
        "time to build",
        "to train / to build",
    )
    return Table("Built networks (float64; trained ones are float32)", head, tuple(rows)) if rows else None


def _built_row(found: Sweep, line: Line, point: Point, trained: Line | None) -> tuple[str, ...]:
    beside = trained.at(point.size) if trained else None
    any_size = found.experiment == "seq2seq" and found.is_level(line)
    return (
        line.method,
        "any" if any_size else number(point.size),
        spread(point),
        number(_worst(point.records)),
        _bound(point),
        number(_largest([one.theorem for one in point.records])),
        _several(one.anchors for one in point.records),
        _several(one.parameters for one in point.records),
        _several(one.parameters for one in beside.records) if beside else NOTHING,
        _seconds(point.seconds),
        ratio(beside.seconds if beside else None, point.seconds),
    )


def _bound(point: Point) -> str:
    """The proved bound of all seeds. Of placed the head alone is proved, so what is known of the model is measured."""
    bound = _largest([one.bound for one in point.records])
    return MEASURED if bound is None and point.records[0].setting.method == "placed" else number(bound)


def built_text(found: Sweep) -> Text | None:
    """What the table of built networks needs to be read."""
    said = []
    if {"nearest", "smooth"} & {line.method for line in found.built}:
        said.append("nearest has c = 4, smooth c = 1.")
    placed = found.line("placed")
    if placed and any(one.bound is None for one in placed.records):
        said.append(
            f"{MEASURED}: of placed the head alone is proved, not the model that it is written into, so its largest error is "
            "what was seen on the test samples."
        )
    if found.experiment == "seq2seq" and any(map(found.is_level, found.built)):
        name, at = NAMES[found.against], number(min(line.points[0].size for line in found.built))
        said.append(f"any: {name} does not enter; the trained network beside it is that at {name} = {at}.")
    return Text(" ".join(said)) if said else None


def _worst(records: Sequence[Record]) -> float:
    """The largest error of all seeds; NaN as soon as one is."""
    found = [one.largest for one in records]
    return math.nan if any(map(math.isnan, found)) else max(found)


def _largest(values: Sequence[float | None]) -> float | None:
    """Of all seeds; None as soon as one has no bound."""
    known = [one for one in values if one is not None]
    return max(known) if known and len(known) == len(values) else None


def heat_table(records: Sequence[Record]) -> Table:
    """The heat maps' networks: error, and how often the heaviest key is the nearest anchor."""
    groups: dict[tuple[float, str], list[Record]] = defaultdict(list)
    for one in records:
        groups[one.setting.b - one.setting.a, one.setting.method].append(one)
    rows = []
    for width, method in sorted(groups, key=lambda pair: (pair[0], ORDER.index(pair[1]))):
        group = groups[width, method]
        shares = [one.picked for one in group if one.picked is not None]
        picked = mean(shares)
        ends = f" ({100 * min(shares):.3g} … {100 * max(shares):.3g})" if len(shares) > 1 else ""
        share = NOTHING if picked is None else f"{100 * picked:.3g}{ends}"
        bound = number(_largest([one.bound for one in group]))
        largest, point = number(_worst(group)), Point(width, tuple(group))
        rows.append((number(width), method, spread(point), largest, bound, share, _seconds(point.seconds)))
    head = (
        "width b - a",
        "method",
        "test MSE",
        "largest error",
        "proved bound",
        "picked, %",
        "time to train or build",
    )
    return Table("Which anchor is picked", head, tuple(rows), names=2)


def times_table(records: Sequence[Record]) -> Table:
    """How long the methods took, over all runs."""
    rows = []
    for method in ORDER:
        taken = [one.seconds for one in records if one.setting.method == method]
        if taken:
            ends = f"{_seconds(min(taken))} … {_seconds(max(taken))}"
            how = "training" if method in TRAINED else "building"
            rows.append(
                (method, how, str(len(taken)), _seconds(mean(taken)), ends, _seconds(math.fsum(taken)))
            )
    head = ("method", "by", "runs", "mean time", "shortest … longest", "together")
    return Table("Time of all runs", head, tuple(rows), names=2)


def diverged_text(records: Sequence[Record]) -> str:
    """How many trainings diverged, and how many end no better than a constant."""
    runs = [one for one in records if one.setting.method in TRAINED]
    if not runs:
        return ""
    lost = sum(not math.isfinite(one.mse) for one in runs)
    poor = sum(math.isfinite(one.mse) and one.mse >= one.constant for one in runs)
    return (
        f"Of {count(len(runs), 'training')}, {lost} diverged (their test MSE is no number; they are counted, not averaged), "
        f"and {poor} ended no better than the constant output that is the mean of the training targets."
    )


def promise_text(records: Sequence[Record]) -> str:
    """In how many built runs the largest error seen is within the proved bound."""
    proved = [one for one in records if one.bound is not None]
    if not proved:
        return ""
    kept = sum(one.largest <= one.bound for one in proved if one.bound is not None)
    return f"The largest error seen is within the proved bound in {kept} of {count(len(proved), 'run')} that have one."


def _several(values: Iterable[int | None]) -> str:
    """One number, or its smallest and largest over the seeds."""
    known = [one for one in values if one is not None]
    if not known:
        return NOTHING
    return f"{known[0]:,}" if min(known) == max(known) else f"{min(known):,} … {max(known):,}"


def _seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.0f} s" if value >= 100 else f"{value:.2g} s"


def count(many: int, noun: str) -> str:
    """
    >>> count(1, "run"), count(3, "run")
    ('1 run', '3 runs')
    """
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"
