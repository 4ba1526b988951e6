"""sup |head - f| over an interval, proved: branch and bound over cells with Taylor models in ball arithmetic.

On a cell [m - r, m + r] with d = g - f = Σ d_j t^j:  |d| <= Σ_{j<n} |d_j| r^j + sup|d_n| r^n, where d_j are
the coefficients at the exact point m and the last one is over the whole cell. If only the range F of f on the cell is known, and
no derivatives, f is replaced by a constant, of which nothing is known but that it is in the ball F. Cells are cut at the kinks
of f, and halved until the bound is within a factor of the largest |d(m)| found, which is attained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from flint import arb, arb_series

from attnc import effort
from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Interval
from attnc.errors import AttncError, FunctionError
from attnc.functions import Function
from attnc.functions.balls import lower, upper, variable, working
from attnc.functions.function import Branch
from attnc.prove.cells import Cell, head_on_cell, leaves_the_range, rounding_on_cell
from attnc.prove.rounding import Keys, projection_rounding
from attnc.records.numbers import TENSORS, HeadNumbers

PRECISION, ORDER = 128, 10
ENDLESS = 2500  # cells without a finite bound after which the proof is abandoned
SMALLEST = 2.0**-70  # relative width of a cell that is not halved any more
_CELL, _KEY = 4e-4, 6e-5  # seconds of `attnc.effort`: of a cell, and of each key on it


@dataclass(frozen=True)
class SupNorm:
    """`bound` >= |executed - f| everywhere; `approximation` and `rounding` are the suprema of its two terms."""

    bound: float
    approximation: float
    rounding: float
    attained: float  # |g - f| at `at` is at least this
    at: float
    cells: int

    def joined(self, other: SupNorm) -> SupNorm:
        """The bounds on both of two sets."""
        ahead = other if other.attained > self.attained else self
        return SupNorm(
            max(self.bound, other.bound),
            max(self.approximation, other.approximation),
            max(self.rounding, other.rounding),
            ahead.attained,
            ahead.at,
            self.cells + other.cells,
        )


def unproved(at: float, cells: int = 0) -> SupNorm:
    """Nothing is proved."""
    return SupNorm(math.inf, math.inf, math.inf, 0.0, at, cells)


def supnorm(
    numbers: HeadNumbers,
    f: Function,
    domain: Interval,
    *,
    order: int = ORDER,
    precision: int = PRECISION,
    quality: float = 1.1,
    seen: float = 0.0,
    needed: float = math.inf,
    grain: float = 0.2,
    until: float = math.inf,
) -> SupNorm:
    """Prove a bound of sup |head - f| over the domain.

    `seen` is an error found by sampling: it only saves work, and the proof does not rest on it. An approximation below `grain`
    of the rounding on its cell is not sharpened. The bound is infinite if nothing was proved; also if it exceeds `needed`, or
    if the work of the thread reaches `until` (`attnc.effort`)."""
    a = ARITHMETIC[numbers.dtype]
    most = max(60_000, 40 * numbers.heads * numbers.anchors_per_head)
    check_continuous(f, domain)
    with working(precision, order + 1):
        if leaves_the_range(numbers, domain.lo, domain.hi, a):
            return unproved(domain.lo)
        todo = []
        for piece in f.pieces(domain.lo, domain.hi):
            todo += [(cell, piece.branch) for cell in _first_cells(numbers, piece.lo, piece.hi)]
        worst, done, goal, endless = SupNorm(0.0, 0.0, 0.0, 0.0, domain.lo, 0), 0, seen, 0
        while todo:
            cell, branch = todo.pop()
            found = bound_cell(numbers, branch, f.name, cell, order, a)
            done += 1
            goal = max(goal, found.attained)
            enough = max(quality * goal, grain * found.rounding)
            good = math.isfinite(found.bound) and found.approximation <= enough
            endless += math.isinf(found.bound)
            small = cell.b - cell.a < SMALLEST * domain.width or not cell.divisible()
            hopeless = small and not good and found.approximation > 4 * (goal + found.rounding)
            late = effort.spend(_CELL + _KEY * numbers.key[..., 0].size) > until
            if found.attained > needed or endless > ENDLESS or hopeless or late:
                return unproved(cell.middle, done)  # the other cells say nothing about this one
            if not good and cell.divisible() and done + len(todo) < most:
                todo += [(half, branch) for half in cell.halves()]
                continue
            worst = worst.joined(found)
        return replace(worst, cells=done)


def check_continuous(f: Function, domain: Interval) -> None:
    jump = f.jump(domain.lo, domain.hi)
    if jump is not None:
        raise FunctionError(f"{f.name!r} jumps at s={jump:g}: the error of a head there cannot be bounded")


def bound_cell(
    numbers: HeadNumbers, branch: Branch, name: str, cell: Cell, order: int, a: Arithmetic
) -> SupNorm:
    """The bound of |head - f| on one cell."""
    models = [m for h in range(numbers.heads) if (m := head_on_cell(numbers, h, cell, order, a)) is not None]
    if len(models) < numbers.heads:
        return unproved(cell.middle, 1)
    outputs = [arb(o) for o in numbers.output]
    series = sum((m.series * o for m, o in zip(models, outputs, strict=True)), arb_series([0]))
    last = sum((m.last * o for m, o in zip(models, outputs, strict=True)), arb(0))
    far = sum((m.far * abs(o) for m, o in zip(models, outputs, strict=True)), arb(0))
    errors = [rounding_on_cell(numbers, h, cell, model, a) for h, model in enumerate(models)]
    rounding = projection_rounding(a, [m.value for m in models], errors, outputs)
    return from_branch(branch, name, cell, series, last, order, rounding, far)


def from_branch(
    branch: Branch, name: str, cell: Cell, series: arb_series, last: arb, order: int, rounding: arb, far: arb
) -> SupNorm:
    """The bound on a cell of |g - f| + rounding: the Taylor model of g has these coefficients and `far` beside them."""
    r = cell.radius()
    target, target_cell = _enclose(branch, arb(cell.middle)), _enclose(branch, cell.ball())
    if target is None or target_cell is None:
        return unproved(cell.middle, 1)
    if target_cell[0].is_finite() and not all(target_cell[j].is_finite() for j in range(1, order + 1)):
        target = target_cell = arb_series([target_cell[0]])  # each value of f on the cell, as a constant
    _check_consistent(branch, name, cell, target, target_cell[order], order)
    difference, last = series - target, last - target_cell[order]
    taylor = sum((abs(difference[j]) * r**j for j in range(order)), arb(0)) + abs(last) * r**order + far
    attained = max(0.0, lower(abs(difference[0]) - far)) if difference[0].is_finite() else 0.0
    return cell_bound(cell, taylor, rounding, attained)


def cell_bound(cell: Cell, approximation: arb, rounding: arb, attained: float) -> SupNorm:
    return SupNorm(
        upper(approximation + rounding), upper(approximation), upper(rounding), attained, cell.middle, 1
    )


def _enclose(branch: Branch, cell: arb) -> arb_series | None:
    """The branch over a cell or at a point; None if it is undefined there (a division by a ball that contains zero)."""
    try:
        return branch(variable(cell))
    except AttncError:
        raise
    except (ValueError, ZeroDivisionError):
        return None


def _check_consistent(
    branch: Branch, name: str, cell: Cell, series: arb_series, last: arb, order: int
) -> None:
    """The Taylor model of the branch must contain its value at both ends: it does not if there is an undeclared kink."""
    r = cell.radius()
    for end in (cell.a, cell.b):
        t = arb(end) - arb(cell.middle)
        model = sum((series[j] * t**j for j in range(order)), arb(0)) + last * arb(0, r**order)
        enclosed = _enclose(branch, arb(end))
        if enclosed is None or not (model.is_finite() and enclosed[0].is_finite()):
            continue
        value = enclosed[0]
        if not model.overlaps(value):
            raise FunctionError(
                f"the enclosure of {name!r} is inconsistent on [{cell.a:.6g}, {cell.b:.6g}]: its series around the middle "
                f"gives {model.str(6)} at {end:.6g}, where its value is {value.str(6)}. Declare a kink with kinks=(...)."
            )


def _first_cells(numbers: HeadNumbers, lo: float, hi: float) -> list[Cell]:
    count = min(4096, max(8, 2 * numbers.heads * numbers.anchors_per_head))
    edges = [lo + (hi - lo) * (i / count) for i in range(count)] + [hi]
    return [Cell(x, y) for x, y in pairwise(edges) if x < y]


def by_stretches(
    numbers: HeadNumbers, f: Function, domain: Interval, ends: list[float], seen: float
) -> SupNorm:
    """sup |Σ_h head_h - f|, proved stretch by stretch: the domain is cut at `ends`, and few heads are active on a stretch.

    A head is inactive on a stretch if one key with value 0 dominates so strongly that a single bound of the others suffices
    (`head_on_cell` on the whole stretch). The active heads are proved by `supnorm`. With G their sum, q the sizes of the
    inactive ones, r their rounding errors, and γ = (1 + u)^H - 1, the executed sum of all H heads differs from f by at most

        bound(G) + Σq + (1 + γ)Σr + γ(rounding(G) + |values that G averages| + Σq) + 2Hτ."""
    a = ARITHMETIC[numbers.dtype]
    with working(PRECISION, ORDER + 1):
        if leaves_the_range(numbers, domain.lo, domain.hi, a):
            return unproved(domain.lo)
    cuts = [domain.lo, *(x for x in ends if domain.lo < x < domain.hi), domain.hi]
    worst = SupNorm(0.0, 0.0, 0.0, 0.0, domain.lo, 0)
    for lo, hi in pairwise(cuts):
        with working(PRECISION, ORDER + 1):
            inactive = _inactive(numbers, Cell(lo, hi), a)
        active = [h for h in range(numbers.heads) if h not in inactive]
        kept = HeadNumbers(**{name: getattr(numbers, name)[active] for name in TENSORS}, dtype=numbers.dtype)
        part = supnorm(kept, f, Interval(lo, hi), quality=1.25, seen=seen)
        if not math.isfinite(part.bound):
            return unproved(lo, worst.cells + part.cells)
        with working(PRECISION, ORDER + 1):
            worst = worst.joined(_joined(part, numbers, active, list(inactive.values()), a))
    return worst


def _inactive(numbers: HeadNumbers, cell: Cell, a: Arithmetic) -> dict[int, tuple[arb, arb]]:
    """The heads with a single dominant key, of value 0, on the whole cell: their size there, and their rounding error."""
    found = {}
    for h in range(numbers.heads):
        model = head_on_cell(numbers, h, cell, ORDER, a)
        if model is not None and _is_inactive(model.keys):
            weight = abs(arb(numbers.output[h]))
            found[h] = (weight * abs(model.value), weight * rounding_on_cell(numbers, h, cell, model, a))
    return found


def _is_inactive(keys: Keys) -> bool:
    return len(keys.constant) == 1 and keys.own[0] == 0 and keys.constant[0] == 0


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
