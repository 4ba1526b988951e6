"""Names that mean attnc's own functions, and the one object that each of them stands for.

A certificate that says "relu" must be about relu. So a name that `attnc.functions.get` reads as a built-in belongs to the object
that `get` returns and to no other: built-ins are made here, once for each list of parameters, and recognised by identity."""

from __future__ import annotations

import re
import unicodedata
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnc.errors import InputError

if TYPE_CHECKING:
    from attnc.functions.function import Function

SPEC = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*", re.DOTALL)
Key = tuple[str, tuple[tuple[str, float], ...]]
_names: set[str] = set()
_building: ContextVar[bool] = ContextVar("attnc_building", default=False)


@dataclass(frozen=True, eq=False)
class _Own:
    """A built-in and the fields that it was made with."""

    function: weakref.ref[Function]
    fields: dict[str, Any]


_own: dict[Key, _Own] = {}


def is_reserved(name: str) -> bool:
    """Whether a name, with or without parameters, is read as a built-in, or looks like one.

    >>> [is_reserved(name) for name in ("relu", " clip ( 0, 6 )", "leaky_relu(0.2)", "ReLU", "my_relu", "relu_5")]
    [True, True, True, True, False, False]
    """
    match = SPEC.fullmatch(unicodedata.normalize("NFKC", name))
    return match is not None and match.group(1).casefold() in _names


def taken(name: str) -> InputError:
    return InputError(
        f"{name!r} is the name of a built-in function, and this function is not that one: give it another name, e.g. 'my_f', "
        "or use attnc.functions.get(...) for the built-in"
    )


def reserve(names: set[str]) -> None:
    """The names of built-ins, from the library."""
    _names.update(names)


def building() -> bool:
    """Whether a built-in is being made."""
    return _building.get()


def own(name: str, parameters: dict[str, float], make: Callable[[], Function]) -> Function:
    """The built-in of this name and these parameters: made once, and the same object as long as it is in use."""
    key = (name, tuple(parameters.items()))
    known = _own.get(key)
    found = None if known is None else known.function()
    if found is None or not is_own(found):
        with _allowed():
            found = make()

        def forget(gone: weakref.ref[Function]) -> None:
            if key in _own and _own[key].function is gone:
                del _own[key]

        _own[key] = _Own(weakref.ref(found, forget), dict(vars(found)))
    return found


def is_own(f: Function) -> bool:
    """Whether f is the object that `own` made, with the fields it was made with."""
    held = vars(f)
    parameters = held.get("parameters")
    if not isinstance(parameters, dict) or not isinstance(held.get("name"), str):
        return False
    known = _own.get((held["name"], tuple(parameters.items())))
    if known is None or known.function() is not f:
        return False
    return held.keys() == known.fields.keys() and all(held[k] is v for k, v in known.fields.items())


@contextmanager
def _allowed() -> Iterator[None]:
    token = _building.set(True)
    try:
        yield
    finally:
        _building.reset(token)
