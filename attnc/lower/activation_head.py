"""Heads for the activations of pretrained models: close to the function in exact arithmetic, with their rounding beside it.

A converted model may run a head by a formula of its own, so that what counts is the function that the numbers define:
`certificate.approximation` is at most eps. `certificate.bound`, as everywhere, is what the softmax itself may be off when it
is executed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

from attnc.domain import Interval
from attnc.errors import InputError, PrecisionError
from attnc.functions import Function, square
from attnc.heads import patience
from attnc.heads.candidates import Plan, Progress, candidates_of, target_of
from attnc.heads.finish import Finished
from attnc.heads.lattice import (
    RELU_GAP,
    STEEPEST,
    is_gate_symmetric,
    lattice_gates,
    sampled_error,
    self_gate,
    square_numbers,
)
from attnc.heads.plan import Found, bends, refuse_kinks
from attnc.lower.function_to_head import check_arithmetic, checked_eps, finished_head
from attnc.lower.heads import KeptHeads, few_digits
from attnc.network.head import Head
from attnc.prove.supnorm import SupNorm, supnorm
from attnc.records.fields import round_up
from attnc.records.numbers import HeadNumbers

DESIGNS = ("auto", "gate", "lattice", "tuned")
LARGEST_RADIUS = 4096.0  # a lattice holds some anchors for every unit
TUNED_SIZES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)
_ORDER = 12  # of the Taylor models: with lattices, cells need not be halved then
_CELLS = 256  # at least so many, so that values hardly vary on one
_ROOM = 1.0625  # of what small cells prove of rounding, larger ones prove so much
_FINEST = 2.0**-50  # of the radius: an approximation below it would only cost the checker time
_KEPT = 64
_PROVED_CLOSEST = 4  # of the heads that miss eps, so many are proved: the best of them is what can be met
_made, _by_numbers = KeptHeads(_KEPT), KeptHeads(_KEPT)  # another eps may ask for the same numbers


def ladder(radius: float) -> float:
    """The least of 1, 1.5, 2, 3, 4, 6, 8, 12, … that is at least the radius: equal wishes meet one head.

    >>> ladder(0.2), ladder(9.7), ladder(12), ladder(12.1)
    (1.0, 12.0, 12.0, 16.0)
    """
    if isinstance(radius, bool) or not isinstance(radius, (int, float)) or not 0 <= radius < 2.0**1000:
        raise InputError(f"radius={radius!r}: give a finite number that is not negative")
    power = 2.0 ** max(0, math.frexp(radius)[1] - 1)
    return next(step for step in (power, 1.5 * power, 2 * power) if step >= radius)


def activation_head(
    f: Function,
    domain: Interval,
    eps: float,
    dtype: str,
    design: str = "auto",
    progress: Progress = lambda _: None,
) -> Head:
    """A head with |head - f| <= eps in exact arithmetic, on an interval [-R, R] that holds the domain (see `ladder`).

    Designs: "gate", where a token attends to itself (silu, quick_gelu, relu); "lattice", for f with f(s) - f(-s) = s;
    "tuned", the smallest that the search finds; "auto", the first of these that serves f. The same wish is met once in
    a process.

    >>> from attnc.functions import gelu
    >>> h = activation_head(gelu(), Interval(-7.0, 5.5), 1e-4, "float32")
    >>> h.design, h.certificate.holds_for, h.certificate.approximation <= 1e-4
    ('lattice', Interval(lo=-8.0, hi=8.0), True)
    """
    radius, eps = ladder(max(abs(domain.lo), abs(domain.hi))), few_digits(checked_eps(eps))
    _check(f, radius, dtype, design)
    check_arithmetic(dtype)
    plan = Plan(f, Interval(-radius, radius), design, 1, dtype, progress)
    return _made.get(f, (radius, eps, dtype, design), lambda: _head(plan, eps))


def square_head(dtype: str) -> Head:
    """s² on [-1, 1]: exact but for what the dtype rounds, so that products can be made of squares.

    >>> square_head("float64").certificate.approximation < 1e-15
    True
    """
    check_arithmetic(dtype)
    plan = Plan(square(), Interval(-1.0, 1.0), "lattice", 1, dtype)

    def make() -> Head:
        return finished_head(plan, _proved(plan, "lattice", square_numbers(dtype), 1.0), math.inf)

    return _made.get(square(), (1.0, 0.0, dtype, "exact"), make)


def _check(f: Function, radius: float, dtype: str, design: str) -> None:
    if dtype not in ("float32", "float64"):
        raise InputError(f"dtype={dtype!r}: heads run in 'float32' or 'float64'")
    if design not in DESIGNS:
        raise InputError(f"design={design!r}: accepted are {', '.join(map(repr, DESIGNS))}")
    if not f.provable:
        raise InputError(
            f"{f.name!r} has no enclosure, so that nothing can be proved of a head for it: "
            "give attnc.function(..., enclosure=...)"
        )
    serving = _serving(f)
    if design != "auto" and design not in serving:
        raise InputError(
            f"design={design!r} cannot serve {f.label}: use {' or '.join(map(repr, ('auto', *serving)))}"
        )
    if radius > LARGEST_RADIUS and (design == "lattice" or (design == "auto" and serving[0] == "lattice")):
        raise InputError(
            f"{f.label} is asked for up to {radius:g}, where a lattice would have {4 * radius:.0g} anchors: up to "
            f"{LARGEST_RADIUS:g} is accepted, else scale the weights down or use design='tuned'"
        )


def _serving(f: Function) -> tuple[str, ...]:
    """The designs that can serve f. "auto" tries them in this order; tuning only where there is nothing else."""
    gate = ("gate",) if self_gate(f, 1.0, "float64") is not None else ()
    lattice = ("lattice",) if is_gate_symmetric(f) and not f.kinks else ()
    return (*gate, *lattice, "tuned")


def _head(plan: Plan, eps: float) -> Head:
    """Prove what seems to meet eps, in order; where nothing does, say what came closest."""
    closest: Found | None = None
    serving, clock = _serving(plan.f), patience.clock()
    goal = max(eps, _least(plan, serving))
    for design in (serving[:-1] or serving) if plan.design == "auto" else (plan.design,):
        for numbers, seems in _candidates(plan, design, goal, clock):
            wish = (plan.domain, plan.dtype, *numbers.digests().values())
            before = _by_numbers.find(plan.f, wish)
            if before is not None and before.certificate.proved and before.certificate.approximation <= eps:
                return before
            plan.progress(f"proving {numbers.anchors_per_head} anchors, {design}")
            found = _proved(plan, design, numbers, goal, math.inf if seems else clock.closing)
            if _claimed(_reached(found)) <= eps:
                return _by_numbers.get(plan.f, wish, partial(finished_head, plan, found, math.inf))
            if closest is None or _reached(found) < _reached(closest):
                closest = found
            if goal > eps and _claimed(_reached(found)) <= goal:
                raise _cannot(plan, eps, closest, clock)
    raise _cannot(plan, eps, closest, clock)


def _least(plan: Plan, serving: tuple[str, ...]) -> float:
    """Below this nothing is asked for: the steepest gate for relu, and what doubles resolve of the interval. silu is a gate
    itself, without an error."""
    design = serving[0] if plan.design == "auto" else plan.design
    if design == "gate":
        return {"silu": 0.0, "relu": 1.03 * RELU_GAP / STEEPEST}.get(plan.f.name, _FINEST * plan.domain.hi)
    return _FINEST * plan.domain.hi


def _candidates(
    plan: Plan, design: str, eps: float, clock: patience.Clock
) -> Iterator[tuple[HeadNumbers, bool]]:
    """Numbers, and whether they seem to meet eps; last the closest, where none does."""
    radius = plan.domain.hi
    if design == "lattice":
        for numbers in lattice_gates(plan.f, radius, 0.95 * eps, plan.dtype):
            yield numbers, True
    elif design == "gate":
        for share in (0.99, 0.5):  # of relu's gates, the steeper where the proof has not the room
            gate = self_gate(plan.f, share * eps, plan.dtype)
            assert gate is not None
            yield gate, True
    else:
        yield from _tuned(plan, eps, clock)


def _tuned(plan: Plan, eps: float, clock: patience.Clock) -> Iterator[tuple[HeadNumbers, bool]]:
    """The sizes in turn, until one seems to meet eps; last the closest, where none does."""
    refuse_kinks(plan)
    search = replace(plan, design="auto")
    target, best, stale = target_of(search, eps), math.inf, 0
    closest: list[Finished] = []  # the last is the closest
    for p in TUNED_SIZES:
        plan.progress(f"trying {p} anchors")
        made: list[Finished] = []
        with clock.until(clock.searching):
            made = [finished for finished, _ in candidates_of(search, target, p, eps)]
        if clock.stopped:
            break
        for finished in sorted(made, key=lambda one: one.rounding):
            if finished.approximation <= 0.95 * eps:
                yield finished.numbers, True
        nearest = min(made, key=lambda one: one.approximation)
        stale += 1
        if not closest or nearest.approximation < closest[-1].approximation:
            closest.append(nearest)
        if nearest.approximation < 0.8 * best:
            best, stale = nearest.approximation, 0
        if stale >= 5 and p >= 3 * bends(search):
            break
    for finished in closest[: -1 - _PROVED_CLOSEST : -1]:  # sampling may think too well of the first
        if finished.approximation > 0.95 * eps:
            yield finished.numbers, False


def _proved(plan: Plan, design: str, numbers: HeadNumbers, eps: float, until: float = math.inf) -> Found:
    """Bound and rounding in the dtype that runs; the approximation, which no dtype enters, as sharp as it can be had."""
    sampled, at = sampled_error(numbers, plan.f, plan.domain.hi)
    if _parts(numbers) == 1:
        sharp = supnorm(
            numbers, plan.f, plan.domain, order=_ORDER, seen=0.95 * sampled, grain=2.0**-20, until=until
        )
        executed = sharp
    else:
        exact = replace(numbers, dtype="float64")
        sharp = supnorm(exact, plan.f, plan.domain, order=_ORDER, seen=0.95 * sampled, until=until)
        executed = _executed(plan, numbers, max(eps, sampled), until)
    approximation = min(
        executed.approximation, sharp.approximation if math.isfinite(sharp.bound) else math.inf
    )
    approximation = max(approximation, min(_FINEST * plan.domain.hi, eps / 2))
    rounding = _ROOM * executed.rounding
    bound = min(_ROOM * executed.bound, math.nextafter(approximation + rounding, math.inf))
    proof = replace(executed, bound=bound, approximation=approximation, rounding=rounding)
    return Found(design, numbers, proof, sampled, at, rounding)


def _executed(plan: Plan, numbers: HeadNumbers, goal: float, until: float) -> SupNorm:
    """The proof in the numbers' dtype, in cells so small that rounding is bounded well where anchors are few; inf where there
    is none."""
    parts = _parts(numbers)
    edges = [plan.domain.lo + plan.domain.width * (i / parts) for i in range(parts)] + [plan.domain.hi]
    found: list[SupNorm] = []
    for lo, hi in pairwise(edges):
        found.append(supnorm(numbers, plan.f, Interval(lo, hi), order=_ORDER, seen=goal, until=until))
        if not math.isfinite(found[-1].bound):  # its other numbers hold on a part only
            return replace(found[-1], bound=math.inf, approximation=math.inf, rounding=math.inf)
    worst = max(found, key=lambda proof: proof.bound)
    return replace(
        worst,
        approximation=max(proof.approximation for proof in found),
        rounding=max(proof.rounding for proof in found),
        cells=sum(proof.cells for proof in found),
    )


def _parts(numbers: HeadNumbers) -> int:
    """Into how many the domain is cut, for cells to be small where anchors are few."""
    return max(1, _CELLS // (2 * numbers.anchors_per_head))


def _reached(found: Found) -> float:
    """The approximation that was proved of a head; inf where its rounding could not be bounded."""
    return found.proof.approximation if found.proof is not None and math.isfinite(found.bound) else math.inf


def _claimed(approximation: float) -> float:
    """What the certificate will say of it: a thousandth more, in four digits."""
    return round_up(approximation * (1 + 2.0**-10))


def _cannot(plan: Plan, eps: float, closest: Found | None, clock: patience.Clock) -> PrecisionError:
    where = f"{plan.f.label} on [{plan.domain.lo:g}, {plan.domain.hi:g}]"
    late = f". The search was stopped after {clock.spent:.0f} s" if clock.stopped else ""
    if closest is None or not math.isfinite(_reached(closest)):
        other = "dtype=torch.float64, " if plan.dtype == "float32" else ""
        return PrecisionError(
            f"nothing can be proved about {where} with design={plan.design!r} and eps={eps:g} in {plan.dtype}: rounding drowns "
            f"it. Use {other}a smaller interval or a larger eps{late}"
        )
    shown = f"{round_up(_claimed(_reached(closest)), 2):.1e}"
    anchors = closest.numbers.anchors_per_head
    if plan.dtype == "float32":
        return PrecisionError(
            f"eps={eps:g} is below what {plan.dtype} can hold for {where} ({shown}, with {anchors} anchors): "
            f"use dtype=torch.float64, a smaller interval, or eps >= {shown}{late}",
            float(shown),
            closest,
        )
    return PrecisionError(
        f"eps={eps:g} is out of reach for {where} with design={plan.design!r}: {anchors} anchors reach {shown}. "
        f"Use {'another design' if plan.design != 'auto' else 'a smaller interval'}, or eps >= {shown}{late}",
        float(shown),
        closest,
    )
