"""The target of a head: a function on an interval, sampled densely where it bends.

Designs use the coordinate x = (s - middle)/half of the interval, so that it is always [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Interval
from attnc.errors import FunctionError
from attnc.functions import Function
from attnc.records.numbers import Array

LARGEST = {"float32": 2.0**80, "float64": 2.0**400}  # of |f|: sums would overflow beyond it


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

    @property
    def half(self) -> float:
        return self.domain.width / 2

    @property
    def arithmetic(self) -> Arithmetic:
        return ARITHMETIC[self.dtype]

    @property
    def ridge(self) -> float:
        """The approximate rounding error that a unit of |value| costs: least squares weighs values against errors by it."""
        return self.arithmetic.exp_units * self.arithmetic.unit / 4

    def to_s(self, x: Array) -> Array:
        return np.clip(self.domain.middle + self.half * x, self.domain.lo, self.domain.hi)

    def denser(self, points: int) -> Target:
        """The same target with at least this many sample points."""
        return (
            self
            if len(self.x) >= points
            else make_target(self.f, self.domain, self.dtype, self.finest, points)
        )

    def at(self, x: Array) -> Array:
        """f in float64 at points given in x."""
        return evaluate(self.f, self.to_s(x))


def evaluate(f: Callable[[torch.Tensor], torch.Tensor], s: Array) -> Array:
    return f(torch.from_numpy(np.ascontiguousarray(s))).detach().numpy()


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
        raise FunctionError(
            f"{f.label} reaches {np.abs(y).max():.3g} on [{domain.lo:g}, {domain.hi:g}]: "
            f"up to {LARGEST[dtype]:.3g} is accepted in {dtype}"
        )
    first, last = (kinks[0], kinks[-1]) if kinks else (-1.0, 1.0)
    below, above = y[x <= first], y[x >= last]
    return Target(f, domain, dtype, x, y, kinks, _flat(below, kinks), _flat(above, kinks), finest)


def _where_it_bends(f: Function, domain: Interval, points: int) -> Array:
    """Points whose density follows |f''|^(1/3), in x, so that features much narrower than the interval are sampled."""
    x = np.linspace(-1.0, 1.0, 8193)
    y = evaluate(f, np.clip(domain.middle + domain.width / 2 * x, domain.lo, domain.hi))
    density = np.abs(np.diff(y, 2)) ** (1 / 3)
    mass = np.concatenate([[0.0], np.cumsum(density + 1e-3 * density.max() + 1e-300)])
    return np.interp((np.arange(points) + 0.5) / points, mass / mass[-1], x[1:])


def _flat(y: Array, kinks: tuple[float, ...]) -> bool:
    return bool(kinks) and bool((y == y[0]).all())
