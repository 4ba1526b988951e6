"""The tables and the computed sentences of the report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from attnc.paper.experiments.baselines import Baseline
from attnc.paper.experiments.fits import Fit
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.report.page import Table, Text
from attnc.paper.experiments.report.sweeps import NAMES, ORDER, THEOREM, Line, Point, Sweep, mean
from attnc.paper.experiments.settings import TRAINED

NOTHING, NO_INTERVAL = "—", "no interval"


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
        return f"{_count(len(point.records), 'run')}, diverged"
    text = number(point.mse)
    if len(point.finite) > 1:
        text += f" ({number(point.ends[0])} … {number(point.ends[1])})"
    return text + (f", {point.diverged} of {len(point.records)} diverged" if point.diverged else "")


def paper_table(found: Sweep, protocol: bool) -> Table | None:
    """The trained networks, beside what the paper's code gives where the sizes are the protocol's."""
    line = found.line("trained")
    if line is None:
        return None
    varies = found.experiment == "seq2seq"  # the target differs from seed to seed, so its variance is shown
    head = [NAMES[found.against]]
    head += ["paper's code"] if protocol else []
    head += ["trained here"] + (["ours / paper's"] if protocol else [])
    head += (["paper's / variance"] if protocol else []) + ["ours / variance"] if varies else []
    rows = [_paper_row(point, protocol, varies) for point in line.points]
    title = "Test MSE of the trained networks" + (", the paper's and ours" if protocol else "")
    return Table(title, tuple(head), tuple(rows))


def _paper_row(point: Point, protocol: bool, varies: bool) -> tuple[str, ...]:
    known = point.baseline if protocol else None
    cells = [number(point.size)]
    cells += [_paper_figure(known)] if protocol else []
    cells.append(spread(point))
    cells += [ratio(point.mse, known.mse if known else None)] if protocol else []
    if varies:
        cells += [ratio(known.mse, known.variance) if known else NOTHING] if protocol else []
        cells.append(ratio(point.mse, mean(one.spread for one in point.finite)))
    return tuple(cells)


def _paper_figure(known: Baseline | None) -> str:
    if known is None:
        return NOTHING
    ends = "" if known.low is None else f" ({number(known.low)} … {number(known.high)})"
    return number(known.mse) + ends


def built_table(found: Sweep) -> Table | None:
    """What was built, with its promises, and how long that took beside training at the same size."""
    trained = found.line("trained")
    rows = [_built_row(line, point, trained) for line in found.built for point in line.points]
    head = (
        "method",
        NAMES[found.against],
        "test MSE",
        "largest error",
        "proved bound",
        "theorem's bound",
        "anchors",
        "parameters",
        "time to build",
        "to train / to build",
    )
    return Table("Built networks", head, tuple(rows)) if rows else None


def _built_row(line: Line, point: Point, trained: Line | None) -> tuple[str, ...]:
    beside = trained.at(point.size) if trained else None
    bounds = [one.bound for one in point.records]
    theorems = [one.theorem for one in point.records]
    return (
        line.method,
        number(point.size),
        spread(point),
        number(_worst(point.records)),
        number(_largest(bounds)),
        number(_largest(theorems)),
        _several(one.anchors for one in point.records),
        _several(one.parameters for one in point.records),
        _seconds(point.seconds),
        ratio(beside.seconds if beside else None, point.seconds),
    )


def _worst(records: Sequence[Record]) -> float:
    """The largest error of all seeds; NaN as soon as one is."""
    found = [one.largest for one in records]
    return math.nan if any(map(math.isnan, found)) else max(found)


def _largest(values: Sequence[float | None]) -> float | None:
    """Of all seeds; None as soon as one has no bound."""
    known = [one for one in values if one is not None]
    return max(known) if known and len(known) == len(values) else None


def learning_table(found: Sweep) -> Table | None:
    """Training from random weights beside training from what was built."""
    lines = [line for method in TRAINED[1:] if (line := found.line(method))]
    trained = found.line("trained")
    if not lines or trained is None:
        return None
    head = [NAMES[found.against], "trained"]
    for line in lines:
        head += [f"{line.method}: start", "after training", "/ trained"]
    rows = []
    for size in found.sizes:
        beside = trained.at(size)
        cells = [number(size), spread(beside)]
        for line in lines:
            point = line.at(size)
            mse = point.mse if point else None
            cells += [number(_start(point)), spread(point), ratio(mse, beside.mse if beside else None)]
        rows.append(tuple(cells))
    return Table(
        "Training from what was built: test MSE at the start and after training", tuple(head), tuple(rows)
    )


def start_text(found: Sweep) -> Text | None:
    """How often training from a construction ends below training from random weights, and below its own start."""
    trained, said = found.line("trained"), []
    for method in TRAINED[1:]:
        line = found.line(method)
        if line is None or trained is None:
            continue
        pairs = [(point, beside) for point in line.points if (beside := trained.at(point.size))]
        known = [(a.mse, b.mse) for a, b in pairs if a.mse is not None and b.mse is not None]
        better = sum(ours < theirs for ours, theirs in known)
        moved = [(point.mse, start) for point in line.points if (start := _start(point)) is not None]
        gained = sum(end is not None and end < start for end, start in moved)
        said.append(
            f"{method} ends with a smaller mean test MSE than trained at {better} of {_count(len(known), 'size')}, and below "
            f"its own start at {gained} of {_count(len(moved), 'size')}."
        )
    return Text(" ".join(said)) if said else None


def _start(point: Point | None) -> float | None:
    return mean(one.start for one in point.finite if one.start is not None) if point else None


def slope_table(found: Sweep) -> Table | None:
    """Fitted slopes with their intervals beside the theorem's."""
    rows = []
    theorem = THEOREM[found.against]
    for line in found.lines:
        if (made := line.fit) is not None:
            interval = (
                NO_INTERVAL
                if made.low is None or made.high is None
                else f"{_two(made.low)} … {_two(made.high)}"
            )
            verdict = _verdict(made, theorem)
            cells = (
                _two(made.slope),
                interval,
                f"{theorem:g}",
                verdict,
                str(made.points),
                str(made.left_out),
            )
            rows.append((line.method, *cells))
    head = ("method", "slope", "95 % interval", "theorem's", "beside the theorem's", "runs", "left out")
    title = f"Slopes of log test MSE against log {NAMES[found.against]}; every run is a point"
    return Table(title, head, tuple(rows)) if rows else None


def _two(value: float) -> str:
    """Two decimals, without a sign before zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _verdict(made: Fit, theorem: float) -> str:
    """What the whole interval says."""
    if made.low is None or made.high is None:
        return NOTHING
    if made.contains(theorem):
        return "the same"
    falls = theorem < 0
    if (made.low >= 0) if falls else (made.high <= 0):
        return "does not fall" if falls else "does not grow"
    verb = "falls" if falls else "grows"
    return f"{verb} faster" if (made.high < theorem) == falls else f"{verb} more slowly"


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
    poor = sum(math.isfinite(one.mse) and one.mse >= one.spread for one in runs)
    return (
        f"Of {_count(len(runs), 'training')}, {lost} diverged (their test MSE is no number; they are counted, not averaged), "
        f"and {poor} ended no better than the best constant."
    )


def promise_text(records: Sequence[Record]) -> str:
    """In how many built runs the largest error seen is within the proved bound."""
    proved = [one for one in records if one.bound is not None]
    if not proved:
        return ""
    kept = sum(one.largest <= one.bound for one in proved if one.bound is not None)
    return f"The largest error seen is within the proved bound in {kept} of {_count(len(proved), 'run')} that have one."


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


def _count(many: int, noun: str) -> str:
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"
