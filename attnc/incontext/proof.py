"""How far the learner can be from exact gradient descent: one step, then all of them.

Let w̃ be what the weight token holds, G(w) = w - η((1/n) Σ r_i x_i + λw) the exact step (for lasso with the soft threshold behind
it), and |x_ij| <= X, |y_i| <= Y, |w̃_j| <= W, |w̃·x_i| <= U. Coordinate by coordinate

    A    |u_i - w̃·x_i| <= α + γ_d d X W                  α the proved error of the reading head
    B    |g_i - ψ(·)| <= β + Lip(ψ)|u_i - w̃·x_i|         β that of the activation
    C    |c_j - (1/n) Σ r̂_i x_ij| <= the theorem of `gathering`, and rounding
    w    |w̃' - G(w̃)| <= η(|r̂ - r| X + C) + rounding =: δ

G is non-expansive in the Euclidean norm where η(L + λ) <= 2, L the largest eigenvalue of Lip(ψ)·XᵀX/n, and contracts by
q = max(|1 - ηλ|, |η(L + λ) - 1|) with a ridge. So after T steps the distance to exact gradient descent is at most
√d δ (1 + q + … + q^{T-1}). The soft threshold is non-expansive, and its head adds its own error. Where the curvature is known on
|u| <= U alone, exact gradient descent must be so near that it does not leave an interval a little wider."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flint import arb, arb_series

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.functions import Function
from attnc.functions.balls import upper, working
from attnc.incontext.gathering import gather_error
from attnc.incontext.inputs import checked_count
from attnc.incontext.losses import Loss
from attnc.incontext.radius import Radius
from attnc.prove.outward import gamma
from attnc.records.certificate import Certificate
from attnc.records.fields import round_up

_ROOM = 1 + 2.0**-40  # a handful of float64 operations on numbers that are not negative


@dataclass(frozen=True)
class LearnerCertificate:
    """|w_T - w_T^GD|₂ <= bound(n) for every context of n examples within the radius whose step size does not diverge."""

    loss: Loss
    features: int  # an intercept among them
    steps: int
    step_size: float
    radius: Radius
    dtype: str
    e: float
    reading: Certificate
    activation: Certificate | None
    threshold: Certificate | None
    intercept: bool = False  # the last coefficient, which no penalty counts: then a ridge does not contract

    def __str__(self) -> str:
        return (
            f"{self.loss.name}, {self.steps} steps of {self.step_size:.4g} in {self.dtype}: "
            f"|w - w_GD| <= {self.bound(100):.3g} for 100 examples, {self.bound(10_000):.3g} for 10,000, "
            f"within {self.radius}"
        )

    def residual(self) -> tuple[float, float]:
        """R >= |r̂_i|, and a bound of |r̂_i - r_i|."""
        a, radius = ARITHMETIC[self.dtype], self.radius
        off = self.reading.bound + gamma(self.features + 1, a.unit) * self.features * radius.x * radius.w
        off = off * _ROOM + 8 * a.tiny * (radius.x + radius.w + 1) * self.features
        if self.activation is None:
            size = (radius.u + radius.y + off) * (1 + a.unit) * _ROOM
            return size, (off + a.unit * size) * _ROOM
        steep = self.loss.steepest(self.activation.interval.lo, self.activation.interval.hi)
        assert self.loss.function is not None
        largest = largest_value(self.loss.function, self.activation.interval)
        if self.loss.of_residual:
            off = (off + a.unit * (radius.u + radius.y + off) + a.tiny) * _ROOM
            return (largest + self.activation.bound) * _ROOM, (self.activation.bound + steep * off) * _ROOM
        size = (largest + self.activation.bound + radius.y) * (1 + a.unit) * _ROOM
        return size, (self.activation.bound + steep * off + a.unit * size) * _ROOM

    def step_error(self, n: int) -> dict[str, float]:
        """δ, term by term: the largest distance of one coordinate after one step from the exact step."""
        a, radius, eta = ARITHMETIC[self.dtype], self.radius, self.step_size
        size, off = self.residual()
        found = gather_error(self.e, n, size, radius.x, a)
        first, second = 4 * eta / (3 * self.e), eta / (6 * self.e)
        shrink = eta * self.loss.ridge
        passing = radius.w + first * found.size_one + second * found.size_two + shrink * radius.w
        rounding = (
            first * found.one + second * found.two + gamma(5, a.unit) * passing + 16 * a.tiny * (1 + passing)
        )
        head = 0.0
        if self.threshold is not None:
            head = self.threshold.bound + a.unit * (radius.w + 2 * passing)
        return {
            "reading and activation": eta * off * radius.x * _ROOM,
            "gathering": eta * found.approximation * _ROOM,
            "rounding": rounding * _ROOM,
            "threshold": head * _ROOM,
        }

    def bound(self, n: int, curvature: float | None = None) -> float:
        """The distance after all steps, for n examples; `curvature`, at least L, allows the contraction of a ridge."""
        checked_count("n", n)
        if curvature is not None and not 0 <= curvature < math.inf:
            raise InputError(f"curvature={curvature!r}: a finite number that is not negative is accepted")
        one = math.sqrt(self.features) * sum(self.step_error(n).values()) * _ROOM
        q = 1.0
        if curvature is not None and self.loss.ridge > 0 and not self.intercept:
            q = max(
                abs(1 - self.step_size * self.loss.ridge),
                abs(self.step_size * (curvature + self.loss.ridge) - 1),
            )
        if not math.isfinite(one):
            return math.inf
        total = float(self.steps)
        if total * (1 - q) > 1e-6:  # else the quotient would lose what it has
            total = min(total, (1 - q**self.steps) / (1 - q) * (1 + 2.0**-30))
        found = round_up(one * total * _ROOM)
        return math.inf if self.loss.local and not self._stays(found) else found

    def _stays(self, distance: float) -> bool:
        """Whether exact gradient descent, so near, and w·x unrounded, lie where the curvature is known: 2 % beyond U."""
        rounded = (
            gamma(self.features + 1, ARITHMETIC[self.dtype].unit)
            * self.features
            * self.radius.x
            * self.radius.w
        )
        return distance * math.sqrt(self.features) * self.radius.x + rounded <= 0.009 * self.radius.u


def largest_value(f: Function, domain: Interval, cells: int = 256) -> float:
    """At least |f| on the domain."""
    with working(64):
        half = arb(domain.width) / (2 * cells)
        middles = [arb(domain.lo) + (2 * k + 1) * half for k in range(cells)]
        return max(upper(abs(f.over(m + arb(0, upper(half))))) for m in middles)


def grows(f: Function, domain: Interval, depth: int = 12) -> bool:
    """Whether f is proved not to fall anywhere on the domain, so that it is the derivative of a convex loss."""
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
