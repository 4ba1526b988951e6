"""An object of the user's own, by module and name. This, and nothing else on the command line, runs code that is not attnc's."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from types import ModuleType
from typing import Any

from torch import nn

from attnc.errors import InputError

_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, __file__, "<")


@contextmanager
def user_code(runs: bool) -> Iterator[None]:
    """Inside, if it runs, modules of the current directory can be imported, and what they print goes to stderr: stdout is
    the result's."""
    if not runs:
        yield
        return
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def found_object(source: str) -> Any:
    """The object that module:object names; a function without arguments is called for it.

    >>> found_object("math:pi")
    3.141592653589793
    """
    name, _, path = source.partition(":")
    found: Any = _module(name)
    for i, part in enumerate(path.split(".")):
        found = _attribute(found, part, ".".join([name, *path.split(".")[:i]]))
    if isinstance(found, type):
        raise InputError(
            f"{source} is a class: give an object of it that holds trained weights, or a function without arguments "
            "that makes one"
        )
    makes = callable(found) and not isinstance(found, nn.Module)
    return _called(found, source) if makes else found


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name is not None and (name == problem.name or name.startswith(f"{problem.name}.")):
            raise InputError(
                f"there is no module {problem.name!r} in {os.getcwd()} or on Python's path: give module:object "
                "with the name that an import would use"
            ) from problem
        raise _failed(f"importing {name}", problem) from problem
    except (Exception, SystemExit) as problem:
        raise _failed(f"importing {name}", problem) from problem


def _attribute(holder: Any, part: str, where: str) -> Any:
    try:
        return getattr(holder, part)
    except AttributeError:
        names = (
            [name for name in vars(holder) if not name.startswith("_")] if hasattr(holder, "__dict__") else []
        )
        near = difflib.get_close_matches(part, names, n=3, cutoff=0.5)
        models = [name for name in names if isinstance(getattr(holder, name, None), nn.Module)]
        hint = near or models
        known = f"did you mean {' or '.join(map(repr, hint))}?" if hint else "give the name of a model in it."
        raise InputError(f"{where} has no {part!r}: {known}") from None


def _called(make: Callable[[], Any], source: str) -> Any:
    try:
        inspect.signature(make).bind()
    except TypeError as problem:
        raise InputError(
            f"{source} is called without arguments, and takes some ({problem}): give a model, or a function without arguments "
            "that returns one"
        ) from problem
    except ValueError:
        pass  # some builtins have no signature
    try:
        return make()
    except (Exception, SystemExit) as problem:
        raise _failed(f"calling {source}", problem) from problem


def _failed(doing: str, problem: BaseException) -> InputError:
    """What the user's code raised, and the line of theirs that did."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    said = f": {problem}" if str(problem) else ""
    return InputError(f"{doing} raised {type(problem).__name__}{said}{place}: it must run without an error")
