"""The one signature of progress callbacks."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called during long work with a message and, where the work can be counted, with how much of it is done."""

    def __call__(self, message: str, done: int = 0, total: int = 0, /) -> None: ...


def silent(message: str, done: int = 0, total: int = 0, /) -> None:
    """Report nothing."""
