"""Limits of searches, so that an error is raised within seconds if no head exists.

The limit applies until a search finds a head; its proof, and the search for a smaller head, are not limited. The seconds are
those of `attnc.effort`, which are counted: the same call finds the same head on a slow or busy machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from attnc import effort

SECONDS = 10.0  # for a search that fails
_LEAST = 0.5  # for each search of a compilation whose seconds are spent
_SHARED = 2.0  # times the seconds, for all searches of a compilation that fail
_SEARCH = 0.6  # of the time; the rest is for proving what came closest
_STEP, _NUMBER, _EXPONENTIAL = (
    2e-4,
    1.2e-9,
    40.0,
)  # seconds: of a call, of a multiplication; multiplications of an exp
_until: ContextVar[float] = ContextVar("attnc_until", default=math.inf)


class OutOfTimeError(Exception):
    """The search took too long. Caught inside attnc."""


class Clock:
    """The times at which a search stops looking for candidates, and stops altogether; `left` are the seconds that failing
    searches of one compilation may still take, and `stopped` says whether one was stopped."""

    def __init__(self, seconds: float | None = None) -> None:
        self.shared, self.began, self.stopped = _shared.get(), effort.spent(), False
        if seconds is None:
            seconds = SECONDS if self.shared is None else max(_LEAST, self.shared.left)
        self.left: float = seconds
        self.searching, self.closing = self.began + _SEARCH * seconds, self.began + seconds

    def again(self) -> None:
        """As much time as at first, from now on: for a search of another kind after one that failed."""
        now = effort.spent()
        self.searching, self.closing = now + _SEARCH * self.left, now + self.left

    @property
    def spent(self) -> float:
        return effort.spent() - self.began

    @contextmanager
    def until(self, end: float) -> Iterator[None]:
        """Stop the code inside at the given time and set `stopped`."""
        token = _until.set(end)
        try:
            yield
        except OutOfTimeError:
            self.stopped = True
        finally:
            _until.reset(token)

    def failed(self) -> None:
        """Subtract the time of a failed search from the time that its compilation has left."""
        if self.shared is not None:
            self.shared.left -= self.spent
            self.shared.stopped = self.shared.stopped or self.stopped

    def note(self) -> str:
        """What to add to an error message."""
        return " The search was stopped early: it took too long." if self.stopped else ""


_shared: ContextVar[Clock | None] = ContextVar("attnc_shared", default=None)


@contextmanager
def sharing() -> Iterator[Clock]:
    """Failing searches inside share the time of two searches."""
    shared = Clock(_SHARED * SECONDS)
    token = _shared.set(shared)
    try:
        yield shared
    finally:
        _shared.reset(token)


def check(points: int = 0, columns: int = 0) -> None:
    """Count a least-squares problem of this size, or a step like it, and raise `OutOfTimeError` if that is too much. Every loop
    of a search calls this."""
    if effort.spend(_STEP + _NUMBER * points * columns * (columns + _EXPONENTIAL)) > _until.get():
        raise OutOfTimeError
