"""The sequences on which a token network is compared with what an exporter wrote, or with itself without a head."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attnc.domain import Sequences

if TYPE_CHECKING:
    from attnc.network.tokens import TokenNetwork

COMPARED = 4096  # sequences: all of them, if there are no more


def sequences_of(network: TokenNetwork, most: int = COMPARED) -> list[Tensor]:
    """Token ids (batch, positions): all sequences if there are at most so many, else random ones, as many of every length.

    This is for comparisons, in which every length must occur. Shares need `sample_of`."""
    size, length = len(network.vocabulary), network.program.length
    if Sequences(size, length).count <= most:
        return _all(size, length)
    draw = np.random.default_rng(0)
    each = max(1, most // length)
    return [torch.from_numpy(draw.integers(0, size, (each, n))) for n in range(1, length + 1)]


def sample_of(network: TokenNetwork, most: int = COMPARED) -> list[Tensor]:
    """Token ids (batch, positions): all sequences if there are at most `most`, else so many, drawn from all with equal
    probability: the length n has the probability V^n / (V + V² + …)."""
    size, length = len(network.vocabulary), network.program.length
    if Sequences(size, length).count <= most:
        return _all(size, length)
    draw = np.random.default_rng(0)
    relative = np.array([float(size) ** (n - length) for n in range(1, length + 1)])
    counts = draw.multinomial(most, relative / relative.sum())
    return [torch.from_numpy(draw.integers(0, size, (c, n + 1))) for n, c in enumerate(counts) if c]


def _all(size: int, length: int) -> list[Tensor]:
    return [torch.tensor(list(itertools.product(range(size), repeat=n))) for n in range(1, length + 1)]
