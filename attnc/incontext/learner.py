"""gradient_descent: weights that are built before they see any data, and a forward pass that is the learning algorithm."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Interval
from attnc.errors import ConvergenceError, InputError, PrecisionError
from attnc.functions import Function, clip
from attnc.incontext.gathering import gather_error, gathered
from attnc.incontext.inputs import (
    check_applies,
    check_reached,
    checked_count,
    checked_examples,
    checked_labels,
    largest_eigenvalue,
    why_not,
)
from attnc.incontext.losses import Loss, loss_named
from attnc.incontext.proof import LearnerCertificate, grows
from attnc.incontext.radius import Radius, radius_of
from attnc.incontext.reading import reading_head
from attnc.lower.function_to_head import check_arithmetic, checked_dtype
from attnc.lower.function_to_head import head as make_head
from attnc.network.altered import as_made
from attnc.network.head import Head
from attnc.network.running import PreciseModule, precise

if TYPE_CHECKING:
    from attnc.network.literal import Layout, SelfAttentionNetwork

EXAMPLES = 1000  # n at which e is chosen


@as_made
class Learner(PreciseModule):
    """T steps of gradient descent on the examples of a context, each three layers of attention, the same weights for every n.

        A   u_i = w·x_i            every example attends to the weight token and BOS
        B   g_i = ψ(u_i)           every example attends to the anchors of its twin
        C   w ← w - η Σ r_i x_i/n  the weight token attends to all twins, and to itself

    `learner(context_x, context_y, query_x)` are predictions; `certificate.bound(n)` is how far the coefficients can be from
    those of exact gradient descent."""

    def __init__(
        self,
        certificate: LearnerCertificate,
        reading: Head,
        activation: Head | None,
        threshold: Head | None,
        intercept: bool,
    ) -> None:
        super().__init__()
        self.certificate, self.intercept = certificate, intercept
        self.reading, self.activation, self.threshold = reading, activation, threshold
        self.strict = True
        self.uncertified: str | None = (
            None  # why nothing is promised of the last result; None where the bound holds
        )

    @property
    def loss(self) -> Loss:
        return self.certificate.loss

    @property
    def steps(self) -> int:
        return self.certificate.steps

    @property
    def step_size(self) -> float:
        return self.certificate.step_size

    @property
    def radius(self) -> Radius:
        return self.certificate.radius

    @property
    def features(self) -> int:
        """Of x as the user gives it, without the intercept."""
        return self.certificate.features - self.intercept

    @precise
    def forward(
        self, context_x: Tensor, context_y: Tensor, query_x: Tensor, strict: bool | None = None
    ) -> Tensor:
        """Predictions for the rows of query_x: w·x, of the logistic loss the probability, of the poisson loss the mean."""
        w = self.coefficients(context_x, context_y, strict)
        query = self._with_one(self._checked("query_x", query_x, self._strict(strict)))
        s = query @ w
        if self._strict(strict):
            check_reached("|w·x| of a query", float(s.abs().max()), self.radius.u, "u")
        elif not (bool((query.abs() <= self.radius.x).all()) and bool((s.abs() <= self.radius.u).all())):
            self.uncertified = self.uncertified or "a query lies beyond the radius"
        found: Tensor = self.reading(s, strict=False)
        if self.activation is not None and not self.loss.of_residual:
            found = self.activation(found, strict=False)
        return found

    @precise
    def coefficients(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """w after all steps, (d,), the intercept last."""
        return self.trajectory(context_x, context_y, strict)[-1]

    @precise
    def trajectory(self, context_x: Tensor, context_y: Tensor, strict: bool | None = None) -> Tensor:
        """w before the first and after every step, (T + 1, d), read from the weight token."""
        must = self._strict(strict)
        if must:
            check_applies(self.why_not_certified())
        x = self._with_one(self._checked("context_x", context_x, must))
        y = self._labels(context_y, len(x), must)
        self._check_step(x)
        w = x.new_zeros(x.shape[1])
        found, reached = [w], x.new_zeros(3)
        for _ in range(self.steps):
            w, sizes = self._step(w, x, y)
            found.append(w)
            reached = torch.maximum(reached, sizes)
        self.uncertified = None
        if must:
            self._check_reached(*reached.tolist())
        else:
            self.uncertified = self._outside(x, y, reached.tolist())
        return torch.stack(found)

    def _outside(self, x: Tensor, y: Tensor, reached: list[float]) -> str | None:
        """Why the bound does not hold for a context that was run without asking, or None."""
        try:
            check_applies(self.why_not_certified())
            check_reached("|context_x|", float(x.abs().max()), self.radius.x, "x")
            check_reached("|context_y|", float(y.abs().max()), self.radius.y, "y")
            self._check_reached(*reached)
        except InputError as problem:
            return str(problem)
        return None

    def why_not_certified(self) -> str | None:
        """None where the certificate applies to what runs now, else the reason why not."""
        c = self.certificate
        if self.intercept != c.intercept:
            return (
                f"the certificate is for intercept={c.intercept}, the learner has intercept={self.intercept}"
            )
        heads = {
            "reading": (self.reading, c.reading),
            "activation": (self.activation, c.activation),
            "threshold": (self.threshold, c.threshold),
        }
        return why_not(self, c.dtype, heads)

    def why_not_covered(
        self, context_x: Tensor, context_y: Tensor, query_x: Tensor | None = None
    ) -> str | None:
        """None where the bound holds for this context (and these queries), else what lies outside."""
        try:
            if query_x is None:
                self.trajectory(context_x, context_y, strict=True)
            else:
                self(context_x, context_y, query_x, strict=True)
        except InputError as problem:
            return str(problem)
        return None

    @property
    def registers(self) -> Layout:
        """name → coordinates of a token in the residual stream of the literal form."""
        from attnc.incontext.literal import registers_of

        heads = [0 if head is None else head.heads for head in (self.activation, self.threshold)]
        return registers_of(self.certificate.features, *heads)

    def as_self_attention(self, unrolled: bool = False) -> SelfAttentionNetwork:
        """The learner as plain self-attention over all tokens, with a residual stream of named registers.

        Every step runs the same layers; with `unrolled`, each step has layers of its own."""
        from attnc.incontext.literal import literal_learner

        return literal_learner(self, unrolled)

    def _step(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One step: layers A, B and C, and for lasso D; and how large w, w·x and w before D were."""
        e, eta = self.certificate.e, self.step_size
        s = x @ w
        u = self.reading(s, strict=False)
        if self.activation is None:
            r = u - y
        elif self.loss.of_residual:
            r = self.activation(u - y, strict=False)
        else:
            r = self.activation(u, strict=False) - y
        one, two = gathered(r, x, e)
        before = (
            w
            + (-4 * eta / (3 * e)) * one
            + (eta / (6 * e)) * two
            + (-eta * self.loss.ridge) * self._penalised(w)
        )
        after = before
        if self.threshold is not None:
            after = before - self._penalised(self.threshold(before, strict=False))
        return after, torch.stack([after.abs().amax(), s.abs().amax(), before.abs().amax()])

    def extra_repr(self) -> str:
        c = self.certificate
        sizes = f"features={self.features}, intercept={self.intercept}, steps={c.steps}, step_size={c.step_size:.4g}"
        return f"loss={c.loss.name}, {sizes}, {c.radius}, dtype={c.dtype}"

    def _penalised(self, w: Tensor) -> Tensor:
        """Without the intercept, which no penalty counts."""
        return torch.cat([w[:-1], torch.zeros_like(w[-1:])]) if self.intercept else w

    def _strict(self, strict: bool | None) -> bool:
        return self.strict if strict is None else bool(strict)

    def _with_one(self, x: Tensor) -> Tensor:
        return torch.cat([x, x.new_ones(len(x), 1)], 1) if self.intercept else x

    def _checked(self, name: str, x: Any, strict: bool) -> Tensor:
        return checked_examples(name, x, self.features, self.reading.key.dtype, self.radius.x, strict)

    def _labels(self, y: Any, n: int, strict: bool) -> Tensor:
        found = checked_labels(y, n, self.reading.key.dtype, self.radius.y, strict)
        self.loss.check_labels(found.double().cpu().numpy())
        return found

    def curvature(self, x: Tensor) -> float:
        """At least L: Lip(ψ) times the largest eigenvalue of XᵀX/n."""
        steep = 1.0
        if self.activation is not None and self.activation.certificate.proved:
            domain = self.activation.certificate.interval
            steep = self.loss.steepest(domain.lo, domain.hi)
        return steep * largest_eigenvalue(x) * (1 + 2.0**-40)

    def _check_step(self, x: Tensor) -> None:
        curvature = self.curvature(x) + self.loss.ridge
        if not self.step_size * curvature <= 2:
            raise InputError(
                f"step_size={self.step_size:g} may diverge on these examples: the largest that does not is {2 / curvature:.6g}"
            )

    def _check_reached(self, w: float, u: float, before: float) -> None:
        check_reached("|w|", w, self.radius.w, "w")
        check_reached("|w·x|", u, self.radius.u, "u")
        if self.threshold is not None:  # its head serves twice the radius
            check_reached("|w| before its threshold", before, 2 * self.radius.w, "w")


def gradient_descent(
    loss: str | Loss | Function,
    *,
    features: int,
    steps: int,
    step_size: float | None = None,
    radius: float | Radius = 5.0,
    eps: float | None = None,
    intercept: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Learner:
    """Gradient descent on a loss as attention with fixed weights: `learner(context_x, context_y, query_x)`.

    `loss` is "squared", "ridge(λ)", "lasso(λ)", "logistic", "poisson", "huber(δ)", "quantile(τ)", or the derivative ψ of your own
    loss of the residual as an `attnc.Function`. `radius` bounds |x|, |y| and |w|. The step size, if not given, is the largest
    that cannot diverge for any context within the radius. `eps` is what the activation may err. An intercept is
    the last coefficient, and no penalty counts it.

    >>> import attnc.incontext, torch
    >>> learner = attnc.incontext.gradient_descent("squared", features=2, steps=50, step_size=0.5)
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5]], dtype=torch.float64)
    >>> y = x @ torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> learner(x, y, torch.tensor([[2.0, 0.5]], dtype=torch.float64)).round(decimals=3)
    tensor([1.], dtype=torch.float64)
    >>> learner.certificate.bound(4) < 1e-6
    True
    """
    name = checked_dtype(dtype)
    check_arithmetic(name, network=True)
    d = checked_count("features", features) + bool(intercept)
    kind = loss_named(loss)
    sizes = radius_of(radius, d, kind.name)
    if intercept:
        sizes = Radius(max(sizes.x, 1.0), sizes.y, sizes.w, sizes.u)
    reading = reading_head(1.01 * sizes.u, name)
    activation = _activation(kind, sizes, reading, name, eps)
    eta = _step_size(step_size, kind, d, sizes, activation)
    threshold = None
    if kind.lasso > 0:
        threshold = _threshold(eta * kind.lasso, sizes, dtype)
    made = [None if h is None else h.certificate for h in (activation, threshold)]
    assert reading.certificate.proved
    draft = LearnerCertificate(
        kind,
        d,
        checked_count("steps", steps),
        eta,
        sizes,
        name,
        1.0,
        reading.certificate,
        made[0],
        made[1],
        bool(intercept),
    )
    return Learner(_with_e(draft), reading, activation, threshold, bool(intercept))


def _threshold(level: float, sizes: Radius, dtype: torch.dtype) -> Head:
    """Layer D of the lasso: w ← w - Range_[-ηλ,ηλ](w) is the soft threshold."""
    eps = level * (1e-6 if dtype == torch.float64 else 1e-2)
    return make_head(clip(-level, level), domain=(-2 * sizes.w - 1, 2 * sizes.w + 1), eps=eps, dtype=dtype)


def _with_e(draft: LearnerCertificate) -> LearnerCertificate:
    """The power of two that leaves the smallest error of layer C at a thousand examples."""
    size, _ = draft.residual()
    top = math.floor(math.log2(0.6 / size))
    best = min(range(top - 30, top + 1), key=lambda k: _gather_cost(2.0**k, size, draft))
    return replace(draft, e=2.0**best)


def _gather_cost(e: float, size: float, draft: LearnerCertificate) -> float:
    found = gather_error(e, EXAMPLES, size, draft.radius.x, ARITHMETIC[draft.dtype])
    return found.approximation + 4 / (3 * e) * found.one + found.two / (6 * e)


def _activation(loss: Loss, sizes: Radius, reading: Head, dtype: str, eps: float | None) -> Head | None:
    if loss.function is None:
        return None
    assert reading.certificate.proved
    reach = 1.02 * sizes.u + reading.certificate.bound + (sizes.y if loss.of_residual else 0.0)
    reach *= 1 + 4 * ARITHMETIC[dtype].unit
    if not grows(loss.function, Interval(-reach, reach)):
        raise InputError(
            f"{loss.function.label} is not proved to grow on [{-reach:g}, {reach:g}]: the derivative of a convex loss does, and "
            "gradient descent need not converge on another"
        )
    wanted = (
        eps
        if eps is not None
        else (1e-8 if dtype == "float64" else 1e-3) * max(1.0, loss.steepest(-reach, reach))
    )
    try:
        return make_head(loss.function, domain=(-reach, reach), eps=wanted, dtype=getattr(torch, dtype))
    except (ConvergenceError, PrecisionError) as problem:
        if eps is not None or problem.reachable is None:
            raise
        return make_head(
            loss.function, domain=(-reach, reach), eps=1.1 * problem.reachable, dtype=getattr(torch, dtype)
        )


def _step_size(given: Any, loss: Loss, d: int, sizes: Radius, activation: Head | None) -> float:
    if given is None:
        steep = 1.0
        if activation is not None and activation.certificate.proved:
            steep = loss.steepest(activation.certificate.interval.lo, activation.certificate.interval.hi)
        return 1 / (steep * d * sizes.x**2 + loss.ridge)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
        raise InputError(f"step_size={given!r}: a positive finite number, or None, is accepted")
    return float(given)
