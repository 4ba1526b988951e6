"""Where a promise holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnc.errors import InputError


@dataclass(frozen=True)
class Interval:
    """The closed interval [lo, hi] of real inputs.

    >>> Interval(-8, 8)
    Interval(lo=-8.0, hi=8.0)
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        for end in (self.lo, self.hi):
            if isinstance(end, bool) or not isinstance(end, (int, float)):
                raise InputError(
                    f"the ends of an interval are numbers: got {end!r}; give on=(lo, hi), e.g. on=(-8, 8)"
                )
        try:
            lo, hi = float(self.lo), float(self.hi)
        except OverflowError:
            raise InputError(
                "an end of the interval is too large for floating point: give two finite numbers"
            ) from None
        rounded = [end for end in (self.lo, self.hi) if isinstance(end, int) and float(end) != end]
        if rounded:
            raise InputError(f"no float equals {rounded[0]}: give the end of the interval as a float")
        object.__setattr__(self, "lo", lo)
        object.__setattr__(self, "hi", hi)
        if not (math.isfinite(lo) and math.isfinite(hi)):
            raise InputError(
                f"the interval ({lo}, {hi}) is not finite: give on=(lo, hi) with two finite numbers"
            )
        if lo >= hi:
            what = "empty" if lo == hi else "reversed"
            raise InputError(f"the interval ({lo}, {hi}) is {what}: give on=(lo, hi) with lo < hi")
        if not math.isfinite(hi - lo) or hi - lo < 2.0**-1000:
            raise InputError(
                f"the interval ({lo}, {hi}) has a width of {hi - lo}: accepted are finite widths from 2^-1000 on"
            )

    @property
    def middle(self) -> float:
        return self.lo / 2 + self.hi / 2

    @property
    def width(self) -> float:
        return self.hi - self.lo

    def __contains__(self, s: float) -> bool:
        return self.lo <= s <= self.hi
