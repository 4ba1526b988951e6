"""Progress of long work: a bar in a terminal and in a notebook, nothing in a pipe."""

from __future__ import annotations

import difflib
import inspect
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from html import escape
from typing import Any, ParamSpec, Protocol, TypeVar

from attnc.errors import ArgumentError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_DELAY = 0.5  # seconds before a bar appears: short work shows none
_PAUSE = 0.2  # seconds between two updates of a notebook
_MEANT = {  # names of the paper and of other libraries, and what attnc calls them
    "epsilon": "eps", "tol": "eps", "tolerance": "eps", "p": "anchors", "H": "heads", "c": "sharpness",
    "interval": "domain", "box": "domain",
}  # fmt: skip


class Progress(Protocol):
    """Called during long work with a message and, where the work can be counted, with how much of it is done."""

    def __call__(self, message: str, done: int = 0, total: int = 0, /) -> None: ...


def silent(message: str, done: int = 0, total: int = 0, /) -> None:
    """Report nothing."""


class Display(Protocol):
    """Where a bar is drawn."""

    def start(self, message: str) -> None: ...
    def update(self, message: str, done: int, total: int) -> None: ...
    def stop(self) -> None: ...


class Terminal:
    """A bar on stderr, removed at the end."""

    def start(self, message: str) -> None:
        from rich import progress as rich
        from rich.console import Console

        text = rich.TextColumn("{task.fields[count]}{task.description}", markup=False)
        columns = (rich.SpinnerColumn(), rich.BarColumn(bar_width=24), rich.TimeElapsedColumn(), text)
        self._bar = rich.Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(message, total=None, count="")
        self._bar.start()

    def update(self, message: str, done: int, total: int) -> None:
        count = f"{done}/{total} " if total else ""
        self._bar.update(self._task, description=message, completed=done, total=total or None, count=count)

    def stop(self) -> None:
        self._bar.stop()


class Notebook:
    """A line of HTML in the output of a cell, emptied at the end."""

    def __init__(self, display: Callable[..., Any], html: Callable[[str], Any]) -> None:
        self._display, self._html, self._last = display, html, 0.0

    def start(self, message: str) -> None:
        self._began = time.monotonic()
        self._handle = self._display(self._html(self._line(message, 0, 0)), display_id=True)

    def update(self, message: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= _PAUSE:
            self._last = now
            self._handle.update(self._html(self._line(message, done, total)))

    def stop(self) -> None:
        self._handle.update(self._html(""))

    def _line(self, message: str, done: int, total: int) -> str:
        bar = f"<progress value='{done}' max='{total}'></progress>" if total else "<progress></progress>"
        seconds = f"{time.monotonic() - self._began:.0f} s"
        count = f"{done}/{total} " if total else ""
        return f"<small>{bar} {seconds} · {count}{escape(message)}</small>"


def find_display() -> Display | None:
    """The display of this process; None in a pipe and in workers. IPython is asked only if it runs already."""
    if multiprocessing.current_process().name != "MainProcess":
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        from IPython.display import HTML, display

        return Notebook(display, HTML)
    return Terminal() if sys.stderr is not None and sys.stderr.isatty() else None


class _Bar:
    """A display that appears when the work takes longer than the delay. A timer starts it, so every call is locked."""

    def __init__(self, display: Display, message: str, delay: float) -> None:
        self._display, self._now, self._lock = display, (message, 0, 0), threading.Lock()
        self._started = self._ended = False
        self._timer = threading.Timer(delay, self._start)
        self._timer.daemon = True
        if delay:
            self._timer.start()
        else:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._ended:
                self._display.start(self._now[0])
                self._display.update(*self._now)
                self._started = True

    def __call__(self, message: str, done: int = 0, total: int = 0, /) -> None:
        with self._lock:
            self._now = (message, done, total)
            if self._started and not self._ended:
                self._display.update(*self._now)

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._started:
                self._display.stop()


_shown: ContextVar[Progress | None] = ContextVar("attnc_progress", default=None)


@contextmanager
def shown(message: str, given: Progress | bool | None = None, delay: float = _DELAY) -> Iterator[Progress]:
    """The progress callback of a call whose argument `progress` is `given`: a callable is used as it is, False is silent, None is
    a bar in a terminal or a notebook after `delay` seconds. Work inside of work that has a bar writes its messages into that bar.

    >>> with shown("working") as progress:
    ...     progress("still working", 1, 2)
    """
    outer = _shown.get()
    if callable(given) or given is False:
        with _as_outer(silent):  # the calls inside show no bar of their own
            yield given or silent
        return
    display = find_display() if outer is None else None
    if outer is not None or display is None:
        yield outer or silent
        return
    bar = _Bar(display, message, delay)
    try:
        with _as_outer(bar):
            yield bar
    finally:
        bar.end()


@contextmanager
def _as_outer(progress: Progress) -> Iterator[None]:
    token = _shown.set(progress)
    try:
        yield
    finally:
        _shown.reset(token)


def current() -> Progress:
    """The callback of the bar that is shown now, or of none."""
    return _shown.get() or silent


def watched(message: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Show a bar while a function runs. The function's argument `progress`, if it has one, becomes the bar's callback."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        reports = "progress" in inspect.signature(function).parameters

        @checked_call
        @wraps(function)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            given: Any = kwargs.get("progress")
            with shown(message, given) as progress:
                if reports:
                    kwargs["progress"] = progress
                return function(*args, **kwargs)

        return run

    return decorate


def checked_call(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise ArgumentError if a call does not fit the signature of the function.

    >>> @checked_call
    ... def f(model, *, eps): ...
    >>> f("m", epsilon=0.1)
    Traceback (most recent call last):
    attnc.errors.ArgumentError: f has no argument 'epsilon' (did you mean 'eps'?): its arguments are model, eps
    """
    signature = inspect.signature(function)

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise wrong_call(function.__name__, signature, kwargs, str(problem), len(args)) from None
        return function(*args, **kwargs)

    return run


_SETTINGS = (
    "engine",
    "design",
    "inputs",
    "calibration",
    "strict",
)  # fields of the argument `config` of `convert_`


def wrong_call(
    name: str, signature: inspect.Signature, given: Mapping[str, object], problem: str, positional: int = 0
) -> ArgumentError:
    """The error for a call that does not fit the signature of a function; `positional` arguments were given without a name.

    >>> def f(model, *, eps): ...
    >>> print(wrong_call("f", inspect.signature(f), {"epz": 1}, "no argument 'epz'"))
    f has no argument 'epz' (did you mean 'eps'?): its arguments are model, eps
    """
    accepted = [
        word for word, p in signature.parameters.items() if word != "self" and p.kind is not p.VAR_KEYWORD
    ]
    listed = f"its arguments are {', '.join(accepted)}"
    more = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    wrong = [word for word in given if word not in accepted]
    unknown = [word for word in wrong if word == "eps" or not more or _MEANT.get(word) in accepted]
    if not unknown:
        return ArgumentError(f"{name}: {problem}{_named(signature, given, positional)}; {listed}")
    word = unknown[0]
    if word == "eps" and "approximation" in accepted:
        why = (
            "eps bounds the error as executed, and for a whole transformer only the exact term can be chosen: give "
            "approximation=…, how far each converted part may move in exact arithmetic; the report proves the rounding beside it"
        )
        return ArgumentError(f"{name} has no argument 'eps': {why}; {listed}")
    if word in _SETTINGS and "config" in accepted:
        value = repr(given[word]) if isinstance(given[word], (str, bool)) else "…"
        return ArgumentError(f"{name} has no argument {word!r}: use config={{{word!r}: {value}}}; {listed}")
    if accepted == ["inputs"]:
        return ArgumentError(f"{name} has no argument {word!r}: use inputs={{{word!r}: …}}; {listed}")
    near = [_MEANT[word]] if _MEANT.get(word) in accepted else difflib.get_close_matches(word, accepted, 1)
    return ArgumentError(
        f"{name} has no argument {word!r}{f' (did you mean {near[0]!r}?)' if near else ''}: {listed}"
    )


def _named(signature: inspect.Signature, given: Mapping[str, object], positional: int) -> str:
    """How to write the arguments that are missing, or that were given without their names."""
    kinds = signature.parameters.values()
    places = [p for p in kinds if p.kind is p.POSITIONAL_OR_KEYWORD]
    named = [p for p in kinds if p.kind is p.KEYWORD_ONLY and p.name not in given]
    wanted = named[: positional - len(places)]
    if positional <= len(places):
        wanted = [p for p in (*places[positional:], *named) if p.default is p.empty and p.name not in given]
    return f" (write {', '.join(f'{p.name}=…' for p in wanted)})" if wanted else ""


def resolve_progress(progress: Progress | bool | None) -> Progress:
    """The callback that `watched` passed on."""
    return progress if callable(progress) else silent
