"""All designs of a given size that apply to a function, rounded to the dtype, with estimates of their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attnc.domain import Interval
from attnc.functions import Function
from attnc.heads.chain import Chain
from attnc.heads.draft import Draft, padded
from attnc.heads.finish import Finished, finish
from attnc.heads.gated import gated
from attnc.heads.graded import around_bend, graded
from attnc.heads.many import many
from attnc.heads.nearest import nearest
from attnc.heads.smooth import smooth
from attnc.heads.target import Target, make_target
from attnc.heads.tuned import grow, tuned

DESIGNS = ("auto", "nearest", "smooth", "graded", "gated", "tuned")
TUNED_LARGEST = 32
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """A function on an interval, a design, the number of heads, a dtype."""

    f: Function
    domain: Interval
    design: str
    heads: int
    dtype: str
    progress: Progress = lambda _: None


def target_of(plan: Plan, eps: float) -> Target:
    """Kinks are resolved to the scale at which their error equals eps."""
    finest = 2.0**-30 if eps <= 0 else min(2.0**-20, max(2.0**-44, eps / plan.domain.width / 64))
    return make_target(plan.f, plan.domain, plan.dtype, finest)


def candidates_of(
    plan: Plan, target: Target, p: int, eps: float, smaller: Chain | None = None
) -> list[tuple[Finished, Draft]]:
    """The designs of p anchors that apply, with estimates of their errors."""
    target = target.denser(6 * p * plan.heads)
    drafts = list(_drafts(plan, target, p, 0.9 * eps, smaller))
    return [(finish(draft, target), draft) for draft in drafts]


def best_candidates(plan: Plan, p: int) -> Iterator[Finished]:
    """Designs of p anchors, and of fewer anchors that are repeated: tuning may find a worse head with more keys."""
    target = target_of(plan, 0.0)
    yield from (finished for finished, _ in candidates_of(plan, target, p, 0.0))
    if plan.heads == 1 and plan.design in ("auto", "tuned"):
        for fewer in (q for q in (2, 3, 4, 6, 8, 12) if q < p):
            draft = tuned(target, fewer, extra=around_bend(target, fewer) if not target.kinks else ())
            yield finish(padded(draft, p), target)
    if plan.heads == 1 and plan.design == "auto":
        yield finish(nearest(target, p), target)


def _drafts(plan: Plan, target: Target, p: int, enough: float, smaller: Chain | None) -> Iterator[Draft]:
    design = plan.design
    fixed = graded if target.kinks else smooth
    if plan.heads > 1:
        base = {"auto": fixed, "nearest": nearest, "smooth": smooth, "graded": graded}[design]
        least = 1 + 2 * len(target.kinks) if base is graded else 2
        if plan.heads * (p - 2) >= least:
            yield many(target, p, plan.heads, base)
        return
    if design == "nearest":
        yield nearest(target, p)
    elif design == "gated":
        yield gated(target, p, enough)
    elif design == "smooth":
        yield smooth(target, p)
    elif design == "graded":
        if not target.kinks or p >= 1 + 2 * len(target.kinks):
            yield graded(target, p)
    else:
        yield from _free_drafts(design, target, p, enough, smaller)


def _free_drafts(
    design: str, target: Target, p: int, enough: float, smaller: Chain | None
) -> Iterator[Draft]:
    """`tuned`, and for `auto` also the fixed placement, which is another start of the tuning."""
    starts = [grow(smaller, target, p)] if smaller is not None else []
    if not target.kinks:
        starts += around_bend(target, p)
    if p >= 1 + 2 * len(target.kinks):
        placed = graded(target, p) if target.kinks else smooth(target, p)
        assert placed.chain is not None
        starts.append(placed.chain)
        if design == "auto":
            yield placed
    if p <= TUNED_LARGEST:
        yield tuned(target, p, enough, starts)
