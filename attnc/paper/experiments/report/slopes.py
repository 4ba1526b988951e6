"""Fitted rates beside the theorems'."""

from __future__ import annotations

from collections.abc import Sequence

from attnc.paper.experiments.fits import Fit
from attnc.paper.experiments.record import Record
from attnc.paper.experiments.report.page import Table, Text
from attnc.paper.experiments.report.sweeps import LARGEST, LAWS, NAMES, THEOREM_OF, Law, Line, Sweep
from attnc.paper.experiments.report.tables import NOTHING, count

NO_INTERVAL = "no interval"
CONSISTENT = "consistent with the theorem's rate"
WIDE = 1.0  # an interval wider than this says little of a rate


def slope_table(found: Sweep) -> Table | None:
    """Fitted slopes with their intervals, beside the theorem's."""
    rows = [row for line in found.lines if (row := _row(line, LAWS[found.against], found.against))]
    proved = found.line(THEOREM_OF[found.against])
    if found.against == "range" and proved and (row := _row(proved, LARGEST, found.against)):
        rows.append(row)
    head = ("method", "fitted", "slope", "95 % interval", "theorem's", "verdict", "runs", "left out")
    title = "Slopes of the logarithms; every run is a point, with one intercept per seed"
    return Table(title, head, tuple(rows), names=2) if rows else None


def _row(line: Line, law: Law, against: str) -> tuple[str, ...] | None:
    theorem = NOTHING if law.slope is None else f"{law.slope:g}"
    if line.same:
        independent = f"does not depend on {NAMES[against]}"
        return line.method, law.text, NOTHING, NOTHING, theorem, independent, str(len(line.records)), "0"
    made = line.fit(law)
    if made is None:
        return None
    interval = (
        NO_INTERVAL if made.low is None or made.high is None else f"{_two(made.low)} … {_two(made.high)}"
    )
    said = verdict(made, law.slope, grows=against == "range")
    return (
        line.method,
        law.text,
        _two(made.slope),
        interval,
        theorem,
        said,
        str(made.points),
        str(made.left_out),
    )


def verdict(made: Fit, theorem: float | None, grows: bool = False) -> str:
    """What the whole interval says: of the direction, and of the theorem's slope where there is one.

    >>> verdict(Fit(-2.1, -2.3, -1.9, 0.0, 12, 3), -2.0)
    "falls; consistent with the theorem's rate"
    >>> verdict(Fit(-2.1, -4.3, 0.1, 0.0, 12, 3), -2.0)
    'not seen to fall; undecided'
    """
    if made.low is None or made.high is None:
        return NOTHING
    seen = made.low > 0 if grows else made.high < 0
    verb = "grow" if grows else "fall"
    direction = f"{verb}s" if seen else f"not seen to {verb}"
    if theorem is None:
        return direction
    if made.contains(theorem):
        wide = made.high - made.low > WIDE
        return f"{direction}; {'undecided' if wide else CONSISTENT}"
    steeper = made.low > theorem if grows else made.high < theorem
    return f"{direction}; {'steeper' if steeper else 'flatter'}"


def rates_text(records: Sequence[Record]) -> Text:
    """How the slopes are to be read, and whether any error is above its theorem's bound."""
    words = (
        "Slopes: a seed draws the same data at every size, so each seed has its own intercept. The theorems bound the largest "
        "error by about C (b - a)/(N - 1), with N = p for one head (nearest) and N = (n - 2)H for many (many-heads); its square, "
        "which bounds the MSE but for a factor, falls with slope -2. Beside the other methods that slope is a yardstick, nothing "
        "is proved of their rate. Consistent: the 95 % interval holds the theorem's slope (undecided: it does, and is wider "
        "than 1); steeper or flatter: it does not. The theorems are upper bounds, so a steeper fall contradicts nothing."
    )
    known = [(one.largest, one.theorem) for one in records if one.theorem is not None]
    kept = sum(largest <= theorem for largest, theorem in known)
    within = f" The largest error seen is within the theorem's bound in {kept} of {count(len(known), 'run')} that have one."
    return Text(words + (within if known else ""))


def _two(value: float) -> str:
    """Two decimals, without a sign before zero."""
    return f"{round(value, 2) + 0.0:.2f}"
