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
    """The object that module:object names: a model, or a function of a tensor. A function without required arguments is
    called for it.

    >>> found_object("math:pi")
    3.141592653589793
    >>> found_object("torch.special:expit").__name__
    'special_expit'
    """
    name, _, path = source.partition(":")
    found: Any = _module(name)
    for i, part in enumerate(path.split(".")):
        found = _attribute(found, part, ".".join([name, *path.split(".")[:i]]))
    _check_no_class(found, source)
    if is_function(found) and _takes(found, 0):
        found = _called(found, source)
        _check_no_class(found, f"what {source} returns")
    if is_function(found) and not _takes(found, 1):
        raise InputError(
            f"{source} is a function that takes {_required(found)}: a function of one tensor (batch, n, d) can be compiled, "
            "or a function without required arguments that returns a model or such a function"
        )
    return found


def is_function(found: object) -> bool:
    """Whether it is called to know what it computes; a model shows it.

    >>> import torch
    >>> is_function(torch.sort), is_function(torch.nn.Tanh())
    (True, False)
    """
    return callable(found) and not isinstance(found, (nn.Module, type))


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether so many positional arguments are enough. Builtins without a signature are functions of numbers."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return count == 1
    return True


def _required(function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [repr(p.name) for p in parameters if p.default is p.empty and p.kind not in kinds]
    return " and ".join(names)


def _check_no_class(found: object, what: str) -> None:
    if isinstance(found, type):
        raise InputError(
            f"{what} is a class: give an object of it that holds trained weights, or a function without arguments "
            "that makes one"
        )


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
