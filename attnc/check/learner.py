"""The bound of a learner or solver, derived again: one step is followed operation by operation, in ball arithmetic.

Every quantity of an executed step is a pair (size, error): |exact| <= size and |executed - exact| <= error, and each operation
rounds once. The exact step is that of gradient descent (or Newton's iteration) at the executed coefficients. Softmax over twins
is the one operation with a lemma of its own (`twin_mean`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb

from attnc.arithmetic import ARITHMETIC, Arithmetic, probe_network
from attnc.check.head import check_head
from attnc.check.slopes import CellTable
from attnc.domain import Context
from attnc.errors import AttncError
from attnc.functions import Function, clip, get
from attnc.functions.balls import ball, magnitude, variable, working
from attnc.functions.function import is_builtin, label_of
from attnc.records.certificate import Certificate, Status
from attnc.records.numbers import HeadNumbers
from attnc.records.verdict import Verdict

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
    """Whether f is non-decreasing on [lo, hi]; then at least |f'| and |f| there, |f| being largest at an end."""
    if not _is_monotone(f, lo, hi):
        return False, math.inf, math.inf
    steep = CellTable(f, lo, hi).steepest(np.array([lo]), np.array([hi]))
    return True, float(steep[0]), max(magnitude(f.value(end)) for end in (lo, hi))


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


def check_learner(
    heads: Mapping[str, HeadNumbers], certificate: Certificate, function: Function | None = None
) -> Verdict:
    """Check every head of a learner, then derive its bound for contexts of up to the stated number of examples."""
    children = certificate.children
    if len(heads) != len(children) or not isinstance(certificate.holds_for, Context):
        return Verdict(Status.UNKNOWN, "the certificate does not describe this learner", certificate.bound)
    verdicts = []
    for (name, numbers), child in zip(heads.items(), children, strict=True):
        verdicts.append(
            replace(
                check_head(numbers, child, function if child.facts["function"] != "identity" else None),
                name=name,
            )
        )
    bad = next((v for v in verdicts if not v), None)
    if bad is not None:
        return replace(bad, reason=f"{bad.name} head: {bad.reason}", children=tuple(verdicts))
    known = {
        name: HeadBound(c.interval.lo, c.interval.hi, c.bound)
        for name, c in zip(heads, children, strict=True)
    }
    exact = {
        name: replace(known[name], error=c.approximation) for name, c in zip(heads, children, strict=True)
    }
    try:
        with working(128):
            reason = _disagreement(
                certificate, known, exact, dict(zip(heads, children, strict=True)), function
            )
    except (KeyError, TypeError, ValueError, AttncError) as problem:
        reason = f"the certificate does not describe a learner: {type(problem).__name__}: {problem}"
    cells = sum(v.cells for v in verdicts)
    if reason is not None:
        return Verdict(Status.UNKNOWN, reason, certificate.bound, cells=cells, children=tuple(verdicts))
    told = f"the bound of {certificate.name} follows from {len(heads)} proved head{'s' * (len(heads) > 1)}"
    return Verdict(Status.PROVED, told, certificate.bound, cells=cells, children=tuple(verdicts))


def _disagreement(
    certificate: Certificate,
    known: Mapping[str, HeadBound],
    exact: Mapping[str, HeadBound],
    children: Mapping[str, Certificate],
    function: Function | None,
) -> str | None:
    """The first statement of the certificate that could not be derived, or None."""
    assert isinstance(certificate.holds_for, Context)
    n, a = certificate.holds_for.examples, ARITHMETIC[certificate.dtype]
    if any(child.dtype != certificate.dtype for child in children.values()):
        return "the heads and the learner have different dtypes"
    none = Arithmetic("exact", 0.0, 0.0, math.inf, exp_units=0)
    for term, claimed, heads, arithmetic in (
        ("bound", certificate.bound, known, a),
        ("approximation", certificate.approximation, exact, none),
    ):
        found = _derived(certificate, heads, children, n, arithmetic, function)
        if not found <= arb(claimed):
            return f"the {term} {claimed:.6g} could not be proved: the checker derives {found.str(6, radius=False)}"
    if Fraction(certificate.bound) > Fraction(certificate.approximation) + Fraction(certificate.rounding):
        return "the bound exceeds the sum of its terms"
    return probe_network(certificate.dtype)


def _derived(
    certificate: Certificate,
    heads: Mapping[str, HeadBound],
    children: Mapping[str, Certificate],
    n: int,
    a: Arithmetic,
    function: Function | None,
) -> arb:
    facts, limits = certificate.facts, dict(certificate.holds_for.limits)  # type: ignore[union-attr]
    if children["reading"].facts["function"] != "identity":
        return arb("inf")
    if facts["algorithm"] == "ridge_regression":
        named: dict[str, Any] = {k: facts[k] for k in ("features", "iterations", "start", "ridge", "scales")}
        return newton_bound(Newton(**named, **limits, reading=heads["reading"]), n, a)
    loss = facts["loss"]
    label = loss["function"]
    psi = (
        None
        if label is None
        else function
        if function is not None and label_of(function) == label
        else get(label)
    )
    if (psi is None) != ("activation" not in heads) or (loss["lasso"] > 0) != ("threshold" in heads):
        return arb("inf")
    if psi is not None and children["activation"].facts["function"] != label:
        return arb("inf")
    if "threshold" in heads and children["threshold"].facts["function"] != _clip_label(
        facts["step_size"] * loss["lasso"]
    ):
        return arb("inf")
    local = psi is not None and not (is_builtin(psi) and psi.name in _STEEPEST_AT_ZERO)
    return descent_bound(
        Descent(
            facts["features"], facts["steps"], facts["step_size"], facts["e"], loss["ridge"], **limits,
            of_residual=loss["of_residual"], local=local, function=psi, reading=heads["reading"],
            activation=heads.get("activation"), threshold=heads.get("threshold"),
        ),
        n, a,
    )  # fmt: skip


def _clip_label(level: float) -> str:
    return label_of(clip(-level, level))


_STEEPEST_AT_ZERO = ("sigmoid", "tanh", "clip", "hardtanh")  # their slope at 0 bounds their slope everywhere
