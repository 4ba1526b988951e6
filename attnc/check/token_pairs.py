"""Pairs of a query's state and a key's state: their scores, and what the rules of `check/token_heads.py` ask of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnc.check.token_states import Exact, Forms, States
from attnc.check.values import CheckError

Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Pairs:
    """Scores of queries (rows) and keys (columns) and of BOS, and which keys the program selects."""

    query: States
    key: States
    scores: Forms  # (rows, columns)
    bos: Forms  # (rows, 1)
    hits: Bits
    valid: Bits  # False where a causal mask hides the key

    def margin(self, upper: Exact, lower: Exact, where: Bits, gap: int, what: str) -> None:
        """Raise unless upper - lower >= gap wherever it must be."""
        wrong = where & ~np.asarray(upper - lower >= gap, bool)
        if wrong.any():
            at = np.argwhere(wrong)[0]
            raise CheckError(
                f"{what}: a distance of scores is {number((upper - lower)[tuple(at)])}, below {gap}"
            )


def one_index(pairs: Pairs) -> bool:
    """Whether for each query all selected keys have one index: then it is one key."""
    index = np.broadcast_to(pairs.key.places["index"], pairs.hits.shape)
    most = np.where(pairs.hits, index, -1).max(1, initial=-1)
    least = np.where(pairs.hits, index, 1 << 40).min(1, initial=1 << 40)
    return bool((most <= least).all())


def check_exists(pairs: Pairs, causal: bool) -> None:
    """For each query there is an index at which every key is selected: one with data, at or before a causal query."""
    index = pairs.key.places["index"]
    there = np.ones(pairs.query.count, bool) & False
    for i in np.unique(index).tolist():
        chosen = index == i
        present = pairs.query.places["index"] >= i if causal else np.ones(pairs.query.count, bool)
        there |= present & (pairs.hits | ~pairs.valid)[:, chosen].all(1)
    if not there.all():
        raise CheckError("there may be no key that is selected: give a default")


def check_ties(pairs: Pairs) -> None:
    scores = pairs.scores.values
    lowest, highest = extreme(scores, pairs.hits, np.minimum), extreme(scores, pairs.hits, np.maximum)
    if (lowest != highest).any():
        raise CheckError("selected keys do not have the same score")


def check_order(pairs: Pairs, rank: NDArray[np.int64], gap: int) -> None:
    """Of two selected keys that with the larger rank scores higher by `gap`."""
    order = np.argsort(rank, kind="stable")
    starts = np.flatnonzero(np.diff(rank[order], prepend=-1))
    ends = np.append(starts[1:], len(order))
    for row in range(pairs.query.count):
        hit = pairs.hits[row][order]
        lo, hi = (np.asarray(side[row][order]) for side in (pairs.scores.lo, pairs.scores.hi))
        ranges = [
            (lo[a:b][hit[a:b]].min(), hi[a:b][hit[a:b]].max())
            for a, b in zip(starts, ends, strict=True)
            if hit[a:b].any()
        ]
        highest = None
        for low, high in ranges:
            if highest is not None and not low - highest >= gap:
                raise CheckError("of two selected keys the preferred one does not score higher")
            highest = high if highest is None else max(highest, high)


def extreme(scores: Exact, where: Bits, pick: np.ufunc, empty: Exact | int = 0) -> Exact:
    """The least or the largest score of each row among those that are marked; `empty` if there is none."""
    found = np.where(where.any(1), scores[np.arange(len(scores)), where.argmax(1)], empty)
    filled = np.where(where, scores, found[:, None])
    extreme: Exact = pick.reduce(filled, axis=1)
    return extreme


def number(x: object) -> str:
    return f"{float(x):.6g}"  # type: ignore[arg-type]
