"""y = f(x) for a function that is known at points and by a Lipschitz constant.

Every such f lies between two envelopes, which are themselves such functions:

    max_k (values_k - noise - K|x - points_k|)  <=  f(x)  <=  min_k (values_k + noise + K|x - points_k|)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.domain import Array
from attnc.errors import InputError
from attnc.program.step import Balls, Numbers, OneInput, Shape, finite_setting, freeze, wide

_NEAR = 64  # points used in ball arithmetic: fewer make the enclosure wider, never wrong
_CHUNK = 1 << 22  # numbers held at once


@dataclass(frozen=True, eq=False)
class Lookup(OneInput):
    """y = f(x) for a function of all features. In every output

        |f(points_k) - values_k| <= noise        |f(x) - f(x')| <= lipschitz·|x - x'|₂

    A bound on this step holds for every such f."""

    points: Numbers  # (K, in)
    values: Numbers  # (K, out)
    lipschitz: float
    noise: float = 0.0
    kind = "lookup"
    linear = False

    def __post_init__(self) -> None:
        freeze(self, "points", "values")
        shapes = self.points.shape, self.values.shape
        if any(len(s) != 2 or 0 in s for s in shapes) or len(self.points) != len(self.values):
            raise InputError(f"{self.label}: expected shapes (K, in) and (K, out), got {shapes}")
        finite_setting(self, "lipschitz")
        finite_setting(self, "noise")

    @property
    def assumed(self) -> dict[str, float]:
        """What a certificate about this step assumes of f, besides its values."""
        return {"lipschitz": float(self.lipschitz), "noise": float(self.noise)}

    def shape(self, *given: Shape) -> Shape:
        if given[0] != self.points.shape[1:]:
            raise InputError(f"it takes {self.points.shape[1]} features, but its input has shape {given[0]}")
        return self.values.shape[1:]

    def exact(self, *x: Balls) -> Balls:
        """From the nearest points: balls that contain f(x) for every such f, as wide as what is unknown about f at x."""
        found = np.empty((len(x[0]), self.values.shape[1]), dtype=object)
        points = self.points.astype(np.float64)
        for i, row in enumerate(x[0]):
            rough = np.array([float(s.mid()) for s in row])
            near = np.argsort(((points - rough) ** 2).sum(1), kind="stable")[:_NEAR]
            reach = [arb(self.noise) + arb(self.lipschitz) * _distance(row, points[k]) for k in near]
            for j in range(found.shape[1]):
                at = [arb(float(self.values[k, j])) for k in near]
                low, high = at[0] - reach[0], at[0] + reach[0]
                for v, r in zip(at[1:], reach[1:], strict=True):
                    low, high = low.max(v - r), high.min(v + r)
                found[i, j] = low.union(high)
        return found

    def approximate(self, *x: Tensor) -> Tensor:
        low, high = envelopes(self, x[0])
        return (low + high) / 2


def _distance(x: Balls, point: Array) -> arb:
    return sum((abs(s - arb(p)) ** 2 for s, p in zip(x, point.tolist(), strict=True)), arb(0)).sqrt()


def envelopes(step: Lookup, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both envelopes in float64 at inputs (N, in)."""
    points, values = wide(step.points), wide(step.values)
    rows = max(1, _CHUNK // values.numel())
    low, high = [], []
    for part in torch.split(x, rows):
        difference = part.unsqueeze(1) - points
        reach = (step.noise + step.lipschitz * difference.square().sum(-1).sqrt()).unsqueeze(-1)
        low.append((values - reach).amax(1))
        high.append((values + reach).amin(1))
    return torch.cat(low), torch.cat(high)
