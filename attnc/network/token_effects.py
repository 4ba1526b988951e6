"""What each head of a token network contributes to its outputs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from attnc.network.token_sequences import sequences_of
from attnc.network.token_text import ByHead

if TYPE_CHECKING:
    from attnc.network.tokens import TokenNetwork


def effects_of(network: TokenNetwork) -> dict[str, float]:
    """See `TokenNetwork.effects`."""
    changed = ByHead[float]()
    given = sequences_of(network)
    with torch.no_grad():
        before = [network(ids).argmax(-1) for ids in given]
        total = sum(outputs.numel() for outputs in before)
        for i, layer in enumerate(network._layers()):
            for h, role in enumerate(layer.roles):
                other = copy.deepcopy(network)
                other._layers()[i]._matrix("output")[h] = 0
                pairs = zip(given, before, strict=True)
                wrong = sum(int((other(ids).argmax(-1) != outputs).sum()) for ids, outputs in pairs)
                changed[f"{i}.{h} {role.name}"] = wrong / total
    return changed
