"""How far a learner can be from the exact algorithm: the error of one step, then of all of them.

**Gradient descent.** Let w̃ be the content of the weight token, G(w) = w - η((1/n) Σ r_i x_i + λw) the exact step (for the lasso
followed by the soft threshold), and |x_ij| <= X, |y_i| <= Y, |w̃_j| <= W, |w̃·x_i| <= U. In every coordinate

    A    |u_i - w̃·x_i| <= α + γ_d d X W                  α the bound of the reading head
    B    |g_i - ψ(·)| <= β + Lip(ψ)|u_i - w̃·x_i|         β the bound of the activation
    C    |c_j - (1/n) Σ r̂_i x_ij| <= the theorem of `gathering`, plus rounding
    w    |w̃' - G(w̃)| <= η(|r̂ - r| X + C) + rounding =: δ

G is non-expansive in the Euclidean norm if η(L + λ) <= 2, L the largest eigenvalue of Lip(ψ)·XᵀX/n, and contracts by
q = max(|1 - ηλ|, |η(L + λ) - 1|) with a ridge. After T steps the distance to exact gradient descent is at most
√d δ (1 + q + … + q^{T-1}). The soft threshold is non-expansive, and its head adds its own error. If the curvature is known on
|u| <= U only, exact gradient descent must stay in an interval that is slightly wider.

**Newton's iteration.** Let an executed step differ from the exact one by E, ‖E‖ <= ε. Then I - P'A = (I - PA)² - EA, so
ρ = ‖I - PA‖ obeys ρ' <= ρ² + ε‖A‖; I - AP likewise. From P = αI with α‖A‖ <= 1 it starts at ρ <= 1 - αλ. The solution
w* = A⁻¹b obeys ‖Pᵀb - w*‖ = ‖(I - PᵀA)w*‖ <= ρ‖b‖/λ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flint import arb, arb_series

from attnc.arguments import checked_count, checked_nonnegative
from attnc.arithmetic import Arithmetic
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.functions import Function
from attnc.functions.balls import upper, working
from attnc.incontext.layers import gather_error
from attnc.incontext.settings import LearnerSettings, SolverSettings
from attnc.prove.outward import gamma
from attnc.records.fields import round_up

_ROOM = 1 + 2.0**-40  # covers the rounding of a few float64 operations on numbers that are not negative
LARGEST_Q = 2.0  # ‖PA‖ <= 1 + ρ
EXACT = Arithmetic("exact", 0.0, 0.0, math.inf, exp_units=0)  # arithmetic without rounding


@dataclass(frozen=True)
class HeadErrors:
    """One term of the certificates of a learner's heads, and the domain of the activation."""

    reading: float
    activation: float = 0.0
    domain: Interval | None = None  # of the activation
    threshold: float | None = None


@dataclass(frozen=True)
class LearnerBound:
    """The bound of gradient descent for given settings and head errors, in one arithmetic."""

    settings: LearnerSettings
    heads: HeadErrors
    arithmetic: Arithmetic

    def residual(self) -> tuple[float, float]:
        """R >= |r̂_i|, and a bound of |r̂_i - r_i|."""
        a, s, heads = self.arithmetic, self.settings, self.heads
        r, d = s.radius, s.features
        off = (heads.reading + gamma(d + 1, a.unit) * d * r.x * r.w) * _ROOM
        off += 8 * a.tiny * (r.x + r.w + 1) * d
        if heads.domain is None:
            size = (r.u + r.y + off) * (1 + a.unit) * _ROOM
            return size, (off + a.unit * size) * _ROOM
        assert s.loss.function is not None
        steep = s.loss.steepest(heads.domain.lo, heads.domain.hi)
        largest = largest_value(s.loss.function, heads.domain)
        if s.loss.of_residual:
            off = (off + a.unit * (r.u + r.y + off) + a.tiny) * _ROOM
            return (largest + heads.activation) * _ROOM, (heads.activation + steep * off) * _ROOM
        size = (largest + heads.activation + r.y) * (1 + a.unit) * _ROOM
        return size, (heads.activation + steep * off + a.unit * size) * _ROOM

    def step_error(self, n: int) -> dict[str, float]:
        """δ, term by term: the largest distance of one coordinate after one step from the exact step."""
        a, s = self.arithmetic, self.settings
        radius, eta, e = s.radius, s.step_size, s.e
        size, off = self.residual()
        found = gather_error(e, n, size, radius.x, a)
        first, second = 4 * eta / (3 * e), eta / (6 * e)
        shrink = eta * s.loss.ridge
        passing = radius.w + first * found.size_one + second * found.size_two + shrink * radius.w
        rounding = first * found.one + second * found.two + gamma(5, a.unit) * passing
        rounding += 16 * a.tiny * (1 + passing)
        head = 0.0
        if self.heads.threshold is not None:
            head = self.heads.threshold + a.unit * (radius.w + 2 * passing)
        return {
            "reading and activation": eta * off * radius.x * _ROOM,
            "gathering": eta * found.approximation * _ROOM,
            "rounding": rounding * _ROOM,
            "threshold": head * _ROOM,
        }

    def bound(self, n: int, curvature: float | None = None) -> float:
        """The distance after all steps, for n examples; `curvature`, at least L, lets a ridge contract."""
        checked_count("n", n)
        if curvature is not None:
            checked_nonnegative("curvature", curvature)
        s = self.settings
        one = math.sqrt(s.features) * sum(self.step_error(n).values()) * _ROOM
        if not math.isfinite(one):
            return math.inf
        q = 1.0
        if curvature is not None and s.loss.ridge > 0 and not s.intercept:
            q = max(abs(1 - s.step_size * s.loss.ridge), abs(s.step_size * (curvature + s.loss.ridge) - 1))
        total = float(s.steps)
        if total * (1 - q) > 1e-6:  # else the quotient is inaccurate
            total = min(total, (1 - q**s.steps) / (1 - q) * (1 + 2.0**-30))
        found = round_up(one * total * _ROOM)
        return math.inf if s.loss.local and not self._stays(found) else found

    def _stays(self, distance: float) -> bool:
        """Whether exact gradient descent within `distance`, and w·x unrounded, stay where the curvature is known."""
        d, r = self.settings.features, self.settings.radius
        rounded = gamma(d + 1, self.arithmetic.unit) * d * r.x * r.w
        return distance * math.sqrt(d) * r.x + rounded <= 0.009 * r.u


@dataclass(frozen=True)
class SolverBound:
    """The bound of Newton's iteration for given settings and reading error, in one arithmetic."""

    settings: SolverSettings
    reading: float
    arithmetic: Arithmetic

    def step_error(self, n: int) -> float:
        """ε: at least ‖E‖, d times the largest entry."""
        a, s = self.arithmetic, self.settings
        d, r = s.features, s.radius
        read = self.reading + gamma(d + 1, a.unit) * d * r.x * r.p + 16 * a.tiny * d * (r.x + r.p + 1)
        mean = mean_error(s.scales[0], n, (r.u + read) * _ROOM, r.x, a)
        passing = 4 * r.x * (r.u + read) + 2 * mean + s.ridge * r.p
        off_q = (r.x * read + mean + gamma(6, a.unit) * passing) * _ROOM
        product = d * mean_error(s.scales[1], d, LARGEST_Q, r.p, a)
        passing = 2 * r.p + 4 * d * LARGEST_Q * r.p + 2 * product
        entry = product + d * off_q * r.p + gamma(8, a.unit) * passing
        return d * entry * _ROOM + 64 * a.tiny * d * d * (1 + r.p)

    def bound(self, n: int, smallest: float | None = None, largest: float | None = None) -> float:
        """`smallest` and `largest`: known bounds of the eigenvalues of A; without them λ and d·x² + λ."""
        a, s = self.arithmetic, self.settings
        d, r = s.features, s.radius
        checked_count("n", n)
        low = s.ridge if smallest is None else smallest
        high = (d * r.x**2 + s.ridge) if largest is None else largest
        if not 0 < low <= high < math.inf:
            raise InputError(
                f"smallest={low!r}, largest={high!r}: give eigenvalue bounds with 0 < smallest <= largest"
            )
        if not s.start * high <= 1:
            return math.inf
        rho, step = (max(1 - s.start * low, 2.0**-50) + 2 * a.unit) * _ROOM, self.step_error(n)
        for _ in range(s.iterations):
            rho = (rho * rho + step * high) * _ROOM
            if not rho < 1:
                return math.inf
        mean, size_b = mean_error(s.scales[2], n, r.y, r.x, a), r.x * r.y
        off_b = mean + gamma(6, a.unit) * (4 * size_b + 2 * mean)
        last = d * mean_error(s.scales[1], d, max(size_b + off_b, LARGEST_Q), r.p, a)
        last += d * r.p * off_b + gamma(8, a.unit) * (4 * d * (size_b + off_b) * r.p + 2 * last)
        exact = math.sqrt(d) * size_b / low
        return round_up((rho * exact + math.sqrt(d) * last) * _ROOM)


def mean_error(e: float, n: int, largest_r: float, largest_x: float, a: Arithmetic) -> float:
    """At least |(4h(e) - h(2e))/3 as executed - mean of r x|, without the rounding of the final sums."""
    found = gather_error(e, n, largest_r, largest_x, a)
    return (found.approximation + 4 / (3 * e) * found.one + found.two / (6 * e)) * _ROOM


def best_scale(n: int, largest_r: float, largest_x: float, a: Arithmetic) -> float:
    """The power of two e with the smallest `mean_error`."""
    top = math.floor(math.log2(0.6 / largest_r))
    scales = (2.0**k for k in range(top - 30, top + 1))
    return min(scales, key=lambda e: mean_error(e, n, largest_r, largest_x, a))


def largest_value(f: Function, domain: Interval, cells: int = 256) -> float:
    """At least |f| on the domain."""
    with working(64):
        half = arb(domain.width) / (2 * cells)
        middles = [arb(domain.lo) + (2 * k + 1) * half for k in range(cells)]
        return max(upper(abs(f.over(m + arb(0, upper(half))))) for m in middles)


def is_monotone(f: Function, domain: Interval, depth: int = 12) -> bool:
    """Whether f is proved to be non-decreasing on the domain, so that it is the derivative of a convex loss."""
    with working(64, 2):
        todo = [(piece.lo, piece.hi, piece.branch, depth) for piece in f.pieces(domain.lo, domain.hi)]
        while todo:
            lo, hi, branch, left = todo.pop()
            middle = lo / 2 + hi / 2
            try:
                slope = branch(arb_series([arb(middle, max(hi - middle, middle - lo)), 1]))[1]
            except (ValueError, ZeroDivisionError):  # the cell is too wide
                slope = arb("nan")
            if slope >= 0:
                continue
            if not left or slope < 0:
                return False
            todo += [(lo, middle, branch, left - 1), (middle, hi, branch, left - 1)]
    return True
