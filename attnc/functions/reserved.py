"""The names of built-in functions, and the one object that each name stands for.

A certificate about "relu" must be about relu. So a name that `attnc.functions.get` reads as a built-in belongs to the object that
`get` returns and to no other: each built-in is created once for each list of parameters, and recognised by identity."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from attnc.errors import InputError

if TYPE_CHECKING:
    from attnc.functions.function import Function

SPEC = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_names: set[str] = set()
_building: ContextVar[bool] = ContextVar("attnc_building", default=False)
_built_ins: WeakValueDictionary[tuple[str, tuple[tuple[str, float], ...]], Function] = WeakValueDictionary()
_fields: WeakKeyDictionary[Function, dict[str, Any]] = WeakKeyDictionary()  # as they were created


def is_reserved(name: str) -> bool:
    """Whether a name, with or without parameters, is read as a built-in, or looks like one.

    >>> [is_reserved(name) for name in ("relu", " clip ( 0, 6 )", "leaky_relu(0.2)", "ReLU", "my_relu", "relu_5")]
    [True, True, True, True, False, False]
    """
    match = SPEC.fullmatch(unicodedata.normalize("NFKC", name))
    return match is not None and match.group(1).casefold() in _names


def taken(name: str) -> InputError:
    return InputError(
        f"{name!r} is the name of a built-in function, and this is another function: give it another name, e.g. 'my_f', "
        "or use attnc.functions.get(...) for the built-in"
    )


def reserve(names: set[str]) -> None:
    """Add names of built-ins."""
    _names.update(names)


def building() -> bool:
    """Whether a built-in is being created."""
    return _building.get()


def own(name: str, parameters: dict[str, float], create: Callable[[], Function]) -> Function:
    """The built-in of this name and these parameters: created once, and the same object as long as it is in use."""
    key = (name, tuple(parameters.items()))
    found = _built_ins.get(key)
    if found is None or not is_own(found):
        with _allowed():
            found = create()
        _built_ins[key], _fields[found] = found, dict(vars(found))
    return found


def is_own(f: Function) -> bool:
    """Whether f is the object that `own` created, with unchanged fields."""
    held = vars(f)
    name, parameters = held.get("name"), held.get("parameters")
    if not isinstance(name, str) or not isinstance(parameters, dict):
        return False
    if _built_ins.get((name, tuple(parameters.items()))) is not f:
        return False
    created = _fields[f]
    return held.keys() == created.keys() and all(held[k] is v for k, v in created.items())


@contextmanager
def _allowed() -> Iterator[None]:
    token = _building.set(True)
    try:
        yield
    finally:
        _building.reset(token)
