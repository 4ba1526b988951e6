"""What is known of a function that is given by points and by how fast it can change.

Every f of a `Lookup` lies between its two envelopes, which are themselves among them:

    max_k (values_k - noise - K|x - points_k|)  <=  f(x)  <=  min_k (values_k + noise + K|x - points_k|)"""

from __future__ import annotations

import numpy as np
import torch
from flint import arb
from numpy.typing import NDArray
from torch import Tensor

from attnc.program.steps import Lookup

_NEAR = 64  # points that are asked in ball arithmetic: fewer make the enclosure wider, never wrong
_CHUNK = 1 << 22  # numbers held at once


def enclosed(step: Lookup, x: NDArray[np.object_]) -> NDArray[np.object_]:
    """Balls that hold f(x) for every such f; x is an array (N, in) of balls."""
    found = np.empty((len(x), step.values.shape[1]), dtype=object)
    points = step.points.astype(np.float64)
    for i, row in enumerate(x):
        rough = np.array([float(s.mid()) for s in row])
        near = np.argsort(((points - rough) ** 2).sum(1), kind="stable")[:_NEAR]
        reach = [arb(step.noise) + arb(step.lipschitz) * _distance(row, points[k]) for k in near]
        for j in range(found.shape[1]):
            at = [arb(float(step.values[k, j])) for k in near]
            low, high = at[0] - reach[0], at[0] + reach[0]
            for v, r in zip(at[1:], reach[1:], strict=True):
                low, high = low.max(v - r), high.min(v + r)
            found[i, j] = low.union(high)
    return found


def _distance(x: NDArray[np.object_], point: NDArray[np.float64]) -> arb:
    total = arb(0)
    for s, p in zip(x, point.tolist(), strict=True):
        total = total + abs(s - arb(p)) ** 2
    return total.sqrt()


def envelopes(step: Lookup, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both envelopes in float64 at inputs (N, in): a guide, and what attacks a certificate."""
    points, values = (torch.from_numpy(a.astype(np.float64)) for a in (step.points, step.values))
    rows = max(1, _CHUNK // values.numel())
    low, high = [], []
    for part in torch.split(x, rows):
        difference = part.unsqueeze(1) - points
        reach = (step.noise + step.lipschitz * difference.square().sum(-1).sqrt()).unsqueeze(-1)
        low.append((values - reach).amax(1))
        high.append((values + reach).amin(1))
    return torch.cat(low), torch.cat(high)
