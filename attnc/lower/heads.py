"""Heads on request: intervals on a coarse grid and targets in few digits, so that equal requests share one head."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable
from dataclasses import replace

from attnc.arguments import DTYPES, check_arithmetic, checked_eps
from attnc.domain import Interval
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.functions.function import is_builtin
from attnc.heads.exact_term import smallest_exact
from attnc.heads.plan import HeadCandidate, smallest
from attnc.heads.target import Plan
from attnc.lower.function_to_head import finished_head
from attnc.network.head import Head

_KEPT = 256
_cache: dict[Hashable, Head] = {}


def head_within(plan: Plan, eps: float) -> Head:
    """The smallest head found whose executed error is proved to be at most eps, or the closest one if there is none: its
    certificate states the bound."""
    eps = few_digits(checked_eps(eps))

    def build() -> Head:
        try:
            return finished_head(plan, smallest(plan, eps), eps)
        except (PrecisionError, ConvergenceError) as problem:
            if not isinstance(problem.found, HeadCandidate):
                raise
            return finished_head(plan, problem.found)

    return cached_head(plan, ("eps", eps), build)


def head_approximating(plan: Plan, approximation: float) -> Head:
    """The smallest head found whose error in exact arithmetic is proved to be at most `approximation` on an interval [-R, R]
    that contains the domain. Raises `PrecisionError` if there is none."""
    radius = ladder(max(abs(plan.domain.lo), abs(plan.domain.hi)))
    plan = replace(plan, domain=Interval(-radius, radius))
    target = few_digits(checked_eps(approximation, "approximation"))
    return cached_head(
        plan, ("approximation", target), lambda: finished_head(plan, smallest_exact(plan, target))
    )


def cached_head(plan: Plan, target: Hashable, build: Callable[[], Head]) -> Head:
    """A copy of the head of an equal plan and target, or a new one. Only built-in functions are cached: a user's function may
    change what it does."""
    if plan.dtype not in DTYPES.values():
        raise InputError(f"dtype={plan.dtype!r}: heads run in 'float32' or 'float64'")
    check_arithmetic(plan.dtype)
    if not is_builtin(plan.f):
        return build()
    key = plan, target
    if key not in _cache:
        _cache[key] = build()
        if len(_cache) > _KEPT:
            del _cache[next(iter(_cache))]
    return copy.deepcopy(_cache[key])


def few_digits(target: float) -> float:
    """The largest of 1, 1.5, 2, 3, 5, 7 times a power of ten that is at most the target."""
    power = math.floor(math.log10(target))
    steps = [float(f"{m}e{k}") for k in (power - 1, power, power + 1) for m in (1, 1.5, 2, 3, 5, 7)]
    return max(s for s in steps if s <= target)


def ladder(radius: float) -> float:
    """The least of 1, 1.5, 2, 3, 4, 6, 8, 12, … that is at least the radius."""
    power = 2.0 ** max(0, math.frexp(radius)[1] - 1)
    return next(step for step in (power, 1.5 * power, 2 * power) if step >= radius)
