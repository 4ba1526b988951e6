"""A tensor lattice: one softmax over all the points of a grid, for functions of a few variables.

Anchor k = (k_1, …, k_m) stands at the point (L_{k_1}, …, L_{k_m}). Its score Σ_j (2 b_j x_j L_{k_j} - b_j L_{k_j}²) makes its
weight the product of the weights of its coordinates, w_k(x) = Π_j w_{k_j}(x_j). Values come from the 1-D pseudo-inverse
along every axis, so the errors of the axes add up (each times the norms of the others' projections)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from attnc.arithmetic import ARITHMETIC
from attnc.errors import ConvergenceError, InputError
from attnc.heads.candidates import Progress
from attnc.heads.tensor_axis import Axis, softmax_rows
from attnc.heads.tensor_plan import Planner
from attnc.heads.tensor_values import Sampled, along, sample, solved
from attnc.records.numbers import Array

Values = Callable[[Array], Array]  # points (N, m) → values (N, outputs)
MOST_BLOCK = 2**22  # numbers in memory at once
FRESH, CONFIRMING = 20_000, 100_000  # random points at which an attempt, and the result, are measured
EXECUTED = 2_000  # points at which the lattice runs in its dtype
_ATTEMPTS, _AIM, _MARGIN = 12, 0.98, 1.02
_ENOUGH = 3  # lattices within eps; the smallest is used
_VALUES = (
    0.2 / 100
)  # largest value, in units of eps/u: a unit of |value| costs up to 100 roundings u, in all a fifth of eps


@dataclass(frozen=True)
class Lattice:
    """Axes, and a value for each of their Π g_j combinations, the last axis running fastest.

    >>> lattice = Lattice((Axis(0.0, 1.0, 2, 4.0), Axis(0.0, 0.0, 1, 0.0)), np.array([[5.0], [7.0]]))
    >>> lattice.anchors, lattice(np.array([[0.0, 3.0], [0.5, 3.0]])).round(3).tolist()
    (2, [[5.036], [6.0]])
    """

    axes: tuple[Axis, ...]
    values: Array  # (anchors, outputs)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(axis.count for axis in self.axes)

    @property
    def anchors(self) -> int:
        return math.prod(self.counts)

    def keys(self, centre: Array, dtype: str = "float64") -> tuple[Array, Array]:
        """key (K, m) and offset (K,), numbers of the dtype: score_k(x) = key_k·x + offset_k.

        key = 2 b (L_k - o) and offset = -b (L_k² - o²), o the centre: the score of the module's docstring minus the same
        affine function of x for every anchor. The offset belongs to the rounded key: at x = o the score is -b (L_k - o)².
        """
        parts = [_axis_numbers(axis, o, dtype) for axis, o in zip(self.axes, centre, strict=True)]
        key = np.stack(np.meshgrid(*(k for k, _ in parts), indexing="ij"), -1).reshape(self.anchors, -1)
        return key, _rounded(_outer_sum([c for _, c in parts]).reshape(-1), dtype)

    def __call__(self, x: Array, centre: Array | None = None, dtype: str = "float64") -> Array:
        """Σ_k w_k(x) v_k at points (N, m), in float64, with keys and offsets rounded to the dtype.

        The rounding of the offsets is the only part that is not a sum over the axes: with offset_k = Σ_j offset_{k_j} + δ_k it is
        Σ_k Π w_{k_j} e^{δ_k} v_k / Σ_k Π w_{k_j} e^{δ_k}.
        """
        point = np.array([axis.points.mean() for axis in self.axes]) if centre is None else centre
        parts = [_axis_numbers(axis, o, dtype) for axis, o in zip(self.axes, point, strict=True)]
        exact = _outer_sum([c for _, c in parts]).reshape(-1)
        shift = np.exp(_rounded(exact, dtype) - exact)[:, None]
        numbers = np.concatenate([shift * self.values, shift], 1) if (shift != 1).any() else self.values
        rows = max(1, MOST_BLOCK // max(*self.counts, numbers.size // self.counts[0]))
        found = []
        for i in range(0, len(x), rows):
            block = x[i : i + rows]
            weights = [softmax_rows(block[:, j : j + 1] * k + c) for j, (k, c) in enumerate(parts)]
            sums = weights[0] @ numbers.reshape(self.counts[0], -1)
            for w in weights[1:]:
                sums = np.einsum("ng,ngr->nr", w, sums.reshape(len(block), w.shape[1], -1))
            found.append(sums if numbers is self.values else sums[:, :-1] / sums[:, -1:])
        return np.concatenate(found) if found else np.zeros((0, self.values.shape[1]))

    def run(self, x: Array, centre: Array, dtype: str) -> Array:
        """Σ_k softmax_k(key_k·x + offset_k) v_k, every operation in the dtype."""
        key, offset = self.keys(centre, dtype)
        kind = getattr(torch, dtype)
        keys, offsets, values = (torch.from_numpy(a).to(kind) for a in (key, offset, self.values))
        rows = max(1, MOST_BLOCK // self.anchors)
        inputs = torch.from_numpy(np.ascontiguousarray(x)).to(kind)
        parts = [torch.softmax(block @ keys.T + offsets, -1) @ values for block in torch.split(inputs, rows)]
        return torch.cat(parts).double().numpy()


@dataclass(frozen=True)
class Attempt:
    """One lattice of the search: its size, and the largest error at new points."""

    counts: tuple[int, ...]
    measured: float


@dataclass(frozen=True)
class LatticeFit:
    """A lattice, its largest error at new random points, and where it occurs."""

    lattice: Lattice
    history: tuple[Attempt, ...]
    measured: float
    worst: Array  # (m,)
    points: int  # how many were measured


def tensor_lattice(
    f: Values,
    lo: Array,
    hi: Array,
    eps: float,
    *,
    dtype: str = "float64",
    most: int = 8192,
    seed: int = 0,
    progress: Progress = lambda _: None,
) -> LatticeFit:
    """A lattice of at most `most` anchors whose error, measured at new random points, is at most eps.

    1-D slices of f determine the anchors of each axis; the error of the lattice is measured at random points that it has not
    used, and the next size follows from the ratio of the predicted to the measured error.

    >>> def f(x):
    ...     return np.exp(np.sin(2 * x[:, :1]) * np.cos(x[:, 1:]))
    >>> found = tensor_lattice(f, -np.ones(2), np.ones(2), 1e-3)
    >>> found.measured <= 1e-3, found.lattice.anchors < 100
    (True, True)
    """
    lo, hi = np.asarray(lo, dtype=np.float64), np.asarray(hi, dtype=np.float64)
    _check(lo, hi, eps, dtype, most)
    planner = Planner(f, lo, hi, eps, _VALUES * eps / ARITHMETIC[dtype].unit, most, seed)
    goal = eps / _MARGIN
    search = _Search(f, lo, hi, goal, dtype, seed, planner)
    share, best, history = 1.0, None, list[Attempt]()
    for _ in range(_ATTEMPTS):
        lattice = search.build(share, progress)
        if lattice.counts in [a.counts for a in history]:
            break
        found = search.measured(lattice, history)
        history.append(Attempt(lattice.counts, found.measured))
        best = found if best is None or _better(found, best, goal) else best
        if _finished(history, goal, planner.largest, most):
            break
        share = planner.next_share(share, lattice.counts, _AIM * goal / max(found.measured, 1e-300))
    assert best is not None
    return _concluded(best, history, eps, most)


def _finished(history: list[Attempt], eps: float, largest: int, most: int) -> bool:
    """Whether the search ends: just below eps, within eps often enough, or without hope of reaching it."""
    last, met = history[-1], [math.prod(a.counts) for a in history if a.measured <= eps]
    if last.measured <= eps:
        return last.measured >= _AIM * eps or len(met) >= _ENOUGH
    if met:
        missed = [math.prod(a.counts) for a in history if a.measured > eps]
        return len(missed) > 2 or max(missed) > 0.85 * min(met)
    return math.prod(last.counts) >= largest or _hopeless(history, eps, most)


def _better(new: LatticeFit, old: LatticeFit, eps: float) -> bool:
    """Within eps the smaller lattice, else the smaller error."""
    if new.measured <= eps and old.measured <= eps:
        return new.lattice.anchors < old.lattice.anchors
    return new.measured < old.measured


def _concluded(best: LatticeFit, history: list[Attempt], eps: float, most: int) -> LatticeFit:
    found = LatticeFit(best.lattice, tuple(history), best.measured, best.worst, best.points)
    if best.measured <= eps:
        return found
    raise ConvergenceError(
        f"eps={eps:g} cannot be met with {most} anchors: a lattice of {' × '.join(map(str, best.lattice.counts))} = "
        f"{best.lattice.anchors} anchors has an error of {best.measured:.3g} at "
        f"x = {[float(f'{v:.6g}') for v in best.worst]}, and larger ones converge too slowly "
        f"({', '.join(f'{a.measured:.2g} with {math.prod(a.counts)}' for a in history)}). Use "
        f"eps >= {best.measured * 1.05:.2g} or a smaller box.",
        reachable=best.measured,
        found=found,
    )


def _hopeless(history: list[Attempt], eps: float, most: int) -> bool:
    """Whether the rate of the last attempts, log error against log anchors, predicts more than twice the allowed anchors."""
    if len(history) < 3:
        return False
    size, error = (
        np.log([float(v) for v in values])
        for values in zip(*((math.prod(a.counts), a.measured) for a in history[-4:]), strict=True)
    )
    rate = float(np.polyfit(size, error, 1)[0]) if np.ptp(size) > 0 else 0.0
    return rate >= -1e-3 or float(size[-1] + (np.log(eps) - error[-1]) / rate) > np.log(2.0 * most)


@dataclass(frozen=True)
class _Search:
    f: Values
    lo: Array
    hi: Array
    eps: float
    dtype: str
    seed: int
    planner: Planner

    @property
    def centre(self) -> Array:
        return self.lo / 2 + self.hi / 2

    def build(self, share: float, progress: Progress) -> Lattice:
        """The lattice that the planner proposes, rounded to the dtype; with other shapes if its values are too large."""
        while True:
            axes = self.planner.axes(self.planner.shapes(share))
            progress(f"lattice {' × '.join(str(axis.count) for axis in axes)}")
            data = sample(self.f, axes, self.lo, self.hi, self.planner.ridge)
            values = solved(data, self.eps)
            if not self.planner.lower_growth(float(np.ptp(values))):
                return self.rounded(axes, values, data)

    def measured(self, lattice: Lattice, history: list[Attempt]) -> LatticeFit:
        """The largest error at points that the lattice has not used; at five times as many if it is within eps."""
        seed = [self.seed, len(history), 1]
        measured, worst, count = self.measure(lattice, FRESH, seed)
        if measured <= self.eps:
            more = self.measure(lattice, CONFIRMING, [*seed, 2])
            count += more[2]
            run = self.executed(
                lattice, np.concatenate([worst[None], more[1][None], self.fresh(EXECUTED, [*seed, 3])])
            )
            measured, worst = max((measured, worst), more[:2], run, key=lambda pair: pair[0])
        return LatticeFit(lattice, (), measured, worst, count)

    def rounded(self, axes: tuple[Axis, ...], values: Array, data: Sampled) -> Lattice:
        """Values that compensate the rounding of keys and offsets: v + pinv(W v - output of the rounded lattice)."""
        flat = values.reshape(-1, values.shape[-1])
        if self.dtype == "float64":
            return Lattice(axes, flat)
        grid = np.stack(np.meshgrid(*data.points, indexing="ij"), -1).reshape(-1, len(axes))
        given = Lattice(axes, flat)(grid, self.centre, self.dtype).reshape(data.f.shape)
        lost = along(data.weights, values) - given
        back = along([np.linalg.solve(r, q.T) for q, r in zip(data.q, data.r, strict=True)], lost)
        return Lattice(axes, _rounded(flat + back.reshape(flat.shape), self.dtype))

    def fresh(self, points: int, seed: list[int]) -> Array:
        return self.place(np.random.default_rng(seed).random((points, len(self.lo))))

    def executed(self, lattice: Lattice, x: Array) -> tuple[float, Array]:
        """The largest error of the lattice executed in its dtype, and where."""
        given = np.clip(_rounded(x, self.dtype), self.lo, self.hi)
        errors = np.abs(lattice.run(given, self.centre, self.dtype) - self.f(given)).max(1)
        worst = int(errors.argmax())
        return float(errors[worst]), given[worst]

    def measure(self, lattice: Lattice, points: int, seed: list[int]) -> tuple[float, Array, int]:
        """The largest error at random points, a quarter of them on the boundary, refined around the worst ones."""
        noise = np.random.default_rng(seed)
        share = noise.random((points, len(self.lo)))
        on_side = noise.random(share.shape) < 1 / len(self.lo)
        share[::4] = np.where(on_side[::4], np.round(share[::4]), share[::4])
        errors, count, reach = self.errors(lattice, share), points, 0.05
        for _ in range(8):
            top = share[np.argsort(errors)[-32:]]
            near = np.clip(
                np.repeat(top, 16, 0) + reach * noise.normal(size=(16 * len(top), len(self.lo))), 0, 1
            )
            share, errors = (
                np.concatenate([share, near]),
                np.concatenate([errors, self.errors(lattice, near)]),
            )
            reach, count = reach / 2, count + len(near)
        worst = int(errors.argmax())
        return float(errors[worst]), self.place(share[worst]), count

    def place(self, share: Array) -> Array:
        return np.clip(self.lo + share * (self.hi - self.lo), self.lo, self.hi)

    def errors(self, lattice: Lattice, share: Array) -> Array:
        x = self.place(share)
        found: Array = np.abs(lattice(x, self.centre, self.dtype) - self.f(x)).max(1)
        return found


def _axis_numbers(axis: Axis, o: float, dtype: str) -> tuple[Array, Array]:
    """The rounded keys of an axis, and its part of the offsets before rounding."""
    key = _rounded(2 * axis.sharpness * (axis.points - o), dtype)
    return key, -axis.sharpness * (axis.points - o) ** 2 - key * o


def _outer_sum(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total[..., None] + part
    return total


def _rounded(numbers: Array, dtype: str) -> Array:
    return numbers.astype(dtype).astype(np.float64)


def _check(lo: Array, hi: Array, eps: float, dtype: str, most: int) -> None:
    if lo.ndim != 1 or lo.shape != hi.shape or not len(lo) or not (lo <= hi).all():
        raise InputError(f"lo={lo} and hi={hi}: expected two vectors lo <= hi of one length")
    if not (math.isfinite(eps) and eps > 0):
        raise InputError(f"eps={eps!r}: give a positive number")
    if dtype not in ARITHMETIC:
        raise InputError(f"dtype={dtype!r}: accepted are {', '.join(ARITHMETIC)}")
    if most < 1:
        raise InputError(f"most={most}: give at least 1")
