"""A fast answer of the checker: numbers of the stream in float64, with a bound of how far they can be from the executed ones.

Rational arithmetic is slow. Where an enclosure in float64 decides a comparison, that is a proof; the rest is left to rational
arithmetic (`check/token_heads.py`). With v = 2^-53, x and W rounded to float64 and m nonzero terms,

    |fl(Σ xW) - Σ xW| <= (m + 3)v Σ|x||W|,        for at most 2^12 terms, no overflow, no underflow of a term.

Sums of numbers that are not negative are too small by at most a factor 1 - (m + 3)v > 1/(1 + 2^-38)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnc.check.token_states import States, Stream, Variable
from attnc.domain import Array

Floats = NDArray[np.float64]
_V = 2.0**-53
_UP = 1 + 2.0**-38
_MOST_TERMS = 1 << 12
_RANGE = 2.0**-500, 2.0**500  # of numbers and weights: products neither overflow nor underflow


@dataclass(frozen=True)
class Enclosure:
    """|executed - middle| <= radius, for each assignment and each linear function: (S, r)."""

    middle: Floats
    radius: Floats

    def times(self, stream: Stream, k: Floats) -> Enclosure:
        """The executed product with a vector of whole numbers, (S, 1)."""
        terms, size = len(k), np.abs(k)
        sizes = ((np.abs(self.middle) + self.radius) @ size)[:, None] * _UP
        radius = (self.radius @ size)[:, None] + sizes * _lost(stream, terms)
        radius += (2 * terms + 1) * stream.arithmetic.tiny
        safe = sizes < min(_RANGE[1], stream.arithmetic.largest / 2)
        return Enclosure((self.middle @ k)[:, None], np.where(safe, radius * _UP, np.inf))


def enclosed(stream: Stream, matrix: Array, states: States) -> Enclosure | None:
    """x·matrix for each assignment, or None where float64 does not decide."""
    rows = stream.rows(matrix)
    terms = int((matrix != 0).sum(0).max(initial=0))
    if terms > _MOST_TERMS or not _in_range(matrix):
        return None
    groups: dict[tuple[Variable, ...], list[int]] = {}
    for c in rows:
        groups.setdefault(stream.columns[c].variables, []).append(c)
    shape = states.count, matrix.shape[1]
    middle, sizes, radius = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for variables, columns in groups.items():
        floats = [stream.columns[c].floats for c in columns]
        if not all(_in_range(values) and _in_range(errors) for values, errors in floats):
            return None
        where = tuple(states.places[v] for v in variables)
        values, errors = (np.stack([pair[i] for pair in floats], -1) for i in (0, 1))
        own = matrix[columns]
        middle += (values @ own)[where]
        radius += (errors @ np.abs(own))[where] * _UP
        sizes += ((np.abs(values) + errors) @ np.abs(own))[where] * _UP
    radius += sizes * _lost(stream, terms) + (2 * terms + 1) * stream.arithmetic.tiny
    if not sizes.max(initial=0) < min(_RANGE[1], stream.arithmetic.largest / 2):
        return None
    return Enclosure(middle, radius * _UP)


def signs(s: Enclosure, gap: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where a score is certainly at least `gap`, and where it is certainly at most -gap."""
    middle, radius = s.middle[:, 0], s.radius[:, 0] + np.abs(s.middle[:, 0]) * 4 * _V
    needed = (gap + radius) * _UP
    return middle >= needed, middle <= -needed


def _lost(stream: Stream, terms: int) -> float:
    """Rounding of the execution, as `Stream.rounding`, and of this evaluation, for each unit of Σ|terms|."""
    return (float(stream.gamma(terms + 1)) + (terms + 3) * _V) * _UP


def _in_range(array: Array) -> bool:
    sizes = np.abs(array[array != 0])
    return bool(
        np.isfinite(sizes).all() and (not sizes.size or _RANGE[0] <= sizes.min() <= sizes.max() <= _RANGE[1])
    )
