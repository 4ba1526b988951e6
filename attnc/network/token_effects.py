"""What each head of a token network contributes to its outputs."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from attnc.arguments import checked_count
from attnc.network.token_sequences import sample_of
from attnc.network.token_text import ByHead

if TYPE_CHECKING:
    from attnc.network.tokens import TokenNetwork


def effects_of(network: TokenNetwork, names: Collection[str] | None, most: int) -> dict[str, float]:
    """See `TokenNetwork.effects`."""
    places = ByHead(
        (f"{i}.{h} {role.name}", (i, h))
        for i, layer in enumerate(network._layers())
        for h, role in enumerate(layer.roles)
    )
    chosen = list(places) if names is None else list(names)
    changed = ByHead[float]()
    given = sample_of(network, checked_count("most", most))
    with torch.no_grad():
        before = [network(ids).argmax(-1) for ids in given]
        total = sum(outputs.numel() for outputs in before)
        for name in chosen:
            (i, h), other = places[name], copy.deepcopy(network)
            other._layers()[i]._matrix("output")[h] = 0
            pairs = zip(given, before, strict=True)
            changed[name] = sum(int((other(ids).argmax(-1) != old).sum()) for ids, old in pairs) / total
    return changed
