"""Training from random weights beside training from what was built."""

from __future__ import annotations

from collections import defaultdict

from attnc.paper.experiments.report.page import Table, Text
from attnc.paper.experiments.report.sweeps import NAMES, Line, Point, Sweep, mean
from attnc.paper.experiments.report.tables import count, number, ratio, spread
from attnc.paper.experiments.settings import TRAINED

_TITLE = "Training from what was built (float64) and from random weights (float32): test MSE"


def learning_table(found: Sweep) -> Table | None:
    """Size by size; where the size does not enter, a row for each method."""
    trained = found.line("trained")
    lines = [line for method in TRAINED[1:] if (line := found.line(method))]
    if not lines or trained is None:
        return None
    return _long(found, trained, lines) if any(map(found.is_level, lines)) else _wide(found, trained, lines)


def _wide(found: Sweep, trained: Line, lines: list[Line]) -> Table:
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
    return Table(_TITLE, tuple(head), tuple(rows))


def _long(found: Sweep, trained: Line, lines: list[Line]) -> Table:
    best = _least(trained, found.sizes)
    rows = []
    for line in (trained, *lines):
        for point in line.points:
            size = "any" if found.is_level(line) else number(point.size)
            cells = (number(_start(point)), spread(point), ratio(point.mse, best))
            rows.append((line.method, size, *cells))
    head = ("method", NAMES[found.against], "start", "after training", "/ least of trained")
    return Table(_TITLE, head, tuple(rows), names=2)


def start_text(found: Sweep) -> Text | None:
    """How often training from a construction ends below training from random weights, and below its own start. A result that
    is the same at several sizes counts once, and is compared with the least of trained at those sizes."""
    trained, said = found.line("trained"), []
    for method in TRAINED[1:]:
        line = found.line(method)
        if line is None or trained is None:
            continue
        groups = _alike(found, line)
        pairs = [(point.mse, _least(trained, sizes)) for point, sizes in groups]
        known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
        better = sum(ours < theirs for ours, theirs in known)
        moved = [(point.mse, start) for point, _ in groups if (start := _start(point)) is not None]
        gained = sum(end is not None and end < start for end, start in moved)
        said.append(
            f"{method} ends with a smaller mean test MSE than trained in {better} of {count(len(known), 'comparison')}, and "
            f"below its own start in {gained} of {len(moved)}."
        )
    if not said:
        return None
    rule = "A result that is the same at several sizes counts once, beside the least mean of trained at those sizes."
    return Text(" ".join((*said, rule)))


def _alike(found: Sweep, line: Line) -> list[tuple[Point, tuple[float, ...]]]:
    """The points of a line that differ, each with the sizes where it is the result."""
    if found.is_level(line) or line.same:
        return [(line.points[0], found.sizes)]
    groups: dict[tuple[tuple[int, float, float | None], ...], list[Point]] = defaultdict(list)
    for point in line.points:
        groups[tuple((one.setting.seed, one.mse, one.start) for one in point.records)].append(point)
    return [(points[0], tuple(point.size for point in points)) for points in groups.values()]


def _least(line: Line, sizes: tuple[float, ...]) -> float | None:
    """The smallest mean test MSE at these sizes."""
    means = [point.mse for size in sizes if (point := line.at(size)) and point.mse is not None]
    return min(means, default=None)


def _start(point: Point | None) -> float | None:
    return mean(one.start for one in point.finite if one.start is not None) if point else None
