"""The number of anchors on each axis: 1-D slices of f give the error of each count, and the cheapest combination is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from attnc.heads.tensor_axis import LADDER, Axis, Shape, fit, nodes, shapes
from attnc.records.numbers import Array

_POINTS, _COLUMNS, _SLICES = 193, 96, 24
_LEAST_GROWTH = 2.0  # of values over f along one axis: a smaller limit would exclude every lattice
_SIZE_POWER = 0.03  # among similar errors prefer small values: shapes are ranked by error·size^_SIZE_POWER


class Planner:
    """For each axis the best shape of 1, 2, 3, … anchors and its error on slices of f.

    `growth` limits how far the values may exceed f along one axis. It starts at the limit for all axes together, because the
    axes of a sum f_1(x_1) + … + f_m(x_m) do not multiply; `lower_growth` reduces it after a lattice whose values are too large.
    """

    def __init__(
        self,
        f: Callable[[Array], Array],
        lo: Array,
        hi: Array,
        eps: float,
        most_value: float,
        most: int,
        seed: int,
    ) -> None:
        self.f, self.lo, self.hi, self.eps, self.most = f, lo, hi, eps, most
        self.largest = most
        self._noise = np.random.default_rng([seed, 0])
        self._slices: dict[int, tuple[Array, list[Array]]] = {}
        self._tried: dict[int, list[tuple[list[tuple[float, float]], Shape]]] = {}
        self._tables: list[dict[int, tuple[float, Shape]]] = [{} for _ in lo]
        slices = self._cut(_POINTS)[1]
        self._scale = max(max(float(np.abs(s).max()) for s in slices), 1e-300)
        self._active = max(1, sum(float(np.ptp(s, 0).max()) > 0 for s in slices))
        self._growth = max(_LEAST_GROWTH, most_value / self._scale)
        self._most_value = most_value
        self._fine = self.ridge
        self._measure_shapes(1)

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

    def axes(self, chosen: Sequence[Shape]) -> tuple[Axis, ...]:
        return tuple(s.on(float(a), float(b)) for s, a, b in zip(chosen, self.lo, self.hi, strict=True))

    def shapes(self, share: float) -> list[Shape]:
        """The cheapest shapes whose errors on slices add up to share·eps; if these have too many anchors, the best that fit."""
        goal = share * self.eps
        for count in LADDER[1:]:
            if count > self.most or self._settled(count, goal / (4 * len(self.lo))):
                break
            self._measure_shapes(count)
        return [self._tables[j][g][1] for j, g in enumerate(self._counts(goal))]

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
            chosen = self.shapes(share)
            if tuple(s.count for s in chosen) != counts:
                break
            share *= push
        return share

    def _counts(self, goal: float) -> tuple[int, ...]:
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
        return tuple(chosen)

    def _pruned(self, counts: list[int], goal: float) -> tuple[int, ...]:
        """Remove anchors from axes while the errors still add up to goal."""
        for j in np.argsort(counts)[::-1]:
            others = sum(self._tables[i][g][0] for i, g in enumerate(counts) if i != j)
            fitting = [g for g, (e, _) in self._tables[j].items() if e + others <= goal]
            counts[j] = min([*fitting, counts[j]])
        return tuple(counts)

    def _measure_shapes(self, count: int) -> None:
        """Fit every shape of this many anchors to the slices, once."""
        if count in self._tried:
            return
        x, slices = self._cut(_POINTS if 6 * count <= _POINTS else 6 * count + 1)
        self._tried[count] = [(fit(shape, x, slices, self._fine), shape) for shape in shapes(count)]
        self._rank(count)

    def _rank(self, count: int) -> None:
        """The best shape of this many anchors for every axis, among those whose values are small enough."""
        most = self._growth * self._scale
        for j, table in enumerate(self._tables):
            table[count] = np.inf, self._tried[count][0][1]
            least = np.inf
            for results, shape in self._tried[count]:
                error, size = results[j]
                rank = (error + self.ridge * size) * max(size, 1e-300) ** _SIZE_POWER
                if rank < least and size <= most:
                    least, table[count] = rank, (error + self.ridge * size, shape)

    def _cut(self, points: int) -> tuple[Array, list[Array]]:
        """Slices of f along each axis through random points (the same ones, their coordinates
        turned round, for every axis), as functions of [-1, 1], their middles taken off."""
        if points in self._slices:
            return self._slices[points]
        unit, slices = nodes(points), []
        start = self._noise.random((_SLICES, len(self.lo)))
        start[:4] = np.round(start[:4])
        mixed = self._noise.permutation(2**16)
        for j, (a, b) in enumerate(zip(self.lo, self.hi, strict=True)):
            base = self.lo + np.roll(start, j, axis=1) * (self.hi - self.lo)
            x = np.repeat(base, points, 0)
            x[:, j] = np.tile(np.clip(a / 2 + b / 2 + (b / 2 - a / 2) * unit, a, b), _SLICES)
            y = self.f(x).reshape(_SLICES, points, -1)
            columns = np.moveaxis(y, 1, 0).reshape(points, -1)
            columns = columns[:, np.argsort(mixed[: columns.shape[1]])[:_COLUMNS]]
            slices.append(columns - (columns.max(0) + columns.min(0)) / 2)
        self._slices[points] = unit, slices
        return unit, slices
