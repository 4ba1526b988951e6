"""Ball arithmetic: the one place that sets python-flint's global context and rounds balls to floats.

A ball `arb` is a midpoint with a radius that is proved to contain the number meant; an `arb_series` is a
power series with ball coefficients."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flint import arb, arb_series, ctx

_lock = threading.RLock()


@contextmanager
def working(precision: int, length: int = 2) -> Iterator[None]:
    """Work with `precision` bits and with series of `length` coefficients; restore both on leaving.

    python-flint keeps both in a process-wide context, hence the lock."""
    with _lock:
        saved = ctx.prec, ctx.cap
        try:
            ctx.prec, ctx.cap = precision, length
            yield
        finally:
            ctx.prec, ctx.cap = saved


def upper(x: arb) -> float:
    """A float that is at least every number of the ball (inf where the ball is not finite)."""
    if not x.is_finite():
        return math.inf
    top = x.upper()
    f = max(float(top), -sys.float_info.max)
    while math.isfinite(f) and not arb(f) >= top:
        f = math.nextafter(f, math.inf)
    return f


def lower(x: arb) -> float:
    """A float that is at most every number of the ball (-inf where the ball is not finite)."""
    return -upper(-x)


def magnitude(x: arb) -> float:
    """A float that is at least |y| for every y of the ball."""
    return upper(abs(x)) if x.is_finite() else math.inf


def ball(lo: float, hi: float) -> arb:
    """A ball that contains [lo, hi]; its radius is rounded up, to 30 bits."""
    half = arb(hi) / 2 - arb(lo) / 2
    return arb(lo) / 2 + arb(hi) / 2 + arb(0, half.upper())


def variable(centre: arb) -> arb_series:
    """The series c + t, to be put into a function for its Taylor coefficients at c."""
    return arb_series([centre, 1])
