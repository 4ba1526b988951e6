"""The closed form of a lattice head: the same function from the few anchors near 0, and its proof.

On a lattice a_k = kΔ with scores -c(x - k)², x = s/Δ, the softmax's denominator is a constant up to a relative 2e^{-π²/c}:

    Σ_k exp(-c(x - k)²) = √(π/c) (1 + 2 Σ_n e^{-π²n²/c} cos 2πnx)                              (Poisson)

and where v_k - v_{-k} = a_k the head is g(s) = max(s, 0) + h(|s|), h(a) = g(-a): a sum over the anchors near 0 alone.

gelu has a closed form of its own (`TailForm`), which no attention computes. Each is compared with f itself."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from flint import arb, arb_series

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Interval
from attnc.functions import Function
from attnc.functions.balls import lower, working
from attnc.functions.function import Branch, is_builtin
from attnc.prove.cells import Cell
from attnc.prove.supnorm import SupNorm, cell_bound, check_continuous, from_branch, unproved
from attnc.records.window_numbers import ClosedForm, Gate, TailForm, Window

_ORDER, _PRECISION, _QUALITY, _MOST_CELLS = 10, 128, 1.1, 20_000


def window_bound(window: ClosedForm, f: Function, domain: Interval) -> SupNorm:
    """Prove a bound of |executed - f| for every number of the window's dtype in the domain, on whichever path it runs.

    `approximation` is that of the stored numbers in exact arithmetic. The bound is infinite if nothing was proved."""
    a = ARITHMETIC[window.dtype]
    check_continuous(f, domain)
    with working(_PRECISION, _ORDER + 1):
        if _leaves_the_range(window, max(abs(domain.lo), abs(domain.hi)), a):
            return unproved(domain.lo)
        todo = _first_cells(window, f, domain)
        worst, done, goal = SupNorm(0.0, 0.0, 0.0, 0.0, domain.lo, 0), 0, 0.0
        noise = 2.0 ** (20 - _PRECISION) * max(1.0, abs(domain.lo), abs(domain.hi))
        while todo:
            cell, branch = todo.pop()
            found = _bound_cell(window, f, branch, cell, _ORDER, a)
            done, goal = done + 1, max(goal, found.attained)
            enough = max(_QUALITY * goal, 2.0**-20 * worst.rounding, noise)
            good = math.isfinite(found.bound) and found.approximation <= enough
            if not good and cell.divisible() and done + len(todo) < _MOST_CELLS:
                todo += [(half, branch) for half in cell.halves()]
                continue
            worst = worst.joined(found)
            if math.isinf(worst.bound):
                return unproved(domain.lo, done)
        return replace(worst, cells=done)


def _leaves_the_range(window: ClosedForm, reach: float, a: Arithmetic) -> bool:
    """Whether a value might overflow on [-reach, reach], or a number is subnormal or not of the dtype: nothing is proved then."""
    if isinstance(window, Gate):
        stored, far = [window.slope, window.cubic], arb(reach)
        sizes = [far * far, far * (arb(window.slope) + arb(window.cubic) * far * far)]
        fits = window.slope > 0 and window.cubic >= 0
    elif isinstance(window, TailForm):
        stored, far = [window.rate, window.kappa, *window.coefficients], arb(reach)
        sizes = [far * arb(window.rate), far * far * arb(window.kappa), far * far, *_twice_the_sum(window)]
        fits = window.rate > 0 and window.kappa > 0 and len(window.coefficients) > 1
    else:
        c, lead, x = arb(window.sharpness), arb(window.lead), arb(reach) / arb(window.spacing)
        stored = [window.spacing, window.sharpness, window.lead, *window.coefficients]
        sizes = [x, c * x * x, lead * x, *_twice_the_sum(window)]
        fits = window.sharpness > 0 and math.frexp(window.spacing)[0] == 0.5
        fits = fits and bool(lead * lead / (4 * c) + 1 <= arb(a.exp_limit))
    held = np.array(stored)
    normal = np.isfinite(held).all() and not ((held != 0) & (np.abs(held) < a.tiny)).any()
    with np.errstate(over="ignore"):
        exact = np.array_equal(held.astype(a.dtype).astype(np.float64), held)
    small = all(bool(size < arb(a.largest) / 16) for size in [*sizes, arb(reach)])
    return not (fits and normal and exact and small)


def _twice_the_sum(form: Window | TailForm) -> list[arb]:
    return [2 * sum((abs(arb(C)) for C in form.coefficients), arb(1))]


def _first_cells(window: ClosedForm, f: Function, domain: Interval) -> list[tuple[Cell, Branch]]:
    """Cells cut at 0 and at the kinks of f: of equal width near 0, of increasing width where the closed form is max(s, 0). The
    cube of a cell must not reach over 0."""
    if isinstance(window, Gate):
        step, count = 1 / (8 * window.slope), 8 * 64
    elif isinstance(window, TailForm):
        step, count = 1 / 8, 8 * 12
    else:
        step = window.spacing / 4
        count = 4 * math.ceil(window.lead / (2 * window.sharpness) + math.sqrt(60 / window.sharpness))
    reach = max(abs(domain.lo), abs(domain.hi))
    steps = [step * i for i in range(1, count + 1)]
    while steps[-1] < reach:
        steps.append((1.25 if isinstance(window, Gate) and window.cubic else 2) * steps[-1])
    edges = sorted({0.0, *steps, *(-x for x in steps), domain.lo, domain.hi})
    inside = [x for x in edges if domain.lo <= x <= domain.hi]
    pieces = (piece for lo, hi in pairwise(inside) for piece in f.pieces(lo, hi))
    return [(Cell(piece.lo, piece.hi), piece.branch) for piece in pieces]


def _bound_cell(
    window: ClosedForm, f: Function, branch: Branch, cell: Cell, order: int, a: Arithmetic
) -> SupNorm:
    """The Taylor model of window - f on a cell that does not reach over 0, and the rounding there."""
    at, over = arb(cell.middle), cell.ball()
    if isinstance(window, Gate):
        rounding = _gate_rounding(window, over, a)
        if f.name == "relu" and is_builtin(f) and window.cubic == 0:
            return _gate_from_relu(window, cell, rounding)
        series, over_cell = _gate_series(window, at), _gate_series(window, over)
    else:
        terms, terms_over = _terms(window, at, cell), _terms(window, over, cell)
        bump, bump_over = sum(terms, arb_series([0])), sum(terms_over, arb_series([0]))
        sums = _suffix_sums(terms, terms_over, cell.radius())
        factors = _tail_factors if isinstance(window, TailForm) else _window_factors
        rounding = _bump_rounding(window, factors(window, over, a), over, sums, cell.b > 0, a)  # type: ignore[arg-type]
        ramp, ramp_over = (arb_series([s, 1]) * int(cell.b > 0) for s in (at, over))
        series, over_cell = ramp + bump, ramp_over + bump_over
    return from_branch(branch, f.name, cell, series, over_cell[order], order, rounding, arb(0))


def _terms(window: Window | TailForm, s: arb, cell: Cell) -> list[arb_series]:
    """G·C_j w^j around s; of a window C_j exp(cκ² - c(x - κ)²), κ = lead/2c - j."""
    if isinstance(window, TailForm):
        return _tail_terms(window, arb_series([s, 1]) * (1 if cell.b > 0 else -1))
    c, slope = arb(window.sharpness), arb(1 if cell.b > 0 else -1) / arb(window.spacing)
    curve = -c * slope * slope
    x, first, found = s * slope, arb(window.lead) / (2 * c), []
    for j, C in enumerate(window.coefficients):
        centre = first - j
        distance = x - centre
        square = arb_series([c * (centre * centre - distance * distance), -2 * c * slope * distance, curve])
        found.append(square.exp() * arb(C))
    return found


def _tail_terms(tail: TailForm, size: arb_series) -> list[arb_series]:
    """C_j t^j 2^(-κ|s|²), t = 1/(1 + rate·|s|), around |s| = size."""
    t = 1 / (1 + size * arb(tail.rate))
    power, found = (size * size * (-arb(tail.kappa) * arb(2).log())).exp(), []
    for C in tail.coefficients:
        found.append(power * arb(C))
        power = power * t
    return found


def _gate_series(gate: Gate, s: arb) -> arb_series:
    """s·σ(s(B + D s²)), from the side on which the exponential is small."""
    own = arb_series([s, 1])
    z = own * (arb(gate.slope) + own * own * arb(gate.cubic))
    if s.mid() > 0:
        return own / (1 + (-z).exp())
    e = z.exp()
    return own * (e / (1 + e))


def _gate_from_relu(gate: Gate, cell: Cell, rounding: arb) -> SupNorm:
    """The difference is |s|σ(-B|s|): at most 0.27846455/B, since t/(1 + e^t) has its maximum where e^t(t - 1) = 1."""
    B, ends = arb(gate.slope), sorted((abs(cell.a), abs(cell.b)))
    largest = arb("0.27846455") / B
    near = (arb(ends[1]) / (1 + (B * arb(ends[0])).exp())).min(largest)
    middle = abs(arb(cell.middle))
    attained = lower(middle / (1 + (B * middle).exp()))
    return cell_bound(cell, near, rounding, max(0.0, attained))


def _exact_factor(x: float) -> bool:
    """Whether a product with x rounds nothing: a power of two."""
    return math.frexp(abs(x))[0] == 0.5


class _Factors(NamedTuple):
    """G and w over a cell, at most; |Ĝ - G| <= θG + τ, and |ŵ - w| <= w_theta·w + τ <= w_moved·w."""

    G: arb
    w: arb
    theta: arb
    w_theta: arb
    w_moved: arb


def _window_factors(window: Window, s: arb, a: Arithmetic) -> _Factors:
    """G = exp(x(lead - cx)) and w = exp(-2cx), |s| being the ball s."""
    u, tau, one, inverse = arb(a.unit), arb(a.tiny), arb(1), 1 / arb(window.spacing)
    c, lead, exp_error = arb(window.sharpness), arb(window.lead), a.window_exp_units * arb(a.unit)
    x, x_error = abs(s) * inverse, 2 * tau * (1 + inverse)
    scaled_error = x_error  # of cx, over c
    if not _exact_factor(window.sharpness):
        scaled_error = x_error + u * (x.upper() + x_error)
    power_error = 2 * c * scaled_error + tau
    factor, factor_error = abs(lead - c * x), c * scaled_error + tau
    factor_error += u * (factor + factor_error) + 2 * tau
    entering = (x.upper() + x_error) * factor_error + x_error * factor
    theta = (entering + u * (factor * x + entering) + tau).exp() * (one + exp_error) - one
    centre = lead / (2 * c)
    G = (c * centre * centre - c * (x - centre) * (x - centre)).exp().upper()
    w = (-2 * c * x).exp().upper()
    w_theta = power_error.exp() * (one + exp_error) - one
    w_moved = w_theta + 2 * tau * (2 * c * x.upper()).exp()
    return _Factors(G, w, theta, w_theta, w_moved)


def _tail_factors(tail: TailForm, s: arb, a: Arithmetic) -> _Factors:
    """G = 2^(-κs²) and w = t = 1/d, d = 1 + rate·|s|: κs² rounds twice, rate·|s|, d and 1/d once each."""
    u, tau, one, size = arb(a.unit), arb(a.tiny), arb(1), abs(s)
    rate, kappa, log2 = arb(tail.rate), arb(tail.kappa), arb(2).log()
    square = (kappa * size * size).upper()
    entering = square * ((one + u) ** 2 - 1) + 8 * tau * (1 + kappa) * (1 + size.upper())
    theta = (entering * log2).exp() * (one + a.window_exp_units * u) - one
    d = 1 + rate * size
    part = 0 if _exact_factor(tail.rate) else (rate * size.upper() / (1 + rate * size.upper())).upper()
    off = u * part + u * (one + u * part) + 4 * tau * (1 + rate)  # of d, over d
    w_theta = (one + u) / (one - off) - one
    G = (-kappa * log2 * size * size).exp().upper()
    return _Factors(G, (1 / d).upper(), theta, w_theta, w_theta + 2 * tau * d.upper())


def _bump_rounding(
    window: Window | TailForm, factors: _Factors, s: arb, sums: list[arb], right: bool, a: Arithmetic
) -> arb:
    """|executed - exact| over a cell, |s| being the ball s, and |G w^j N_j| <= sums[j] for N_j = C_j + C_{j+1} w + …

        Ĝ = G(1 + θ) + τ:  |ĜN̂ - GN| <= (1 + θ) G|N̂ - N| + θ G|N| + τ|N̂|

    The sum max(s, 0) + ĜN̂ errs by at most u of itself, and by at most ĜN̂, since max(s, 0) is a number of the dtype."""
    u, tau, one = arb(a.unit), arb(a.tiny), arb(1)
    G, w, theta, w_theta, w_moved = factors
    growth = (one + w_theta + 3 * u) ** (2 * len(sums))
    size = sum((abs(arb(C)) for C in window.coefficients), arb(1)) * growth
    moved = (one + theta) * _horner_rounding(sums, G, w, w_moved, a) + theta * sums[0] + 2 * tau * size
    product = moved + u * (sums[0] + moved) + tau
    if not right:
        return (product + 2 * tau).upper()
    added = (u * (abs(s) + sums[0] + product)).upper().min((sums[0] + product).upper())
    return (product + added + 3 * tau).upper()


def _horner_rounding(sums: list[arb], G: arb, w: arb, w_moved: arb, a: Arithmetic) -> arb:
    """G|N̂ - N|, where N̂_j = fl(fl(N̂_{j+1} ŵ) + C_j) and |ŵ - w| <= w·w_moved: of E_j >= G w^j |N̂_j - N_j| is known

        E_j = B + u(sums_j + B) + τ…,   B = A + u(sums_{j+1} + A),   A = (1 + w_moved) E_{j+1} + w_moved·sums_{j+1}

    and E is 0 for the last j. Each step may underflow twice and take N̂_{j+1} for zero."""
    u, error = arb(a.unit), arb(0)
    lost = 8 * arb(a.tiny) * G
    for j in range(len(sums) - 2, -1, -1):
        entering = (1 + w_moved) * error + w_moved * sums[j + 1]
        product = entering + u * (sums[j + 1] + entering) + lost * w**j
        error = (product + u * (sums[j] + product) + lost * w**j).upper()
    return error


def _suffix_sums(terms: list[arb_series], over: list[arb_series], r: arb) -> list[arb]:
    """|t_j + t_{j+1} + …| over a cell of radius r, by the mean value theorem, for every j."""
    value, slope, found = arb(0), arb(0), []
    for term, wide in zip(reversed(terms), reversed(over), strict=True):
        value, slope = value + term[0], slope + wide[1]
        found.append((abs(value) + abs(slope) * r).upper())
    return found[::-1]


def _gate_rounding(gate: Gate, s: arb, a: Arithmetic) -> arb:
    """|executed - sσ(z)| over a cell, z = s(B + D s²): ẑ = z + η, and σ' <= min(1/4, e^{-|z|}); assumption 6 on the sigmoid.

    Where its relative error leaves no number but 1, the executed value is s itself. With D = 0, B s rounds once; otherwise D s²
    rounds twice, its sum with B once, and the product with s once."""
    u, tau, B, D = arb(a.unit), arb(a.tiny), arb(gate.slope), arb(gate.cubic)
    z, size = s * (B + D * s * s), abs(s).upper()
    if gate.cubic == 0:
        eta = ((0 if _exact_factor(gate.slope) else u * abs(z)) + 2 * tau * (1 + B)).upper()
    else:
        twice, four = (1 + u) ** 2 - 1, (1 + u) ** 4 - 1
        eta = (size * (B * twice + D * size * size * four) + 8 * tau * (1 + B + D) * (1 + size) ** 2).upper()
    moved = eta * (eta - abs(z).lower()).exp().min(arb(1) / 4)
    weight, other = 1 / (1 + (-z.upper()).exp()), 1 / (1 + z.lower().exp())
    tail = 3 * (eta - z.lower()).exp()
    units = ((a.window_exp_units * (other + moved) + 3) * u).min(tail)
    weight_error = moved + units * (weight + moved) + 2 * tau
    error = size * (weight_error + u * (weight + weight_error)) + 3 * tau
    if 2 * tail + 2 * tau < u:
        error = error.min(size * other + 3 * tau)
    return error.upper()
