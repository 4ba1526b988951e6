"""Work of searches, counted and not measured: a search ends at the same point on every machine, however busy it is.

The unit is a second of a processor of 2023. What counts is the order of magnitude: each kind of step has a rough formula."""

from __future__ import annotations

import threading


class _Done(threading.local):
    seconds = 0.0


_done = _Done()


def spend(seconds: float) -> float:
    """Count so much work of this thread; returns all of its work.

    >>> before = spent()
    >>> spend(2.0) - before >= 2.0
    True
    """
    _done.seconds += seconds
    return _done.seconds


def spent() -> float:
    """The work of this thread so far."""
    return _done.seconds
