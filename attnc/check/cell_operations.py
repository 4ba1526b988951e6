"""The operations of traced functions on values over many cells (`cell_values` says what holds of them), and the remainder of
interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from attnc.check import real_functions as real
from attnc.check.cell_values import (
    RADII,
    CellValue,
    above,
    below,
    carried,
    chosen,
    column,
    exp_above,
    made,
    relative_radius,
    up,
)
from attnc.check.real_functions import LEAST, U
from attnc.domain import Array
from attnc.program import Traced

_NEAR_ZERO = 1 / 16  # a root of an interval [l, m] with l < m/16 is enclosed by a chord


class Cells:
    """M cells, and the operations of traced functions on their values. `defined` is False for cells where one may not be."""

    def __init__(self, low: Array, high: Array, nodes: Array | None = None) -> None:
        """Cells [low, high] (M, d), and if asked for, the nodes in [-1, 1] along each axis, rounded."""
        self.low, self.high, self.at = low, high, nodes
        self.axes = low.shape[1]
        self.defined = np.ones(len(low), bool)

    def inputs(self) -> list[CellValue]:
        found = []
        for j, (low, high) in enumerate(zip(self.low.T, self.high.T, strict=True)):
            c, h = low / 2 + high / 2, high / 2 - low / 2
            nodes = None
            if self.at is not None:
                shape = [1] * self.axes
                shape[j] = -1
                nodes = (c[:, None] + h[:, None] * self.at).reshape(len(c), *shape)
            error = up(8 * U * (np.abs(c) + h))
            radius = up(RADII[:, None] * h + 4 * U * np.abs(c))
            found.append(CellValue(c, radius, low, high, np.zeros(1), nodes, error))
        return found

    def constant(self, number: float) -> CellValue:
        at, none = np.array([number]), np.zeros(1)
        nodes = None if self.at is None else np.full((1,) * (1 + self.axes), number)
        return CellValue(at, np.zeros((len(RADII), 1)), at, at, none, nodes, none)

    def outputs(self, f: Traced) -> list[CellValue]:
        table: dict[str, Callable[..., CellValue]] = {
            "add": self.add, "subtract": self.subtract, "multiply": self.multiply, "divide": self.divide,
            "maximum": self.maximum, "minimum": self.minimum, "negate": self.negate, "absolute": self.absolute, "exp": self.exp,
            "log": self.log, "sin": self.sin, "cos": self.cos, "sqrt": self.sqrt, "erf": self.erf, "power": self.power,
            "atan": self.atan, "where": self.where,
        }  # fmt: skip
        with np.errstate(all="ignore"):
            return f.interpret(self.inputs(), table, self.constant)

    def negate(self, a: CellValue) -> CellValue:
        nodes = None if a.nodes is None else -a.nodes
        return CellValue(-a.centre, a.radius, -a.high, -a.low, a.rest, nodes, a.error)

    def add(self, a: CellValue, b: CellValue) -> CellValue:
        low, high = below(a.low + b.low), above(a.high + b.high)
        low = np.where((a.low >= 0) & (b.low >= 0), np.maximum(low, 0), low)
        high = np.where((a.high <= 0) & (b.high <= 0), np.minimum(high, 0), high)
        nodes = None if a.nodes is None or b.nodes is None else a.nodes + b.nodes
        error = up(a.error + b.error + 2 * U * (a.size + b.size))
        return made(
            a.centre + b.centre,
            a.radius + b.radius,
            (low, high),
            carried(a.rest + b.rest, a, b),
            nodes,
            error,
        )

    def subtract(self, a: CellValue, b: CellValue) -> CellValue:
        if a is b:
            return self.constant(0.0)
        return self.add(a, self.negate(b))

    def multiply(self, a: CellValue, b: CellValue) -> CellValue:
        corners = np.stack(
            np.broadcast_arrays(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high)
        )
        low, high = below(corners.min(0)), above(corners.max(0))
        signs = ((a.low >= 0) & (b.low >= 0)) | ((a.high <= 0) & (b.high <= 0)) | (a is b)
        low = np.where(signs, np.maximum(low, 0), low)
        radius = np.abs(a.centre) * b.radius + np.abs(b.centre) * a.radius + a.radius * b.radius
        rest = carried(a.size * b.rest + b.size * a.rest + a.rest * b.rest, a, b)
        nodes = None if a.nodes is None or b.nodes is None else a.nodes * b.nodes
        error = up(a.size * b.error + b.size * a.error + a.error * b.error + 2 * U * a.size * b.size)
        return made(a.centre * b.centre, radius, (low, high), rest, nodes, error)

    def divide(self, a: CellValue, b: CellValue) -> CellValue:
        start, end = b.reach
        least = np.maximum(start, -end)  # at most |b|, where it is positive
        self.defined &= least > 0
        corners = np.stack(
            np.broadcast_arrays(a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high)
        )
        low, high = below(corners.min(0)), above(corners.max(0))
        low = np.where((a.low >= 0) & (b.low > 0), np.maximum(low, 0), low)
        own = np.abs(b.centre)
        left = np.where(own > b.radius, own - b.radius, np.nan)
        radius = up(own * a.radius + np.abs(a.centre) * b.radius) / own / left * (1 + 2.0**-40)
        least = np.where(least > 0, least, np.nan)  # divided by twice: its square may not be a float
        rest = carried(up(up(a.rest * b.size + a.size * b.rest) / least) / least, a, b)
        nodes = None if a.nodes is None or b.nodes is None else a.nodes / b.nodes
        quotient = up(a.size / least)
        error = up(up(up(a.error * b.size + a.size * b.error) / least) / least + 2 * U * quotient)
        return made(a.centre / b.centre, radius, (low, high), rest, nodes, error)

    def _composed(
        self,
        a: CellValue,
        g: Callable[[Array], Array],
        wrong: Callable[[Array], Array],
        slope: Array,
        radius: Array,
        ends: tuple[Array, Array],
    ) -> CellValue:
        """g(a), where |computed g - g| <= wrong(computed g); `slope` is at least |g'| on `a.reach`, `radius` at least
        |g(A) - g(centre)| on the discs."""
        centre = g(a.centre)
        nodes, error = None, slope * a.error
        if a.nodes is not None:
            nodes = g(a.nodes)
            error = error + wrong(np.maximum(np.abs(ends[0]), np.abs(ends[1])) + slope * (a.rest + a.error))
        rest = carried(slope * a.rest, a)
        return made(centre, radius + wrong(np.abs(centre)), ends, rest, nodes, up(error))

    def exp(self, a: CellValue) -> CellValue:
        """∫_0^r e^t dt <= r(1 + e^r)/2: the trapezoid lies above a convex function."""
        ends = (np.maximum(below(real.exp(a.low) * (1 - 2.0**-44) - LEAST), 0), exp_above(a.high))
        radius = up(exp_above(a.centre) * (a.radius * (1 + exp_above(a.radius)) / 2))
        slope = exp_above(a.reach[1])
        return self._composed(a, real.exp, lambda y: up(2 * real.EXP * y), slope, radius, ends)

    def _wave(self, a: CellValue, which: int) -> CellValue:
        """|sin(c + z) - sin c| <= |cos c| sinh r + |sin c| (cosh r - 1) for |z| <= r, both integrals by trapezoids."""
        sine, cosine = real.sin_cos(a.centre)
        own, other = (sine, cosine) if which == 0 else (cosine, sine)
        large, small = exp_above(a.radius), exp_above(-a.radius)
        cosh, sinh = up((large + small) / 2), up(large / 2)
        sinh = np.minimum(up(a.radius * (1 + cosh) / 2), sinh)
        radius = (np.abs(other) + real.TRIG) * sinh + (np.abs(own) + real.TRIG) * a.radius * sinh / 2
        middle, half = a.low / 2 + a.high / 2, up((a.high - a.low) / 2 + U * (np.abs(a.low) + np.abs(a.high)))
        at, slope = real.sin_cos(middle)[which], real.sin_cos(middle)[1 - which]
        wide = up((np.abs(slope) + real.TRIG) * half + half * half / 2 + real.TRIG)
        ends = np.fmax(below(at - wide), -1.0), np.fmin(above(at + wide), 1.0)
        one = np.ones(1)
        return self._composed(
            a, lambda x: real.sin_cos(x)[which], lambda y: real.TRIG + 0 * y, one, radius, ends
        )

    def sin(self, a: CellValue) -> CellValue:
        return self._wave(a, 0)

    def cos(self, a: CellValue) -> CellValue:
        return self._wave(a, 1)

    def erf(self, a: CellValue) -> CellValue:
        """|erf'(c + z)| = 2/√π e^{-Re (c+z)²}, and -Re (c+z)² <= r² - c²/2 if |c| <= 2r, else -(|c| - r)²."""
        own = np.abs(a.centre)
        exponent = np.where(
            own <= 2 * a.radius,
            above(above(a.radius**2) - below(own**2) / 2),
            -below(below(own - a.radius) ** 2),
        )
        radius = up(1.13 * a.radius * exp_above(exponent))
        ends = below(real.erf(a.low) - real.ERF), above(real.erf(a.high) + real.ERF)
        return self._composed(a, real.erf, lambda y: real.ERF + 0 * y, np.full(1, 1.13), radius, ends)

    def atan(self, a: CellValue) -> CellValue:
        """|atan'(c + z)| = 1/|1 + (c+z)²| for |z| = t is at most 1/p(t), p(t) = 1 + c² - 2|c|t - t², which is convex, and at most
        1/(w - t)² with w = √(1 + c²), the distance of c from ±i: integrals by a trapezoid, and r/(w(w - r))."""
        own = np.abs(a.centre)
        start, more = (1 + own * own) * (1 - 2.0**-40), up(2 * own * a.radius + a.radius**2)
        left = below(start - more)
        slanted = up(a.radius * (1 / start + 1 / np.where(left > 0, left, np.nan)) / 2)
        away = np.sqrt(start) * (1 - 2.0**-40)
        gap = below(away - a.radius)
        radius = np.fmin(slanted, up(a.radius / away / np.where(gap > 0, gap, np.nan)))
        low, high = a.reach
        least = np.maximum(np.maximum(low, -high), 0.0)
        ends = below(real.atan(a.low) - real.ATAN), above(real.atan(a.high) + real.ATAN)
        return self._composed(
            a, real.atan, lambda y: real.ATAN + 0 * y, up(1 / (1 + least * least)), radius, ends
        )

    def where(self, c: CellValue, a: CellValue, b: CellValue) -> CellValue:
        """a where c is known to be positive, b where it is known not to be. Elsewhere (A_a + A_b)/2 and a rest of at least
        |A_a - A_b|/2, which is at most (|a - b| + the rests)/2, and the rest of either."""
        mean = self.multiply(self.constant(0.5), self.add(a, b))
        rest = up(np.maximum(a.rest, b.rest) + (a.rest + b.rest + self.subtract(a, b).size) / 2)
        ends = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
        hull = CellValue(
            mean.centre, mean.radius, *ends, np.where(np.isnan(rest), np.inf, rest), mean.nodes, mean.error
        )
        return chosen(c.low > 0, a, chosen(c.high <= 0, b, hull))

    def log(self, a: CellValue) -> CellValue:
        """∫_0^q dt/(1 - t) <= q(1 + 1/(1 - q))/2 with q = r/c."""
        start, _ = a.reach
        good = start >= LEAST
        self.defined &= good
        start = np.where(good, start, np.nan)
        q = relative_radius(a)
        radius = up(q * (1 + (1 + 2.0**-40) / (1 - q)) / 2)
        low, high = real.log(a.low), real.log(a.high)
        ends = below(low - 2 * real.log_error(low)), above(high + 2 * real.log_error(high))
        slope = up(1 / start)
        return self._composed(a, real.log, lambda y: 2 * real.log_error(y), slope, radius, ends)

    def sqrt(self, a: CellValue) -> CellValue:
        """√c (1 - √(1 - q)) = √c q/(1 + √(1 - q)) bounds the disc. Near 0, where √ is not analytic, with a = 1/(√l + √m):
        √v - av lies between its value at the ends l, m, the same at both, and 1/4a."""
        self.defined &= a.low >= 0
        bottom, top = np.maximum(a.low, 0.0), np.maximum(a.high, 0.0)
        ends = np.maximum(below(np.sqrt(bottom)), 0.0), above(np.sqrt(top))
        q, (start, _) = relative_radius(a), a.reach
        radius = up(np.sqrt(np.maximum(a.centre, 0)) * q / (1 + np.sqrt(1 - q)) * (1 + 2.0**-40))
        slope = up(0.5 / np.sqrt(np.where(start > 0, start, np.nan)))
        smooth = self._composed(
            a, lambda x: np.sqrt(np.maximum(x, 0)), lambda y: 2 * U * y, slope, radius, ends
        )
        near = np.asarray(a.low < _NEAR_ZERO * a.high)
        if not near.any():
            return smooth
        slant = 1 / (ends[0] + ends[1])
        flat = [np.sqrt(end) - slant * end for end in (bottom, top)]
        wrong = up(8 * U * (np.sqrt(top) + slant * top))
        least, most = np.minimum(*flat) - wrong, up(0.25 / slant) + wrong
        middle = np.where(top > 0, (least + most) / 2, 0.0)
        half = np.where(top > 0, up((most - least) / 2 + 4 * U * (np.abs(least) + np.abs(most))), 0.0)
        chord = self._affine(a, np.where(top > 0, slant, 0.0), middle, half, ends)
        return chosen(near, chord, smooth)

    def power(self, a: CellValue, exponent: int | float) -> CellValue:
        if isinstance(exponent, float):
            return self._real_power(a, exponent)
        if exponent < 0:
            return self.divide(self.constant(1.0), self.power(a, -exponent))
        if exponent == 0:
            return self.constant(1.0)
        if exponent == 1:
            return a
        half = self.power(a, exponent // 2)
        square = self.multiply(half, half)
        return self.multiply(square, a) if exponent % 2 else square

    def _real_power(self, a: CellValue, q: float) -> CellValue:
        """e^(q log a)."""
        return self.exp(self.multiply(self.constant(q), self.log(a)))

    def _affine(
        self, a: CellValue, slope: Array, shift: Array, rest: Array, ends: tuple[Array, Array]
    ) -> CellValue:
        """A value that is slope·a + shift ± rest, slope and shift being any numbers."""
        centre, radius = slope * a.centre + shift, np.where(slope == 0, 0.0, np.abs(slope) * a.radius)
        size = np.abs(slope) * np.maximum(a.size, np.abs(a.centre)) + np.abs(shift)
        nodes = (
            None
            if a.nodes is None
            else column(slope, a.nodes) * a.nodes + column(shift * np.ones(1), a.nodes)
        )
        error = up(np.abs(slope) * a.error + 8 * U * size)
        whole = np.where(rest == 0, carried(np.abs(slope) * a.rest, a), up(np.abs(slope) * a.rest + rest))
        return made(centre, radius + 4 * U * size, ends, whole, nodes, error)

    def absolute(self, a: CellValue) -> CellValue:
        """αv + β ± β, where β is so large that both ends of the chord are below it; α = ±1 and β = 0 without a kink."""
        kink = (a.low < 0) & (a.high > 0)
        span = np.where(kink, a.high - a.low, 1.0)
        slope = np.where(kink, np.clip((a.high + a.low) / span, -1, 1), np.where(a.low >= 0, 1.0, -1.0))
        rise = np.maximum(up((-a.low) * (1 + slope) / 2), up(a.high * (1 - slope) / 2)) * (1 + 2.0**-40)
        rise = np.where(kink, rise, 0.0)
        low = np.where(kink, 0.0, np.minimum(np.abs(a.low), np.abs(a.high)))
        return self._affine(a, slope, rise, rise, (low, np.maximum(np.abs(a.low), np.abs(a.high))))

    def maximum(self, a: CellValue, b: CellValue) -> CellValue:
        """b + (u + |u|)/2 with u = a - b, in the range [l, m]: λa + (1-λ)b + β ± β with the chord of max(u, 0)."""
        least, most = below(a.low - b.high), above(a.high - b.low)
        kink = (a.low < b.high) & (a.high > b.low)
        share = np.where(kink, np.clip(most / (most - least), 0, 1), np.where(a.low >= b.high, 1.0, 0.0))
        share = np.where(a is b, 1.0, share)
        rise = np.maximum(up((-least) * share / 2), up(most * (1 - share) / 2)) * (1 + 2.0**-40)
        rise = np.where(kink & (a is not b), rise, 0.0)
        return self._mixed(a, b, share, rise, (np.maximum(a.low, b.low), np.maximum(a.high, b.high)))

    def minimum(self, a: CellValue, b: CellValue) -> CellValue:
        return self.negate(self.maximum(self.negate(a), self.negate(b)))

    def _mixed(
        self, a: CellValue, b: CellValue, share: Array, rise: Array, ends: tuple[Array, Array]
    ) -> CellValue:
        """A value that is λa + (1-λ)b + rise ± rise."""
        other = 1 - share  # rounded once, by 2u at most: counted below

        def mix(x: Array, y: Array) -> Array:
            return np.where(share == 0, 0, share * x) + np.where(other == 0, 0, other * y)

        largest = [np.maximum(x.size, np.abs(x.centre)) for x in (a, b)]
        size = mix(*largest) + rise + largest[1]
        nodes = None
        if a.nodes is not None and b.nodes is not None:
            given = (column(share, a.nodes), column(other, a.nodes), column(rise, a.nodes))
            nodes = given[0] * a.nodes + given[1] * b.nodes + given[2]
        error = up(mix(a.error, b.error) + 8 * U * size)
        radius = mix(a.radius, b.radius) + 8 * U * size
        one = ((share == 0) | (share == 1)) & (rise == 0)  # no kink
        rest = up(mix(a.rest, b.rest) + rise + 2 * U * b.size)
        rest = np.where(one, np.where(share == 0, b.rest, a.rest), rest)
        centre = mix(a.centre, b.centre) + rise
        return made(centre, radius, ends, rest, nodes, error)


def remainder_factors(degree: int, axes: int) -> Array:
    """For each radius R > 1, a number c with |g - its interpolant at (degree+1)^axes Chebyshev nodes| <= c·M on the cell, if g is
    analytic and |g| <= M on the polydisc of R.

    The ellipse with the foci ±1 and the half-axes (ρ ± 1/ρ)/2, ρ = R + √(R² - 1), is in the disc of R. So the coefficients of
    the Chebyshev series are at most 2^d M ρ^-|α|, those with α_j = 0 half of it for each such j; interpolation replaces each
    T_α beyond the degree by ±T_β or 0, hence errs by at most twice their sum: 4 d M ρ^-n/(ρ-1) (1 + 2/(ρ-1))^(d-1)."""
    found = np.full(len(RADII), np.inf)
    for i, r in enumerate(RADII.tolist()):
        if r > 1:
            rho = (r + math.sqrt(r * r - 1)) * (1 - 2.0**-40)
            product = math.prod([1 / rho] * degree + [1 + 2 / (rho - 1)] * (axes - 1))
            found[i] = 4 * axes * product / (rho - 1) * (1 + 2.0**-30)
    return found
