"""Softmax attention between data tokens: y_i = Σ_j softmax_j(scale·q_i·k_j) v_j over the keys that the mask allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Numbers, Shape, Step


@dataclass(frozen=True, eq=False)
class Attend(Step):
    """y_i = Σ_j softmax_j(scale·q_i·k_j + mask_ij) v_j in each of `heads` slices of the features.

    The three inputs have the shapes (n, h·d), (m, h·d) and (m, h·d'). `mask` (n, m) holds 1 where token
    i may attend to token j, else 0; every row allows at least one key."""

    inputs: tuple[int, int, int]  # queries, keys, values
    heads: int
    scale: float
    mask: Numbers | None = None  # (n, m) of 0 and 1
    kind = "attend"
    linear = False

    def __post_init__(self) -> None:
        if type(self.heads) is not int or self.heads < 1:
            raise InputError(f"{self.label}: heads={self.heads!r} must be a positive whole number")
        object.__setattr__(self, "scale", float(self.scale))
        if not np.isfinite(self.scale):
            raise InputError(f"{self.label}: scale={self.scale} must be finite")
        if self.mask is not None:
            mask = np.array(self.mask, dtype=np.float32)
            if mask.ndim != 2 or not np.isin(mask, (0, 1)).all() or not mask.any(1).all():
                raise InputError(f"{self.label}: the mask must be a matrix of 0 and 1 with a 1 in every row")
            mask.flags.writeable = False
            object.__setattr__(self, "mask", mask)

    def shape(self, *given: Shape) -> Shape:
        q, k, v = given
        if any(len(s) != 2 or s[1] % self.heads for s in given) or q[1] != k[1] or k[0] != v[0]:
            raise InputError(f"queries, keys and values of {self.heads} heads do not have the shapes {given}")
        if self.mask is not None and self.mask.shape != (q[0], k[0]):
            raise InputError(f"a mask of shape {self.mask.shape} does not fit inputs of the shapes {given}")
        return (q[0], v[1])

    def exact(self, *x: Balls) -> Balls:
        q, k, v = (np.stack(np.split(part, self.heads, -1), 1) for part in x)  # (N, h, tokens, d)
        y = np.empty((*q.shape[:3], v.shape[-1]), dtype=object)
        for b, h, i in np.ndindex(q.shape[:3]):
            seen = range(k.shape[2]) if self.mask is None else np.flatnonzero(self.mask[i]).tolist()
            scores = [arb(self.scale) * sum(q[b, h, i] * k[b, h, j], arb(0)) for j in seen]
            largest = max(float(s.mid()) for s in scores)
            weights = [(s - arb(largest)).exp() for s in scores]
            total = sum(weights, arb(0))
            terms = (w * v[b, h, j] for w, j in zip(weights, seen, strict=True))
            y[b, h, i] = sum(terms, 0 * v[b, h, 0]) / total
        return np.concatenate(list(np.moveaxis(y, 1, 0)), -1)

    def approximate(self, *x: Tensor) -> Tensor:
        q, k, v = (torch.stack(part.chunk(self.heads, -1), 1) for part in x)
        scores = self.scale * q @ k.mT
        if self.mask is not None:
            scores = scores.masked_fill(torch.from_numpy(self.mask == 0), -torch.inf)
        return torch.cat((torch.softmax(scores, -1) @ v).unbind(1), -1)
