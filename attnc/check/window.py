"""The error of a closed form, |executed - f|, bounded cell by cell.

In exact arithmetic the difference from f on a cell is a power series around its middle, the window by Horner's rule in the series
w = exp(-2cx), the tail of gelu by Horner's rule in t = 1/(1 + rate·|s|), the last coefficient over the whole cell. What rounding
adds is in `rounding`. A cell is halved until the sum of both is below the claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from flint import arb, arb_series

from attnc.arithmetic import ARITHMETIC, Arithmetic, probe_window
from attnc.check.head import check_machine
from attnc.check.rounding import gate_rounding, tail_rounding, window_rounding
from attnc.check.values import CheckError
from attnc.domain import Interval
from attnc.functions import Function
from attnc.functions.balls import upper, working
from attnc.functions.function import Branch
from attnc.records.window_numbers import ClosedForm, Gate, TailForm, Window

PRECISION, ORDER, MOST_CELLS = 192, 13, 60_000
_ROOM = 1.004  # by which a bound that is searched for may exceed what it is at some input


@dataclass(frozen=True)
class _Cell:
    lo: float
    hi: float
    branch: Branch

    @property
    def middle(self) -> float:
        return self.lo / 2 + self.hi / 2

    @property
    def right(self) -> bool:
        return self.hi > 0 or self.lo == self.hi == 0

    def at_middle(self) -> _Cell:
        return _Cell(self.middle, self.middle, self.branch)

    def halves(self) -> list[_Cell]:
        return [_Cell(self.lo, self.middle, self.branch), _Cell(self.middle, self.hi, self.branch)]


def window_error(window: ClosedForm, f: Function, domain: Interval) -> float:
    """A bound of |executed - f| on the domain, within some hundredths of the best; raises `CheckError` where none is found.

    >>> from attnc import functions
    >>> relu, on = Gate(slope=2.0**40, dtype="float32"), Interval(-100, 100)
    >>> 0.278 / 2**40 < window_error(relu, functions.relu(), on) < 0.29 / 2**40
    True
    """
    reason = _problem(window, f, domain)
    if reason is not None:
        raise CheckError(reason)
    with working(PRECISION, ORDER + 1):
        return upper(_bound(window, f, domain))


def _problem(window: ClosedForm, f: Function, domain: Interval) -> str | None:
    """Why nothing can be proved, or None."""
    if not f.provable:
        return f"{f.label} has no enclosure: nothing can be proved about it"
    jump = f.jump(domain.lo, domain.hi)
    if jump is not None:
        return f"{f.label} jumps at s={jump!r}: nothing can be proved across a jump"
    if window.dtype not in ARITHMETIC:
        return f"windows run in float32 or float64: got {window.dtype!r}"
    a, reach = ARITHMETIC[window.dtype], max(abs(domain.lo), abs(domain.hi))
    stored = _stored(window)
    if not all(math.isfinite(x) and (x == 0 or a.tiny <= abs(x) <= a.largest) for x in stored):
        return "a number of the window is subnormal, too large or not finite"
    if torch.tensor(stored, dtype=torch.float64).to(a.torch_dtype).double().tolist() != stored:
        return f"the window has numbers that {window.dtype} cannot represent"
    if _leaves_the_range(window, reach, a):
        return "an intermediate result of the window may leave the range of the dtype"
    check_machine(probe_window(window.dtype))
    return None


def _stored(window: ClosedForm) -> list[float]:
    if isinstance(window, Gate):
        return [window.slope, window.cubic]
    if isinstance(window, TailForm):
        return [window.rate, window.kappa, *window.coefficients]
    c, inverse = window.sharpness, 1 / window.spacing if window.spacing else math.inf
    return [window.spacing, inverse, c, 2 * c, window.lead, *window.coefficients]


def _leaves_the_range(window: ClosedForm, reach: float, a: Arithmetic) -> bool:
    """Sizes in balls; exponents are checked cell by cell (`rounding`)."""
    with working(PRECISION):
        far, room = arb(reach), arb(a.largest) / 4
        if isinstance(window, Gate):
            z = far * window.slope + far * far * far * window.cubic
            return not (window.slope > 0 and window.cubic >= 0 and z <= room and far * far <= 4 * room)
        if isinstance(window, TailForm):
            sizes = far * window.rate + far * far * (1 + arb(window.kappa))
            sizes += sum((abs(arb(C)) for C in window.coefficients), arb(0))
            return not (
                window.rate > 0 and window.kappa > 0 and len(window.coefficients) > 1 and sizes <= room
            )
        x, c, lead = far / arb(window.spacing), arb(window.sharpness), arb(window.lead)
        exact = math.frexp(window.spacing)[0] == 0.5
        sizes = sum((abs(arb(C)) for C in window.coefficients), arb(0))
        fits = x * (c * x + abs(lead)) <= room and x <= room and far <= room and sizes <= 1 << 20
        return not (exact and 0 < c <= 1 and lead >= 0 and window.coefficients and fits)


def _bound(window: ClosedForm, f: Function, domain: Interval) -> arb:
    """Halve cells until the error on each is below a bound that rises to the errors at their middles."""
    a, goal, todo, done = ARITHMETIC[window.dtype], arb(0), _first_cells(window, f, domain), 0
    while todo:
        cell = todo.pop()
        done += 1
        found = _error(window, cell, a)
        if found is not None and found <= goal:
            continue
        least = _error(window, cell.at_middle(), a)
        if least is not None:
            goal = goal.max((least * _ROOM).upper()).upper()
            if found is not None and found <= goal:
                continue
        if least is None or not cell.lo < cell.middle < cell.hi or done + len(todo) > MOST_CELLS:
            raise CheckError(f"no bound of the window near s={cell.middle!r} after {done} cells")
        todo += cell.halves()
    return goal


def _first_cells(window: ClosedForm, f: Function, domain: Interval) -> list[_Cell]:
    """Cut at the kinks, at 0 and at even points near it; what is nearest to 0 comes last, and so is taken first."""
    near = 11 * (window.spacing if isinstance(window, Window) else 1 / getattr(window, "slope", 1.5))
    cuts = sorted({0.0, *(sign * near * i / 11 for i in range(1, 12) for sign in (-1, 1))})
    cells = []
    for piece in f.pieces(domain.lo, domain.hi):
        edges = [piece.lo, *(x for x in cuts if piece.lo < x < piece.hi), piece.hi]
        cells += [_Cell(x, y, piece.branch) for x, y in pairwise(edges)]
    return sorted(cells, key=lambda cell: -abs(cell.middle))


def _error(window: ClosedForm, cell: _Cell, a: Arithmetic) -> arb | None:
    """At least |executed - f| on the cell; None where the cell is too wide to say."""
    centre = arb(cell.middle)
    half = (arb(cell.hi) - centre).max(centre - arb(cell.lo)).upper()
    try:
        if isinstance(window, Gate):
            found = _gate_error(window, cell, centre, half, a)
        else:
            of = tail_rounding if isinstance(window, TailForm) else window_rounding
            rounding = of(window, abs(centre) + arb(0, half), cell.right, a)  # type: ignore[arg-type]
            if rounding is None:
                return None
            found = rounding + _taylor(
                lambda s: _window_series(window, s, cell.right) - cell.branch(s), centre, half
            )
    except (ValueError, ZeroDivisionError):
        return None
    return found.upper() if found.is_finite() else None


def _taylor(difference: Callable[[arb_series], arb_series], centre: arb, half: arb) -> arb:
    """At least |difference| on the cell."""
    point = difference(arb_series([centre, 1]))
    if half == 0:
        return abs(point[0])
    last = difference(arb_series([centre + arb(0, half), 1]))[ORDER]
    return sum((abs(point[j]) * half**j for j in range(ORDER)), abs(last) * half**ORDER)


def _window_series(window: Window | TailForm, s: arb_series, right: bool) -> arb_series:
    side, total = 1 if right else -1, arb_series([0])
    if isinstance(window, TailForm):
        w, exponent = 1 / (s * (side * arb(window.rate)) + 1), -(s * s) * arb(window.kappa) * arb(2).log()
    else:
        c, x = arb(window.sharpness), s * (side / arb(window.spacing))
        w, exponent = (x * (-2 * c)).exp(), x * (arb(window.lead) - x * c)
    for C in reversed(window.coefficients):
        total = total * w + arb(C)
    bump = exponent.exp() * total
    return bump + s if right else bump


def _gate_error(gate: Gate, cell: _Cell, centre: arb, half: arb, a: Arithmetic) -> arb:
    """Where the executed sigmoid is 1, the token itself is returned."""
    rounding = gate_rounding(gate, centre + arb(0, half), a)
    if rounding is None:
        return _taylor(lambda s: s - cell.branch(s), centre, half) + 4 * arb(a.tiny)
    return rounding + _taylor(lambda s: _gate_series(gate, s, cell.right) - cell.branch(s), centre, half)


def _gate_series(gate: Gate, s: arb_series, right: bool) -> arb_series:
    z = s * arb(gate.slope) + s * s * s * arb(gate.cubic)
    if right:
        return s / (1 + (-z).exp())
    e = z.exp()
    return s * e / (1 + e)
