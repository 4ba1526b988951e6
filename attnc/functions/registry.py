"""Functions by name: "gelu", "clip(-25,25)", "leaky_relu(0.2)"."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable

from attnc.errors import InputError, UnknownFunctionError
from attnc.functions import library
from attnc.functions.function import SPEC, Function, is_reserved, label_of

_FACTORIES: dict[str, Callable[..., Function]] = {name: getattr(library, name) for name in library.__all__}


def names() -> tuple[str, ...]:
    """The names that `get` accepts.

    >>> "gelu" in names()
    True
    """
    return tuple(sorted(_FACTORIES))


def signature(name: str) -> str:
    """The name with its parameters and their defaults.

    >>> signature("leaky_relu")
    'leaky_relu(slope=0.01)'
    """
    parameters = inspect.signature(_factory(name)).parameters.values()
    shown = [p.name if p.default is p.empty else f"{p.name}={p.default:g}" for p in parameters]
    return f"{name}({', '.join(shown)})" if shown else name


def meaning(name: str) -> str:
    """The first line of the function's docstring: its formula."""
    return (inspect.getdoc(_factory(name)) or "").splitlines()[0]


def _as_lambda(spec: object) -> str:
    """Advice about a formula such as "x**2"."""
    variable = (
        re.search(r"\b[a-z]\b", spec) if isinstance(spec, str) and re.search(r"[-+*/^]", spec) else None
    )
    return (
        f", or a function: lambda {variable[0]}: {str(spec).replace('^', '**').strip()}" if variable else ""
    )


def get(spec: str) -> Function:
    """The function of a name, with arguments if it takes any.

    >>> get("clip(-25, 25)").kinks
    (-25.0, 25.0)
    """
    match = SPEC.fullmatch(spec) if isinstance(spec, str) else None
    if match is None:
        raise InputError(
            f"{spec!r} is not the name of a function: write e.g. 'gelu' or 'clip(-25,25)'{_as_lambda(spec)}"
        )
    name, inside = match.groups()
    factory = _factory(name)
    try:
        arguments = [float(part) for part in inside.split(",")] if inside and inside.strip() else []
    except ValueError:
        raise InputError(f"the arguments in {spec!r} are not numbers: write e.g. 'clip(-25,25)'") from None
    if not all(map(math.isfinite, arguments)):
        raise InputError(f"the arguments in {spec!r} must be finite")
    try:
        inspect.signature(factory).bind(*arguments)
    except TypeError as problem:
        raise InputError(f"{name!r} got {len(arguments)} arguments: write {signature(name)}") from problem
    return factory(*arguments)


def register(f: Function) -> Function:
    """Register a function of your own by its name, so that files which contain the name can be loaded and verified.

    >>> from attnc import function
    >>> f = register(function(lambda s: s / 2, name="half", enclosure=lambda x: x / 2))
    >>> get("half") is f
    True
    """
    if not isinstance(f, Function):
        raise InputError(f"register takes a Function: got {f!r}; use attnc.function(callable, name='my_f')")
    if not f.name.isidentifier():
        raise InputError(f"the name of a function is an identifier, e.g. 'my_f': got {f.name!r}")
    if is_reserved(label_of(f)):
        raise InputError(f"{f.name!r} is a built-in function: give yours another name")

    def factory() -> Function:
        """A registered function."""
        return f

    _FACTORIES[f.name] = factory
    return f


def _factory(name: str) -> Callable[..., Function]:
    if name not in _FACTORIES:
        near = difflib.get_close_matches(name.lower(), _FACTORIES, n=3, cutoff=0.5)
        listed = f"accepted are {', '.join(names())}."
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else listed
        own = "Use attnc.function(callable) for a function of your own."
        raise UnknownFunctionError(f"unknown function {name!r}: {hint} {own}")
    return _FACTORIES[name]
