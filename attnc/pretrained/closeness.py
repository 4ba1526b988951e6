"""Whether what a part receives and computes is what was read of it, up to rounding."""

from __future__ import annotations

import numpy as np
import torch

from attnc.domain import Array, Normed
from attnc.frontends.transformers.blocks import LinearMap
from attnc.network.running import is_less


def is_close(found: Array, expected: tuple[Array, Array], dtype: torch.dtype, terms: float) -> bool:
    """Whether a result equals the expected one up to rounding; both may overflow together."""
    value, size = expected
    if found.shape != value.shape:
        return False
    allowed, flushed = 2 * (terms + 8) * torch.finfo(dtype).eps, 0.0
    if is_less(dtype):  # sums are taken in float32
        allowed = 16 * torch.finfo(dtype).eps + 2 * terms * torch.finfo(torch.float32).eps
        flushed = 16 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    with np.errstate(all="ignore"):
        close = np.abs(found - value) <= allowed * size + flushed
    overflow = ~np.isfinite(found) & (~np.isfinite(value) | (size > min(1e37, 0.1 * torch.finfo(dtype).max)))
    return bool((close | overflow).all())


def is_normalised(x: Array, norm: Normed) -> bool:
    """|(x - shift)/gain|₂ <= √d, up to the relative 2^-10 that the bounds allow for executed norms."""
    used = norm.gain != 0
    with np.errstate(all="ignore"):
        y = (x[:, used] - norm.shift[used]) / norm.gain[used]
        room = np.abs(norm.shift[used] / norm.gain[used]).max(initial=0.0)
    longest = (1 + 2.0**-10) * np.sqrt(x.shape[1]) + 2.0**-10 * room * np.sqrt(x.shape[1])
    return bool((np.sqrt((y * y).sum(1)) <= longest).all())


def from_experts(s: Array, x: Array, first: LinearMap, dtype: torch.dtype) -> bool:
    """Whether every row of s is what the map of some expert makes of a row of x, up to rounding."""
    for expert in range(first.experts):
        W, b = first.numbers(expert)
        meant, size = x @ W.T + b, np.abs(x) @ np.abs(W.T) + np.abs(b)
        room = (32 * torch.finfo(dtype).eps + 4 * x.shape[1] * torch.finfo(torch.float32).eps) * size.max()
        s = s[[not bool((np.abs(meant - row).max(1) <= room).any()) for row in s]]
        if not len(s):
            return True
    return False
