"""Inputs inside a box."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from attnc.domain import Box, Tokens


def in_box(
    box: Box, shape: tuple[int, ...], dtype: torch.dtype, count: int, free: Collection[str]
) -> tuple[Tensor, ...]:
    """The two ends of the box and random points, for shape () as a vector of numbers; token ids as integers."""
    source = torch.Generator().manual_seed(count)
    lo, hi = (torch.tensor(end) for end in (box.lo, box.hi))
    x = torch.rand(count, *box.shape, generator=source, dtype=torch.float64) * (hi - lo) + lo
    for row, end in enumerate((hi, lo)[: count - 1]):
        x[row] = end
    if isinstance(box, Tokens):
        return (x.round().long(),)
    inside = torch.minimum(torch.maximum(x.to(dtype), _least(lo, dtype)), _largest(hi, dtype))
    return (inside.reshape(count, *shape),)


def _least(lo: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest numbers of the dtype that are at least lo."""
    near = lo.to(dtype)
    return torch.where(near.double() < lo, torch.nextafter(near, torch.full_like(near, torch.inf)), near)


def _largest(hi: Tensor, dtype: torch.dtype) -> Tensor:
    return -_least(-hi, dtype)
