"""Two ways to execute the same attention over anchors. A certificate covers both: see docs/arithmetic.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from attnc.errors import InputError

if TYPE_CHECKING:
    from attnc.network.head import Head

ENGINES = ("columns", "dense")
_QUERIES = 1 << 16  # queries that attend at once


def dense(head: Head, s: Tensor) -> Tensor:
    """softmax(q Kᵀ) V by torch's scaled_dot_product_attention: q = (x, 1), K = (κ, c), V = (v, 0), scale 1.

    All queries share the keys; they attend some at a time, so that memory stays bounded. V has a second column because the
    fast kernel wants as many as the keys have."""
    if head.heads != 1 or head.is_gated:
        raise InputError(
            "engine='dense' runs heads whose tokens do not attend to themselves, one at a time: use 'columns'"
        )
    if head.key.shape[1] > 512:
        raise InputError(
            f"engine='dense' runs heads of at most 512 anchors: this has {head.key.shape[1]}; use 'columns'"
        )
    keys = head.key[None]
    values = torch.stack([head.value[..., 1], torch.zeros_like(head.value[..., 1])], -1)[None]
    parts = []
    for part in torch.split(s.reshape(-1), _QUERIES):
        x = head.query[0, 0] * part + head.query[0, 1]
        query = torch.stack([x, torch.ones_like(x)], -1)[None, None]
        parts.append(F.scaled_dot_product_attention(query, keys, values, scale=1.0)[0, 0, :, 0])
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return (out * head.output[0]).reshape(s.shape)
