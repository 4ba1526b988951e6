"""Upper bounds in float64 with numpy: sums and products of non-negative numbers, rounded outward.

A sum of n products, in any order, is computed with a relative error of at most (n + 1)u/(1 - (n + 1)u), plus n
underflows; u = 2⁻⁵³. `grown` adds twice that, so the result is at least the exact one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.domain import Array

U = 2.0**-53
FLUSH = 2.0**-1020
_HELD = 1 << 20  # numbers of a matrix that are copied at once


def grown(computed: Array, operations: int) -> Array:
    """At least the exact value of a result that was computed from non-negative numbers with this many roundings."""
    factor = 1.0 + 2.0 * (operations + 4) * U
    return np.asarray(computed * factor + (operations + 4) * FLUSH)


def row_blocks(W: Array) -> Iterator[slice]:
    """Blocks of rows of a matrix, small enough to be copied."""
    rows = max(1, _HELD // W.shape[1])
    return (slice(at, at + rows) for at in range(0, len(W), rows))


def weighed(W: NDArray[Any], x: Array) -> Array:
    """At least |W| x along the last axis of x, which is not negative; W is copied block by block."""
    blocks = (np.abs(W[rows].astype(np.float64)) for rows in row_blocks(W))
    return np.concatenate([product(block, x) for block in blocks], axis=-1)


def product(weight: Array, x: Array) -> Array:
    """At least x Wᵀ along the last axis of x, for non-negative W and x."""
    return grown(x @ weight.T, weight.shape[1] + 1)


def total(*terms: Array | float) -> Array:
    """At least the sum of non-negative terms."""
    return grown(sum(np.asarray(t) for t in terms), len(terms))  # type: ignore[arg-type]


def times(*factors: Array | float) -> Array:
    """At least the product of non-negative factors."""
    result = np.asarray(factors[0])
    for factor in factors[1:]:
        result = result * factor
    return grown(result, len(factors))


def below(x: Array) -> Array:
    """The next number below."""
    return np.nextafter(x, -np.inf)


def above(x: Array) -> Array:
    """The next number above."""
    return np.nextafter(x, np.inf)


def gamma(operations: int, unit: float) -> float:
    """γ_k = ku/(1 - ku), rounded up: the relative error of k roundings in a row; infinity if ku >= 1/2."""
    k = operations * unit
    return float(grown(np.float64(k / (1 - k)), 3)) if k < 0.5 else float("inf")
