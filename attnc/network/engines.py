"""The engines that execute attention over anchors. docs/arithmetic.md says what a certificate assumes of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from attnc.errors import InputError
from attnc.network.running import can_look, in_chunks

if TYPE_CHECKING:
    from attnc.network.head import Head

CERTIFIED = ("softmax", "sdpa")  # covered by the certificate of a head or of a network
MOST_KEYS = 512  # of sdpa: as many as docs/arithmetic.md analyses
_QUERIES = 1 << 16  # queries of sdpa in one call


def sdpa(head: Head, s: Tensor) -> Tensor:
    """softmax(q Kᵀ) V by torch's scaled_dot_product_attention: q = (x, 1), K = (κ, c), V = (v, g), scale 1.

    The second column g of V is 0 here; the fast kernel needs as many columns as the keys have. In a traced graph g is
    unknown, and its term s·softmax(q Kᵀ) g is added."""
    if head.heads != 1 or head.is_gated or head.key.shape[1] > MOST_KEYS:
        raise InputError(
            f"engine='sdpa' runs one head of up to {MOST_KEYS} anchors, not gated: use 'softmax'"
        )
    keys, values, known = head.key[None], head.value.flip(-1)[None], can_look(head.value)

    def run(part: Tensor) -> Tensor:
        x = head.query[0, 0] * part + head.query[0, 1]
        query = torch.stack([x, torch.ones_like(x)], -1)[None, None]
        out = F.scaled_dot_product_attention(query, keys, values, scale=1.0)[0, 0]
        return out[:, 0] if known else out[:, 0] + part * out[:, 1]

    return (in_chunks(run, _QUERIES, s.reshape(-1)) * head.output[0]).reshape(s.shape)
