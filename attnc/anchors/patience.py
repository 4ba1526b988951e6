"""How long a search may go on without success: a refusal must come within seconds.

The limit holds for a search that has met nothing yet; proofs of what was found, and the search for something smaller behind it,
are not limited. Time is the processor's, of this thread: on a machine that is busy otherwise nothing is refused sooner."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SECONDS = 10.0  # for a search that fails, and for all that fail in one compilation
_LEAST = 1.0  # for each search of a compilation whose seconds are spent
_SEARCH = 0.6  # of the time; the rest is for proving what came closest
_until: ContextVar[float] = ContextVar("attnc_until", default=math.inf)
_shared: ContextVar[list[float] | None] = ContextVar("attnc_shared", default=None)


class OutOfTimeError(Exception):
    """The search took too long; never leaves attnc."""


class Clock:
    """Of one search: when to stop looking, and when to stop altogether."""

    def __init__(self, seconds: float) -> None:
        self.began = time.thread_time()
        self.searching, self.closing = self.began + _SEARCH * seconds, self.began + seconds
        self.stopped = False

    @property
    def spent(self) -> float:
        return time.thread_time() - self.began

    @contextmanager
    def until(self, end: float) -> Iterator[None]:
        """What runs inside stops when the time is over, and `stopped` says so."""
        token = _until.set(end)
        try:
            yield
        except OutOfTimeError:
            self.stopped = True
        finally:
            _until.reset(token)


def clock() -> Clock:
    """For a search that begins."""
    left = _shared.get()
    return Clock(SECONDS if left is None else max(_LEAST, left[0]))


def failed(clock: Clock) -> None:
    """The search of this clock met nothing: its time is taken from what its compilation has left."""
    left = _shared.get()
    if left is not None:
        left[0] -= clock.spent


@contextmanager
def sharing() -> Iterator[None]:
    """All searches inside that fail share the seconds of one."""
    token = _shared.set([SECONDS])
    try:
        yield
    finally:
        _shared.reset(token)


def check() -> None:
    """Called wherever a search loops."""
    if time.thread_time() > _until.get():
        raise OutOfTimeError
