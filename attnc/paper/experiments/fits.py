"""Rates: log value against log size by least squares, with a confidence interval for the slope.

A seed draws the same data at every size, so its runs share an effect: the model is log v_i = α_{seed(i)} + σ log s_i + e_i, one
intercept per seed, with independent normal e_i of one variance. Least squares is then that of the logarithms centred within each
seed. With N runs of S seeds, the estimate of σ, minus σ and divided by its standard error, has Student's distribution with
N - S - 1 degrees of freedom: the interval is slope ± t_{0.975, N-S-1} · error. One intercept for all would count the effect of a
seed as noise and miss that it is the same at every size: its interval is too wide, or, where seeds lack sizes, off the mark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from flint import arb
from numpy.typing import NDArray

from attnc.errors import InputError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Fit:
    """Parallel straight lines through the logarithms, one per seed: value ≈ exp(intercept) · size^slope on the average."""

    slope: float
    low: float | None  # the interval's ends, two-sided, 95 %; None where nothing is left to estimate it from
    high: float | None
    intercept: float  # the mean over the runs
    points: int  # that entered
    seeds: int  # that entered
    left_out: int = 0  # values that have no logarithm: zero, negative, infinite, NaN

    def contains(self, slope: float) -> bool | None:
        """Whether the interval contains a slope; None where there is no interval.

        >>> fit((1, 2, 4, 4), (1.0, 0.26, 0.06, 0.063), (0, 0, 0, 0)).contains(-2.0)
        True
        """
        return None if self.low is None or self.high is None else self.low <= slope <= self.high

    def __str__(self) -> str:
        interval = "no interval" if self.low is None else f"{self.low:.2f} … {self.high:.2f}"
        out = f", {self.left_out} left out" if self.left_out else ""
        return f"{self.slope:.2f} ({interval}; {self.points} points{out})"


def fit(sizes: Sequence[float], values: Sequence[float], seeds: Sequence[int]) -> Fit:
    """The slope of log value against log size, with one intercept per seed: both logarithms are centred within each seed, and
    N runs of S seeds leave N - S - 1 degrees of freedom. Every single run is a point; values without a logarithm are left out
    and counted.

    >>> print(fit((10, 20, 40, 80), (1.0, 0.25, 0.0625, 0.0), (0, 0, 0, 0)))
    -2.00 (-2.00 … -2.00; 3 points, 1 left out)
    >>> print(fit((10, 20, 10, 20), (1.0, 0.25, 3.0, 0.75), (0, 0, 1, 1)))  # another level, the same slope
    -2.00 (-2.00 … -2.00; 4 points)
    >>> print(fit((10, 20), (1.0, 0.25), (0, 0)))
    -2.00 (no interval; 2 points)
    """
    if not len(sizes) == len(values) == len(seeds):
        raise InputError(
            f"{len(sizes)} sizes, {len(values)} values and {len(seeds)} seeds: give a size and a seed for each value"
        )
    if not all(math.isfinite(s) and s > 0 for s in sizes):
        raise InputError(f"sizes {tuple(sizes)}: every one must be positive and finite")
    kept = [i for i, v in enumerate(values) if math.isfinite(v) and v > 0]
    if len({(seeds[i], sizes[i]) for i in kept}) == len({seeds[i] for i in kept}):
        raise InputError(
            f"{len(kept)} of {len(values)} values can be fitted: a slope needs a seed with two sizes or more"
        )
    x, y = (np.log(np.array([one[i] for i in kept], dtype=np.float64)) for one in (sizes, values))
    groups = np.unique([seeds[i] for i in kept], return_inverse=True)[1]
    across_x, across_y = _centred(x, groups), _centred(y, groups)
    across = float(across_x @ across_x)
    slope = float(across_x @ across_y) / across
    several = int(groups.max()) + 1
    degrees, low, high = len(kept) - several - 1, None, None
    if degrees > 0:
        rest = float(((across_y - slope * across_x) ** 2).sum())
        reach = student(degrees) * math.sqrt(rest / degrees / across)
        low, high = slope - reach, slope + reach
    intercept = float(y.mean() - slope * x.mean())
    return Fit(slope, low, high, intercept, len(kept), several, len(values) - len(kept))


def _centred(values: NDArray[np.float64], groups: NDArray[np.intp]) -> NDArray[np.float64]:
    """Each value minus the mean of its group."""
    means: NDArray[np.float64] = np.bincount(groups, values) / np.bincount(groups)
    return values - means[groups]


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
