"""module:object on the command line: the user's own model or function, imported from the current directory or Python's path."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from attnc.errors import InputError

OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.\w+)*")
_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, __file__, "<")


@contextmanager
def user_code() -> Iterator[None]:
    """Make modules of the current directory importable and send what they print to stderr: stdout is for the result."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def load_object(source: str) -> Any:
    """The model or the function of a tensor that module:object names, or that it returns when called without arguments."""
    name, _, path = source.partition(":")
    value: Any = _run_user_code(f"importing {name}", lambda: importlib.import_module(name), name)
    where = name
    for part in path.split("."):
        if not hasattr(value, part):
            names = [known for known in dir(value) if not known.startswith("_")]
            hint = ", ".join(difflib.get_close_matches(part, names, cutoff=0.5) or names[:9])
            raise InputError(f"{where} has no {part!r}: it has {hint}, …")
        value, where = getattr(value, part), f"{where}.{part}"
    where = source
    if is_function(value) and _accepts(value, 0):
        value, where = _run_user_code(f"calling {source}", value), f"what {source} returns"
    if isinstance(value, type):
        raise InputError(f"{where} is a class: give an instance, or a function that returns one")
    if is_function(value) and not _accepts(value, 1):
        raise InputError(f"{source}{inspect.signature(value)}: give a function of one tensor, or of nothing")
    return value


def is_function(value: object) -> bool:
    """Whether `value` is a callable that is not a model."""
    from torch import nn

    return callable(value) and not isinstance(value, (nn.Module, type))


def _accepts(function: Callable[..., Any], count: int) -> bool:
    """Whether `count` positional arguments suffice; a builtin without a signature is taken as a function of one tensor."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return count == 1
    return True


def _run_user_code(doing: str, run: Callable[[], Any], module: str = "") -> Any:
    """Run it; report an exception with the line of the user's code that raised it."""
    try:
        return run()
    except (Exception, SystemExit) as problem:
        if isinstance(problem, ModuleNotFoundError) and f"{module}.".startswith(f"{problem.name}."):
            raise InputError(f"no module {problem.name!r} in {os.getcwd()} or on Python's path") from problem
        frames = traceback.extract_tb(problem.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        message = f": {problem}" if str(problem) else ""
        raise InputError(f"{doing} raised {type(problem).__name__}{message}{place}") from problem
