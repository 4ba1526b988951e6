"""Layers of plain self-attention: W_Q, W_K, W_V, W_O for every head, no mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from attnc.network.altered import as_made
from attnc.network.running import PreciseModule, precise
from attnc.records.numbers import Array


@as_made
class LiteralHead(PreciseModule):
    """X ↦ softmax(X W_Q (X W_K)ᵀ) X W_V W_O over all tokens."""

    W_Q: nn.Parameter  # (D, r)
    W_K: nn.Parameter  # (D, r)
    W_V: nn.Parameter  # (D, m)
    W_O: nn.Parameter  # (m, D)

    def __init__(self, name: str, w_q: Array, w_k: Array, w_v: Array, w_o: Array, dtype: str) -> None:
        super().__init__()
        self.name = name
        for letter, matrix in zip("QKVO", (w_q, w_k, w_v, w_o), strict=True):
            setattr(self, f"W_{letter}", parameter(matrix, dtype))

    @precise
    def weights(self, x: Tensor) -> Tensor:
        """(tokens, tokens): every token's weights over every token."""
        return torch.softmax((x @ self.W_Q) @ (x @ self.W_K).t(), -1)

    @precise
    def forward(self, x: Tensor) -> Tensor:
        return (self.weights(x) @ (x @ self.W_V)) @ self.W_O

    def extra_repr(self) -> str:
        return self.name


@as_made
class LiteralLayer(PreciseModule):
    """The sum of heads that read the same stream. Head after head: one that repeats another makes the same roundings."""

    def __init__(self, heads: Sequence[LiteralHead]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    @property
    def names(self) -> list[str]:
        """What each head does."""
        return [cast(LiteralHead, head).name for head in self.heads]

    @property
    def matrices(self) -> dict[str, Tensor]:
        """W_Q, W_K (heads, D, r), W_V (heads, D, m), W_O (heads, m, D): those of all heads, narrow ones filled up with 0."""
        return {name: self._stacked(name) for name in ("W_Q", "W_K", "W_V", "W_O")}

    @precise
    def weights(self, x: Tensor) -> Tensor:
        """(heads, tokens, tokens): every token's weights over every token."""
        return torch.stack([cast(LiteralHead, head).weights(x) for head in self.heads])

    @precise
    def forward(self, x: Tensor) -> Tensor:
        first, *rest = (head(x) for head in self.heads)
        out: Tensor = first
        for part in rest:
            out = out + part
        return out

    def _stacked(self, name: str) -> Tensor:
        found: list[Tensor] = [getattr(head, name) for head in self.heads]
        rows, columns = (max(matrix.shape[axis] for matrix in found) for axis in (0, 1))
        out = found[0].new_zeros(len(found), rows, columns)
        for h, matrix in enumerate(found):
            out[h, : matrix.shape[0], : matrix.shape[1]] = matrix
        return out


def parameter(array: Array, dtype: str) -> nn.Parameter:
    return nn.Parameter(torch.tensor(array, dtype=getattr(torch, dtype)), requires_grad=False)
