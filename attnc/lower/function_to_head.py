"""function → head: the driver, a line a step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.arithmetic import probe, probe_network
from attnc.check.witness import ROOM, attained, head_error
from attnc.domain import Box, Interval
from attnc.errors import CertificateError, ConvergenceError, InputError, PrecisionError
from attnc.functions import Function, function, get
from attnc.functions.balls import lower, working
from attnc.functions.function import label_of
from attnc.heads.candidates import DESIGNS, Plan, Progress
from attnc.heads.plan import MEASURED_POINTS, HeadCandidate, best, smallest
from attnc.network.head import Head
from attnc.network.inside import checked_strict
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import round_up, versions
from attnc.records.numbers import Array

_PRECISION = 128
_REACH = {"float32": 2.0**80, "float64": 2.0**400}  # beyond, squares of what is computed would overflow


def head(
    f: str | Function | Callable[[Tensor], Tensor],
    *,
    domain: tuple[float, float] | Interval,
    eps: float | None = None,
    anchors: int | None = None,
    design: str = "auto",
    heads: int = 1,
    dtype: torch.dtype = torch.float32,
    strict: bool | None = None,
    progress: Progress | None = None,
) -> Head:
    """One univariate function as one softmax head (or `heads` of them), with a proof of its error.

    With `eps`, the smallest head found whose error, rounding included, is proved to be at most eps on the whole interval. With
    `anchors`, the best head of that size. `f` is a name ("gelu", "clip(-25,25)"), an `attnc.Function`, or any callable on
    tensors; the error of a bare callable can only be measured, and the status of its certificate says so. `strict` controls
    inputs outside the interval: None warns once, True raises, False does nothing.

    >>> import attnc, torch
    >>> h = attnc.head("tanh", domain=(-8, 8), eps=1e-6, dtype=torch.float64)
    >>> h.anchors.shape, h.certificate.bound < 1e-14
    (torch.Size([2]), True)
    >>> h(torch.tensor([0.5], dtype=torch.float64))
    tensor([0.4621], dtype=torch.float64)
    """
    plan = Plan(
        _function(f),
        _interval(domain, checked_dtype(dtype)),
        _design(design, heads),
        _heads(heads),
        checked_dtype(dtype),
        progress or (lambda _: None),
    )
    strict = checked_strict(strict)
    check_arithmetic(plan.dtype)
    if (eps is None) == (anchors is None):
        given = "neither" if eps is None else f"eps={eps!r} and anchors={anchors!r}"
        raise InputError(
            f"give either eps=… (the smallest head that meets it) or anchors=… (the best of that size): got {given}"
        )
    try:
        if eps is not None:
            allowed = checked_eps(eps)
            made = finished_head(plan, smallest(plan, allowed), allowed)
        else:
            made = finished_head(plan, best(plan, _anchors(anchors, heads)), math.inf)
    except np.linalg.LinAlgError as problem:
        raise ConvergenceError(
            f"{plan.f.label} on [{plan.domain.lo:g}, {plan.domain.hi:g}] is out of reach for floating point ({problem}): "
            "use a function and an interval of moderate size"
        ) from problem
    made.strict = strict
    return made


def finished_head(plan: Plan, found: HeadCandidate, allowed: float) -> Head:
    """The module with its certificate; `allowed` >= the bound caps its rounding to few digits."""
    module = Head(found.numbers, found.design)
    points = _attack_points(plan, found)
    measured = found.proof is None
    witness = _measured(plan.f, module, points) if measured else _witness(plan.f, module, points)
    if found.proof is None:
        bound = approximation = witness.error
        rounding, facts = 0.0, {"points": len(points)}
    else:
        proved = found.proof.bound
        if witness.error > proved:
            raise CertificateError(
                f"at s={witness.input[0]!r} the head is off by {witness.error:.6g}, above its proved bound {proved:.6g}: "
                "this machine or its libraries compute otherwise than docs/arithmetic.md assumes"
            )
        bound = min(_with_room(proved), max(allowed, proved))
        approximation, rounding = _with_room(found.proof.approximation), _with_room(found.proof.rounding)
        facts = {"precision": _PRECISION, "cells": found.proof.cells}
    module.certificate = Certificate(
        subject="head",
        name=plan.f.label,
        status=Status.MEASURED if measured else Status.PROVED,
        approximation=approximation,
        rounding=rounding,
        bound=bound,
        holds_for=plan.domain,
        dtype=plan.dtype,
        witness=witness,
        digests=found.numbers.digests(),
        facts={"function": label_of(plan.f), "design": found.design, **facts},
        versions=versions(),
    )
    return module


def _with_room(proved: float) -> float:
    """The proved bound and a thousandth of it, in four digits: the checker may find a slightly larger bound."""
    return round_up(proved * (1 + 2.0**-10))


def _witness(f: Function, module: Head, s: Tensor) -> Witness:
    """The largest |executed - f| at the points, in high precision, and not above the error that the checker will find there."""
    executed, numbers = module(s), module.numbers()
    rough = (executed.double() - f(s.double())).abs()
    candidates = []
    for i in rough.argsort(descending=True)[:24].tolist():
        at = float(s[i])
        with working(_PRECISION):
            own = max(0.0, lower(abs(arb(float(executed[i])) - f.value(at))))
        candidates.append(Witness((at,), 0, ROOM * min(own, attained(head_error(numbers, f, at)))))
    return max(candidates, key=lambda w: w.error)


def _measured(f: Function, module: Head, s: Tensor) -> Witness:
    """The largest error at the points, in float64."""
    error = (module(s).double() - f(s.double())).abs()
    worst = int(error.argmax())
    return Witness((float(s[worst]),), 0, float(error[worst]))


def _attack_points(plan: Plan, found: HeadCandidate) -> Tensor:
    """Points that no design used: the ends, the kinks, the worst known points, and their neighbours in the dtype."""
    golden = np.modf(np.arange(1, MEASURED_POINTS) * ((math.sqrt(5) - 1) / 2))[0]
    special = [
        plan.domain.lo,
        plan.domain.hi,
        found.measured_at,
        *(k for k in plan.f.kinks if k in plan.domain),
    ]
    if found.proof is not None:
        special.append(found.proof.at)
    around = [
        x + plan.domain.width * sign * 2.0**-j for x in special for j in range(8, 50) for sign in (-1, 1)
    ]
    wide: Array = np.concatenate([plan.domain.lo + plan.domain.width * golden, special, around])
    s = torch.from_numpy(wide).to(getattr(torch, plan.dtype))
    s = torch.cat([s, torch.nextafter(s[-len(around) :], s.new_tensor(math.inf))])
    inside = (s.double() >= plan.domain.lo) & (s.double() <= plan.domain.hi)
    return s[inside]


def check_arithmetic(dtype: str, network: bool = False) -> None:
    """Refuse to claim anything on a machine, or under a setting, that breaks what certificates assume."""
    broken = probe(dtype) or (probe_network(dtype) if network else None)
    if broken is not None:
        raise PrecisionError(
            f"this machine's {dtype} arithmetic is not what certificates assume ({broken}): see docs/arithmetic.md"
        )


def _function(f: object) -> Function:
    if isinstance(f, Function):
        return f
    if isinstance(f, str):
        return get(f)
    if callable(f):
        return function(f)
    raise InputError(f"a function is a name, an attnc.Function or a callable on tensors: got {f!r}")


def _interval(on: object, dtype: str) -> Interval:
    if not isinstance(on, Interval):
        if not isinstance(on, (tuple, list)) or len(on) != 2:
            raise InputError(f"the interval is given as domain=(lo, hi): got {on!r}")
        on = Interval(*on)
    largest, smallest_width = _REACH[dtype], 1 / _REACH[dtype]
    if max(abs(on.lo), abs(on.hi)) > largest or on.width < smallest_width:
        raise InputError(
            f"the interval ({on.lo}, {on.hi}) is out of reach for {dtype}: ends up to {largest:.3g} and widths from "
            f"{smallest_width:.3g} are accepted"
        )
    return on


def _design(design: object, heads: int) -> str:
    if design not in DESIGNS:
        raise InputError(f"design={design!r}: accepted are {', '.join(map(repr, DESIGNS))}")
    if heads != 1 and design in ("gated", "tuned"):
        raise InputError(
            f"design={design!r} is for one head: with heads={heads} use 'auto', 'nearest', 'smooth' or 'graded'"
        )
    return str(design)


def _heads(heads: object) -> int:
    if isinstance(heads, bool) or not isinstance(heads, int) or not 1 <= heads <= 4096:
        raise InputError(f"heads={heads!r}: give a whole number from 1 to 4096")
    return heads


def checked_dtype(dtype: object) -> str:
    names = {torch.float32: "float32", torch.float64: "float64"}
    if not isinstance(dtype, torch.dtype) or dtype not in names:
        raise InputError(f"dtype={dtype!r}: heads run in torch.float32 or torch.float64")
    return names[dtype]


def checked_eps(eps: object) -> float:
    return checked_target("eps", eps)


def checked_target(name: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < 2.0**1023:
        raise InputError(f"{name}={given!r}: give a positive, finite number, e.g. {name}=1e-6")
    return float(given)


def _anchors(anchors: object, heads: int) -> int:
    least = 3 if heads > 1 else 2
    if isinstance(anchors, bool) or not isinstance(anchors, int) or not least <= anchors <= 8192:
        why = " (a head among several owns anchors - 2 between two sentinels)" if heads > 1 else ""
        raise InputError(f"anchors={anchors!r}: give a whole number from {least} to 8192{why}")
    return anchors


def check_box(box: Box, dtype: str) -> None:
    """Every coordinate must have a number of the dtype, or the promise would be empty."""
    with np.errstate(over="ignore"):
        near = box.lo.astype(dtype)
    low = np.where(near < box.lo, np.nextafter(near, np.array(np.inf, dtype)), near)
    empty = np.argwhere(~(low <= box.hi))
    if len(empty):
        at = tuple(int(i) for i in empty[0])
        raise InputError(
            f"no {dtype} lies between lo={box.lo[at]!r} and hi={box.hi[at]!r} at coordinate {at}: widen the box there, "
            "or use another dtype"
        )
