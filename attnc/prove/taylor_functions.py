"""Elementary functions of Taylor models, and traced functions on them.

Values of exp, log, sin, cos, erf, atan and of real powers come from ball arithmetic at the middle of each cell: the float nearest
to the middle of a ball of 80 bits, or a neighbour of it. Their relative error is at most 4u, and 2⁻⁷⁰ in absolute terms for sin,
cos and log. numpy's own functions are not used. Bounds over a cell use monotonicity, and values at its ends with the factor
1 + 2⁻⁴⁰.

On a cell where a function is not defined everywhere (a divisor that may be 0, a logarithm or a root of what may not be positive),
the radius is infinite."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flint import arb, arb_series
from numpy.typing import NDArray

from attnc.domain import Array
from attnc.functions.balls import upper, working
from attnc.program.traced import Traced
from attnc.prove.taylor import GROW, TINY, Model, Monomials, U

BITS = 80
_REL, _ABS = 6 * U, 2.0**-70
_LEAST = 2.0**-1070  # more than an operation loses by underflow
_FAR = 1e-6  # of |c₀|: how far a cell must stay from a singularity
_SAFE = 1 - 2.0**-20
_CRAMER = 1.0865  # |H_m(x)| <= 1.0865 √(2^m m!) e^(x²/2): Cramér's inequality


def scalars(f: Callable[[arb], arb], x: Array) -> Array:
    """f at every number, to a relative error of 4u; NaN where f is not finite."""
    unique, back = np.unique(x, return_inverse=True)
    found = np.empty(len(unique))
    with working(BITS):
        for i, number in enumerate(unique.tolist()):
            found[i] = _float(f(arb(number))) if math.isfinite(number) else math.nan
    return np.asarray(found[back.reshape(x.shape)])


def _float(y: arb) -> float:
    """The middle of a ball as a float; NaN if the ball is not finite or too large."""
    if not y.is_finite():
        return math.nan
    try:
        found = float(y.mid())
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def _powers(rho: Array, n: int) -> Array:
    """At least ρ^i (up to the factor 1 + 2⁻⁴⁰) for i = 0 … n + 1, also where it is lost by underflow."""
    found = np.ones((n + 2, len(rho)))
    for i in range(1, n + 2):
        found[i] = found[i - 1] * rho + _LEAST
    return found


def _composed(s: Model, g: Array, own: Array | float, slope: Array, top: Array) -> Model:
    """`own`: absolute errors of g besides the relative one; `top`: at least |g^(n+1)|/(n+1)! on the cell."""
    n, rho = s.x.n, s.spread
    powers = _powers(rho, n)
    error = ((np.abs(g) * (_REL * (1 + np.arange(n + 1)))[:, None] + own) * powers[:-1]).sum(0) * GROW
    return s.composed(g, error, slope, top * powers[-1] * GROW)


def exp(s: Model) -> Model:
    n, middle = s.x.n, s.c[0]
    at = scalars(arb.exp, middle)
    g = np.stack([at / math.factorial(i) for i in range(n + 1)])
    reach = s.spread
    top = scalars(arb.exp, middle + reach) * GROW / math.factorial(n + 1)
    slope = scalars(arb.exp, middle + (reach + s.r) * GROW) * GROW + TINY
    return _composed(s, g, TINY, slope, top * GROW + TINY)


def _circular(s: Model, shift: int) -> Model:
    n = s.x.n
    sine, cosine = scalars(arb.sin, s.c[0]), scalars(arb.cos, s.c[0])
    cycle = (sine, cosine, -sine, -cosine)
    g = np.stack([cycle[(i + shift) % 4] / math.factorial(i) for i in range(n + 1)])
    own = np.array([_ABS / math.factorial(i) for i in range(n + 1)])[:, None]
    one = np.ones(s.cells)
    return _composed(s, g, own, one, one * GROW / math.factorial(n + 1))


def sin(s: Model) -> Model:
    return _circular(s, 0)


def cos(s: Model) -> Model:
    return _circular(s, 1)


def erf(s: Model) -> Model:
    """|erf^(k)| = 2/√π |H_{k-1}| e^(-x²) <= 2/√π · 1.0865 √(2^(k-1) (k-1)!) by Cramér's inequality; |erf'| <= 2/√π < 1.1284."""
    n = s.x.n
    unique, back = np.unique(s.c[0], return_inverse=True)
    table = np.full((n + 1, len(unique)), np.nan)
    with working(BITS, n + 1):
        for i, number in enumerate(unique.tolist()):
            if math.isfinite(number):
                series = arb_series([arb(number), 1]).erf()
                table[:, i] = [_float(series[k]) for k in range(n + 1)]
    top = 1.1284 * _CRAMER * math.sqrt(2.0**n * math.factorial(n)) / math.factorial(n + 1) * GROW
    return _composed(s, table[:, back.ravel()], _ABS, np.full(s.cells, 1.1284), np.full(s.cells, top))


def atan(s: Model) -> Model:
    """atan^(k)/k! = ± sin(kθ) cos^k θ/k with tan θ = 1/x up to sign, so it is at most (1 + x²)^(-k/2)/k in size."""
    n = s.x.n
    unique, back = np.unique(s.c[0], return_inverse=True)
    table, own = np.full((n + 1, len(unique)), np.nan), np.full((n + 1, len(unique)), np.inf)
    with working(BITS, n + 1):
        for i, number in enumerate(unique.tolist()):
            if math.isfinite(number):
                series = arb_series([arb(number), 1]).atan()
                table[:, i] = [_float(series[k]) for k in range(n + 1)]
                own[:, i] = [upper(series[k].rad()) + TINY for k in range(n + 1)]
    least = np.maximum((np.abs(s.c[0]) - (s.spread + s.r) * GROW) * _SAFE, 0.0)
    cosine = (1 + 2.0**-40) / np.sqrt(1 + least * least)
    slope, top = cosine * cosine * GROW + _LEAST, _powers(cosine, n)[-1] * GROW / (n + 1)
    return _composed(s, table[:, back.ravel()], own[:, back.ravel()], slope, top)


def _room(s: Model, sign: Array | float = 1.0) -> tuple[Array, NDArray[np.bool_]]:
    """A lower bound of sign·f on each cell, and where it is too small to be used."""
    middle = s.c[0] * sign
    least = (middle - (s.spread + s.r) * GROW) * _SAFE
    bad = ~(least > _FAR * middle) | ~(middle > 0)
    return np.where(bad, 1.0, least), bad


def _unless(bad: NDArray[np.bool_], model: Model) -> Model:
    return Model(model.x, np.where(bad, 0.0, model.c), np.where(bad, np.inf, model.r))


def reciprocal(s: Model) -> Model:
    """1/(a + w) = Σ_{i<=n} (-w)^i/a^(i+1) + (-w)^(n+1)/(a^(n+1) (a + w))."""
    n, sign = s.x.n, np.sign(s.c[0])
    least, bad = _room(s, sign)
    a = np.where(bad, 1.0, s.c[0])
    g = np.empty((n + 1, s.cells))
    g[0] = 1 / a
    for i in range(1, n + 1):
        g[i] = -g[i - 1] / a
    top = (np.abs(g[n]) + _LEAST) / least * (1 + 2.0**-30) + _LEAST
    slope = (1 + 2.0**-30) / least / least + _LEAST
    return _unless(bad, _composed(_unless(bad, s), g, TINY, slope, top))


def log(s: Model) -> Model:
    n = s.x.n
    least, bad = _room(s)
    a = np.where(bad, 1.0, s.c[0])
    g = np.empty((n + 1, s.cells))
    g[0], power = scalars(arb.log, a), np.ones(s.cells)
    for i in range(1, n + 1):
        power = power / a
        g[i] = (1 if i % 2 else -1) * power / i
    slope = (1 + 2.0**-30) / least
    top = (1 + 2.0**-30) * _powers(slope, n)[-1] / (n + 1)
    own = TINY + _ABS * np.eye(n + 1)[:, :1]
    return _unless(bad, _composed(_unless(bad, s), g, own, slope, top))


def real_power(s: Model, q: float) -> Model:
    """s^q for s > 0: g_i = binomial(q, i) a^(q-i); a^(q-n-1) and a^(q-1) are monotone."""
    n = s.x.n
    least, bad = _room(s)
    a, largest = np.where(bad, 1.0, s.c[0]), np.where(bad, 1.0, (s.c[0] + s.spread + s.r) * GROW)
    g = np.empty((n + 1, s.cells))
    g[0] = scalars(lambda y: y ** arb(q), a)
    for i in range(1, n + 1):
        g[i] = g[i - 1] * ((q - i + 1) / i) / a
    factor = 1.0
    for i in range(n + 1):
        factor *= abs(q - i) / (i + 1)

    def most(exponent: float) -> Array:
        ends = (scalars(lambda y: y ** arb(exponent), end) for end in (least, largest))
        return np.maximum(*ends) * (1 + 2.0**-30) + _LEAST

    return _unless(bad, _composed(_unless(bad, s), g, TINY, abs(q) * most(q - 1), factor * most(q - n - 1)))


def power(s: Model, exponent: int | float) -> Model:
    if isinstance(exponent, float):
        return real_power(s, exponent)
    if exponent == 0:
        return s.x.constant(1.0, s.cells)
    return s.power(exponent) if exponent > 0 else reciprocal(s.power(-exponent))


def absolute(s: Model) -> Model:
    """|s|: s or -s where the sign is known. Elsewhere, for s in [l, m], αs + β with the chord's α = (m + l)/(m - l) and
    β = -lm/(m - l); |s| - αs - β is convex and piecewise linear, so its largest size is that at l, 0 or m."""
    low, high = s.range
    around = ~((low >= 0) | (high <= 0))
    side = s.where(low >= 0, -s)
    if not around.any():
        return side
    with np.errstate(all="ignore"):
        slope = np.where(around, (high + low) / (high - low), 0.0)
        lift = np.where(around, -low * (high / (high - low)), 0.0)
        ends = np.maximum(np.abs(-low * (1 + slope) - lift), np.abs(high * (1 - slope) - lift))
    off = np.maximum(ends, np.abs(lift)) + 16 * U * (np.abs(low) + np.abs(high))
    chord = s.scaled(slope).shifted(lift)
    return Model(s.x, chord.c, (chord.r + off) * GROW).where(around, side)


def maximum(a: Model, b: Model) -> Model:
    """(a + b + |a - b|)/2, and a or b itself where it is known to be the larger."""
    low, high = (a - b).range
    both = (a + b + absolute(a - b)).scaled(0.5)
    return a.where(low >= 0, b.where(high <= 0, both))


def minimum(a: Model, b: Model) -> Model:
    return -maximum(-a, -b)


def where(c: Model, a: Model, b: Model) -> Model:
    """a where c is known to be positive, b where it is known not to be. Elsewhere both, if c is
    defined: (a + b)/2 ± |a - b|/2."""
    low, high = c.range
    hull = (a + b).scaled(0.5)
    radius = (hull.r + (a - b).size / 2) * GROW + TINY
    hull = Model(a.x, hull.c, np.where(np.isfinite(c.size), radius, np.inf))
    return a.where(low > 0, b.where(high <= 0, hull))


OPERATIONS: dict[str, Callable[..., Model]] = {
    "add": Model.__add__, "subtract": Model.__sub__, "multiply": Model.__mul__, "divide": lambda a, b: a * reciprocal(b),
    "maximum": maximum, "minimum": minimum, "negate": Model.__neg__, "absolute": absolute, "exp": exp, "log": log, "sin": sin,
    "cos": cos, "sqrt": lambda s: real_power(s, 0.5), "erf": erf, "atan": atan, "power": power, "where": where,
}  # fmt: skip


def models(f: Traced, x: Monomials, centre: Array, half: Array) -> list[Model]:
    """Taylor models of the outputs of f on cells centre ± half, (M, d)."""
    inputs = [x.variable(j, centre[:, j], half[:, j]) for j in range(x.d)]
    with np.errstate(all="ignore"):
        return f.interpret(inputs, OPERATIONS, lambda c: x.constant(c, len(centre)))
