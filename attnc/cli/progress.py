"""Long work moves on a terminal, and is silent in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


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
