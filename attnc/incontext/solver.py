"""ridge_regression: the normal equations solved by attention; the number of correct digits doubles with every step.

Let A = XᵀX/n + λI and b = Xᵀy/n. Row tokens hold the rows of a matrix P, which becomes the inverse of A by Newton's iteration
(Schulz's)

    P ← 2P - P A P,        I - PA ← (I - PA)²,

and every product is layer A or layer C of the learner. With P_j in the place of w,

    reading      every example reads P_j·x_i from each row token
    gathering    row token j attends to all twins, scores e·τP_j·x_i, values τx_i:     Q_j = (1/n) Σ (P_j·x_i) x_i + λP_j = (PA)_j
    product      row token j attends to row tokens' twins, scores e·τQ_jk, values τP_k:  Σ_k Q_jk P_k = (PAP)_j

and at the end the weight token gathers b from the examples and w = Σ_j b_j P_j from the row tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor

from attnc.arguments import check_arithmetic, checked_count, checked_positive, resolve_dtype
from attnc.arithmetic import ARITHMETIC
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.incontext.base import InContext, eigenvalue_bounds
from attnc.incontext.bounds import LARGEST_Q, SolverBound, best_scale
from attnc.incontext.layers import reading_head
from attnc.incontext.settings import EXAMPLES, SolverRadius, SolverSettings
from attnc.network.altered import as_made
from attnc.network.running import constant
from attnc.progress import watched


@as_made
class Solver(InContext):
    """Ridge regression in context: `solver(context_x, context_y, query_x)`, with the same weights for every n."""

    algorithm = "ridge_regression"
    settings: SolverSettings

    def error_bound(self, n: int, smallest: float | None = None, largest: float | None = None) -> float:
        """At least |w - w*|₂ for every context of n examples within the radius; w* solves the normal equations exactly.

        `smallest` and `largest` are bounds of the eigenvalues of A (see `eigenvalues`); by default λ and d·x² + λ."""
        return self._bounds("bound").bound(n, smallest, largest)

    def _bounds(self, term: str) -> SolverBound:
        errors, arithmetic = self._errors(term)
        return SolverBound(self.settings, errors.reading, arithmetic)

    def _run(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The coefficients that P gives, and the largest |P|, |P·x| and |PA|."""
        s = self.settings
        b = self._means(y[:, None], x, s.scales[2])
        p = constant(s.start, x) * torch.eye(s.features, dtype=x.dtype, device=x.device)
        yield self._weights(p, b), torch.stack([p.abs().amax(), *x.new_zeros(2)])
        for _ in range(s.iterations):
            u = x @ p.T
            q = self._means(self.reading(u, strict=False), x, s.scales[0]) + constant(s.ridge, p) * p
            p = 2 * p - s.features * self._means(q.T, p, s.scales[1])
            yield self._weights(p, b), torch.stack([p.abs().amax(), u.abs().amax(), q.abs().amax()])

    def _means(self, r: Tensor, x: Tensor, e: float) -> Tensor:
        """(m, d): the means of r_ij x_i over i, for every column j of r (n, m)."""
        one, two = self._gathered(r, x, e)
        means: Tensor = constant(4 / (3 * e), x) * one + constant(-1 / (6 * e), x) * two
        return means

    def _weights(self, p: Tensor, b: Tensor) -> Tensor:
        return (self.settings.features * self._means(b.T, p, self.settings.scales[1]))[0]

    def eigenvalues(self, context_x: Tensor) -> tuple[float, float]:
        """Bounds of the smallest and the largest eigenvalue of A on these examples."""
        least, largest = eigenvalue_bounds(self._examples("context_x", context_x, False))
        return least + self.settings.ridge, largest + self.settings.ridge

    def _check_context(self, x: Tensor, y: Tensor) -> None:
        largest, start = eigenvalue_bounds(x)[1] + self.settings.ridge, self.settings.start
        if not start * largest <= 1:
            raise InputError(
                f"start={start:g} is too large for these examples: use at most {1 / largest:.6g}"
            )

    def as_self_attention(self, *_: object, **__: object) -> NoReturn:
        """Raise: solvers have no literal form."""
        reason = "is not written as one sequence of layers; read solver.reading and solver.coefficients(x, y)"
        raise UnsupportedError("a solver has no literal form", [Problem("the solver", reason)])

    def to_transformer_lens(self) -> NoReturn:
        """Raise: solvers have no literal form."""
        self.as_self_attention()

    def _limits(self) -> list[tuple[str, float, str]]:
        p, u = self.settings.radius.p, self.settings.radius.u
        reading = ("|P·x|", u, "u), or a larger ridge (λ")
        return [
            ("|P|", p, "p), or a larger ridge (λ"),
            reading,
            ("|PA|", LARGEST_Q, "p), or a smaller start (α"),
        ]


@watched("building a solver")
def ridge_regression(
    ridge: float,
    *,
    features: int,
    iterations: int = 16,
    radius: float | SolverRadius = 5.0,
    start: float | None = None,
    intercept: bool = False,
    dtype: torch.dtype | str | None = None,
) -> Solver:
    """argmin |y - Xw|²/(2n) + λ|w|²/2 by attention with fixed weights; every iteration doubles the number of correct digits.

    `radius` bounds |x| and |y|; bounds of P and P·x follow, or give them by a `SolverRadius`. `start` is α, at most 1/‖A‖; the
    default 1/(d·x² + λ) works for every context within the radius. The penalty counts an intercept like the other
    coefficients. `dtype` defaults to torch's default dtype.

    >>> import attnc.incontext, torch
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(50, 3, dtype=torch.float64).clamp(-3, 3)
    >>> y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    >>> solver = attnc.incontext.ridge_regression(
    ...     0.1, features=3, iterations=12, radius=8.0, start=0.4, dtype=torch.float64)
    >>> exact = torch.linalg.solve(x.T @ x / 50 + 0.1 * torch.eye(3, dtype=torch.float64), x.T @ y / 50)
    >>> (solver.coefficients(x, y) - exact).norm().item() < 1e-10
    True
    """
    name = resolve_dtype(dtype)
    check_arithmetic(name, network=True)
    penalty = checked_positive("ridge", ridge)
    d = checked_count("features", features) + bool(intercept)
    if not isinstance(radius, SolverRadius):  # |P| <= 1/λ and |P·x| <= √d·x/λ
        size = checked_positive("radius", radius, " or an attnc.incontext.SolverRadius(x=, y=, p=, u=)")
        radius = SolverRadius(size, size, 1 / penalty, math.sqrt(d) * max(size, 1.0) / penalty)
    sizes = replace(radius, x=max(radius.x, 1.0)) if intercept else radius
    alpha = 1 / (d * sizes.x**2 + penalty) if start is None else checked_positive("start", start, " or None")
    a = ARITHMETIC[name]
    scales = (
        best_scale(EXAMPLES, 1.01 * sizes.u, sizes.x, a),
        best_scale(d, max(LARGEST_Q, sizes.x * sizes.y), sizes.p, a),
        best_scale(EXAMPLES, sizes.y, sizes.x, a),
    )
    count = checked_count("iterations", iterations)
    settings = SolverSettings(penalty, d, count, alpha, sizes, name, scales, bool(intercept))
    return Solver(settings, reading_head(1.01 * sizes.u, name))
