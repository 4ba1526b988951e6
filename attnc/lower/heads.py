"""Heads for the neurons of a layer: intervals on a coarse grid, errors in few digits, so that equal wishes meet one head."""

from __future__ import annotations

import math
from collections import OrderedDict

from attnc.anchors.candidates import Plan, Progress
from attnc.anchors.plan import Found, smallest
from attnc.domain import Interval
from attnc.errors import ConvergenceError, PrecisionError
from attnc.functions import Function
from attnc.functions.function import is_builtin
from attnc.lower.function_to_head import finished_head
from attnc.network.head import Head

_KEPT = 256
_made: OrderedDict[tuple[str, Interval, float, str], Head] = OrderedDict()


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
    if not is_builtin(f):  # a label says nothing of a user's function
        return _made_head(plan, eps)
    wish = (f.label, domain, eps, dtype)
    if wish not in _made:
        _made[wish] = _made_head(plan, eps)
        while len(_made) > _KEPT:
            _made.popitem(last=False)
    return _made[wish]


def _made_head(plan: Plan, eps: float) -> Head:
    try:
        return finished_head(plan, smallest(plan, eps), eps)
    except (PrecisionError, ConvergenceError) as problem:
        if not isinstance(problem.found, Found):
            raise
        return finished_head(plan, problem.found, math.inf)
