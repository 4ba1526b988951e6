"""The search for a tensor lattice: 1-D slices of f give the error of each number of anchors on each axis, the cheapest
combination is built, and its error at new random points says how large the next one must be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnc.arithmetic import ARITHMETIC
from attnc.errors import ConvergenceError
from attnc.heads import tensor
from attnc.heads.target import Progress
from attnc.heads.tensor import Axis, Lattice, Values, along, factors, nodes, on_interval, rounded
from attnc.records.numbers import Array

FRESH, CONFIRMING = 20_000, 100_000  # random points at which an attempt, and the result, are measured
EXECUTED = 2_000  # points at which the lattice runs in its dtype
LADDER = (*range(1, 25), 26, 28, 30, 33, 36, 40, 44, 48, 56, 64, 80, 96, 128, 160, 192, 256)
# Up to so many anchors, these sharpnesses, and so many anchors beyond the ends. Two anchors give a sigmoid of any steepness; few
# of small sharpness approximate polynomials; many need some beyond the ends for smooth functions, and none for kinks.
_TRIED: tuple[tuple[float, tuple[float, ...], tuple[float, ...]], ...] = (
    (2, (16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.2, 0.05, 0.01, 1e-3, 1e-4), (0.0,)),
    (6, (2.0, 1.0, 0.5, 0.25, 0.1, 0.03, 0.01, 1e-3), (0.0, 0.5, 1.0)),
    (64, (1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1), (0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.5)),
    (math.inf, (0.7, 0.35, 0.2), (0.0, 2.0)),
)
_ATTEMPTS, _AIM, _MARGIN = 12, 0.98, 1.02
_ENOUGH = 3  # lattices within eps; the smallest is used
VALUES = 0.2 / 100  # largest value, in eps/u: a unit of |value| costs up to 100 u, in all a fifth of eps
_POINTS, _COLUMNS, _SLICES = 193, 96, 24
_LEAST_GROWTH = 2.0  # of values over f along one axis: a smaller limit would exclude every lattice
_SIZE_POWER = 0.03  # among similar errors prefer small values: shapes are ranked by error·size^_SIZE_POWER


@dataclass(frozen=True)
class LatticeFit:
    """A lattice, its largest error at new random points, and where it occurs."""

    lattice: Lattice
    measured: float
    worst: Array  # (m,)


def tensor_lattice(
    f: Values,
    lo: Array,
    hi: Array,
    eps: float,
    dtype: str = "float64",
    most: int = 8192,
    seed: int = 0,
    progress: Progress = lambda _: None,
    values: float = VALUES,
) -> LatticeFit:
    """A lattice of at most `most` anchors whose error, measured at new random points, is at most eps; `values` limits how large
    its values are, in eps/u."""
    goal = eps / _MARGIN
    search = _Search(f, lo, hi, eps, dtype, most, seed, values)
    share, history = 1.0, list[LatticeFit]()
    for attempt in range(_ATTEMPTS):
        lattice = search.build(share, goal, progress)
        if lattice.counts in [fit.lattice.counts for fit in history]:
            break
        history.append(search.measured(lattice, attempt, goal))
        if _finished(history, goal, search.largest, most):
            break
        factor = _AIM * goal / max(history[-1].measured, 1e-300)
        share = search.next_share(share, lattice.counts, factor)
    met = [fit for fit in history if fit.measured <= goal]
    best = min(met or history, key=lambda fit: fit.lattice.anchors if met else fit.measured)
    if best.measured <= eps:
        return best
    message = (
        f"eps={eps:g} cannot be met with {most} anchors: {best.lattice.anchors} reach {best.measured:.3g}"
    )
    raise ConvergenceError(message, reachable=best.measured, found=best)


def _finished(history: list[LatticeFit], eps: float, largest: int, most: int) -> bool:
    """Whether the search ends: just below eps, within eps often enough, or without hope of reaching it, as the rate of the last
    attempts, log error against log anchors, predicts more than twice the allowed anchors."""
    last, met = history[-1], [fit.lattice.anchors for fit in history if fit.measured <= eps]
    if last.measured <= eps:
        return last.measured >= _AIM * eps or len(met) >= _ENOUGH
    if met:
        missed = [fit.lattice.anchors for fit in history if fit.measured > eps]
        return len(missed) > 2 or max(missed) > 0.85 * min(met)
    if last.lattice.anchors >= largest or len(history) < 3:
        return last.lattice.anchors >= largest
    size = np.log([float(fit.lattice.anchors) for fit in history[-4:]])
    error = np.log([fit.measured for fit in history[-4:]])
    rate = float(np.polyfit(size, error, 1)[0]) if np.ptp(size) > 0 else 0.0
    return rate >= -1e-3 or float(size[-1] + (np.log(eps) - error[-1]) / rate) > np.log(2.0 * most)


def _shapes(count: int) -> Iterator[Axis]:
    """The axes of [-1, 1] to try with this many anchors, by sharpness bΔ² and by how many steps they reach beyond the ends."""
    if count == 1:
        yield Axis(0.0, 0.0, 1, 0.0)
    sharpnesses, margins = next((s, m) for most, s, m in _TRIED if count <= most)
    for beyond in margins:
        if count - 1 - 2 * beyond >= 1:
            step = 2 / (count - 1 - 2 * beyond)
            for sharpness in sharpnesses:
                yield Axis(-1 - beyond * step, step, count, sharpness / step**2)


def _fit(shape: Axis, x: Array, slices: list[Array], ridge: float) -> list[tuple[float, float]]:
    """For each group of slices (len(x), columns) of a function on [-1, 1]: the largest error of values that are least squares at
    every other point, and the largest value."""
    weights = shape.weights(x)
    q, r = factors(weights[::2], ridge)
    found = []
    for columns in slices:
        values = np.linalg.solve(r, q.T @ columns[::2])
        error = float(np.abs(weights @ values - columns).max())
        found.append((error, float(np.abs(values).max())) if np.isfinite(error) else (np.inf, np.inf))
    return found


class _Search:
    """For each axis the best shape of 1, 2, 3, … anchors and its error on slices of f; lattices of these shapes, measured.

    `growth` limits how far the values may exceed f along one axis. It starts at the limit for all axes together, because the
    axes of a sum f_1(x_1) + … + f_m(x_m) do not multiply; `lower_growth` reduces it after a lattice whose values are too large.
    """

    def __init__(
        self, f: Values, lo: Array, hi: Array, eps: float, dtype: str, most: int, seed: int, values: float
    ) -> None:
        self.f, self.lo, self.hi, self.eps = f, lo, hi, eps
        self.dtype, self.most, self.seed = dtype, most, seed
        self.centre, self.largest = lo / 2 + hi / 2, most
        self._noise = np.random.default_rng([seed, 0])
        self._slices: dict[int, tuple[Array, list[Array]]] = {}
        self._tried: dict[int, list[tuple[list[tuple[float, float]], Axis]]] = {}
        self._tables: list[dict[int, tuple[float, Axis]]] = [{} for _ in lo]
        slices = self._cut(_POINTS)[1]
        self._scale = max(max(float(np.abs(s).max()) for s in slices), 1e-300)
        self._active = max(1, sum(float(np.ptp(s, 0).max()) > 0 for s in slices))
        self._most_value = values * eps / ARITHMETIC[dtype].unit
        self._growth = max(_LEAST_GROWTH, self._most_value / self._scale)
        self._fine = self.ridge
        self._measure_shapes(1)

    def build(self, share: float, goal: float, progress: Progress) -> Lattice:
        """The cheapest lattice, rounded to the dtype; with other shapes if its values are too large."""
        while True:
            axes = self.axes(share)
            progress(f"lattice {' × '.join(str(axis.count) for axis in axes)}")
            data = tensor.sample(self.f, axes, self.lo, self.hi, self.ridge)
            values = tensor.solved(data, goal)
            if not self.lower_growth(float(np.ptp(values))):
                return self._rounded(axes, values, data)

    def _rounded(self, axes: tuple[Axis, ...], values: Array, data: tensor.Sampled) -> Lattice:
        """Values that compensate the rounding of keys and offsets: v + pinv(W v - output of the rounded lattice)."""
        flat = values.reshape(-1, values.shape[-1])
        if self.dtype == "float64":
            return Lattice(axes, flat)
        given = Lattice(axes, flat)(data.grid, self.centre, self.dtype).reshape(data.f.shape)
        lost = along(data.weights, values) - given
        back = along([np.linalg.solve(r, q.T) for q, r in zip(data.q, data.r, strict=True)], lost)
        return Lattice(axes, rounded(flat + back.reshape(flat.shape), self.dtype))

    def measured(self, lattice: Lattice, attempt: int, goal: float) -> LatticeFit:
        """The largest error at points that the lattice has not used. If it is within the goal, at five times as many, and in
        execution."""
        seed = [self.seed, attempt, 1]
        found = [self._measure(lattice, FRESH, seed)]
        if found[0][0] <= goal:
            found.append(self._measure(lattice, CONFIRMING, [*seed, 2]))
            fresh = self._place(np.random.default_rng([*seed, 3]).random((EXECUTED, len(self.lo))))
            x = np.concatenate([*(worst[None] for _, worst in found), fresh])
            given = np.clip(rounded(x, self.dtype), self.lo, self.hi)
            errors = np.abs(lattice.run(given, self.centre, self.dtype) - self.f(given)).max(1)
            found.append((float(errors.max()), given[int(errors.argmax())]))
        return LatticeFit(lattice, *max(found, key=lambda pair: pair[0]))

    def _measure(self, lattice: Lattice, points: int, seed: list[int]) -> tuple[float, Array]:
        """The largest error at random points, a quarter of them on the boundary, refined around the worst ones; and where."""
        noise, m = np.random.default_rng(seed), len(self.lo)
        share = noise.random((points, m))
        on_side = noise.random(share.shape) < 1 / m
        share[::4] = np.where(on_side[::4], np.round(share[::4]), share[::4])
        errors, reach = self._errors(lattice, share), 0.05
        for _ in range(8):
            top = share[np.argsort(errors)[-32:]]
            near = np.clip(np.repeat(top, 16, 0) + reach * noise.normal(size=(16 * len(top), m)), 0, 1)
            share = np.concatenate([share, near])
            errors = np.concatenate([errors, self._errors(lattice, near)])
            reach /= 2
        worst = int(errors.argmax())
        return float(errors[worst]), self._place(share[worst])

    def _place(self, share: Array) -> Array:
        return np.clip(self.lo + share * (self.hi - self.lo), self.lo, self.hi)

    def _errors(self, lattice: Lattice, share: Array) -> Array:
        x = self._place(share)
        return np.asarray(np.abs(lattice(x, self.centre, self.dtype) - self.f(x)).max(1))

    @property
    def ridge(self) -> float:
        """Weighs the largest values that are allowed along one axis like an error of eps/4 over all axes."""
        return max(min(1e-2, self.eps / (4 * self._active * self._growth * self._scale)), 1e-14)

    def lower_growth(self, largest: float) -> bool:
        """After a lattice whose largest value was this, plan shapes with smaller values; False if there is no need or none."""
        if largest <= self._most_value or self._growth <= _LEAST_GROWTH:
            return False
        less = 0.5 * (self._most_value / largest) ** (1 / self._active)
        sizes = [size for tried in self._tried.values() for found, _ in tried for _, size in found]
        used = max((size for size in sizes if size <= self._growth * self._scale), default=0.0) / self._scale
        self._growth = max(_LEAST_GROWTH, min(self._growth, used) * less)
        self.largest = self.most
        for count in self._tried:
            self._rank(count)
        return True

    def axes(self, share: float) -> tuple[Axis, ...]:
        """The cheapest axes whose errors on slices add up to share·eps; if these have too many anchors, the best that fit."""
        goal = share * self.eps
        for count in LADDER[1:]:
            if count > self.most or self._settled(count, goal / (4 * len(self.lo))):
                break
            self._measure_shapes(count)
        chosen = [table[g][1] for table, g in zip(self._tables, self._counts(goal), strict=True)]
        return tuple(s.on(float(a), float(b)) for s, a, b in zip(chosen, self.lo, self.hi, strict=True))

    def _settled(self, count: int, enough: float) -> bool:
        """Whether the error of every axis is small enough, or does not decrease with more anchors (f jumps)."""
        for table in self._tables:
            least = min(e for e, _ in table.values())
            before = min((e for g, (e, _) in table.items() if g <= count / 4), default=np.inf)
            if least > enough and (count < 96 or least < 0.7 * before):
                return False
        return True

    def next_share(self, share: float, counts: tuple[int, ...], factor: float) -> float:
        """A share that leads to other counts: `factor` times the old one, then further until the counts change."""
        factor = min(4.0, max(1 / 16, factor))
        share, push = share * factor, (0.8 if factor < 1 else 1.25)
        for _ in range(12):
            if tuple(axis.count for axis in self.axes(share)) != counts:
                break
            share *= push
        return share

    def _counts(self, goal: float) -> list[int]:
        """The fewest anchors such that the error of each axis is at most a threshold: the largest threshold for which the errors
        add up to goal, or, if that needs too many anchors, the smallest one that does not."""
        chosen, self.largest = [1] * len(self.lo), self.most
        for threshold in sorted({e for table in self._tables for e, _ in table.values()}, reverse=True):
            fitting = [[g for g, (e, _) in table.items() if e <= threshold] for table in self._tables]
            counts = [min(f) if f else c for f, c in zip(fitting, chosen, strict=True)]
            if math.prod(counts) > self.most:
                break
            chosen = counts
            if sum(self._tables[j][g][0] for j, g in enumerate(chosen)) <= goal:
                return self._pruned(chosen, goal)
        self.largest = math.prod(chosen)
        return chosen

    def _pruned(self, counts: list[int], goal: float) -> list[int]:
        """Remove anchors from axes while the errors still add up to goal."""
        for j in np.argsort(counts)[::-1]:
            others = sum(self._tables[i][g][0] for i, g in enumerate(counts) if i != j)
            fitting = [g for g, (e, _) in self._tables[j].items() if e + others <= goal]
            counts[j] = min([*fitting, counts[j]])
        return counts

    def _measure_shapes(self, count: int) -> None:
        """Fit every shape of this many anchors to the slices, once."""
        if count not in self._tried:
            x, slices = self._cut(_POINTS if 6 * count <= _POINTS else 6 * count + 1)
            self._tried[count] = [(_fit(shape, x, slices, self._fine), shape) for shape in _shapes(count)]
            self._rank(count)

    def _rank(self, count: int) -> None:
        """The best shape of this many anchors for every axis, among those whose values are small enough."""
        most = self._growth * self._scale
        for j, table in enumerate(self._tables):
            table[count], least = (np.inf, self._tried[count][0][1]), np.inf
            for results, shape in self._tried[count]:
                error, size = results[j]
                rank = (error + self.ridge * size) * max(size, 1e-300) ** _SIZE_POWER
                if rank < least and size <= most:
                    least, table[count] = rank, (error + self.ridge * size, shape)

    def _cut(self, points: int) -> tuple[Array, list[Array]]:
        """Slices of f along each axis through random points (the same points with their coordinates rotated for every axis), as
        functions of [-1, 1], each minus the middle of its range."""
        if points in self._slices:
            return self._slices[points]
        unit, slices = nodes(points), []
        start = self._noise.random((_SLICES, len(self.lo)))
        start[:4] = np.round(start[:4])
        mixed = self._noise.permutation(2**16)
        for j, (a, b) in enumerate(zip(self.lo, self.hi, strict=True)):
            base = self.lo + np.roll(start, j, axis=1) * (self.hi - self.lo)
            x = np.repeat(base, points, 0)
            x[:, j] = np.tile(on_interval(unit, a, b), _SLICES)
            y = self.f(x).reshape(_SLICES, points, -1)
            columns = np.moveaxis(y, 1, 0).reshape(points, -1)
            columns = columns[:, np.argsort(mixed[: columns.shape[1]])[:_COLUMNS]]
            slices.append(columns - (columns.max(0) + columns.min(0)) / 2)
        self._slices[points] = unit, slices
        return unit, slices
