"""Rates: log value against log size by least squares, with a confidence interval for the slope.

The model is log v_i = α + σ log s_i + e_i with independent normal e_i of one variance. The estimate of σ, minus σ and divided
by its standard error, has Student's distribution with n - 2 degrees of freedom: the interval is slope ± t_{0.975, n-2} · error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from flint import arb

from attnc.errors import InputError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Fit:
    """A straight line through the logarithms: value ≈ exp(intercept) · size^slope."""

    slope: float
    low: (
        float | None
    )  # the interval's ends, two-sided, 95 %; None where two points leave nothing to estimate it from
    high: float | None
    intercept: float
    points: int  # that entered
    left_out: int = 0  # values that have no logarithm: zero, negative, infinite, NaN

    def contains(self, slope: float) -> bool | None:
        """Whether the interval contains a slope; None where there is no interval.

        >>> fit((1, 2, 4, 4), (1.0, 0.26, 0.06, 0.063)).contains(-2.0)
        True
        """
        return None if self.low is None or self.high is None else self.low <= slope <= self.high

    def __str__(self) -> str:
        interval = "no interval" if self.low is None else f"{self.low:.2f} … {self.high:.2f}"
        out = f", {self.left_out} left out" if self.left_out else ""
        return f"{self.slope:.2f} ({interval}; {self.points} points{out})"


def fit(sizes: Sequence[float], values: Sequence[float]) -> Fit:
    """The line through (log size, log value); every single run is a point. Values without a logarithm are left out and
    counted.

    >>> print(fit((10, 20, 40, 80), (1.0, 0.25, 0.0625, 0.0)))
    -2.00 (-2.00 … -2.00; 3 points, 1 left out)
    >>> print(fit((10, 20), (1.0, 0.25)))
    -2.00 (no interval; 2 points)
    """
    if len(sizes) != len(values):
        raise InputError(f"{len(sizes)} sizes and {len(values)} values: give a size for each value")
    if not all(math.isfinite(s) and s > 0 for s in sizes):
        raise InputError(f"sizes {tuple(sizes)}: every one must be positive and finite")
    kept = [(s, v) for s, v in zip(sizes, values, strict=True) if math.isfinite(v) and v > 0]
    if len({s for s, _ in kept}) < 2:
        raise InputError(
            f"{len(kept)} of {len(values)} values can be fitted: a slope needs two sizes or more"
        )
    x, y = np.log(np.array(kept, dtype=np.float64)).T
    across = float(((x - x.mean()) ** 2).sum())
    slope = float((x - x.mean()) @ (y - y.mean())) / across
    intercept = float(y.mean() - slope * x.mean())
    degrees, low, high = len(kept) - 2, None, None
    if degrees > 0:
        rest = float(((y - intercept - slope * x) ** 2).sum())
        reach = student(degrees) * math.sqrt(rest / degrees / across)
        low, high = slope - reach, slope + reach
    return Fit(slope, low, high, intercept, len(kept), len(values) - len(kept))


@lru_cache(maxsize=256)
def student(degrees: int) -> float:
    """The t with P(|T| <= t) = 95 %, T of Student's distribution, by bisection of

        P(|T| > t) = I_z(ν/2, 1/2),    z = ν/(ν + t²),    I the regularised incomplete beta function.

    >>> round(student(1), 3), round(student(10), 3), round(student(30), 3)
    (12.706, 2.228, 2.042)
    """
    if degrees < 1:
        raise InputError(f"degrees={degrees}: Student's distribution has at least one degree of freedom")
    low, high = 0.0, 1.0
    while _tails(high, degrees) > 1 - CONFIDENCE:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _tails(middle, degrees) > 1 - CONFIDENCE else (low, middle)
    return middle


def _tails(t: float, degrees: int) -> float:
    """P(|T| > t)."""
    z = arb(degrees) / (degrees + arb(t) ** 2)
    return float(z.beta_lower(arb(degrees) / 2, arb(1) / 2, regularized=True).mid())
