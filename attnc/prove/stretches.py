"""The sum of many heads that share a range, proved stretch by stretch: on each of them few heads speak."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from flint import arb

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Interval
from attnc.functions import Function
from attnc.functions.balls import lower, upper, working
from attnc.prove.cells import Cell, HeadOnCell, head_on_cell, leaves_the_range, rounding_on_cell
from attnc.prove.supnorm import SupNorm, supnorm
from attnc.records.numbers import HeadNumbers

_PRECISION, _ORDER, _QUALITY = 128, 10, 1.25


def by_stretches(
    numbers: HeadNumbers, f: Function, domain: Interval, ends: list[float], seen: float
) -> SupNorm:
    """sup |Σ_h head_h - f|, proved stretch by stretch: where the domain is cut at `ends`, only few heads speak.

    On a stretch a head is silent if one key with value 0 wins there by so much that what the others may add is bounded once
    for all (`head_on_cell` on the whole stretch). The heads that may speak are proved by `supnorm`. With G the sum of those, q
    the sizes of the silent ones, r their rounding errors, and γ = (1 + u)^H - 1, the executed sum of all H heads differs from
    f by at most

        bound(G) + Σq + (1 + γ)Σr + γ(rounding(G) + |values that G averages| + Σq) + 2Hτ."""
    a = ARITHMETIC[numbers.dtype]
    with working(_PRECISION, _ORDER + 1):
        if leaves_the_range(numbers, domain.lo, domain.hi, a):
            return SupNorm(math.inf, math.inf, math.inf, 0.0, domain.lo, 0)
    cuts = [domain.lo, *(x for x in ends if domain.lo < x < domain.hi), domain.hi]
    worst = SupNorm(0.0, 0.0, 0.0, 0.0, domain.lo, 0)
    for lo, hi in pairwise(cuts):
        with working(_PRECISION, _ORDER + 1):
            silent = _silent(numbers, Cell(lo, hi), a)
        speaking = [h for h in range(numbers.heads) if h not in silent]
        part = supnorm(_only(numbers, speaking), f, Interval(lo, hi), quality=_QUALITY, seen=seen)
        if not math.isfinite(part.bound):
            return SupNorm(math.inf, math.inf, math.inf, 0.0, lo, worst.cells + part.cells, part.stuck)
        with working(_PRECISION, _ORDER + 1):
            worst = _worse(worst, _joined(part, numbers, speaking, list(silent.values()), a))
    return worst


def _silent(numbers: HeadNumbers, cell: Cell, a: Arithmetic) -> dict[int, tuple[arb, arb]]:
    """The heads whose one key near the top has value 0 on the whole cell: how large they may be, and their rounding error."""
    found = {}
    for h in range(numbers.heads):
        model = head_on_cell(numbers, h, cell, _ORDER, a)
        if model is not None and _says_nothing(model):
            weight = abs(arb(numbers.output[h]))
            found[h] = (weight * abs(model.value), weight * rounding_on_cell(numbers, h, cell, model, a))
    return found


def _says_nothing(model: HeadOnCell) -> bool:
    return len(model.keys.constant) == 1 and model.keys.own[0] == 0 and model.keys.constant[0] == 0


def _only(numbers: HeadNumbers, heads: list[int]) -> HeadNumbers:
    parts = (numbers.query[heads], numbers.key[heads], numbers.value[heads], numbers.output[heads])
    return HeadNumbers(*parts, numbers.dtype)


def _joined(
    part: SupNorm, numbers: HeadNumbers, speaking: list[int], silent: list[tuple[arb, arb]], a: Arithmetic
) -> SupNorm:
    """What is proved of the heads that speak, widened by the silent ones."""
    gamma = (1 + arb(a.unit)) ** numbers.heads - 1
    leak, errors = (sum((pair[i] for pair in silent), arb(0)) for i in (0, 1))
    sizes = np.abs(numbers.value[speaking, :, 1]).max(axis=1) * np.abs(numbers.output[speaking])
    averaged = sum(map(arb, sizes.tolist()), leak) * (1 + arb(2) ** -50)
    extra = (1 + gamma) * errors + gamma * (arb(part.rounding) + averaged) + 2 * numbers.heads * arb(a.tiny)
    return SupNorm(
        upper(arb(part.bound) + leak + extra),
        upper(arb(part.approximation) + leak),
        upper(arb(part.rounding) + extra),
        max(0.0, lower(arb(part.attained) - leak)),
        part.at,
        part.cells,
    )


def _worse(one: SupNorm, other: SupNorm) -> SupNorm:
    ahead = other if other.attained > one.attained else one
    return SupNorm(
        max(one.bound, other.bound),
        max(one.approximation, other.approximation),
        max(one.rounding, other.rounding),
        ahead.attained,
        ahead.at,
        one.cells + other.cells,
    )
