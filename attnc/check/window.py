"""The error of a closed form, |executed - f|, bounded cell by cell.

In exact arithmetic the difference from f on a cell is a power series around its middle, the window by Horner's rule in the series
w = exp(-2cx), the tail of gelu by Horner's rule in t = 1/(1 + rate·|s|), the last coefficient over the whole cell. A cell is
halved until the sum of this and of what rounding adds is below the claim.

What rounding adds is derived from the formula that runs and from assumptions 1 and 6 (docs/arithmetic.md). Every operation
returns its exact result times 1 + δ, |δ| <= u, plus at most 2τ: τ of its own, τ where the next operation takes a subnormal
operand for 0. Products with powers of two, sums with 0 and products with 1 have δ = 0. An input that is taken for 0 moves by
at most τ."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from flint import arb, arb_series

from attnc.arithmetic import ARITHMETIC, Arithmetic, probe_window
from attnc.check.head import check_machine
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


def window_error(window: ClosedForm, f: Function, domain: Interval) -> float:
    """A bound of |executed - f| on the domain, within some hundredths of the best; raises `CheckError` where none is found.

    >>> from attnc import functions
    >>> relu, on = Gate(slope=2.0**40, dtype="float32"), Interval(-100, 100)
    >>> 0.278 / 2**40 < window_error(relu, functions.relu(), on) < 0.29 / 2**40
    True
    """
    _check_provable(window, f, domain)
    with working(PRECISION, ORDER + 1):
        return upper(_bound(window, f, domain))


def _check_provable(window: ClosedForm, f: Function, domain: Interval) -> None:
    """Raise `CheckError` where nothing can be proved."""
    if not f.provable or f.jump(domain.lo, domain.hi) is not None:
        raise CheckError(f"{f.label} has no enclosure, or jumps: nothing can be proved about it")
    if window.dtype not in ARITHMETIC:
        raise CheckError(f"windows run in float32 or float64: got {window.dtype!r}")
    a, reach = ARITHMETIC[window.dtype], max(abs(domain.lo), abs(domain.hi))
    with working(PRECISION):
        stored, fits = _within_range(window, arb(reach), arb(a.largest) / 4)
    normal = all(math.isfinite(x) and (x == 0 or a.tiny <= abs(x) <= a.largest) for x in stored)
    if not normal or np.array(stored).astype(window.dtype).tolist() != stored:
        raise CheckError(f"numbers that {window.dtype} cannot represent, are subnormal or not finite")
    if not fits:
        raise CheckError("an intermediate result of the window may leave the range of the dtype")
    check_machine(probe_window(window.dtype))


def _within_range(window: ClosedForm, far: arb, room: arb) -> tuple[list[float], bool]:
    """The stored numbers, and whether no intermediate result is larger than the room; exponents are checked cell by cell."""
    if isinstance(window, Gate):
        z = far * window.slope + far * far * far * window.cubic
        fits = window.slope > 0 and window.cubic >= 0 and z <= room and far * far <= 4 * room
        return [window.slope, window.cubic], fits
    sizes = sum((abs(arb(C)) for C in window.coefficients), arb(0))
    if isinstance(window, TailForm):
        sizes += far * window.rate + far * far * (1 + arb(window.kappa))
        positive = window.rate > 0 and window.kappa > 0 and len(window.coefficients) > 1
        return [window.rate, window.kappa, *window.coefficients], positive and sizes <= room
    c, inverse = window.sharpness, 1 / window.spacing if window.spacing else math.inf
    x, power = far / arb(window.spacing), math.frexp(window.spacing)[0] == 0.5
    fits = x * (c * x + abs(arb(window.lead))) <= room and x <= room and far <= room and sizes <= 1 << 20
    fits = fits and power and 0 < c <= 1 and window.lead >= 0 and bool(window.coefficients)
    return [window.spacing, inverse, c, 2 * c, window.lead, *window.coefficients], fits


def _bound(window: ClosedForm, f: Function, domain: Interval) -> arb:
    """Halve cells until the error on each is below a bound that rises to the errors at their middles."""
    a, goal, todo, done = ARITHMETIC[window.dtype], arb(0), _first_cells(window, f, domain), 0
    while todo:
        cell = todo.pop()
        done += 1
        found = _error(window, cell, a)
        if found is not None and found <= goal:
            continue
        middle = cell.middle
        least = _error(window, replace(cell, lo=middle, hi=middle), a)
        if least is not None:
            goal = goal.max((least * _ROOM).upper()).upper()
            if found is not None and found <= goal:
                continue
        if least is None or not cell.lo < middle < cell.hi or done + len(todo) > MOST_CELLS:
            raise CheckError(f"no bound of the window near s={middle!r} after {done} cells")
        todo += [replace(cell, hi=middle), replace(cell, lo=middle)]
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
    centre, right = arb(cell.middle), cell.right
    half = (arb(cell.hi) - centre).max(centre - arb(cell.lo)).upper()
    try:
        if isinstance(window, Gate):
            rounding = gate_rounding(window, centre + arb(0, half), a)
        elif isinstance(window, TailForm):
            rounding = tail_rounding(window, abs(centre) + arb(0, half), right, a)
        else:
            rounding = window_rounding(window, abs(centre) + arb(0, half), right, a)
        if rounding is not None:
            found = rounding + _taylor(lambda s: _series(window, s, right) - cell.branch(s), centre, half)
        elif isinstance(window, Gate):  # the executed sigmoid is 1: the token itself is returned
            found = _taylor(lambda s: s - cell.branch(s), centre, half) + 4 * arb(a.tiny)
        else:
            return None
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


def _series(window: ClosedForm, s: arb_series, right: bool) -> arb_series:
    side, total = 1 if right else -1, arb_series([0])
    if isinstance(window, Gate):
        z = s * arb(window.slope) + s * s * s * arb(window.cubic)
        e = (-side * z).exp()
        return s / (1 + e) if right else s * e / (1 + e)
    if isinstance(window, TailForm):
        w, exponent = 1 / (s * (side * arb(window.rate)) + 1), -(s * s) * arb(window.kappa) * arb(2).log()
    else:
        c, x = arb(window.sharpness), s * (side / arb(window.spacing))
        w, exponent = (x * (-2 * c)).exp(), x * (arb(window.lead) - x * c)
    for C in reversed(window.coefficients):
        total = total * w + arb(C)
    bump = exponent.exp() * total
    return bump + s if right else bump


def window_rounding(window: Window, a_ball: arb, right: bool, a: Arithmetic) -> arb | None:
    """At least |executed - exact| for |s| in the ball; None where the exponent may exceed what exp is assumed for.

    With x = |s|/Δ, t = x(lead - cx), G = e^t, N_j = C_j + w N_{j+1} and S_j = G w^j N_j, which is a sum of Gaussians, the
    executed t̂, ŵ, Ĝ satisfy |t̂ - t| <= d, Ĝ = G(1 ± (e^d(1 + 4u) - 1)) ± 2τ, and ŵ likewise.
    """
    x = _nonnegative(a_ball) / arb(window.spacing)
    u, tau = arb(a.unit), 2 * arb(a.tiny)
    moved = tau * (1 + 1 / arb(window.spacing))  # of x, where s or x is subnormal
    c, lead, most = arb(window.sharpness), arb(window.lead), x.upper()
    off = (most + moved) * c * _unit(window.sharpness, u) + c * moved + tau  # of c x
    inner = abs(lead - c * x).upper()
    if window.lead != 0:
        off = off * (1 + u) + u * inner + tau
    d = (most * off + u * most * (inner + off) + moved * (inner + off) * (1 + u) + tau).upper()
    d_w = (2 * c * ((most + moved) * _unit(2 * window.sharpness, u) + moved) + tau).upper()
    top = lead * lead / (4 * c)  # t = top - c(x - lead/2c)²
    if not (top - c * (x - lead / (2 * c)) ** 2).upper() + d <= a.exp_limit:
        return None
    exp_units = 1 + a.window_exp_units * u
    e_G, e_w = ((d.exp() * exp_units - 1).upper(), (d_w.exp() * exp_units - 1).upper())
    peaks = [lead / (2 * c) - j for j in range(len(window.coefficients))]
    bumps = [(c * m * m - c * (x - m) ** 2).exp() for m in peaks]
    return _sum_rounding(window, bumps, e_G, e_w, most * arb(window.spacing) if right else None, a)


def tail_rounding(tail: TailForm, a_ball: arb, right: bool, a: Arithmetic) -> arb | None:
    """At least |executed - exact| of max(s, 0) + 2^(-κs²)·N(t) for |s| in the ball.

    The executed exponent is that of s²(1 ± u)², which changes its power by a factor of at most e^d. With d = 1 + r, r = rate·|s|,
    the executed d lies between (1 + r(1 - u))(1 - u) and (1 + r(1 + u))(1 + u), and its reciprocal rounds once more.
    """
    size, u, tau = _nonnegative(a_ball), arb(a.unit), 2 * arb(a.tiny)
    rate, kappa, log2 = arb(tail.rate), arb(tail.kappa), arb(2).log()
    most = size.upper()
    lost = 4 * tau * (1 + kappa) * (1 + most)
    d = (kappa * most * most * u * (2 + u) + lost).upper() * log2
    e_G = (d.exp() * (1 + a.window_exp_units * u) - 1).upper()
    share = rate * most / (1 + rate * most) * _unit(tail.rate, u)
    e_w = ((1 + u) / ((1 - share) * (1 - u) - 2 * tau * (1 + rate)) - 1).upper()
    e_w = (e_w + tau * (1 + rate * most)).upper()
    t, power, bumps = 1 / (1 + rate * size), (-(size * size) * kappa * log2).exp(), []
    for _ in tail.coefficients:
        bumps.append(power)
        power = power * t
    return _sum_rounding(tail, bumps, e_G, e_w, most if right else None, a)


def _sum_rounding(
    form: Window | TailForm, bumps: list[arb], e_G: arb, e_w: arb, added: arb | None, a: Arithmetic
) -> arb:
    """At least |executed - exact| of G·N, and of its sum with a number of at most `added`, where bumps[j] encloses G w^j and Ĝ
    and ŵ err by e_G and e_w, relatively, and by 2τ.

        |N̂_j - N_j| <= (1 + u)(A + u(|N_{j+1}|w + A) + 2τ) + u|N_j| + 2τ,     A = |N̂_{j+1} - N_{j+1}|ŵ + |N_{j+1}||ŵ - w|

    of which all is kept multiplied by G w^j. The product G N rounds once, and so does its sum, by no more than the product.
    """
    u, tau = arb(a.unit), 2 * arb(a.tiny)
    growth, most_N, total = (1 + u) ** 2 * (1 + e_w + tau), arb(0), arb(0)
    scaled = []  # at least |S_j| and G w^j, from the last to the first
    for C, bump in zip(reversed(form.coefficients), reversed(bumps), strict=True):
        total = total + arb(C) * bump
        scaled.append((abs(total).upper(), bump.upper()))
        most_N = most_N * growth + abs(arb(C)) * (1 + u) + 2 * tau
    most_N = (most_N * growth + arb(1)).upper()  # at least every |N̂_j|, for w <= 1
    error, before = arb(0), scaled[0][0]
    for size, g in scaled[1:]:
        A = error * (1 + e_w) + before * e_w + tau * g * most_N
        error = ((1 + u) * (A + u * (before + A) + tau * g) + u * size + tau * g).upper()
        before = size
    product = (before + error) * (1 + e_G) + tau * most_N  # at least |ĜN̂|
    lost = error + (before + error) * e_G + tau * most_N + u * product + tau
    if added is not None:
        term = product * (1 + u) + tau  # at least the executed product
        value = (added + before).upper()
        lost = lost + (u * (value + lost)).min(term) + 2 * tau
    return lost + tau


def gate_rounding(gate: Gate, s: arb, a: Arithmetic) -> arb | None:
    """At least |executed - exact| of s·σ(s(B + D s²)); None where the executed sigmoid is 1, so that s is returned.

    |ẑ - z| <= d moves ln σ(z) by at most d times σ(d - z), above any derivative σ(-ξ) on the way. A number of the dtype that is
    nearer to 1 than u is 1.
    """
    u, tau, size = arb(a.unit), 2 * arb(a.tiny), abs(s).upper()
    linear, cube = s * arb(gate.slope), s * s * s * arb(gate.cubic)
    z = linear + cube
    if gate.cubic == 0:
        d = (abs(z).upper() * _unit(gate.slope, u) + tau).upper()
    else:  # two roundings of B s, four of D s³
        lost = 4 * tau * (1 + arb(gate.slope) + arb(gate.cubic)) * (1 + size) ** 2
        d = (abs(linear).upper() * u * (2 + u) + abs(cube).upper() * ((1 + u) ** 4 - 1) + lost).upper()
    low = z.lower()
    if low > 0 and ((d - low).exp() * 4 * (1 + u) + tau).upper() < u:
        return None
    opposite = (1 / (1 + (low - d).exp())).upper()  # at least σ(-ẑ), and the slope of ln σ
    high = z.upper()
    sigma = (1 / (1 + (-high).exp())).upper()
    epsilon = ((a.window_exp_units * opposite + 3) * u).min(3 * (d - low).exp()).upper()
    kappa = ((opposite * d).exp() * (1 + epsilon) - 1).upper()
    executed = sigma * (1 + kappa) + tau
    return size * (sigma * kappa + tau) + u * size * executed + 2 * tau


def _unit(factor: float, u: arb) -> arb:
    """What a product with this number rounds by."""
    return arb(0) if math.frexp(factor)[0] == 0.5 else u


def _nonnegative(ball: arb) -> arb:
    """The part of a ball that is not negative."""
    low, high = ball.lower().max(arb(0)), ball.upper()
    return (low + high) / 2 + arb(0, ((high - low) / 2).upper())
