"""function → head: as a user asks for it, or with a target in few digits, so that equal requests share one head."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnc.arguments import (
    DTYPES,
    check_arithmetic,
    checked_choice,
    checked_count,
    checked_eps,
    checked_interval,
    checked_strict,
    resolve_dtype,
)
from attnc.check.execution import PRECISION, head_error
from attnc.domain import Interval
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.functions import Function, function, get
from attnc.functions.balls import working
from attnc.functions.function import is_builtin, label_of
from attnc.heads.designs import DESIGNS
from attnc.heads.exact_term import smallest_exact
from attnc.heads.plan import (
    MEASURED_POINTS,
    HeadCandidate,
    best,
    on_lattice,
    refusal,
    smallest,
    unused_points,
)
from attnc.heads.target import Plan
from attnc.lower.witness import check_refuted, claimed_error
from attnc.network.head import Head
from attnc.progress import Progress, resolve_progress, watched
from attnc.prove.traced_function import TracedFunction
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import round_up, versions

_PRECISION = 128
_KEPT = 256
_cache: dict[Hashable, Head] = {}


@watched("building a head")
def head(
    f: str | Function | Callable[[Tensor], Tensor],
    *,
    domain: tuple[float, float] | Interval,
    eps: float | None = None,
    anchors: int | None = None,
    design: str = "auto",
    heads: int = 1,
    dtype: torch.dtype | str | None = None,
    strict: bool | None = None,
    progress: Progress | bool | None = None,
) -> Head:
    """One univariate function as one softmax head (or `heads` of them), with a proof of its error.

    With `eps`, the smallest head found whose error, rounding included, is proved to be at most eps on the whole interval. With
    `anchors`, the best head of that size. `f` is a name ("gelu", "clip(-25,25)"), an `attnc.Function`, or any callable on
    tensors. Activations of torch (nn.GELU(), torch.tanh) are proved as the built-in that they compute, other callables from
    their torch operations. Where attnc does not understand these, the error is measured: the certificate says so, and why.
    `dtype` defaults to torch's default dtype. `strict` controls inputs outside the interval: None warns once, True raises,
    False does nothing.

    >>> import attnc, torch
    >>> h = attnc.head("tanh", domain=(-8, 8), eps=1e-6, dtype=torch.float64)
    >>> h.anchors.shape, h.certificate.bound < 1e-14
    (torch.Size([2]), True)
    >>> h(torch.tensor([0.5], dtype=torch.float64))
    tensor([0.4621], dtype=torch.float64)
    """
    name, strict = resolve_dtype(dtype), checked_strict(strict)
    interval = checked_interval(domain, name)
    if heads != 1 and design in ("gated", "tuned"):
        raise InputError(f"design={design!r} is for one head: use 'auto' with heads={heads}")
    design, heads = checked_choice("design", design, DESIGNS), checked_count("heads", heads, most=4096)
    plan = Plan(as_function(f), interval, name, design, heads, resolve_progress(progress))
    check_arithmetic(name)
    if (eps is None) == (anchors is None):
        raise InputError(f"give either eps=… or anchors=…: got eps={eps!r} and anchors={anchors!r}")
    if eps is not None:
        target = checked_eps(eps)
    else:
        why = "each of several heads has anchors - 2 anchors of its own, between two sentinels"
        least, why = (3, why) if heads > 1 else (2, "")
        count = checked_count("anchors", anchors, least, 8192, why)

    def build(plan: Plan) -> Head:
        if eps is None:
            return finished_head(plan, best(plan, count))
        return finished_head(plan, _smallest_of_all(plan, target), target)

    try:
        made = of_callable(plan, build)
    except np.linalg.LinAlgError as problem:
        raise ConvergenceError(
            f"{plan.f.label} on [{plan.domain.lo:g}, {plan.domain.hi:g}] is out of reach for floating point ({problem}): "
            "use a function and an interval of moderate size"
        ) from problem
    made.strict = strict
    return made


def of_callable(plan: Plan, build: Callable[[Plan], Head]) -> Head:
    """A head of a function, by `build`: proved from its enclosure or its operations, else measured, with the reason."""
    if plan.f.provable:
        return build(plan)
    plan.f(torch.tensor([plan.domain.lo, plan.domain.hi], dtype=torch.float64))
    reader = importlib.import_module("attnc.frontends.traced_head")  # by name: no import goes up
    found: TracedFunction | str = reader.traced_head(plan.f, plan.domain, getattr(torch, plan.dtype))
    if isinstance(found, TracedFunction):
        try:
            return build(replace(plan, f=found))
        except (ConvergenceError, PrecisionError) as problem:
            if isinstance(problem.found, HeadCandidate) and math.isfinite(problem.found.bound):
                raise
            found = "no error bound could be proved from its operations"
    made = build(plan)
    made.certificate = replace(made.certificate, facts={**made.certificate.facts, "reason": found})
    return made


def _smallest_of_all(plan: Plan, eps: float) -> HeadCandidate:
    """The smallest head of the usual designs; if they do not meet eps, one on a lattice. The error states what came closest."""
    try:
        return smallest(plan, eps)
    except (PrecisionError, ConvergenceError) as problem:
        found = on_lattice(plan, eps)
        if found is not None and found.bound <= eps:
            return found
        reached = problem.found.bound if isinstance(problem.found, HeadCandidate) else math.inf
        if found is None or found.bound >= reached:
            raise
        raise refusal(plan, eps, found, "") from problem


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


def head_on_lattice(plan: Plan, eps: float) -> Head | None:
    """A head with its anchors on a lattice, within eps or the closest one; None if the function has none."""
    eps = few_digits(checked_eps(eps))
    found = on_lattice(plan, eps)
    if found is None:
        return None
    allowed = eps if found.bound <= eps else math.inf
    return cached_head(plan, ("lattice", eps), lambda: finished_head(plan, found, allowed))


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


def finished_head(plan: Plan, found: HeadCandidate, allowed: float = math.inf) -> Head:
    """The module with its certificate; `allowed` >= the bound caps its rounding to few digits."""
    module = Head(found.numbers, found.design)
    stated = plan.f.facts() if isinstance(plan.f, TracedFunction) else {}
    stated |= {"heads": plan.heads} if plan.heads > 1 else {}
    points = _attack_points(plan, found)
    terms: dict[str, Any]
    if found.proof is None:
        error = (module(points).double() - plan.f(points.double())).abs()
        worst = int(error.argmax())
        witness = Witness((float(points[worst]),), 0, float(error[worst]))
        terms = {"approximation": witness.error, "rounding": 0.0, "bound": witness.error}
        status, facts = Status.MEASURED, {"points": len(points)}
    else:
        witness = _witness(plan.f, module, points)
        proved = found.proof.bound
        check_refuted(f"at s={witness.input[0]!r} the head", witness.error, proved)
        # A thousandth more, in four digits: the checker may find a slightly larger bound.
        names = ("approximation", "rounding", "bound")
        terms = {name: round_up(getattr(found.proof, name) * (1 + 2.0**-10)) for name in names}
        terms["bound"] = min(terms["bound"], max(allowed, proved))
        status, facts = Status.PROVED, {"precision": _PRECISION, "cells": found.proof.cells}
    module.certificate = Certificate(
        subject="head",
        name=plan.f.label,
        status=status,
        **terms,
        holds_for=plan.domain,
        dtype=plan.dtype,
        witness=witness,
        digests=found.numbers.digests(),
        facts={"function": label_of(plan.f), "design": found.design, **stated, **facts},
        versions=versions(),
    )
    return module


def _witness(f: Function, module: Head, s: Tensor) -> Witness:
    """The largest |executed - f| at the points, in high precision."""
    executed, numbers = module(s), module.numbers()
    rough = (executed.double() - f(s.double())).abs()
    candidates = []
    for i in rough.argsort(descending=True)[:24].tolist():
        at = float(s[i])
        with working(PRECISION):
            meant = f.value(at)
        error = claimed_error(float(executed[i]), meant, head_error(numbers, f, at))
        candidates.append(Witness((at,), 0, error))
    return max(candidates, key=lambda w: w.error)


def _attack_points(plan: Plan, found: HeadCandidate) -> Tensor:
    """Points that no design used: the ends, the kinks, the worst known points, and their neighbours in the dtype."""
    worst = [found.measured_at] if found.proof is None else [found.measured_at, found.proof.at]
    s = torch.from_numpy(unused_points(plan, worst)).to(getattr(torch, plan.dtype))
    s = torch.cat([s, torch.nextafter(s[MEASURED_POINTS:], s.new_tensor(math.inf))])
    return s[(s.double() >= plan.domain.lo) & (s.double() <= plan.domain.hi)]


def as_function(f: object) -> Function:
    """The function that is meant by a name, an `attnc.Function`, an activation of torch or another callable."""
    if isinstance(f, Function):
        return f
    if isinstance(f, str):
        return get(f)
    if isinstance(f, nn.Module) and any(weight.ndim > 1 for weight in f.parameters()):
        advice = "attnc.compile(model, domain=attnc.Box(lo, hi, shape=(d,)), eps=…) takes models"
        raise InputError(
            f"{type(f).__name__} is a model, and a head imitates one function of a number: {advice}"
        )
    if callable(f):
        reader = importlib.import_module("attnc.frontends.recognise")  # by name: no import goes up
        known: Function | None = reader.recognised(f)
        return known or function(f)
    raise InputError(f"a function is a name, an attnc.Function or a callable on tensors: got {f!r}")
