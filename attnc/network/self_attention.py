"""The literal form: plain self-attention over [data tokens; anchor tokens], four matrices, no mask.

A token is a row (s, 1, data, position_1 … position_n, then for each head κ, c, v). For head h

    q = (s·a + o, 1, -M·data, M·data·position)      k = (κ, c, data, position)      score = q·k

so an anchor k scores κ x + c, and a data token j scores -M to another data token i and, where the head is
gated, M - M = 0 to itself. M exceeds every score by so much that exp underflows to exactly 0. A gated head's
scores are shifted by their own key's (a common affine function of s, which softmax does not see), so that its
own score is the 0."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from attnc.errors import InputError
from attnc.network.altered import as_made
from attnc.network.running import PreciseModule, precise
from attnc.records.numbers import Array, HeadNumbers

_UNDERFLOW = {"float32": 128.0, "float64": 1024.0}


@as_made
class SelfAttention(PreciseModule):
    """softmax(X W_Q (X W_K)ᵀ) X W_V W_O, summed over heads, for X of n data tokens followed by the anchors.

    `forward` takes s of shape (..., n), lays the tokens out, and returns the data tokens' outputs, (..., n).
    """

    W_Q: nn.Parameter  # (H, d, 3 + n)
    W_K: nn.Parameter  # (H, d, 3 + n)
    W_V: nn.Parameter  # (H, d, 1)
    W_O: nn.Parameter  # (H, 1, 1)
    anchor_tokens: nn.Parameter  # (p, d)

    def __init__(self, matrices: dict[str, Array], anchor_tokens: Array, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        for name, matrix in (*matrices.items(), ("anchor_tokens", anchor_tokens)):
            setattr(self, name, nn.Parameter(torch.tensor(matrix, dtype=dtype), requires_grad=False))
        self.n = n

    @classmethod
    def from_head(cls, numbers: HeadNumbers, n: int, reach: float) -> SelfAttention:
        """`reach` bounds |s|: M is chosen for it."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"as_self_attention(n) takes the number of data tokens, n >= 1: got {n!r}")
        numbers = _own_score_zero(numbers)
        heads, p = numbers.heads, numbers.anchors_per_head
        d = 3 + n + 3 * heads
        tokens = np.zeros((p, d))
        tokens[:, 1] = 1.0
        matrices = {
            "W_Q": np.zeros((heads, d, 3 + n)),
            "W_K": np.zeros((heads, d, 3 + n)),
            "W_V": np.zeros((heads, d, 1)),
        }
        for h in range(heads):
            own = np.flatnonzero(numbers.value[h, :, 0])
            if len(own) > 1:
                raise InputError("a token can attend to itself once: this head has several keys for it")
            distance = _distance(numbers, h, reach)
            at = 3 + n + 3 * h
            tokens[:, at : at + 3] = np.concatenate([numbers.key[h], numbers.value[h, :, 1:]], axis=1)
            tokens[own, at + 1] = -2 * distance
            w_q, w_k, w_v = matrices["W_Q"][h], matrices["W_K"][h], matrices["W_V"][h]
            w_q[0, 0], w_q[1, 0], w_q[1, 1], w_q[2, 2] = (
                numbers.query[h, 0],
                numbers.query[h, 1],
                1.0,
                -distance,
            )
            w_k[at, 0], w_k[at + 1, 1], w_k[2, 2] = 1.0, 1.0, 1.0
            w_v[at + 2, 0] = 1.0
            if len(own):
                w_q[3 : 3 + n, 3:] = distance * np.eye(n)
                w_k[3 : 3 + n, 3:] = np.eye(n)
                w_v[0, 0] = numbers.value[h, own[0], 0]
        matrices["W_O"] = numbers.output.reshape(heads, 1, 1)
        return cls(matrices, tokens, n, getattr(torch, numbers.dtype))

    @precise
    def tokens(self, s: Tensor) -> Tensor:
        """(..., n + p, d): the sequence that plain self-attention runs on."""
        if not isinstance(s, Tensor) or s.dtype != self.W_Q.dtype:
            given = s.dtype if isinstance(s, Tensor) else type(s).__name__
            raise InputError(f"this self-attention runs on tensors of {self.W_Q.dtype}: got {given}")
        if s.shape[-1:] != (self.n,):
            raise InputError(
                f"this self-attention runs over {self.n} data tokens: got a tensor of shape {tuple(s.shape)}"
            )
        p, d = self.anchor_tokens.shape
        flags = torch.zeros(self.n, d, dtype=s.dtype, device=s.device)
        flags[:, 1:3] = 1
        flags[:, 3 : 3 + self.n] = torch.eye(self.n, dtype=s.dtype, device=s.device)
        data = torch.cat([s.unsqueeze(-1), flags[:, 1:].expand(*s.shape, d - 1)], dim=-1)
        return torch.cat([data, self.anchor_tokens.expand(*s.shape[:-1], p, d)], dim=-2)

    @precise
    def attention(self, x: Tensor) -> Tensor:
        """(..., H, n + p, n + p): every token's weights over every token."""
        x = x.unsqueeze(-3)
        return torch.softmax((x @ self.W_Q) @ (x @ self.W_K).transpose(-1, -2), -1)

    @precise
    def forward(self, s: Tensor) -> Tensor:
        x = self.tokens(s)
        out = self.attention(x) @ (x.unsqueeze(-3) @ self.W_V) @ self.W_O
        return out.sum(-3)[..., : self.n, 0]


def _own_score_zero(numbers: HeadNumbers) -> HeadNumbers:
    key = numbers.key.copy()
    for h in range(numbers.heads):
        own = np.flatnonzero(numbers.value[h, :, 0])
        if len(own) == 1:
            key[h] -= key[h, own[0]]
    rounded = key.astype(numbers.dtype).astype(np.float64)
    return HeadNumbers(numbers.query, rounded, numbers.value, numbers.output, numbers.dtype)


def _distance(numbers: HeadNumbers, h: int, reach: float) -> float:
    """M: a power of two beyond every score plus the underflow of exp."""
    x = abs(numbers.query[h, 0]) * reach + abs(numbers.query[h, 1])
    largest = float(np.max(np.abs(numbers.key[h, :, 0]) * x + np.abs(numbers.key[h, :, 1])))
    return float(2.0 ** np.ceil(np.log2(2 * largest + _UNDERFLOW[numbers.dtype])))
