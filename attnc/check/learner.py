"""The bound of a learner or solver, derived again: one step is followed operation by operation, in ball arithmetic.

Every quantity of an executed step is a pair (size, error): |exact| <= size and |executed - exact| <= error, and each operation
rounds once. The exact step is that of gradient descent (or Newton's iteration) at the executed coefficients. Softmax over twins
is the one operation with a lemma of its own (`twin_mean`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from attnc.arithmetic import Arithmetic
from attnc.check.ranges import slope_and_size
from attnc.check.slopes import CellTable
from attnc.functions import Function
from attnc.functions.balls import ball, variable, working

_DOUBLE = arb(2) ** -53  # Python's floats, in which coefficients are computed


@dataclass(frozen=True)
class Tracked:
    """|exact| <= size, |executed - exact| <= error."""

    size: arb
    error: arb

    @property
    def executed(self) -> arb:
        return self.size + self.error


@dataclass(frozen=True)
class Operations:
    """The operations of one dtype on tracked quantities."""

    a: Arithmetic

    def rounded(self, size: arb, error: arb) -> Tracked:
        """The result of one operation whose operands carry `error` into it."""
        return Tracked(size, error + arb(self.a.unit) * (size + error) + arb(self.a.tiny))

    def add(self, *terms: Tracked) -> Tracked:
        """Summed from the left."""
        total = terms[0]
        for term in terms[1:]:
            total = self.rounded(total.size + term.size, total.error + term.error)
        return total

    def scale(self, coefficient: arb, x: Tracked) -> Tracked:
        """c·x for a coefficient that Python computed in three operations and torch rounded to the dtype."""
        off = (1 + _DOUBLE) ** 3 * (1 + arb(self.a.unit)) - 1
        c = abs(coefficient)
        return self.rounded(c * x.size, c * (1 + off) * x.error + c * off * x.size)

    def dot(self, n: int, x: arb, y: arb) -> arb:
        """The error of Σ x_i y_i, |x_i| <= x, |y_i| <= y, of n terms, summed in any order, operands exact."""
        return self.gamma(n + 1) * n * x * y + 8 * n * arb(self.a.tiny) * (x + y + 1)

    def gamma(self, n: int) -> arb:
        lost = n * arb(self.a.unit)
        return lost / (1 - lost) if lost < arb(1) else arb("inf")

    def twin_mean(self, e: float, n: int, r: arb, x: arb) -> Tracked:
        """(4h(e) - h(2e))/3 against (1/n) Σ r_i x_i, for numbers |r_i| <= r and |x_i| <= x of the dtype."""
        series, one, two = self.twins(e, n, r, x)
        total = self.add(self.scale(arb(4) / (3 * arb(e)), one), self.scale(1 / (6 * arb(e)), two))
        return Tracked(x * r, total.error + series)

    def twins(self, e: float, n: int, r: arb, x: arb) -> tuple[arb, Tracked, Tracked]:
        """How far (4h(e) - h(2e))/3 is from (1/n) Σ r_i x_i in exact arithmetic, and the sums e·h(e), 2e·h(2e) as executed.

        The Taylor series in e² begins with the mean, has no e² term, and the others are at most those of
        x r (M(2er) - 1 - (2/3)(2er)²)/3, M(z) = (sinh z/z)/(2 - cosh z)."""
        one, two = (self.twin_sum(factor * arb(e) * r, n, x) for factor in (1, 2))
        z = 2 * arb(e) * r
        if r == 0:
            return arb(0), one, two
        if not (z.cosh() < 2 and is_power_of_two(e)):
            return arb("inf"), one, two
        return (z.sinh() / z / (2 - z.cosh()) - 1 - 2 * z**2 / 3) * x * r / 3, one, two

    def twin_sum(self, rho: arb, n: int, x: arb) -> Tracked:
        """Σ_i (p⁺_i - p⁻_i) x_i, the p softmax of ±z_i with |z_i| <= ρ over 2n keys.

        The executed weight is p(1 + θ_E)(1 + θ_D)/((1 + m)(1 + σ)): θ_E from exp and from z - max z, m = Σpθ_E, θ_D from the
        division, σ from the sum of 2n exponentials. As Σp(θ_E - m)v = Σpθ_E(v - Σpv) and Σp|v - Σpv| <= x for |v| <= x, exp
        moves the sum by at most xθ_E/(1 - θ_E); the division by xθ_D times what the weights have grown. The terms that are
        added have the sizes |p⁺ - p⁻|x, exactly Σ|sinh z|/Σcosh z·x <= tanh ρ·x in all."""
        u, tiny = arb(self.a.unit), arb(self.a.tiny)
        if not 4 * n * u < 1:
            return Tracked(x, arb("inf"))
        exp = (2 * rho * u + 4 * tiny).exp() * (1 + self.a.exp_units * u) - 1
        divided = (1 + u) ** self.a.division_units - 1
        shared = self.gamma(2 * n) / (1 - self.gamma(2 * n))
        exact = x * rho.tanh()
        weights = x * (exp + divided * (1 + exp)) / (1 - exp)
        moved = weights * (1 + shared) + shared * exact
        summed = self.gamma(n + 2) * (exact + moved)
        return Tracked(exact, moved + summed + 32 * n * tiny * (x + 1))


@dataclass(frozen=True)
class HeadBound:
    """|executed head - f| <= error on [lo, hi]."""

    lo: float
    hi: float
    error: float

    def covers(self, reach: arb) -> bool:
        return bool(reach <= arb(self.hi) and -reach >= arb(self.lo))


@dataclass(frozen=True)
class Descent:
    """Gradient descent as a certificate describes it."""

    features: int
    steps: int
    step_size: float
    e: float
    ridge: float
    x: float
    y: float
    w: float
    u: float
    of_residual: bool
    local: bool  # whether ψ is known on the domain of its head only
    function: Function | None
    reading: HeadBound
    activation: HeadBound | None
    threshold: HeadBound | None


def descent_bound(s: Descent, n: int, a: Arithmetic) -> arb:
    """At least |w_T - exact w_T|₂ for every context of n examples within the radius; inf if a premise fails."""
    do, endless = Operations(a), arb("inf")
    d, X, W = s.features, arb(s.x), arb(s.w)
    off = do.dot(d, X, W)
    if not s.reading.covers(arb(s.u) + off):
        return endless
    residual = _residual(s, do, Tracked(arb(s.u) + off, off + arb(s.reading.error)))
    if residual is None:
        return endless
    eta = arb(s.step_size)
    series, one, two = do.twins(s.e, n, residual.executed, X)
    step = (
        eta * (series + X * residual.error)
        + do.add(
            Tracked(W, arb(0)),
            do.scale(4 * eta / (3 * arb(s.e)), one),
            do.scale(eta / (6 * arb(s.e)), two),
            do.scale(eta * arb(s.ridge), Tracked(W, arb(0))),
        ).error
    )
    if s.threshold is not None:
        if not s.threshold.covers(2 * W):
            return endless
        step = (
            step
            + arb(s.threshold.error)
            + arb(a.unit) * (W + 2 * arb(a.tiny)) / (1 - arb(a.unit))
            + arb(a.tiny)
        )
    distance = arb(d).sqrt() * step * s.steps
    if s.local and not distance * arb(d).sqrt() * X + off <= arb(0.01) * arb(s.u):
        return endless
    return distance


def _residual(s: Descent, do: Operations, u: Tracked) -> Tracked | None:
    """r = u - y, ψ(u) - y or ψ(u - y); None if a premise fails. ψ must be non-decreasing: the loss is then convex."""
    y = Tracked(arb(s.y), arb(0))
    if s.function is None:
        return do.add(u, y)
    head = s.activation
    if head is None:
        return None
    entering = do.add(u, y) if s.of_residual else u
    if not head.covers(entering.executed):
        return None
    monotone, steep, size = _slopes(s.function, head.lo, head.hi)
    if not monotone:
        return None
    g = Tracked(arb(size), arb(head.error) + arb(steep) * entering.error)
    return g if s.of_residual else do.add(g, y)


@dataclass(frozen=True)
class Newton:
    """Newton's iteration for ridge regression as a certificate describes it."""

    features: int
    iterations: int
    start: float
    ridge: float
    scales: tuple[float, float, float]
    x: float
    y: float
    p: float
    u: float
    reading: HeadBound


def newton_bound(s: Newton, n: int, a: Arithmetic) -> arb:
    """At least |w - w*|₂ for every context of n examples within the radius; inf if a premise fails.

    A = XᵀX/n + λI has eigenvalues between λ and d·x² + λ."""
    do, endless, d = Operations(a), arb("inf"), s.features
    X, Y, P = arb(s.x), arb(s.y), arb(s.p)
    high = d * X**2 + arb(s.ridge)
    step = d * _newton_step(s, n, do)
    if not step.is_finite():
        return endless
    rho = (1 - arb(s.start) * arb(s.ridge)).max(arb(s.start) * high - 1) + 2 * arb(a.unit)
    for _ in range(s.iterations):
        rho = rho**2 + step * high
        if not rho < 1:
            return endless
    b = do.twin_mean(s.scales[2], n, Y, X)
    read = do.twin_mean(s.scales[1], d, arb(max(s.x * s.y, LARGEST)).max(b.executed), P)
    last = do.scale(arb(d), read).error + d * P * b.error
    return rho * arb(d).sqrt() * X * Y / arb(s.ridge) + arb(d).sqrt() * last


LARGEST = 2.0  # |PA| stays below it: checked in every run


def _newton_step(s: Newton, n: int, do: Operations) -> arb:
    """The largest entry of the difference between one executed iteration and the exact one, P ↦ 2P - PAP."""
    d, X, P = s.features, arb(s.x), arb(s.p)
    off = do.dot(d, X, P)
    if not s.reading.covers(arb(s.u) + off):
        return arb("inf")
    read = Tracked(arb(s.u) + off, off + arb(s.reading.error))
    mean = do.twin_mean(s.scales[0], n, read.executed, X)
    mean = Tracked(mean.size, mean.error + X * read.error)
    q = do.add(mean, do.scale(arb(s.ridge), Tracked(P, arb(0))))
    product = do.scale(arb(d), do.twin_mean(s.scales[1], d, arb(LARGEST), P))
    return do.add(Tracked(2 * P, arb(0)), Tracked(product.size, product.error + d * P * q.error)).error


def _slopes(f: Function, lo: float, hi: float) -> tuple[bool, float, float]:
    """Whether f is non-decreasing on [lo, hi], and at least |f'| and |f| there."""
    ends = np.array([lo]), np.array([hi])
    steep, size = CellTable(f, lo, hi).steepest(*ends), slope_and_size(f, *ends)[1]
    return _is_monotone(f, lo, hi), float(steep[0]), float(size[0])


def _is_monotone(f: Function, lo: float, hi: float, most: int = 1 << 14) -> bool:
    todo, done = [(piece.lo, piece.hi, piece.branch) for piece in f.pieces(lo, hi)], 0
    with working(96, 2):
        while todo:
            a, b, branch = todo.pop()
            done += 1
            try:
                slope = branch(variable(ball(a, b)))[1]
            except (ValueError, ZeroDivisionError):
                slope = arb("nan")
            if slope >= 0:
                continue
            middle = a / 2 + b / 2
            if slope < 0 or done > most or not a < middle < b:
                return False
            todo += [(a, middle, branch), (middle, b, branch)]
    return True


def is_power_of_two(e: float) -> bool:
    return math.isfinite(e) and e > 0 and math.frexp(e)[0] == 0.5
