"""Attention over anchors, executed in place: the same numbers as `Head.forward` up to rounding, in a fraction of its time.

    z_k = κ_k x + c_k,   e_k = exp(z_k - max z),   ŷ = Σ e_k v_k / Σ e_k

is what `prove.rounding` bounds, sums in any order: one division for each input takes the place of one for each weight. No
matrix product is formed, so that PyTorch's settings for them do not matter."""

from __future__ import annotations

import torch
from torch import Tensor

from attnc.network.head import Head
from attnc.network.running import in_place

WEIGHTS = 1 << 20  # attention weights held at once
FLOOR = {
    torch.float32: -86.6,
    torch.float64: -707.5,
}  # exp is below 4τ here and a normal number: what is smaller takes long


def attend(head: Head, s: Tensor) -> Tensor:
    """g(s) of the shape of s; memory beyond the result is that of `WEIGHTS` attention weights, twice where tokens attend
    to themselves. Where a derivative is asked for, and away from the CPU, this is `Head.forward`. The domain is not checked.

    >>> import attnc
    >>> head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    >>> s = torch.linspace(-8, 8, 1000)
    >>> bool((attend(head, s) - head(s)).abs().max() <= 2 * head.certificate.rounding)
    True
    """
    head._check_input(s)
    if torch.compiler.is_compiling():  # a graph of one piece, which the compiler fuses
        return head._attend(s.reshape(-1)).reshape(s.shape)
    if head.heads != 1 or not in_place(s, head.query, head.key, head.value, head.output):
        found: Tensor = head(s, strict=False)
        return found
    flat = s.reshape(-1)
    out = torch.empty_like(flat)
    rows = min(flat.numel(), max(1, WEIGHTS // head.key.shape[1]))
    weights, x, total = flat.new_empty(head.key.shape[1], rows), flat.new_empty(rows), flat.new_empty(rows)
    with torch.no_grad():
        for start in range(0, flat.numel(), max(1, rows)):
            part = flat[start : start + rows]
            n = part.numel()
            _attend(head, part, weights[:, :n], x[:n], total[:n], out[start : start + n])
    return out.reshape(s.shape)


def _attend(head: Head, s: Tensor, weights: Tensor, x: Tensor, total: Tensor, out: Tensor) -> None:
    """out = g(s) for s (n,), by way of weights (p, n), x (n,) and total (n,)."""
    key, value, query = head.key[0], head.value[0], head.query[0]
    torch.addcmul(query[1], query[0], s, out=x)
    torch.addcmul(key[:, 1:], key[:, :1], x, out=weights)
    torch.amax(weights, 0, out=total)
    weights.sub_(total).clamp_(min=FLOOR[s.dtype]).exp_()
    torch.sum(weights, 0, out=total)
    own = torch.addcmul(value[:, 1:], value[:, :1], s) if head.is_gated else value[:, 1:]
    weights.mul_(own)
    torch.sum(weights, 0, out=out)
    out.div_(total).mul_(head.output[0])
