"""Upper bounds in float64 with numpy: sums and products of numbers that are not negative, rounded outwards.

A sum of n products, in any order, is computed with a relative error of at most (n + 1)u/(1 - (n + 1)u), plus n
underflows; u = 2⁻⁵³. `grown` adds twice that, so that the result is at least the exact one."""

from __future__ import annotations

import numpy as np

from attnc.domain import Array

U = 2.0**-53
FLUSH = 2.0**-1020


def grown(computed: Array, operations: int) -> Array:
    """At least the exact value of what was computed with so many roundings from numbers that are not negative.

    >>> float(grown(np.float64(1.0), 1)) > 1.0
    True
    """
    factor = 1.0 + 2.0 * (operations + 4) * U
    return np.asarray(computed * factor + (operations + 4) * FLUSH)


def product(weight: Array, x: Array) -> Array:
    """At least x Wᵀ along the last axis of x; nothing is negative."""
    return grown(x @ weight.T, weight.shape[1] + 1)


def total(*terms: Array | float) -> Array:
    """At least the sum of the terms, none of which is negative."""
    return grown(sum(np.asarray(t) for t in terms), len(terms))  # type: ignore[arg-type]


def times(*factors: Array | float) -> Array:
    """At least the product of the factors, none of which is negative."""
    found = np.asarray(factors[0])
    for factor in factors[1:]:
        found = found * factor
    return grown(found, len(factors))


def below(x: Array) -> Array:
    return np.nextafter(x, -np.inf)


def above(x: Array) -> Array:
    return np.nextafter(x, np.inf)


def gamma(operations: int, unit: float) -> float:
    """γ_k = ku/(1 - ku), rounded up: the relative error of k roundings in a row; inf from ku >= 1/2 on."""
    k = operations * unit
    return float(grown(np.float64(k / (1 - k)), 3)) if k < 0.5 else float("inf")
