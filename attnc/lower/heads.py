"""Heads for the neurons of a layer: intervals on a coarse grid, errors in few digits, so that equal wishes meet one head."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable

from attnc.domain import Interval
from attnc.errors import ConvergenceError, PrecisionError
from attnc.functions import Function
from attnc.functions.function import is_builtin
from attnc.heads.candidates import Plan, Progress
from attnc.heads.plan import Found, smallest
from attnc.lower.function_to_head import finished_head
from attnc.network.head import Head

_KEPT = 256


class KeptHeads:
    """Heads that were made already, by all that they were asked for. Wishes hold the function itself, never its name, and are
    of built-ins only; what is handed out is a copy, so that no caller can change what the next one gets."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: OrderedDict[Hashable, Head] = OrderedDict()

    def get(self, f: Function, wish: tuple[Hashable, ...], make: Callable[[], Head]) -> Head:
        if not is_builtin(f):  # a user's function may do something else tomorrow
            return make()
        key = (f, *wish)
        if key not in self._made:
            self._made[key] = make()
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return copy.deepcopy(self._made[key])

    def find(self, f: Function, wish: tuple[Hashable, ...]) -> Head | None:
        found = self._made.get((f, *wish)) if is_builtin(f) else None
        return None if found is None else copy.deepcopy(found)

    def clear(self) -> None:
        self._made.clear()


_made = KeptHeads(_KEPT)


def few_digits(eps: float) -> float:
    """The largest of 1, 1.5, 2, 3, 5, 7 times a power of ten that is at most eps.

    >>> few_digits(2.9e-4)
    0.0002
    """
    power = math.floor(math.log10(eps))
    steps = [float(f"{m}e{k}") for k in (power - 1, power, power + 1) for m in (1, 1.5, 2, 3, 5, 7)]
    return max(s for s in steps if s <= eps)


def head_for(f: Function, domain: Interval, eps: float, dtype: str, progress: Progress) -> Head:
    """The smallest head found that is proved within eps; where none is, the closest that was.

    The same wish is met once in a process."""
    plan, eps = Plan(f, domain, "auto", 1, dtype, progress), few_digits(eps)
    return _made.get(f, (domain, eps, dtype), lambda: _made_head(plan, eps))


def _made_head(plan: Plan, eps: float) -> Head:
    try:
        return finished_head(plan, smallest(plan, eps), eps)
    except (PrecisionError, ConvergenceError) as problem:
        if not isinstance(problem.found, Found):
            raise
        return finished_head(plan, problem.found, math.inf)
