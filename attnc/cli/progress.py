"""Progress of long work: a bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress as rich
from rich.console import Console

from attnc.progress import Progress, silent


@contextmanager
def progress_bar(first: str) -> Iterator[Progress]:
    """A bar on stderr, removed at the end. Call the result with a message, and with counts to fill the bar.

    >>> with progress_bar("building") as progress:
    ...     progress("trying 2 anchors")
    ...     progress("layer 1", 1, 12)
    """
    if not sys.stderr.isatty():
        yield silent
        return
    columns = (
        rich.SpinnerColumn(),
        rich.BarColumn(bar_width=24),
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.fields[count]}{task.description}", markup=False),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(first, total=None, count="")

        def update(message: str, done: int = 0, total: int = 0, /) -> None:
            count = f"{done}/{total} " if total else ""
            display.update(task, description=message, completed=done, total=total or None, count=count)

        yield update
