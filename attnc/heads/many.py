"""Several heads share the interval: each has a run of anchors, with a sentinel on either side.

With hard switches a head returns the value of its nearest anchor inside its run and 0, the value of its sentinels, outside; at
a boundary the weights of two neighbours add up to 1. The outermost sentinels have the end values. So H heads of p keys act as
one head of H(p - 2) anchors, each with small scores around its own centre, which makes float32 accurate. With soft switches
the values of the sentinels are solved for too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnc.errors import InputError
from attnc.heads.chain import Chain
from attnc.heads.draft import Draft, columns, reweighted
from attnc.heads.target import Target
from attnc.records.numbers import Array


def many(target: Target, p: int, heads: int, design: Callable[[Target, int], Draft]) -> Draft:
    """Design one head of heads·(p - 2) anchors and split it."""
    if p < 3:
        raise InputError(
            f"anchors={p}: with heads={heads} each head has anchors - 2 anchors between two sentinels; use at least 3"
        )
    whole = design(target, heads * (p - 2))
    assert whole.chain is not None
    keys = np.stack([run.keys() for run in split(whole.chain, heads, p)])
    own = np.zeros((heads, p), dtype=bool)
    if not whole.refit:
        values = np.zeros((heads, p))
        values[:, 1:-1] = whole.values.reshape(heads, p - 2)
        values[0, 0], values[-1, -1] = values[0, 1], values[-1, -2]
        return Draft(whole.design, keys, values, own, whole.emphasis, refit=False)
    solved, emphasis, _ = reweighted(columns(keys, own, target, target.x), target.y, target.ridge, rounds=12)
    return Draft(whole.design, keys, solved.reshape(heads, p), own, emphasis)


def split(chain: Chain, heads: int, p: int) -> list[Chain]:
    """Runs of p - 2 keys with the neighbouring keys as sentinels; the chain is mirrored beyond its ends."""
    inner_t, inner_lam = chain.breakpoints, chain.sharpness
    before = inner_t[0] - (inner_t[1] - inner_t[0] if len(inner_t) > 1 else 1.0)
    after = inner_t[-1] + (inner_t[-1] - inner_t[-2] if len(inner_t) > 1 else 1.0)
    t: Array = np.concatenate([[before], inner_t, [after]])
    lam: Array = np.concatenate([[inner_lam[0]], inner_lam, [inner_lam[-1]]])
    return [
        Chain(lam[h * (p - 2) : h * (p - 2) + p - 1], t[h * (p - 2) : h * (p - 2) + p - 1])
        for h in range(heads)
    ]
