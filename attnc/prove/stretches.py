"""The sum of many heads that share an interval, proved stretch by stretch: few heads are active on each of them."""

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
from attnc.prove.supnorm import SupNorm, supnorm, unproved
from attnc.records.numbers import TENSORS, HeadNumbers

_PRECISION, _ORDER, _QUALITY = 128, 10, 1.25


def by_stretches(
    numbers: HeadNumbers, f: Function, domain: Interval, ends: list[float], seen: float
) -> SupNorm:
    """sup |Σ_h head_h - f|, proved stretch by stretch: the domain is cut at `ends`, and few heads are active on a stretch.

    A head is inactive on a stretch if one key with value 0 dominates so strongly that a single bound of the others suffices
    (`head_on_cell` on the whole stretch). The active heads are proved by `supnorm`. With G their sum, q the sizes of the
    inactive ones, r their rounding errors, and γ = (1 + u)^H - 1, the executed sum of all H heads differs from f by at most

        bound(G) + Σq + (1 + γ)Σr + γ(rounding(G) + |values that G averages| + Σq) + 2Hτ."""
    a = ARITHMETIC[numbers.dtype]
    with working(_PRECISION, _ORDER + 1):
        if leaves_the_range(numbers, domain.lo, domain.hi, a):
            return unproved(domain.lo)
    cuts = [domain.lo, *(x for x in ends if domain.lo < x < domain.hi), domain.hi]
    worst = SupNorm(0.0, 0.0, 0.0, 0.0, domain.lo, 0)
    for lo, hi in pairwise(cuts):
        with working(_PRECISION, _ORDER + 1):
            inactive = _inactive(numbers, Cell(lo, hi), a)
        active = [h for h in range(numbers.heads) if h not in inactive]
        kept = HeadNumbers(**{name: getattr(numbers, name)[active] for name in TENSORS}, dtype=numbers.dtype)
        part = supnorm(kept, f, Interval(lo, hi), quality=_QUALITY, seen=seen)
        if not math.isfinite(part.bound):
            return unproved(lo, worst.cells + part.cells)
        with working(_PRECISION, _ORDER + 1):
            worst = worst.joined(_joined(part, numbers, active, list(inactive.values()), a))
    return worst


def _inactive(numbers: HeadNumbers, cell: Cell, a: Arithmetic) -> dict[int, tuple[arb, arb]]:
    """The heads with a single dominant key, of value 0, on the whole cell: their size there, and their rounding error."""
    found = {}
    for h in range(numbers.heads):
        model = head_on_cell(numbers, h, cell, _ORDER, a)
        if model is not None and _is_inactive(model):
            weight = abs(arb(numbers.output[h]))
            found[h] = (weight * abs(model.value), weight * rounding_on_cell(numbers, h, cell, model, a))
    return found


def _is_inactive(model: HeadOnCell) -> bool:
    return len(model.keys.constant) == 1 and model.keys.own[0] == 0 and model.keys.constant[0] == 0


def _joined(
    part: SupNorm, numbers: HeadNumbers, active: list[int], inactive: list[tuple[arb, arb]], a: Arithmetic
) -> SupNorm:
    """The bound of the active heads, widened by the inactive ones."""
    gamma = (1 + arb(a.unit)) ** numbers.heads - 1
    leak, errors = (sum((pair[i] for pair in inactive), arb(0)) for i in (0, 1))
    sizes = np.abs(numbers.value[active, :, 1]).max(axis=1) * np.abs(numbers.output[active])
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
