"""The bound of a learner or solver, derived again: one step is followed operation by operation, in ball arithmetic.

Every quantity of an executed step is a pair (size, error): |exact| <= size and |executed - exact| <= error, and each operation
rounds once. The exact step is that of gradient descent (or Newton's iteration) at the executed coefficients. Softmax over twins
is the one operation with a lemma of its own (`twin_mean`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flint import arb

from attnc.arithmetic import ARITHMETIC, Arithmetic, probe_network
from attnc.check.head import check_head, check_machine
from attnc.check.slopes import CellTable
from attnc.check.values import CheckError, require
from attnc.domain import Context
from attnc.errors import AttncError
from attnc.functions import Function, clip, get
from attnc.functions.balls import ball, magnitude, variable, working
from attnc.functions.function import is_builtin, label_of
from attnc.functions.library import LIPSCHITZ
from attnc.records.certificate import Certificate, Status, Verdict
from attnc.records.fields import DAMAGE
from attnc.records.learners import check_settings
from attnc.records.numbers import HeadNumbers

_DOUBLE = arb(2) ** -53  # Python's floats, in which coefficients are computed
LARGEST = 2.0  # |PA| stays below it: checked in every run


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
        if not (z.cosh() < 2 and math.frexp(e)[0] == 0.5):  # e is a power of two
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
class Claim:
    """What a certificate says about a learner: its settings, its radius, and the function and the errors of its heads."""

    facts: Mapping[str, Any]
    limits: Mapping[str, float]  # the radius: x, y, w or p, u
    heads: Mapping[str, HeadBound]
    function: Function | None

    def reads(self, off: arb) -> Tracked | None:
        """w·x or P·x, computed within `off`, then read; None if the reading head does not cover it."""
        head, u = self.heads["reading"], arb(self.limits["u"])
        return Tracked(u + off, off + arb(head.error)) if head.covers(u + off) else None


def descent_bound(claim: Claim, n: int, a: Arithmetic) -> arb:
    """At least |w_T - exact w_T|₂ for every context of n examples within the radius; inf if a premise fails."""
    do, endless, facts = Operations(a), arb("inf"), claim.facts
    d, X, W = facts["features"], arb(claim.limits["x"]), arb(claim.limits["w"])
    off = do.dot(d, X, W)
    read = claim.reads(off)
    residual = None if read is None else _residual(claim, do, read)
    if residual is None:
        return endless
    eta, e = arb(facts["step_size"]), arb(facts["e"])
    series, one, two = do.twins(facts["e"], n, residual.executed, X)
    w = Tracked(W, arb(0))
    ridge = do.scale(eta * arb(facts["loss"]["ridge"]), w)
    moved = do.add(w, do.scale(4 * eta / (3 * e), one), do.scale(eta / (6 * e), two), ridge)
    step = eta * (series + X * residual.error) + moved.error
    threshold = claim.heads.get("threshold")
    if threshold is not None:
        if not threshold.covers(2 * W):
            return endless
        unit, tiny = arb(a.unit), arb(a.tiny)
        step = step + arb(threshold.error) + unit * (W + 2 * tiny) / (1 - unit) + tiny
    distance: arb = arb(d).sqrt() * step * facts["steps"]
    psi, U = claim.function, arb(claim.limits["u"])
    if psi is not None and not (is_builtin(psi) and psi.name in LIPSCHITZ):
        reach = arb(1.01) * U + (arb(claim.limits["y"]) if facts["loss"]["of_residual"] else 0)
        stays = distance * arb(d).sqrt() * X + off <= arb(0.01) * U  # exact descent, where the slope is known
        if not (stays and claim.heads["activation"].covers(reach)):
            return endless
    return distance


def _residual(claim: Claim, do: Operations, u: Tracked) -> Tracked | None:
    """r = u - y, ψ(u) - y or ψ(u - y); None if a premise fails. ψ must be non-decreasing: the loss is then convex."""
    y, of_residual = Tracked(arb(claim.limits["y"]), arb(0)), claim.facts["loss"]["of_residual"]
    if claim.function is None:
        return do.add(u, y)
    head, entering = claim.heads["activation"], do.add(u, y) if of_residual else u
    if not head.covers(entering.executed) or not _is_monotone(claim.function, head.lo, head.hi):
        return None
    steep = CellTable(claim.function, head.lo, head.hi).steepest(np.array([head.lo]), np.array([head.hi]))
    size = max(magnitude(claim.function.value(end)) for end in (head.lo, head.hi))  # monotone
    g = Tracked(arb(size), arb(head.error) + arb(float(steep[0])) * entering.error)
    return g if of_residual else do.add(g, y)


def newton_bound(claim: Claim, n: int, a: Arithmetic) -> arb:
    """At least |w - w*|₂ for every context of n examples within the radius; inf if a premise fails.

    One executed iteration differs from the exact one, P ↦ 2P - PAP, by at most `step` in an entry. A = XᵀX/n + λI has
    eigenvalues between λ and d·x² + λ."""
    do, endless, facts, limits = Operations(a), arb("inf"), claim.facts, claim.limits
    d, ridge, start, scales = facts["features"], arb(facts["ridge"]), arb(facts["start"]), facts["scales"]
    X, Y, P = arb(limits["x"]), arb(limits["y"]), arb(limits["p"])
    high = d * X**2 + ridge
    read = claim.reads(do.dot(d, X, P))
    if read is None:
        return endless
    mean = do.twin_mean(scales[0], n, read.executed, X)
    mean = Tracked(mean.size, mean.error + X * read.error)
    q = do.add(mean, do.scale(ridge, Tracked(P, arb(0))))
    product = do.scale(arb(d), do.twin_mean(scales[1], d, arb(LARGEST), P))
    step = do.add(Tracked(2 * P, arb(0)), Tracked(product.size, product.error + d * P * q.error))
    if not step.error.is_finite():
        return endless
    rho = (1 - start * ridge).max(start * high - 1) + 2 * arb(a.unit)
    for _ in range(facts["iterations"]):
        rho = rho**2 + d * step.error * high
        if not rho < 1:
            return endless
    b = do.twin_mean(scales[2], n, Y, X)
    last_read = do.twin_mean(scales[1], d, arb(max(limits["x"] * limits["y"], LARGEST)).max(b.executed), P)
    last = do.scale(arb(d), last_read).error + d * P * b.error
    bound: arb = rho * arb(d).sqrt() * X * Y / ridge + arb(d).sqrt() * last
    return bound


def _is_monotone(f: Function, lo: float, hi: float, most: int = 1 << 14) -> bool:
    """Whether f is non-decreasing on [lo, hi]."""
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


def check_learner(
    heads: Mapping[str, HeadNumbers], certificate: Certificate, function: Function | None = None
) -> Verdict:
    """Check every head of a learner, then derive its bound for contexts of up to the stated number of examples."""
    verdicts: list[Verdict] = []
    try:
        context, named = check_settings(certificate), dict(zip(heads, certificate.children, strict=True))
        for name, child in named.items():
            own = function if name == "activation" else None
            verdicts.append(replace(check_head(heads[name], child, own), name=name))
            require(verdicts[-1], f"{name} head")
        with working(128):
            _check_bounds(certificate, context, named, function)
        check_machine(probe_network(certificate.dtype))
        reason = f"the bound follows from {len(heads)} proved head{'s' * (len(heads) > 1)}"
        verdict = Verdict(Status.PROVED, reason, certificate.bound)
    except CheckError as problem:
        verdict = problem.verdict(certificate.bound)
    except (AttncError, *DAMAGE) as problem:
        reason = f"the certificate does not describe this learner: {type(problem).__name__}: {problem}"
        verdict = Verdict(Status.UNKNOWN, reason, certificate.bound)
    return replace(verdict, cells=sum(v.cells for v in verdicts), children=tuple(verdicts))


def _check_bounds(
    certificate: Certificate, context: Context, children: Mapping[str, Certificate], function: Function | None
) -> None:
    """Raise `CheckError` at the first statement of the certificate that could not be derived."""
    facts, wanted, psi, bound = certificate.facts, {"reading": "identity"}, None, newton_bound
    if facts["algorithm"] == "gradient_descent":
        label, level = facts["loss"]["function"], facts["step_size"] * facts["loss"]["lasso"]
        wanted |= {} if label is None else {"activation": label}
        wanted |= {"threshold": label_of(clip(-level, level))} if facts["loss"]["lasso"] > 0 else {}
        own = function is not None and label_of(function) == label
        psi, bound = (None if label is None else function if own else get(label)), descent_bound
    of = {name: child.facts["function"] for name, child in children.items()}
    if of != wanted or any(child.dtype != certificate.dtype for child in children.values()):
        raise CheckError(f"the heads are {of}, expected {wanted}, all in {certificate.dtype}")
    exact = Arithmetic("exact", 0.0, 0.0, math.inf, exp_units=0)
    for term, arithmetic in (("bound", ARITHMETIC[certificate.dtype]), ("approximation", exact)):
        parts = {name: (child.interval, getattr(child, term)) for name, child in children.items()}
        heads = {name: HeadBound(on.lo, on.hi, error) for name, (on, error) in parts.items()}
        found = bound(Claim(facts, context.limits, heads, psi), context.examples, arithmetic)
        if not found <= arb(getattr(certificate, term)):
            raise CheckError(f"the {term} is not proved: the checker derives {found.str(6, radius=False)}")
