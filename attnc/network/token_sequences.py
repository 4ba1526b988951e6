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
    """Token ids (batch, positions): all sequences if there are at most so many, else random ones of every length."""
    size, length = len(network.vocabulary), network.program.length
    if Sequences(size, length).count <= most:
        return [torch.tensor(list(itertools.product(range(size), repeat=n))) for n in range(1, length + 1)]
    draw = np.random.default_rng(0)
    each = max(1, most // length)
    return [torch.from_numpy(draw.integers(0, size, (each, n))) for n in range(1, length + 1)]
