"""The engines that execute attention over anchors. docs/arithmetic.md says what a certificate assumes of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from attnc.errors import InputError
from attnc.network.running import can_look, in_chunks, in_place

if TYPE_CHECKING:
    from attnc.network.head import Head

CERTIFIED = ("softmax", "sdpa")  # covered by the certificate of a head or of a network
MOST_KEYS = 512  # of sdpa: as many as docs/arithmetic.md analyses
_QUERIES = 1 << 16  # queries of sdpa in one call
_WEIGHTS = 1 << 20  # attention weights of `attend` in memory
FLOOR = {torch.float32: -86.6, torch.float64: -707.5}  # exp is below 4τ here, and not yet subnormal (slow)


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


def attend(head: Head, s: Tensor) -> Tensor:
    """g(s) of the shape of s by softmax over all anchors, in place and with one division for each input:

        z_k = κ_k x + c_k,   e_k = exp(z_k - max z),   g = Σ e_k v_k / Σ e_k

    `prove.rounding` bounds this order of operations too. It calls `Head.forward` for derivatives, several heads and other
    devices. It does not check the domain."""
    head._check_input(s)
    if torch.compiler.is_compiling():  # one graph, which the compiler fuses
        return head._attend(s.reshape(-1)).reshape(s.shape)
    if head.heads != 1 or not in_place(s, head.query, head.key, head.value, head.output):
        out: Tensor = head(s, strict=False)
        return out
    flat = s.reshape(-1)
    out = torch.empty_like(flat)
    rows = min(flat.numel(), max(1, _WEIGHTS // head.key.shape[1]))
    weights, x, total = flat.new_empty(head.key.shape[1], rows), flat.new_empty(rows), flat.new_empty(rows)
    with torch.no_grad():
        for start in range(0, flat.numel(), max(1, rows)):
            part = flat[start : start + rows]
            n = part.numel()
            _attend(head, part, weights[:, :n], x[:n], total[:n], out[start : start + n])
    return out.reshape(s.shape)


def _attend(head: Head, s: Tensor, weights: Tensor, x: Tensor, total: Tensor, out: Tensor) -> None:
    """out = g(s) for s (n,); weights (p, n), x (n,) and total (n,) are buffers."""
    key, value, query = head.key[0], head.value[0], head.query[0]
    torch.addcmul(query[1], query[0], s, out=x)
    torch.addcmul(key[:, 1:], key[:, :1], x, out=weights)
    torch.amax(weights, 0, out=total)
    weights.sub_(total).clamp_(min=FLOOR[s.dtype]).exp_()
    torch.sum(weights, 0, out=total)
    weights.mul_(torch.addcmul(value[:, 1:], value[:, :1], s) if head.is_gated else value[:, 1:])
    torch.sum(weights, 0, out=out)
    out.div_(total).mul_(head.output[0])
