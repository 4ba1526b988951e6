"""What a head is planned for: a function on an interval, sampled densely where it bends, and searched for undeclared kinks.

Designs use the coordinate x = (s - middle)/half of the interval, so that it is always [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from attnc.arguments import LARGEST
from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Interval
from attnc.errors import ConvergenceError, FunctionError
from attnc.functions import Function
from attnc.functions.balls import ball, working
from attnc.records.numbers import Array

Progress = Callable[[str], None]
_ZOOMS, _PERSISTENT, _NOISE = 9, 3, 256 * 2.0**-53  # of the search for kinks

_TINY, _BITS = 2.0**-40, 128  # of the interval: a cell beside a kink; bits of the enclosure there


@dataclass(frozen=True)
class Plan:
    """What a head is for, and how it is to be built."""

    f: Function
    domain: Interval
    dtype: str
    design: str = "auto"
    heads: int = 1
    progress: Progress = field(default=lambda _: None, compare=False)

    @property
    def where(self) -> str:
        return f"{self.f.label} on [{self.domain.lo:g}, {self.domain.hi:g}]"


@dataclass(frozen=True)
class Target:
    f: Function
    domain: Interval
    dtype: str
    x: Array  # sample points in [-1, 1], increasing
    y: Array  # f there
    kinks: tuple[float, ...]  # those inside, in x
    flat_below: bool  # f is constant left of its first kink, or of the interval
    flat_above: bool
    finest: float
    damping: float = 0.0  # the least ridge

    @property
    def half(self) -> float:
        return self.domain.width / 2

    @property
    def arithmetic(self) -> Arithmetic:
        return ARITHMETIC[self.dtype]

    @property
    def ridge(self) -> float:
        """The approximate rounding error that a unit of |value| costs: least squares weighs values against errors by it."""
        return max(self.damping, self.arithmetic.exp_units * self.arithmetic.unit / 4)

    def to_s(self, x: Array) -> Array:
        return np.clip(self.domain.middle + self.half * x, self.domain.lo, self.domain.hi)

    def denser(self, points: int) -> Target:
        """The same target with at least this many sample points."""
        if len(self.x) >= points:
            return self
        return replace(
            make_target(self.f, self.domain, self.dtype, self.finest, points), damping=self.damping
        )


def evaluate(f: Callable[[torch.Tensor], torch.Tensor], s: Array) -> Array:
    return f(torch.from_numpy(np.ascontiguousarray(s))).detach().numpy()


def target_of(plan: Plan, eps: float) -> Target:
    """Kinks are resolved to the scale at which their error equals eps."""
    finest = 2.0**-30 if eps <= 0 else min(2.0**-20, max(2.0**-44, eps / plan.domain.width / 64))
    return make_target(plan.f, plan.domain, plan.dtype, finest)


def make_target(
    f: Function, domain: Interval, dtype: str, finest: float = 2.0**-30, points: int = 121
) -> Target:
    """Chebyshev points, half as many more where f bends, and points beside each inner kink down to a distance of `finest`."""
    half, middle = domain.width / 2, domain.middle
    kinks = tuple((k - middle) / half for k in f.kinks if domain.lo < k < domain.hi)
    parts = [np.cos(np.pi * np.arange(points) / (points - 1)), _where_it_bends(f, domain, points // 2)]
    for kink in kinks:
        away = 2.0 ** -np.arange(0, -np.log2(finest), 0.5)
        parts += [kink + away, kink - away, np.array([kink])]
    x = np.unique(np.concatenate(parts))
    x = x[(x >= -1) & (x <= 1)]
    y = evaluate(f, np.clip(middle + half * x, domain.lo, domain.hi))
    if np.abs(y).max() > LARGEST[dtype]:
        reached = f"{f.label} reaches {np.abs(y).max():.3g} on [{domain.lo:g}, {domain.hi:g}]"
        raise FunctionError(f"{reached}: up to {LARGEST[dtype]:.3g} is accepted in {dtype}")
    below, above = (y[x <= kinks[0]], y[x >= kinks[-1]]) if kinks else (x, x)  # x increases
    flat_below, flat_above = (bool((side == side[0]).all()) for side in (below, above))
    return Target(f, domain, dtype, x, y, kinks, flat_below, flat_above, finest)


def _where_it_bends(f: Function, domain: Interval, points: int) -> Array:
    """Points whose density follows |f''|^(1/3), in x, so that features much narrower than the interval are sampled."""
    x = np.linspace(-1.0, 1.0, 8193)
    y = evaluate(f, np.clip(domain.middle + domain.width / 2 * x, domain.lo, domain.hi))
    density = np.abs(np.diff(y, 2)) ** (1 / 3)
    mass = np.concatenate([[0.0], np.cumsum(density + 1e-3 * density.max() + 1e-300)])
    return np.interp((np.arange(points) + 0.5) / points, mass / mass[-1], x[1:])


def bends(plan: Plan) -> int:
    """The approximate number of times that f changes between convex and concave: a head needs at least half as many anchors."""
    turn = np.diff(evaluate(plan.f, np.linspace(plan.domain.lo, plan.domain.hi, 2001)), 2)
    turn = turn[np.abs(turn) > 1e-6 * np.abs(turn).max(initial=0.0)]
    return min(256, int(np.sum(turn[1:] * turn[:-1] < 0)))


def find_kink(f: Function, domain: Interval) -> float | None:
    """A point where f has a kink or a jump that is not declared, or None.

    J(h) = |Δ⁴f|/h falls like h³ for a smooth f, stays at a kink, and grows at a jump; the six largest Δ⁴f are examined."""
    grid = np.linspace(domain.lo, domain.hi, 2051)
    y = evaluate(f, grid)
    scale = float(np.abs(y).max())
    for i in np.argsort(np.abs(np.diff(y, 4)))[::-1][:6]:
        found = _zoom(f, domain, float(grid[i]), float(grid[i + 4]), scale)
        if found is not None and all(abs(found - k) > 4 * (grid[1] - grid[0]) for k in f.kinks):
            return found
    return None


def _zoom(f: Function, domain: Interval, a: float, b: float, scale: float) -> float | None:
    """Follow the largest J into smaller and smaller intervals: a kink persists until rounding hides it.

    It is known up to the last interval. If that contains 0, the kink is at 0; else it is in the middle."""
    first = 0.0
    for zoom in range(_ZOOMS):
        points = np.linspace(max(a - (b - a) / 4, domain.lo), min(b + (b - a) / 4, domain.hi), 41)
        h = float(points[1] - points[0])
        if not h > 0:  # the interval has no more floats
            return None
        y = evaluate(f, points)
        bend = np.abs(np.diff(y, 4))
        i = int(np.argmax(bend))
        slope = float(np.abs(np.diff(y)).max()) / h  # rounding of s itself moves f by slope·|s|u
        if bend[i] < _NOISE * (scale + (1 + slope) * (abs(a) + abs(b))):
            return _middle(a, b) if zoom > _PERSISTENT else None
        ratio = float(bend[i]) / h
        first = first or ratio
        if ratio < 0.2 * first:
            return None
        a, b = float(points[i]), float(points[i + 4])
    return _middle(a, b)


def kind_of_kink(f: Function, domain: Interval, k: float) -> Literal["kink", "jump", "pole"]:
    """What f has at k: closer to k the spread of its values vanishes at a kink and stays at a jump; f grows at a pole."""
    sides = [
        k + distance * np.array([-1.0, -0.5, 0.5, 1.0])
        for distance in (domain.width * 2.0**-16, domain.width * 2.0**-28)
    ]
    far, near = (evaluate(f, np.clip(points, domain.lo, domain.hi)) for points in sides)
    if np.abs(near).max() > 16 * np.abs(far).max():
        return "pole"
    return "jump" if np.ptp(near) > np.ptp(far) / 2 else "kink"


def _middle(a: float, b: float) -> float:
    return 0.0 if a <= 0 <= b else (a + b) / 2


def refuse_endless(plan: Plan) -> None:
    """Raise if the enclosure of f has no finite value on a tiny cell at a kink: every proof would fail there."""
    f, domain = plan.f, plan.domain
    for k in f.kinks if f.provable else ():
        if not domain.lo <= k <= domain.hi:
            continue
        cells = [(max(domain.lo, k - _TINY * domain.width), k), (k, min(domain.hi, k + _TINY * domain.width))]
        with working(_BITS):
            finite = all(f.over(ball(a, b)).is_finite() for a, b in cells)
        if not finite:
            box = f"attnc.Box({domain.lo:g}, {domain.hi:g}, shape=(1, 1))"
            raise ConvergenceError(
                f"the enclosure of {f.label!r} has no finite value on small cells at the kink s={k:.9g}, so that nothing can be "
                "proved there. Return a range for such a cell (the first coefficient finite, the others NaN), or use "
                f"attnc.compile(f, domain={box}, eps=…, lipschitz=K)."
            )
