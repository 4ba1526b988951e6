"""Enclosures of the exact numbers of an affine map: weight and bias with a radius, which is zero if nothing was folded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flint import arb

from attnc.domain import Array
from attnc.functions.balls import upper, working
from attnc.program import Affine, BatchNorm, Scale
from attnc.program.step import Numbers
from attnc.prove.outward import above, grown, times, total


@dataclass(frozen=True)
class Enclosed:
    """The exact number lies within `radius` of `number`."""

    number: Array
    radius: Array | float = 0.0

    @property
    def size(self) -> Array:
        """At least the magnitude."""
        return total(np.abs(self.number), self.radius)

    @property
    def folded(self) -> bool:
        """Whether the numbers are known only within a radius."""
        return bool(np.any(self.radius))

    def gap(self, stored: Numbers) -> Array | None:
        """At least |stored - exact|; None if they are the same numbers."""
        if not self.folded and np.array_equal(stored, self.number):
            return None
        return total(above(np.abs(stored.astype(np.float64) - self.number)), self.radius)


def plain(affine: Affine) -> tuple[Enclosed, Enclosed]:
    """The source's own numbers."""
    weight = affine.weight.astype(np.float64)
    bias = np.zeros(len(weight)) if affine.bias is None else affine.bias.astype(np.float64)
    return Enclosed(weight), Enclosed(bias)


def scaling(step: BatchNorm | Scale) -> tuple[Enclosed, Enclosed]:
    """a = gain/√(variance + ε) and c = shift - a·mean: the batch norm is a∘x + c. A scale has these numbers."""
    if isinstance(step, Scale):
        return Enclosed(step.factor.astype(np.float64)), Enclosed(step.shift.astype(np.float64))
    scale, shift = [], []
    with working(128):
        for g, v, m, s in zip(step.gain, step.variance, step.mean, step.shift, strict=True):
            a = arb(float(g)) / (arb(float(v)) + arb(step.epsilon)).sqrt()
            scale.append(_enclosed(a))
            shift.append(_enclosed(arb(float(s)) - a * arb(float(m))))
    return Enclosed(*np.array(scale).T), Enclosed(*np.array(shift).T)


def folded(affine: Affine, step: BatchNorm) -> tuple[Enclosed, Enclosed]:
    """diag(a) W and a∘b + c: the affine map followed by the batch norm."""
    (weight, bias), (a, c) = plain(affine), scaling(step)
    columns, scaled = Enclosed(a.number[:, None], np.asarray(a.radius)[:, None]), _product(a, bias)
    number = scaled.number + c.number
    shift = Enclosed(number, total(scaled.radius, c.radius, _rounding(number)))
    return _product(columns, weight), shift


def _product(x: Enclosed, y: Enclosed) -> Enclosed:
    number = x.number * y.number
    off = total(
        times(np.abs(x.number), y.radius), times(x.radius, np.abs(y.number)), times(x.radius, y.radius)
    )
    return Enclosed(number, total(off, _rounding(number)))


def _rounding(number: Array) -> Array:
    """At least the rounding error of one operation with this result."""
    return grown(np.abs(number) * 2.0**-53, 2)


def _enclosed(x: arb) -> tuple[float, float]:
    number = float(x.mid())
    return number, upper(abs(x - arb(number)))
