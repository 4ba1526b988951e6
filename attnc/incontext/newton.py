"""ridge_regression: the normal equations solved by attention, the number of correct digits doubling with every step.

Let A = XᵀX/n + λI and b = Xᵀy/n. Row tokens hold the rows of a matrix P, which becomes the inverse of A by Newton's iteration
(Schulz's)

    P ← 2P - P A P,        I - PA ← (I - PA)²,

and every product is layer A or layer C again. With P_j in the place of w,

    reading      every example reads P_j·x_i from each row token
    gathering    row token j attends to all twins, scores e·τP_j·x_i, values τx_i:     Q_j = (1/n) Σ (P_j·x_i) x_i + λP_j = (PA)_j
    product      row token j attends to row tokens' twins, scores e·τQ_jk, values τP_k:  Σ_k Q_jk P_k = (PAP)_j

and at the end the weight token gathers b from the examples and w = Σ_j b_j P_j from the row tokens.

Proof. Let an executed step differ from the exact one by E, ‖E‖ <= ε. Then I - P'A = (I - PA)² - EA, so ρ = ‖I - PA‖ obeys
ρ' <= ρ² + ε‖A‖; I - AP likewise. From P = αI with α‖A‖ <= 1 it starts at ρ <= 1 - αλ. The solution w* = A⁻¹b obeys
‖Pᵀb - w*‖ = ‖(I - PᵀA)w*‖ <= ρ‖b‖/λ. ∎"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.errors import InputError
from attnc.incontext.gathering import gather_error
from attnc.incontext.inputs import (
    check_applies,
    check_reached,
    checked_count,
    checked_examples,
    checked_labels,
    eigenvalue_room,
    largest_eigenvalue,
    why_not,
)
from attnc.incontext.radius import check_sizes
from attnc.incontext.reading import reading_head
from attnc.lower.function_to_head import check_arithmetic, checked_dtype
from attnc.network.altered import as_made
from attnc.network.head import Head
from attnc.network.running import PreciseModule, precise
from attnc.prove.outward import gamma
from attnc.records.certificate import Certificate
from attnc.records.fields import round_up

_ROOM = 1 + 2.0**-40
_LARGEST_Q = 2.0  # ‖PA‖ <= 1 + ρ


@dataclass(frozen=True)
class SolverRadius:
    """|x_ij| <= x, |y_i| <= y, and on the way |P_jk| <= p, |P_j·x_i| <= u."""

    x: float
    y: float
    p: float
    u: float

    def __post_init__(self) -> None:
        check_sizes(self)


@dataclass(frozen=True)
class SolverCertificate:
    """|w - w*|₂ <= bound(n) for every context of n examples within the radius; w* solves the normal equations exactly."""

    ridge: float
    features: int
    iterations: int
    start: float  # α
    radius: SolverRadius
    dtype: str
    scales: tuple[float, float, float]  # e of gathering, of products and of b
    reading: Certificate

    def step_error(self, n: int) -> float:
        """ε: at least ‖E‖, d times the largest entry."""
        a, d, r = ARITHMETIC[self.dtype], self.features, self.radius
        read = self.reading.bound + gamma(d + 1, a.unit) * d * r.x * r.p + 16 * a.tiny * d * (r.x + r.p + 1)
        mean = mean_error(self.scales[0], n, (r.u + read) * _ROOM, r.x, a)
        passing = 4 * r.x * (r.u + read) + 2 * mean + self.ridge * r.p
        off_q = (r.x * read + mean + gamma(6, a.unit) * passing) * _ROOM
        product = d * mean_error(self.scales[1], d, _LARGEST_Q, r.p, a)
        passing = 2 * r.p + 4 * d * _LARGEST_Q * r.p + 2 * product
        entry = product + d * off_q * r.p + gamma(8, a.unit) * passing
        return d * entry * _ROOM + 64 * a.tiny * d * d * (1 + r.p)

    def bound(self, n: int, smallest: float | None = None, largest: float | None = None) -> float:
        """`smallest` and `largest`: known bounds of the eigenvalues of A; without them λ and d·x² + λ."""
        d, r, a = self.features, self.radius, ARITHMETIC[self.dtype]
        checked_count("n", n)
        low = self.ridge if smallest is None else smallest
        high = (d * r.x**2 + self.ridge) if largest is None else largest
        if not 0 < low <= high < math.inf:
            raise InputError(
                f"smallest={low!r}, largest={high!r}: eigenvalues 0 < smallest <= largest are accepted"
            )
        if not self.start * high <= 1:
            return math.inf
        rho, step = (1 - self.start * low + 2 * a.unit) * _ROOM, self.step_error(n)
        for _ in range(self.iterations):
            rho = (rho * rho + step * high) * _ROOM
            if not rho < 1:
                return math.inf
        mean, size_b = mean_error(self.scales[2], n, r.y, r.x, a), r.x * r.y
        off_b = mean + gamma(6, a.unit) * (4 * size_b + 2 * mean)
        last = d * mean_error(self.scales[1], d, max(size_b + off_b, _LARGEST_Q), r.p, a)
        last += d * r.p * off_b + gamma(8, a.unit) * (4 * d * (size_b + off_b) * r.p + 2 * last)
        exact = math.sqrt(d) * size_b / low
        return round_up((rho * exact + math.sqrt(d) * last) * _ROOM)


def mean_error(e: float, n: int, largest_r: float, largest_x: float, a: Arithmetic) -> float:
    """How far (4h(e) - h(2e))/3 as executed can be from the mean of r x, but for the rounding of its own few sums."""
    found = gather_error(e, n, largest_r, largest_x, a)
    return (found.approximation + 4 / (3 * e) * found.one + found.two / (6 * e)) * _ROOM


def means(r: Tensor, x: Tensor, e: float) -> Tensor:
    """(m, d): the means of r_ij x_i over i, for every column j of r (n, m), by softmax over twins."""
    n, twins = len(r), torch.cat([r, -r])
    weights = [torch.softmax(factor * e * twins, 0) for factor in (1, 2)]
    one, two = ((p[:n] - p[n:]).T @ x for p in weights)
    return (4 / (3 * e)) * one + (-1 / (6 * e)) * two


@as_made
class Solver(PreciseModule):
    """Ridge regression in context: `solver(context_x, context_y, query_x)`, the same weights for every n."""

    def __init__(self, certificate: SolverCertificate, reading: Head, intercept: bool) -> None:
        super().__init__()
        self.certificate, self.reading, self.intercept, self.strict = certificate, reading, intercept, True

    @property
    def features(self) -> int:
        """Of x as the user gives it, without the intercept."""
        return self.certificate.features - self.intercept

    @precise
    def forward(
        self, context_x: Tensor, context_y: Tensor, query_x: Tensor, strict: bool | None = None
    ) -> Tensor:
        """w·x for the rows of query_x."""
        w = self.coefficients(context_x, context_y, strict)
        s = self._examples("query_x", query_x, self._strict(strict)) @ w
        if self._strict(strict):
            check_reached("|w·x| of a query", float(s.abs().max()), self.certificate.radius.u, "u")
        found: Tensor = self.reading(s, strict=False)
        return found

    def why_not_certified(self) -> str | None:
        """None where the certificate applies to what runs now, else the reason why not."""
        return why_not(self, self.certificate.dtype, {"reading": (self.reading, self.certificate.reading)})

    @precise
    def coefficients(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """w after all iterations, (d,), the intercept last."""
        return self.trajectory(context_x, context_y, strict)[-1]

    @precise
    def trajectory(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """w as it would be read before the first and after every iteration, (K + 1, d)."""
        c, must = self.certificate, self._strict(strict)
        if must:
            check_applies(self.why_not_certified())
        x = self._examples("context_x", context_x, must)
        y = checked_labels(context_y, len(x), x.dtype, c.radius.y, must)
        self._check_start(x)
        b = means(y[:, None], x, c.scales[2])
        p = c.start * torch.eye(c.features, dtype=x.dtype, device=x.device)
        found, reached = [self._weights(p, b)], x.new_zeros(3)
        for _ in range(c.iterations):
            s = x @ p.T
            q = means(self.reading(s, strict=False), x, c.scales[0]) + c.ridge * p
            reached = torch.maximum(reached, torch.stack([p.abs().amax(), s.abs().amax(), q.abs().amax()]))
            p = 2 * p - c.features * means(q.T, p, c.scales[1])
            found.append(self._weights(p, b))
        if must:
            self._check_reached(*torch.maximum(reached, torch.stack([p.abs().amax(), *reached[1:]])).tolist())
        return torch.stack(found)

    def _weights(self, p: Tensor, b: Tensor) -> Tensor:
        return (self.certificate.features * means(b.T, p, self.certificate.scales[1]))[0]

    def eigenvalues(self, context_x: Tensor) -> tuple[float, float]:
        """Bounds of the smallest and the largest eigenvalue of A on these examples."""
        x = self._examples("context_x", context_x, False).double()
        found, ridge = torch.linalg.eigvalsh(x.T @ x / len(x)), self.certificate.ridge
        room = eigenvalue_room(x) * float(found[-1])
        return max(float(found[0]) - room, 0.0) + ridge, largest_eigenvalue(x) + ridge

    def _examples(self, name: str, x: Any, strict: bool) -> Tensor:
        found = checked_examples(
            name, x, self.features, self.reading.key.dtype, self.certificate.radius.x, strict
        )
        return torch.cat([found, found.new_ones(len(found), 1)], 1) if self.intercept else found

    def _strict(self, strict: bool | None) -> bool:
        return self.strict if strict is None else bool(strict)

    def _check_start(self, x: Tensor) -> None:
        c = self.certificate
        largest = largest_eigenvalue(x) + c.ridge
        if not c.start * largest <= 1:
            raise InputError(
                f"start={c.start:g} is too large for these examples: give at most {1 / largest:.6g}"
            )

    def _check_reached(self, p: float, u: float, q: float) -> None:
        radius = self.certificate.radius
        check_reached("|P|", p, radius.p, "p), or a larger ridge (λ")
        check_reached("|P·x|", u, radius.u, "u), or a larger ridge (λ")
        check_reached("|PA|", q, _LARGEST_Q, "p), or a smaller start (α")


def ridge_regression(
    ridge: float,
    *,
    features: int,
    iterations: int = 16,
    radius: float | SolverRadius = 5.0,
    start: float | None = None,
    intercept: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Solver:
    """argmin |y - Xw|²/(2n) + λ|w|²/2 by attention with fixed weights, the digits doubling with every iteration.

    `radius` bounds |x| and |y|; then P, at most 1/λ, and P·x follow, or give them by a `SolverRadius`. `start` is α, at most
    1/‖A‖; without it 1/(d·x² + λ), which serves every context within the radius. An intercept is shrunk like the rest.

    >>> import attnc.incontext, torch
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(50, 3, dtype=torch.float64).clamp(-3, 3)
    >>> y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    >>> solver = attnc.incontext.ridge_regression(0.1, features=3, iterations=12, radius=8.0, start=0.4)
    >>> exact = torch.linalg.solve(x.T @ x / 50 + 0.1 * torch.eye(3, dtype=torch.float64), x.T @ y / 50)
    >>> (solver.coefficients(x, y) - exact).norm().item() < 1e-10
    True
    """
    name = checked_dtype(dtype)
    check_arithmetic(name, network=True)
    if isinstance(ridge, bool) or not isinstance(ridge, (int, float)) or not 0 < ridge < math.inf:
        raise InputError(f"ridge={ridge!r}: a positive finite number is accepted")
    d = checked_count("features", features) + bool(intercept)
    sizes = _radius(radius, float(ridge), d, bool(intercept))
    alpha = 1 / (d * sizes.x**2 + ridge) if start is None else start
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
        raise InputError(f"start={start!r}: a positive finite number, or None, is accepted")
    reading = reading_head(1.01 * sizes.u, name)
    assert reading.certificate.proved
    a = ARITHMETIC[name]
    scales = (
        _scale(1000, 1.01 * sizes.u, sizes.x, a),
        _scale(d, max(_LARGEST_Q, sizes.x * sizes.y), sizes.p, a),
        _scale(1000, sizes.y, sizes.x, a),
    )
    count = checked_count("iterations", iterations)
    made = SolverCertificate(float(ridge), d, count, float(alpha), sizes, name, scales, reading.certificate)
    return Solver(made, reading, bool(intercept))


def _radius(given: Any, ridge: float, d: int, intercept: bool) -> SolverRadius:
    if not isinstance(given, SolverRadius):
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
            raise InputError(
                f"radius={given!r}: a positive number, or attnc.incontext.SolverRadius(x=, y=, p=, u=)"
            )
        given = SolverRadius(given, given, 1 / ridge, math.sqrt(d) * max(given, 1.0) / ridge)
    return SolverRadius(max(given.x, 1.0) if intercept else given.x, given.y, given.p, given.u)


def _scale(n: int, largest_r: float, largest_x: float, a: Arithmetic) -> float:
    """The power of two e that leaves the smallest error."""
    top = math.floor(math.log2(0.6 / largest_r))
    return min(
        (2.0**k for k in range(top - 30, top + 1)), key=lambda e: mean_error(e, n, largest_r, largest_x, a)
    )
