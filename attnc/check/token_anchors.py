"""The checker's rule for heads over anchors: each query attends to one key, BOS or that of one index, with the weight 1.

Keys depend on the index alone. For each state of the query the key with the largest score must beat all others by T, in the
executed arithmetic, and the query must see it. A query sees BOS, its own position, and at least as many positions as any of its
counts: a count of c is that of c keys, so the keys of the indices below c are there."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from attnc.check.token_states import Exact, Forms, Meaning, States, Stream, fractions, whole_product
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.program.tokens import Count

_SCORES = 1 << 20  # held at once
_MOST_SCORES = 1 << 26


def reads_index_alone(stream: Stream, matrix: Array) -> bool:
    """Whether what a matrix reads depends on the index alone."""
    return stream.variables(matrix) <= {"index"}


def anchor_keys(stream: Stream, matrix: Array) -> Exact:
    """The executed keys of BOS and of each index, exactly: each number is one stored number times 0 or ±1, plus zeros."""
    if not reads_index_alone(stream, matrix):
        raise CheckError("the keys of anchors must depend on the index alone")
    states = stream.meaning.states({"index"})
    rows = np.flatnonzero(matrix.any(1))
    x = np.zeros((states.count + 1, len(rows)), np.int64)
    x[0] = stream.bos[rows]
    for j, c in enumerate(rows.tolist()):
        if c in stream.columns:
            values, errors = stream.columns[c].at(states)
            if errors is not None or values.dtype != np.int64:
                raise CheckError("the keys of anchors read coordinates that are not exact")
            x[1:, j] = values
    terms = whole_product((x != 0).astype(np.int64), (matrix[rows] != 0).astype(np.int64))
    if terms.max(initial=0) > 1 or np.abs(x).max(initial=0) > 1:
        raise CheckError("each number of an anchor's key must be one stored number")
    # the sum of the terms, of which one is not 0: the sum of exact float64 numbers and zeros
    return fractions(x.astype(np.float64) @ matrix[rows])


def winners(stream: Stream, q: Forms, keys: Exact) -> NDArray[np.int64]:
    """For each query the key with the largest score; raises unless it beats every other by T.

    |executed - exact| of q·(k - k') is at most errors·|k - k'| and the rounding of both scores."""
    if q.values.size * len(keys) > _MOST_SCORES:
        raise CheckError(f"{len(q.values):,} states of a query are too many to check: use smaller domains")
    found = np.zeros(len(q.values), np.int64)
    step = max(1, _SCORES // keys.size)
    for a in range(0, len(found), step):
        part = slice(a, a + step)
        errors = np.zeros_like(q.values[part]) if q.errors is None else q.errors[part]
        found[part] = _winners(stream, q.values[part], errors, keys)
    return found


def _winners(stream: Stream, values: Exact, errors: Exact, keys: Exact) -> NDArray[np.int64]:
    """All numbers as whole multiples of 1/unit, one unit for each query: whole numbers are fast."""
    query_unit, key_unit = _denominators(np.concatenate([values, errors], 1)), math.lcm(*_denominators(keys))
    q, e, k = (
        _whole(values, query_unit),
        _whole(errors, query_unit),
        _whole(keys, np.full(len(keys), key_unit)),
    )
    unit = query_unit * key_unit
    terms, size = keys.shape[1], (abs(q) + e) @ abs(k).T
    gamma, tiny = stream.gamma(terms + 1), (2 * terms + 1) * Fraction(stream.arithmetic.tiny)
    least = min(unit.tolist())
    if not Fraction(int(size.max()), least) * (1 + gamma) < stream.arithmetic.largest:
        raise CheckError(f"scores may overflow in {stream.arithmetic.dtype}")
    scores = q @ k.T
    best = np.array([max(range(len(row)), key=row.__getitem__) for row in scores.tolist()], np.int64)
    rows = np.arange(len(best))
    apart = (abs(k[best][:, None] - k[None]) * e[:, None]).sum(2)
    lead = scores[rows, best][:, None] - scores - apart
    rounding = size + size[rows, best][:, None]
    needed = np.array(
        [math.ceil((Fraction(stream.arithmetic.vanish) + 2 * tiny) * u) for u in unit.tolist()], dtype=object
    )
    # lead - gamma·rounding >= needed, times the denominator of gamma
    proved = lead * gamma.denominator - gamma.numerator * rounding >= needed[:, None] * gamma.denominator
    proved[rows, best] = True
    if not proved.all():
        at = np.argwhere(~np.asarray(proved, bool))[0]
        near = Fraction(int(lead[tuple(at)]), int(unit[at[0]]))
        raise CheckError(
            f"an anchor beats another by {float(near):.6g} before rounding, too near to {stream.arithmetic.vanish:g}"
        )
    return best


def seen_at_least(meaning: Meaning, states: States) -> NDArray[np.int64]:
    """How many positions with data a query sees at least, for each assignment of its variables."""
    found = np.ones(states.count, np.int64)
    for variable, places in states.places.items():
        if variable in ("index", "length"):
            causal = meaning.program.causal and variable == "length"
            found = found if causal else np.maximum(found, places + 1)
        elif not isinstance(variable, str) and isinstance(meaning.program.nodes[variable], Count):
            counts = np.array([int(c) for c in meaning.program.domains[variable]], np.int64)
            found = np.maximum(found, counts[places])
    return found


def _denominators(array: Exact) -> Exact:
    """A common denominator for each row."""
    found = np.empty(len(array), dtype=object)
    found[:] = [math.lcm(*(Fraction(x).denominator for x in row)) for row in array.tolist()]
    return found


def _whole(array: Exact, units: Exact) -> Exact:
    found = np.empty(array.shape, dtype=object)
    for i, (row, unit) in enumerate(zip(array.tolist(), units.tolist(), strict=True)):
        found[i] = [int(Fraction(x) * unit) for x in row]
    return found


__all__ = ["anchor_keys", "reads_index_alone", "seen_at_least", "winners"]
