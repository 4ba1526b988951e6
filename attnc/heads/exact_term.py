"""Heads whose *exact* term is bounded: |head - f| <= approximation in exact arithmetic, with the rounding proved beside it.

A converted model may evaluate a head by a closed form, so the function that the numbers define is what counts. Designs in
which a token attends to itself or whose anchors stand on a lattice have such a form; the others are searched for."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import pairwise

from attnc.domain import Interval
from attnc.errors import InputError, PrecisionError
from attnc.functions.function import is_builtin
from attnc.heads import lattice, patience
from attnc.heads.designs import candidates_of
from attnc.heads.draft import Finished
from attnc.heads.plan import Closest, HeadCandidate, refuse_kinks
from attnc.heads.target import Plan, bends, target_of
from attnc.prove.supnorm import SupNorm, supnorm
from attnc.records.fields import round_up
from attnc.records.numbers import HeadNumbers

DESIGNS = ("auto", "gated", "lattice", "tuned")
LARGEST_RADIUS = 4096.0  # a lattice has some anchors for every unit
TUNED_SIZES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)
_ORDER = 12  # of the Taylor models: cells of a lattice need no halving at this order
_CELLS = 256  # at least this many, so that values hardly vary on one
_ROOM = 1.0625  # larger cells prove up to this multiple of the rounding that small ones prove
_FINEST = 2.0**-50  # of the radius: a smaller approximation would only cost the checker time
_KEPT = 64
_PROVED_CLOSEST = 4  # of the heads that miss the target, this many are proved to find what can be met
_proved: dict[Hashable, HeadCandidate] = {}  # of built-in functions: another target may need the same numbers


def smallest_exact(plan: Plan, approximation: float) -> HeadCandidate:
    """The first design of `plan.design` that is proved within `approximation` of f on the symmetric interval `plan.domain`.

    Raises `PrecisionError` with the closest candidate if none is."""
    closest: HeadCandidate | None = None
    designs, clock = _designs(plan), patience.Clock()
    # below this no head is searched for: the resolution of float64 on the interval; silu is a gate, without an error
    gates = {"silu": 0.0, "relu": 1.03 * lattice.RELU_GAP / lattice.STEEPEST} if designs[0] == "gated" else {}
    goal = max(approximation, gates.get(plan.f.name, _FINEST * plan.domain.hi))
    for design in designs:
        for numbers, promising in _candidates(plan, design, goal, clock):
            found = _prove(plan, design, numbers, goal, math.inf if promising else clock.closing)
            if _claimed(found) <= approximation:
                return found
            if closest is None or _reached(found) < _reached(closest):
                closest = found
            if goal > approximation and _claimed(found) <= goal:
                raise _out_of_reach(plan, approximation, closest, clock)
    raise _out_of_reach(plan, approximation, closest, clock)


def square_candidate(plan: Plan) -> HeadCandidate:
    """s² on [-1, 1] on a lattice, exact except for the rounding of the dtype."""
    return _prove(plan, "lattice", lattice.square_numbers(plan.dtype), 1.0)


def _designs(plan: Plan) -> tuple[str, ...]:
    """The designs to try. "auto" tries those that apply to f, and tuning only if there is nothing else."""
    f, radius = plan.f, plan.domain.hi
    if not f.provable:
        advice = "pass attnc.function(..., enclosure=...)"
        raise InputError(f"{f.name!r} has no enclosure, so the error of a head cannot be proved: {advice}")
    special: tuple[str, ...] = ("gated",) if lattice.self_gate(f, 1.0, "float64") is not None else ()
    special += ("lattice",) if lattice.is_gate_symmetric(f) and not f.kinks else ()
    if plan.design not in ("auto", "tuned", *special):
        accepted = " or ".join(map(repr, ("auto", *special, "tuned")))
        raise InputError(f"design={plan.design!r} does not apply to {f.label}: use {accepted}")
    designs = (plan.design,) if plan.design != "auto" else special or ("tuned",)
    if radius > LARGEST_RADIUS and designs[0] == "lattice":
        what = f"a lattice for {f.label} up to {radius:g} would have {4 * radius:.0g} anchors"
        advice = "scale the weights down or use design='tuned'"
        raise InputError(f"{what}: the largest accepted radius is {LARGEST_RADIUS:g}; {advice}")
    return designs


def _candidates(
    plan: Plan, design: str, goal: float, clock: patience.Clock
) -> Iterator[tuple[HeadNumbers, bool]]:
    """Numbers, and whether sampling suggests that they meet the goal; if none does, the closest come last."""
    if design == "tuned":
        yield from _tuned(plan, goal, clock)
    elif design == "lattice":
        found = lattice.lattice_gates(plan.f, plan.domain.hi, 0.95 * goal, plan.dtype)
        yield from ((numbers, True) for numbers in found)
    else:  # relu: a steeper gate if the proof needs more room
        gates = (lattice.self_gate(plan.f, share * goal, plan.dtype) for share in (0.99, 0.5))
        yield from ((numbers, True) for numbers in gates if numbers is not None)


def _tuned(plan: Plan, goal: float, clock: patience.Clock) -> Iterator[tuple[HeadNumbers, bool]]:
    """Larger and larger heads until sampling suggests that one meets the goal; if none does, the closest come last."""
    refuse_kinks(plan)
    search = replace(plan, design="auto")
    target, closest = target_of(search, goal), Closest()
    for p in TUNED_SIZES:
        plan.progress(f"trying {p} anchors")
        drafts: list[Finished] = []
        with clock.until(clock.searching):
            drafts = [finished for finished, _ in candidates_of(search, target, p, goal)]
        if clock.stopped:
            break
        for finished in sorted(drafts, key=lambda one: one.rounding):
            if finished.approximation <= 0.95 * goal:
                yield finished.numbers, True
        nearest = min(drafts, key=lambda one: one.approximation)
        closest.add(nearest, nearest.approximation)
        if closest.stale >= 5 and p >= 3 * bends(search):
            break
    for finished in closest.found[
        : -1 - _PROVED_CLOSEST : -1
    ]:  # sampling may be too optimistic about the first
        if finished.approximation > 0.95 * goal:
            yield finished.numbers, False


def _prove(
    plan: Plan, design: str, numbers: HeadNumbers, goal: float, until: float = math.inf
) -> HeadCandidate:
    """Bound and rounding in the dtype that runs; the approximation, which does not depend on it, as sharp as possible. A proof
    of the same numbers is reused."""
    key = (plan.f, plan.domain, plan.dtype, *numbers.digests().values())
    if key in _proved and _claimed(_proved[key]) <= goal:
        return _proved[key]
    plan.progress(f"proving {numbers.anchors_per_head} anchors, {design}")
    sampled, at = lattice.sampled_error(numbers, plan.f, plan.domain.hi)
    parts = max(1, _CELLS // (2 * numbers.anchors_per_head))
    exact = numbers if parts == 1 else replace(numbers, dtype="float64")
    seen, grain = 0.95 * sampled, 2.0**-20 if parts == 1 else 0.2
    sharp = supnorm(exact, plan.f, plan.domain, order=_ORDER, seen=seen, grain=grain, until=until)
    executed = sharp if parts == 1 else _executed(plan, numbers, parts, max(goal, sampled), until)
    approximation = executed.approximation
    if math.isfinite(sharp.bound):
        approximation = min(approximation, sharp.approximation)
    approximation = max(approximation, min(_FINEST * plan.domain.hi, goal / 2))
    rounding, bound = _ROOM * executed.rounding, _ROOM * executed.bound
    if math.isfinite(bound):
        bound = min(bound, math.nextafter(approximation + rounding, math.inf))
    proof = replace(executed, bound=bound, approximation=approximation, rounding=rounding)
    found = HeadCandidate(design, numbers, proof, sampled, at, rounding)
    if is_builtin(plan.f) and math.isfinite(found.bound):
        _proved[key] = found
        while len(_proved) > _KEPT:
            _proved.pop(next(iter(_proved)))
    return found


def _executed(plan: Plan, numbers: HeadNumbers, parts: int, seen: float, until: float) -> SupNorm:
    """The proof in the numbers' dtype, on cells so small that rounding is bounded sharply if anchors are few."""
    lo, width = plan.domain.lo, plan.domain.width
    edges = [lo + width * (i / parts) for i in range(parts)] + [plan.domain.hi]
    worst = SupNorm(0.0, 0.0, 0.0, 0.0, lo, 0)
    for a, b in pairwise(edges):
        worst = worst.joined(supnorm(numbers, plan.f, Interval(a, b), order=_ORDER, seen=seen, until=until))
        if not math.isfinite(worst.bound):
            break
    return worst


def _reached(found: HeadCandidate) -> float:
    """The approximation that was proved; infinity if the rounding could not be bounded."""
    return found.proof.approximation if found.proof is not None and math.isfinite(found.bound) else math.inf


def _claimed(found: HeadCandidate) -> float:
    """The approximation that the certificate will state: a thousandth more, in four digits."""
    return round_up(_reached(found) * (1 + 2.0**-10))


def _out_of_reach(
    plan: Plan, approximation: float, closest: HeadCandidate | None, clock: patience.Clock
) -> PrecisionError:
    where, late = f"{plan.where} in {plan.dtype}", clock.note()
    other = "dtype=torch.float64, " if plan.dtype == "float32" else ""
    if closest is None or not math.isfinite(_reached(closest)):
        what = f"{where} with design={plan.design!r} and approximation={approximation:g}"
        advice = f"Use {other}a smaller interval or a larger approximation.{late}"
        return PrecisionError(
            f"no error bound could be proved for {what}: rounding error is too large. {advice}"
        )
    shown = f"{round_up(_claimed(closest), 2):.1e}"
    another = "another design, " if plan.design != "auto" else ""
    message = (
        f"approximation={approximation:g} cannot be reached for {where} with design={plan.design!r}: "
        f"{closest.numbers.anchors_per_head} anchors reach {shown}. Use {other}{another}a smaller interval, or "
        f"approximation >= {shown}.{late}"
    )
    return PrecisionError(message, float(shown), closest)
