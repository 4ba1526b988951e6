"""Two ways to execute the same attention over anchors. A certificate covers both: see docs/arithmetic.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from attnc.errors import InputError
from attnc.network.running import can_look

if TYPE_CHECKING:
    from attnc.network.head import Head

ENGINES = ("softmax", "sdpa")
_QUERIES = 1 << 16  # queries that attend at once


def sdpa(head: Head, s: Tensor) -> Tensor:
    """softmax(q Kᵀ) V by torch's scaled_dot_product_attention: q = (x, 1), K = (κ, c), V = (v, 0), scale 1.

    All queries share the keys; they attend some at a time, so that memory stays bounded. V = (v, g) has the second column of the
    values, which is 0: the fast kernel wants as many columns as the keys have. Where a graph is traced, so that nothing is known
    of g, its term s·softmax(q Kᵀ) g is added."""
    if head.heads != 1 or head.is_gated:
        raise InputError(
            "engine='sdpa' runs heads whose tokens do not attend to themselves, one at a time: use 'softmax'"
        )
    if head.key.shape[1] > 512:
        raise InputError(
            f"engine='sdpa' runs heads of at most 512 anchors: this has {head.key.shape[1]}; use 'softmax'"
        )
    keys = head.key[None]
    values = head.value.flip(-1)[None]
    known = can_look(head.value)
    parts = []
    for part in torch.split(s.reshape(-1), _QUERIES):
        x = head.query[0, 0] * part + head.query[0, 1]
        query = torch.stack([x, torch.ones_like(x)], -1)[None, None]
        found = F.scaled_dot_product_attention(query, keys, values, scale=1.0)[0, 0]
        parts.append(found[:, 0] if known else found[:, 0] + part * found[:, 1])
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return (out * head.output[0]).reshape(s.shape)
