"""Pairs of a query's state and a key's state: their scores, and what the rules of `check/token_heads.py` ask of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnc.check.token_states import Exact, Forms, Meaning, States, Variable
from attnc.check.values import CheckError
from attnc.program.tokens import Selection

MOST_PAIRS = 1 << 31
Bits = NDArray[np.bool_]
Variables = frozenset[Variable]


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


def pair_variables(
    meaning: Meaning, node: Selection, key: Variables, query: Variables
) -> tuple[Variables, Variables, list[int | None]]:
    """The variables of a key's state and of a query's, with those of the conditions of a selection, and the lengths for which
    pairs are listed, None if no variable is the length. Powers of two come first: what fails for long sequences is found
    before most lengths are listed, and at little cost what fails for short ones."""
    key |= meaning.variables(*(p.key for p in node.where))
    query |= meaning.variables(*(p.query for p in node.where))
    if "length" not in key | query:
        return key, query, [None]
    lengths = sorted(range(1, meaning.n + 1), key=lambda n: (n < meaning.n and n & (n - 1) != 0, n))
    return key | {"length"}, query | {"length"}, list(lengths)


def check_pairs(count: int) -> None:
    """Raise if so many pairs of states are too many."""
    if count > MOST_PAIRS:
        raise CheckError(
            f"at least {count:,} pairs of states of a query and a key are too many to check, over {MOST_PAIRS:,}: use smaller "
            "domains, or a smaller max_len"
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
    hit = pairs.hits[:, order]
    # without a selected key a rank's lowest score is `far`, and its highest -far: then no distance is below the gap
    far = gap + int(max(np.abs(side).max(initial=0) for side in (pairs.scores.lo, pairs.scores.hi))) + 1
    lowest = np.minimum.reduceat(np.where(hit, pairs.scores.lo[:, order], far), starts, axis=1)
    highest = np.maximum.reduceat(np.where(hit, pairs.scores.hi[:, order], -far), starts, axis=1)
    before = np.maximum.accumulate(highest, axis=1)[:, :-1]
    if not bool(np.all(lowest[:, 1:] - before >= gap)):
        raise CheckError("of two selected keys the preferred one does not score higher")


def extreme(scores: Exact, where: Bits, pick: np.ufunc, empty: Exact | int = 0) -> Exact:
    """The least or the largest score of each row among those that are marked; `empty` if there is none."""
    found = np.where(where.any(1), scores[np.arange(len(scores)), where.argmax(1)], empty)
    filled = np.where(where, scores, found[:, None])
    extreme: Exact = pick.reduce(filled, axis=1)
    return extreme


def number(x: object) -> str:
    return f"{float(x):.6g}"  # type: ignore[arg-type]
