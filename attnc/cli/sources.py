"""The SOURCE of `attnc compile`: a file of weights, or module:object. Only the latter runs code that is not attnc's."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

from attnc.errors import FileError, InputError

if TYPE_CHECKING:
    from attnc.program import Program

_OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.\w+)*")
_LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}, __file__, "<")


def is_object(source: str) -> bool:
    """Whether SOURCE is module:object rather than a file.

    >>> is_object("package.module:net"), is_object("/")
    (True, False)
    """
    module, _, name = source.partition(":")
    if module.endswith(".py"):
        raise InputError(f"{source}: give the import name of the module, as in {module[:-3]}:{name or 'net'}")
    if os.path.lexists(source):
        return False
    if not _OBJECT.fullmatch(source):
        raise FileError(
            f"cannot read {source}: no such file; give the path of a model.safetensors, or module:object as in package.module:net"
        )
    return True


def check_absent(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that do not apply to this SOURCE."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise InputError(f"{' and '.join(given)}: {reason}")


def read_weights(
    source: str, activation: str | None, output_activation: str | None, order: str | None
) -> Program:
    """The MLP whose weights and biases are in a safetensors file."""
    from attnc.frontends import mlp, read_state_dict
    from attnc.records.files import read_file

    try:
        read_file(source)
    except FileError:  # not a file of attnc
        tensors = read_state_dict(source)
    else:
        raise FileError(
            f"{source} was written by attnc, see `attnc show {source}`: give the weights of a model"
        )
    if activation is None:
        raise InputError(f"{source} has no activation: give --activation, a name of `attnc functions`")
    prefixes = None if order is None else [prefix.strip() for prefix in order.split(",")]
    return mlp(tensors, activation, order=prefixes, output_activation=output_activation)


@contextmanager
def user_code(enabled: bool) -> Iterator[None]:
    """Make modules of the current directory importable and send what they print to stderr: stdout is for the result."""
    if not enabled:
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
    if is_function(value) and _accepts(value, 0):
        value, source = _run_user_code(f"calling {source}", value), f"what {source} returns"
    if isinstance(value, type):
        raise InputError(f"{source} is a class: give an instance, or a function that returns one")
    if is_function(value) and not _accepts(value, 1):
        raise InputError(
            f"{source}{inspect.signature(value)} does not take one argument: give a function of one tensor (batch, n, d), or a "
            "function without required arguments that returns a model or such a function"
        )
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
            raise InputError(
                f"there is no module {problem.name!r} in {os.getcwd()} or on Python's path"
            ) from problem
        frames = traceback.extract_tb(problem.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        message = f": {problem}" if str(problem) else ""
        raise InputError(
            f"{doing} raised {type(problem).__name__}{message}{place}: it must run without an error"
        ) from problem


def input_shape(model: Any, source: str) -> tuple[int, ...] | None:
    """The shape of one input where the model determines it; None where --shape is needed."""
    from torch import nn

    from attnc.frontends import to_program
    from attnc.frontends.sklearn import is_estimator
    from attnc.program import Program

    if is_function(model):
        raise InputError(f"{source} is a function: give --shape, as in 3,1 for 3 tokens of 1 feature")
    if isinstance(model, Program):
        return model.shape
    if is_estimator(model) and hasattr(model, "n_features_in_"):
        return (int(model.n_features_in_),)
    if not isinstance(model, nn.Module):
        to_program(model, (1,))  # raises, and says why
    parts = list(model.modules())
    widths = list(dict.fromkeys(part.in_features for part in parts if isinstance(part, nn.Linear)))
    if not widths or any(isinstance(part, (nn.Flatten, nn.Unflatten)) for part in parts):
        return None  # a model that reshapes its input may expect tokens
    fitting = []
    for width in widths:
        with suppress(InputError):
            to_program(model, (width,))
            fitting.append(width)
    return None if len(fitting) > 1 else ((fitting or widths)[0],)  # if none fits, the front end says why
