"""Arithmetic of bounds in numpy's longest floats.

A formula of k sums, products and roots of numbers that are not negative has a relative error below k units: `up` adds more than
that. The few differences are taken with their rounding added (`Value`, `affine`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.arithmetic import Arithmetic
from attnc.domain import Array

Long = NDArray[np.longdouble]
EPS = np.longdouble(np.finfo(np.longdouble).eps)
_HELD = 1 << 20  # numbers of a matrix that are converted at once


def long(x: Any) -> Long:
    found: Long = np.asarray(x, np.longdouble)
    return found


def up(x: Array | Long, terms: int = 0) -> Long:
    """At least the exact value of a formula of few operations and sums of so many terms, none of them negative."""
    return long(x * (1 + (4 * terms + 256) * EPS) + np.longdouble(2.0**-1020))


def largest(lo: Long, hi: Long) -> Long:
    """The magnitude of an interval."""
    return np.maximum(np.abs(lo), np.abs(hi))


def gamma(terms: Array | Long | int, a: Arithmetic) -> Long:
    """γ_k = ku/(1 - ku) for k roundings; infinite where it is not defined or useless."""
    k = long(terms) * np.longdouble(a.unit)
    return np.where(k < 0.5, up(k / (1 - np.minimum(k, 0.5))), np.longdouble(np.inf))


def parts(W: NDArray[Any]) -> list[slice]:
    """Rows of a matrix, a part at a time."""
    rows = max(1, _HELD // max(1, W.shape[1]))
    return [slice(i, i + rows) for i in range(0, len(W), rows)]


def product(W: NDArray[Any], x: Long) -> Long:
    """W x for x (n, columns), rounded to nearest."""
    found: Long = np.concatenate([long(W[part]) @ x for part in parts(W)])
    return found


def weighed(W: NDArray[Any], x: Long) -> Long:
    """At least |W| x for x (n, columns) that is not negative; 0 if x is."""
    if not x.any():
        return long(np.zeros((len(W), x.shape[1])))
    return up(np.concatenate([np.abs(long(W[part])) @ x for part in parts(W)]), W.shape[1])


def floats(lo: Long, hi: Long) -> tuple[Array, Array]:
    """An interval as float64 numbers, outwards."""
    return np.nextafter(lo.astype(np.float64), -np.inf), np.nextafter(hi.astype(np.float64), np.inf)


def largest_float(x: Long) -> float:
    """The largest of these as a float, rounded up; NaN where one of them is."""
    most = np.max(x)
    nearest = np.float64(most)
    return float(nearest if nearest >= most else np.nextafter(nearest, np.inf))
