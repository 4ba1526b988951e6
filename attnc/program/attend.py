"""Softmax attention between data tokens: y_i = Σ_j softmax_j(scale·q_i·k_j + bias_ij) v_j over the keys that the mask allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.errors import InputError
from attnc.program.step import Balls, Numbers, Shape, Step, freeze, wide


@dataclass(frozen=True, eq=False)
class Attend(Step):
    """y_i = Σ_j softmax_j(scale·q_i·k_j + bias_ij) v_j in each of `heads` slices of the features.

    The three inputs have the shapes (n, h·d), (m, g·d) and (m, g·d'), and the output (n, h·d'); h is `heads` and g `kv_heads`, by
    default h: head i uses the keys and values of slice i // (h // g). `mask` (n, m) holds 1 where token i may attend to
    token j, else 0; every row allows at least one key. `bias` (h or 1, n, m) is added to the scores."""

    inputs: tuple[int, int, int]  # queries, keys, values
    heads: int
    scale: float
    mask: Numbers | None = None  # (n, m) of 0 and 1
    kv_heads: int | None = None
    bias: Numbers | None = None  # (h or 1, n, m)
    kind = "attend"
    linear = False

    def __post_init__(self) -> None:
        for name, count in (("heads", self.heads), ("kv_heads", self.slices)):
            if type(count) is not int or count < 1:
                raise InputError(f"{self.label}: {name}={count!r} must be a positive whole number")
        if self.heads % self.slices:
            raise InputError(f"{self.label}: kv_heads={self.slices} must divide heads={self.heads}")
        object.__setattr__(self, "scale", float(self.scale))
        if not np.isfinite(self.scale):
            raise InputError(f"{self.label}: scale={self.scale} must be finite")
        if self.mask is not None:
            mask = np.array(self.mask, dtype=np.float32)
            if mask.ndim != 2 or not np.isin(mask, (0, 1)).all() or not mask.any(1).all():
                raise InputError(f"{self.label}: the mask must be a matrix of 0 and 1 with a 1 in every row")
            mask.flags.writeable = False
            object.__setattr__(self, "mask", mask)
        freeze(self, "bias")
        if self.bias is not None and (self.bias.ndim != 3 or self.bias.shape[0] not in (1, self.heads)):
            raise InputError(
                f"{self.label}: the bias has the shape {self.bias.shape}, expected (heads, n, m)"
            )

    @property
    def slices(self) -> int:
        """Of the keys and values: `kv_heads`, or `heads`."""
        return self.heads if self.kv_heads is None else self.kv_heads

    def shape(self, *given: Shape) -> Shape:
        q, k, v = given
        group = self.heads // self.slices
        fits = all(len(s) == 2 for s in given) and q[1] == k[1] * group and k[0] == v[0]
        if not fits or k[1] % self.slices or v[1] % self.slices:
            raise InputError(
                f"queries of {self.heads} heads, keys and values of {self.slices} do not have the shapes {given}"
            )
        if self.mask is not None and self.mask.shape != (q[0], k[0]):
            raise InputError(f"a mask of shape {self.mask.shape} does not fit inputs of the shapes {given}")
        if self.bias is not None and self.bias.shape[1:] != (q[0], k[0]):
            raise InputError(f"a bias of shape {self.bias.shape} does not fit inputs of the shapes {given}")
        return (q[0], v[1] * group)

    def split(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values by head, (…, heads, tokens, features)."""
        group = self.heads // self.slices
        queries = torch.stack(q.chunk(self.heads, -1), -3)
        keys, values = (torch.stack(x.chunk(self.slices, -1), -3) for x in (k, v))
        return queries, keys.repeat_interleave(group, -3), values.repeat_interleave(group, -3)

    def exact(self, *x: Balls) -> Balls:
        group = self.heads // self.slices
        q = np.stack(np.split(x[0], self.heads, -1), 1)  # (N, h, tokens, d)
        k, v = (np.repeat(np.stack(np.split(part, self.slices, -1), 1), group, 1) for part in x[1:])
        y = np.empty((*q.shape[:3], v.shape[-1]), dtype=object)
        for b, h, i in np.ndindex(q.shape[:3]):
            seen = range(k.shape[2]) if self.mask is None else np.flatnonzero(self.mask[i]).tolist()
            scores = [arb(self.scale) * sum(q[b, h, i] * k[b, h, j], arb(0)) for j in seen]
            if self.bias is not None:
                row = self.bias[h % len(self.bias), i]
                scores = [s + arb(float(row[j])) for s, j in zip(scores, seen, strict=True)]
            largest = max(float(s.mid()) for s in scores)
            weights = [(s - arb(largest)).exp() for s in scores]
            total = sum(weights, arb(0))
            terms = (w * v[b, h, j] for w, j in zip(weights, seen, strict=True))
            y[b, h, i] = sum(terms, 0 * v[b, h, 0]) / total
        return np.concatenate(list(np.moveaxis(y, 1, 0)), -1)

    def approximate(self, *x: Tensor) -> Tensor:
        q, k, v = self.split(*x)
        scores = self.scale * q @ k.mT
        if self.bias is not None:
            scores = scores + wide(self.bias)
        if self.mask is not None:
            scores = scores.masked_fill(torch.from_numpy(self.mask == 0), -torch.inf)
        return (torch.softmax(scores, -1) @ v).movedim(-3, -2).flatten(-2)

    def magnitude(self, *x: Tensor) -> Tensor:
        q, k, v = self.split(*x)
        scores = abs(self.scale) * q @ k.mT
        if self.bias is not None:
            scores = scores + wide(self.bias).abs()
        most = (1 + scores.amax(-1, keepdim=True)) * v.amax(-2, keepdim=True)
        return most.movedim(-3, -2).flatten(-2)
