"""Long work moves on a terminal, and is silent in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done and vanishes with the end; call the result to change it.

    >>> with progress("building") as say:
    ...     say("trying 2 anchors")
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(first, total=None)
        yield lambda text: display.update(task, description=text)


@contextmanager
def counted_progress(first: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr that fills: call the result with how many are done, of how many, and what was last.

    >>> with counted_progress("running") as tell:
    ...     tell(1, 2, "the first")
    """
    if not sys.stderr.isatty():
        yield lambda done, total, text: None
        return
    columns = (
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(first, total=None)
        yield lambda done, total, text: display.update(task, completed=done, total=total, description=text)
