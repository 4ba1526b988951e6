"""What rounding adds to a window on a cell, derived from the formula that runs and from assumptions 1 and 6 (docs/arithmetic.md).

Every operation returns its exact result times 1 + δ, |δ| <= u, plus at most 2τ: τ of its own, τ where the next operation takes
a subnormal operand for 0. Products with powers of two, sums with 0 and products with 1 have δ = 0. An input that is taken for
0 moves by at most τ."""

from __future__ import annotations

import math

from flint import arb

from attnc.arithmetic import Arithmetic
from attnc.records.window_numbers import Gate, TailForm, Window


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
    first, bumps = arb(window.lead) / (2 * c), []
    for j, _ in enumerate(window.coefficients):
        m = first - j
        bumps.append((c * m * m - c * (x - m) ** 2).exp())
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
    scaled, bumps = _sums(form, bumps)
    error, before = arb(0), scaled[-1]
    most_N = _largest_sum(form, u, e_w, tau)
    for size, g in zip(reversed(scaled[:-1]), reversed(bumps[:-1]), strict=True):
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


def _sums(form: Window | TailForm, bumps: list[arb]) -> tuple[list[arb], list[arb]]:
    """At least |S_j| and G w^j, for every j, where bumps[j] encloses the latter."""
    sums, total = [], arb(0)
    for C, bump in zip(reversed(form.coefficients), reversed(bumps), strict=True):
        total = total + arb(C) * bump
        sums.append(abs(total).upper())
    return sums[::-1], [bump.upper() for bump in bumps]


def _largest_sum(form: Window | TailForm, u: arb, e_w: arb, tau: arb) -> arb:
    """At least every |N̂_j|, for w <= 1."""
    growth = (1 + u) ** 2 * (1 + e_w + tau)
    total = arb(0)
    for C in reversed(form.coefficients):
        total = total * growth + abs(arb(C)) * (1 + u) + 2 * tau
    return (total * growth + arb(1)).upper()
