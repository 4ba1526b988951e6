"""gradient_descent: attention with fixed weights whose forward pass runs gradient descent on the examples in its context."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from attnc.arguments import check_arithmetic, checked_count, checked_positive, resolve_dtype
from attnc.arithmetic import ARITHMETIC
from attnc.domain import Interval
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.functions import Function, clip
from attnc.incontext.base import InContext, eigenvalue_bounds
from attnc.incontext.bounds import LearnerBound, best_scale, is_monotone
from attnc.incontext.layers import reading_head
from attnc.incontext.losses import Loss, loss_named
from attnc.incontext.settings import EXAMPLES, LearnerSettings, Radius, radius_of
from attnc.lower.function_to_head import head as make_head
from attnc.network.altered import as_made
from attnc.network.head import Head
from attnc.network.running import constant
from attnc.progress import watched
from attnc.records.presentation import Theorem

if TYPE_CHECKING:
    from attnc.network.literal import SelfAttentionNetwork


@as_made
class Learner(InContext):
    """T steps of gradient descent on the examples of a context, each three attention layers, with the same weights for every n.

        A   u_i = w·x_i            every example attends to the weight token and BOS
        B   g_i = ψ(u_i)           every example attends to the anchors of its twin
        C   w ← w - η Σ r_i x_i/n  the weight token attends to all twins, and to itself

    `learner(context_x, context_y, query_x)` returns predictions."""

    algorithm = "gradient_descent"
    settings: LearnerSettings

    @property
    def loss(self) -> Loss:
        return self.settings.loss

    @property
    def steps(self) -> int:
        return self.settings.steps

    @property
    def step_size(self) -> float:
        return self.settings.step_size

    @property
    def radius(self) -> Radius:
        return self.settings.radius

    def error_bound(self, n: int, curvature: float | None = None) -> float:
        """At least |w_T - w_T of exact gradient descent|₂ for every context of n examples within the radius on which the step
        size does not diverge. `curvature`, at least L (see `curvature`), gives a smaller bound with a ridge penalty."""
        return self._bounds("bound").bound(n, curvature)

    @property
    def theorem(self) -> Theorem:
        """That fixed attention weights run gradient descent, with its bound in exact arithmetic for contexts of up to 1000
        examples: √d δ (1 + q + … + q^(T-1)), δ the error of one step, q <= 1 how much a step contracts."""
        statement = (
            f"in exact arithmetic |w_T - w_T of gradient descent|_2 <= √d δ (1 + q + … + q^(T-1)) for T = {self.steps} steps on "
            f"every context of up to {EXAMPLES} examples within the radius on which steps of size {self.step_size:.4g} do not "
            "diverge: three attention layers a step, the same weights for every number of examples; δ bounds the error of a "
            "step, q <= 1 how much it contracts"
        )
        bound = self._bounds("approximation").bound(EXAMPLES)
        return Theorem("in-context gradient descent", statement, bound if math.isfinite(bound) else None)

    def _bounds(self, term: str) -> LearnerBound:
        return LearnerBound(self.settings, *self._errors(term))

    def _predicted(self, s: Tensor) -> Tensor:
        if self.activation is None or self.loss.of_residual:
            return s
        return cast(Tensor, self.activation(s, strict=False))

    def _run(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """w, read from the weight token, and the largest |w|, |w·x| and |w| before its threshold."""
        w, sizes = x.new_zeros(x.shape[1]), x.new_zeros(3)
        yield w, sizes
        for _ in range(self.steps):
            w, sizes = self._step(w, x, y)
            yield w, sizes

    def as_self_attention(self, unrolled: bool = False) -> SelfAttentionNetwork:
        """The learner as plain self-attention over all tokens, with a residual stream of named registers.

        Every step runs the same layers; with `unrolled`, each step has layers of its own."""
        from attnc.incontext.literal import literal_learner

        return literal_learner(self, unrolled)

    def _step(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One step: layers A, B and C, and D for the lasso; and the sizes of w, w·x and w before D."""
        e, eta = self.settings.e, self.step_size
        s = x @ w
        u = self.reading(s, strict=False)
        if self.activation is None:
            r = u - y
        elif self.loss.of_residual:
            r = self.activation(u - y, strict=False)
        else:
            r = self.activation(u, strict=False) - y
        one, two = self._gathered(r, x, e)
        number = partial(constant, like=w)
        ridge = number(-eta * self.loss.ridge) * self._penalised(w)
        before = w + number(-4 * eta / (3 * e)) * one + number(eta / (6 * e)) * two + ridge
        after = before
        if self.threshold is not None:
            after = before - self._penalised(self.threshold(before, strict=False))
        return after, torch.stack([after.abs().amax(), s.abs().amax(), before.abs().amax()])

    def _penalised(self, w: Tensor) -> Tensor:
        """w without the intercept, which the penalty leaves out."""
        return torch.cat([w[:-1], torch.zeros_like(w[-1:])]) if self.intercept else w

    def curvature(self, x: Tensor) -> float:
        """At least L: Lip(ψ) times the largest eigenvalue of XᵀX/n."""
        return _steepest(self.loss, self.activation) * eigenvalue_bounds(x)[1] * (1 + 2.0**-40)

    def _check_context(self, x: Tensor, y: Tensor) -> None:
        self.loss.check_labels(y)
        curvature = self.curvature(x) + self.loss.ridge
        if not self.step_size * curvature <= 2:
            raise InputError(
                f"step_size={self.step_size:g} may diverge on these examples: use at most {2 / curvature:.6g}"
            )

    def _limits(self) -> list[tuple[str, float, str]]:
        w, u = self.radius.w, self.radius.u  # the domain of the threshold's head is twice the radius
        return [("|w|", w, "w"), ("|w·x|", u, "u"), ("|w| before its threshold", 2 * w, "w")]


@watched("building a learner")
def gradient_descent(
    loss: str | Loss | Function,
    *,
    features: int,
    steps: int,
    step_size: float | None = None,
    radius: float | Radius = 5.0,
    head_eps: float | None = None,
    intercept: bool = False,
    dtype: torch.dtype | str | None = None,
) -> Learner:
    """Gradient descent on a loss as attention with fixed weights: `learner(context_x, context_y, query_x)`.

    `loss` is "squared", "ridge(λ)", "lasso(λ)", "logistic", "poisson", "huber(δ)", "quantile(τ)", or the derivative ψ of your own
    loss of the residual as an `attnc.Function`. `radius` bounds |x|, |y| and |w|. The default step size is the largest that
    cannot diverge for any context within the radius. `head_eps` bounds the executed error of the activation's head. With
    `intercept` the last coefficient is the intercept, which the penalty leaves out. `dtype` defaults to torch's default dtype.

    >>> import attnc.incontext, torch
    >>> learner = attnc.incontext.gradient_descent("squared", features=2, steps=50, step_size=0.5, dtype=torch.float64)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    >>> y = x @ torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> learner(x, y, torch.tensor([[2.0, 0.5]], dtype=torch.float64)).round(decimals=3)
    tensor([1.], dtype=torch.float64)
    >>> learner.certificate.bound < 1e-6, learner.error_bound(4) < 1e-6
    (True, True)
    """
    name = resolve_dtype(dtype)
    check_arithmetic(name, network=True)
    d = checked_count("features", features) + bool(intercept)
    kind, count = loss_named(loss), checked_count("steps", steps)
    sizes = radius_of(radius, d, kind.name)
    if intercept:
        sizes = replace(sizes, x=max(sizes.x, 1.0))
    reading = reading_head(1.01 * sizes.u, name)
    activation = _activation(kind, sizes, reading, name, head_eps)
    if step_size is None:
        curvature = _steepest(kind, activation) * d * sizes.x**2 + kind.ridge
        eta = 1 / checked_positive(
            "curvature", curvature, ": the loss is flat within the radius, so give step_size"
        )
    else:
        eta = checked_positive("step_size", step_size, " or None")
    threshold = _threshold(eta * kind.lasso, sizes, name) if kind.lasso > 0 else None
    settings = LearnerSettings(kind, d, count, eta, sizes, name, intercept=bool(intercept))
    residual, _ = Learner(settings, reading, activation, threshold)._bounds("bound").residual()
    e = best_scale(EXAMPLES, residual, sizes.x, ARITHMETIC[name])
    return Learner(replace(settings, e=e), reading, activation, threshold)


def _steepest(loss: Loss, activation: Head | None) -> float:
    """At least Lip(ψ) on the domain of its head."""
    if activation is None or activation.domain is None:
        return 1.0
    return loss.steepest(activation.domain.lo, activation.domain.hi)


def _threshold(level: float, sizes: Radius, dtype: str) -> Head:
    """Layer D of the lasso: w ← w - clip(w, -ηλ, ηλ) is the soft threshold."""
    eps = level * (1e-6 if dtype == "float64" else 1e-2)
    reach = 2 * sizes.w + 1
    return make_head(clip(-level, level), domain=(-reach, reach), eps=eps, dtype=getattr(torch, dtype))


def _activation(loss: Loss, sizes: Radius, reading: Head, dtype: str, eps: Any) -> Head | None:
    psi = loss.function
    if psi is None:
        return None
    reach = 1.02 * sizes.u + reading.certificate.bound + (sizes.y if loss.of_residual else 0.0)
    reach *= 1 + 4 * ARITHMETIC[dtype].unit
    if not is_monotone(psi, Interval(-reach, reach)):
        raise InputError(
            f"{psi.label} could not be proved monotone on [{-reach:g}, {reach:g}]: the derivative of a convex loss is, "
            "and gradient descent need not converge otherwise"
        )
    make = partial(make_head, psi, domain=(-reach, reach), dtype=getattr(torch, dtype))
    if eps is not None:
        return make(eps=eps)
    try:
        return make(eps=(1e-8 if dtype == "float64" else 1e-3) * max(1.0, loss.steepest(-reach, reach)))
    except (ConvergenceError, PrecisionError) as problem:
        if problem.reachable is None:
            raise
        return make(eps=1.1 * problem.reachable)
