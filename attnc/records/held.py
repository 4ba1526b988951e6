"""What a module holds knows its module, so that it can say when it is printed whether it applies to the module as it is now."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import copy
from typing import Any, ClassVar, TypeVar

_T = TypeVar("_T", bound="Held")
Question = Callable[[Any], "str | None"]  # of a module: why what it holds does not apply to it, or None


class Held:
    """A record that may belong to a module. The module is no part of it: two records are equal whatever holds them, and a copy
    belongs to no module."""

    _holder: ClassVar[tuple[weakref.ref[Any], Question] | None] = None

    def held_by(self: _T, module: object, question: Question) -> _T:
        """The same record, which asks the question when it is printed. It does not keep the module alive."""
        found = copy(self)
        vars(found)["_holder"] = weakref.ref(module), question
        return found

    def why_lapsed(self) -> str | None:
        """Why the record does not apply to the module that holds it, as that is now; None if it does, or if nothing holds it."""
        if self._holder is None:
            return None
        module, question = self._holder[0](), self._holder[1]
        return None if module is None else question(module)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_holder"}
