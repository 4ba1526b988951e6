"""Heads on request: intervals on a coarse grid and targets in few digits, so that equal requests share one head."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from attnc.arguments import DTYPES, check_arithmetic, checked_eps
from attnc.domain import Interval
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.functions import Function
from attnc.functions.function import is_builtin
from attnc.heads.exact_term import smallest_exact
from attnc.heads.plan import HeadCandidate, smallest
from attnc.heads.target import Plan, Progress
from attnc.lower.function_to_head import finished_head
from attnc.network.head import Head

_KEPT = 256


@dataclass(frozen=True)
class HeadRequest:
    """A head for a function on an interval. Exactly one target is given: `eps` bounds the executed error, `approximation` the
    error in exact arithmetic, on an interval [-R, R] that contains the domain."""

    function: Function
    domain: Interval
    dtype: str
    eps: float | None = None
    approximation: float | None = None
    design: str = "auto"

    def simplified(self) -> HeadRequest:
        """A request that is at least as strict: targets in few digits, and symmetric intervals of few sizes."""
        if self.approximation is None:
            return replace(self, eps=few_digits(checked_eps(self.eps)))
        radius = ladder(max(abs(self.domain.lo), abs(self.domain.hi)))
        target = few_digits(checked_eps(self.approximation, "approximation"))
        return replace(self, domain=Interval(-radius, radius), approximation=target)


def build_head(request: HeadRequest, progress: Progress = lambda _: None) -> Head:
    """The smallest head found that is proved to meet the request. Equal requests for built-in functions share one search.

    If no head meets `eps`, the closest one is returned: its certificate states the bound. If none meets `approximation`,
    `PrecisionError` is raised."""
    if request.dtype not in DTYPES.values():
        raise InputError(f"dtype={request.dtype!r}: heads run in 'float32' or 'float64'")
    request = request.simplified()
    check_arithmetic(request.dtype)
    return cached_head(request, lambda: _build(request, progress))


def _build(request: HeadRequest, progress: Progress) -> Head:
    plan = Plan(request.function, request.domain, request.design, 1, request.dtype, progress)
    if request.approximation is not None:
        return finished_head(plan, smallest_exact(plan, request.approximation))
    assert request.eps is not None
    try:
        return finished_head(plan, smallest(plan, request.eps), request.eps)
    except (PrecisionError, ConvergenceError) as problem:
        if not isinstance(problem.found, HeadCandidate):
            raise
        return finished_head(plan, problem.found)


_cache: dict[HeadRequest, Head] = {}


def cached_head(request: HeadRequest, build: Callable[[], Head]) -> Head:
    """A copy of the head of an equal request, or a new one. Only built-in functions are cached: a user's function may change
    what it does."""
    if not is_builtin(request.function):
        return build()
    if request not in _cache:
        _cache[request] = build()
        if len(_cache) > _KEPT:
            del _cache[next(iter(_cache))]
    return copy.deepcopy(_cache[request])


def few_digits(target: float) -> float:
    """The largest of 1, 1.5, 2, 3, 5, 7 times a power of ten that is at most the target."""
    power = math.floor(math.log10(target))
    steps = [float(f"{m}e{k}") for k in (power - 1, power, power + 1) for m in (1, 1.5, 2, 3, 5, 7)]
    return max(s for s in steps if s <= target)


def ladder(radius: float) -> float:
    """The least of 1, 1.5, 2, 3, 4, 6, 8, 12, … that is at least the radius."""
    power = 2.0 ** max(0, math.frexp(radius)[1] - 1)
    return next(step for step in (power, 1.5 * power, 2 * power) if step >= radius)
