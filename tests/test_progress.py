"""Bars: one for the outermost call, in a terminal or a notebook, and none in a pipe, in workers or in short work."""

from __future__ import annotations

import time
from typing import Any

import pytest

import attnc
from attnc import progress as module
from attnc.progress import Notebook, Terminal, find_display, shown, silent, watched


class Recorded:
    """A display that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start(self, message: str) -> None:
        self.calls.append(("start", message))

    def update(self, message: str, done: int, total: int) -> None:
        self.calls.append(("update", message, done, total))

    def stop(self) -> None:
        self.calls.append(("stop",))


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The displays that calls open, in order."""
    made: list[Recorded] = []

    def make() -> Recorded:
        made.append(Recorded())
        return made[-1]

    monkeypatch.setattr(module, "find_display", make)
    return made


def test_work_inside_of_work_writes_into_the_outer_bar(displays: list[Recorded]) -> None:
    with shown("outer", delay=0), shown("inner", delay=0) as inner:
        inner("step", 1, 2)
    assert len(displays) == 1
    assert displays[0].calls == [
        ("start", "outer"),
        ("update", "outer", 0, 0),
        ("update", "step", 1, 2),
        ("stop",),
    ]


def test_short_work_shows_nothing_and_long_work_does(displays: list[Recorded]) -> None:
    with shown("short", delay=60) as progress:
        progress("quick")
    with shown("long", delay=0.01) as progress:
        progress("first")
        deadline = time.monotonic() + 30
        while not displays[1].calls and time.monotonic() < deadline:
            time.sleep(0.005)
    assert displays[0].calls == []
    assert displays[1].calls[0] == ("start", "first") and displays[1].calls[-1] == ("stop",)


def test_a_bar_ends_with_an_error(displays: list[Recorded]) -> None:
    with pytest.raises(KeyError), shown("work", delay=0):
        raise KeyError
    assert displays[0].calls[-1] == ("stop",)
    with shown("next", delay=0):
        pass
    assert len(displays) == 2


@pytest.mark.parametrize("given", [False, lambda message: None])
def test_a_callback_of_ones_own_and_false_show_no_bar(given: Any, displays: list[Recorded]) -> None:
    with shown("outer", given, delay=0), shown("inner", delay=0) as inner:
        inner("step", 1, 2)
    assert displays == []


def test_the_long_calls_open_one_bar_each(displays: list[Recorded]) -> None:
    head = attnc.head("tanh", domain=(-2, 2), eps=1e-2)
    assert len(displays) == 1
    assert attnc.verify(head) and len(displays) == 2
    attnc.incontext.gradient_descent("logistic", features=1, steps=1)  # it builds heads
    assert len(displays) == 3


def test_an_argument_progress_gets_the_callback_of_the_bar(displays: list[Recorded]) -> None:
    @watched("work")
    def work(progress: Any = None) -> Any:
        return progress

    assert callable(work()) and len(displays) == 1
    assert work(progress=silent) is silent and len(displays) == 1


def test_the_display_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shell:
        kernel = object()

    class IPython:
        shell: Any = Shell()

        def get_ipython(self) -> Any:
            return self.shell

    class Screen:
        def isatty(self) -> bool:
            return True

    ipython = IPython()
    monkeypatch.setitem(module.sys.modules, "IPython", ipython)
    monkeypatch.setitem(module.sys.modules, "IPython.display", type("D", (), {"HTML": str, "display": print}))
    assert isinstance(find_display(), Notebook)
    ipython.shell = None
    assert find_display() is None  # a pipe
    monkeypatch.setattr(module.sys, "stderr", Screen())
    assert isinstance(find_display(), Terminal)
    monkeypatch.setattr(module.multiprocessing.current_process(), "_name", "LokyProcess-1")
    assert find_display() is None


def test_a_notebook_shows_a_line_and_empties_it() -> None:
    class Handle:
        def update(self, html: str) -> None:
            lines.append(html)

    def display(html: str, display_id: bool) -> Handle:
        lines.append(html)
        return Handle()

    lines: list[str] = []
    notebook = Notebook(display, str)
    notebook.start("a < b")
    notebook.update("layer 1", 3, 12)
    notebook.stop()
    assert (
        "a &lt; b" in lines[0] and "value='3' max='12'" in lines[1] and "3/12" in lines[1] and lines[2] == ""
    )
