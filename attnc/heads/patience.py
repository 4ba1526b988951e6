"""How long a search may go on without success: a refusal must come within seconds.

The limit holds for a search that has met nothing yet; proofs of what was found, and the search for something smaller behind it,
are not limited. Time is the processor's, of this thread: on a machine that is busy otherwise nothing is refused sooner."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SECONDS = 10.0  # for a search that fails
_LEAST = 0.5  # for each search of a compilation whose seconds are spent
_SHARED = 2.0  # times the seconds, for all searches of a compilation that fail
_SEARCH = 0.6  # of the time; the rest is for proving what came closest
_until: ContextVar[float] = ContextVar("attnc_until", default=math.inf)


class Shared:
    """What all searches of one compilation have left for failing, and whether one was stopped."""

    def __init__(self) -> None:
        self.left, self.stopped = _SHARED * SECONDS, False


_shared: ContextVar[Shared | None] = ContextVar("attnc_shared", default=None)


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
    shared = _shared.get()
    return Clock(SECONDS if shared is None else max(_LEAST, shared.left))


def failed(clock: Clock) -> None:
    """The search of this clock met nothing: its time is taken from what its compilation has left."""
    shared = _shared.get()
    if shared is not None:
        shared.left -= clock.spent
        shared.stopped = shared.stopped or clock.stopped


@contextmanager
def sharing() -> Iterator[Shared]:
    """All searches inside that fail share the seconds of two."""
    made = Shared()
    token = _shared.set(made)
    try:
        yield made
    finally:
        _shared.reset(token)


def check() -> None:
    """Called wherever a search loops."""
    if time.thread_time() > _until.get():
        raise OutOfTimeError
