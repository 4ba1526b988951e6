"""Losses by name: the function of layer B, the labels that they accept, their curvature, and exact gradient descent on them.

The gradient of the mean loss at w is (1/n) Σ r_i x_i + λw, where

    r_i = ψ(w·x_i) - y_i      squared, ridge, lasso (ψ the identity), logistic, poisson
    r_i = ψ(w·x_i - y_i)      huber, quantile, and a loss of your own by its derivative ψ"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnc.arguments import checked_nonnegative
from attnc.domain import Array
from attnc.errors import InputError
from attnc.functions import Function, clip, exp, sigmoid
from attnc.functions.function import is_builtin
from attnc.functions.library import LIPSCHITZ, pinball
from attnc.network.literal.steps import VALUES

DEFAULTS = {"ridge": 0.01, "lasso": 0.01, "huber": 1.35, "quantile": 0.5}
NAMES = ("squared", "ridge(λ)", "lasso(λ)", "logistic(λ)", "poisson", "huber(δ)", "quantile(τ)")


@dataclass(frozen=True, eq=False)
class Loss:
    """r = ψ(u) - y, or ψ(u - y) if `of_residual`; function=None is the identity. `ridge` and `lasso` are penalties λ."""

    name: str
    function: Function | None = None
    of_residual: bool = False
    ridge: float = 0.0
    lasso: float = 0.0
    note: str = ""

    def __post_init__(self) -> None:
        for part in ("ridge", "lasso"):
            object.__setattr__(self, part, checked_nonnegative(part, getattr(self, part)))
        if self.function is not None and not isinstance(self.function, Function):
            raise InputError(
                f"the derivative of a loss must be an attnc.Function: got {type(self.function).__name__}"
            )

    @property
    def local(self) -> bool:
        """Whether its curvature is known on an interval only, not everywhere."""
        f = self.function
        return f is not None and not (is_builtin(f) and f.name in LIPSCHITZ)

    def steepest(self, lo: float, hi: float) -> float:
        """At least ψ', the curvature of the loss in u: on [lo, hi] if it is local, else everywhere."""
        f = self.function
        return 1.0 if f is None else f.lipschitz(lo, hi) if self.local else LIPSCHITZ[f.name]

    @property
    def labels(self) -> str:
        """What y must hold: a key of `VALUES`."""
        return {"logistic": "the labels 0 and 1", "poisson": "counts 0, 1, 2, …"}.get(
            self.name, "real numbers"
        )

    def check_labels(self, y: Array | Tensor) -> None:
        """Raise if a label does not fit the loss."""
        given = (
            y if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
        )  # a column of pandas is read-only
        wrong = given[~VALUES[self.labels](given)]
        if len(wrong):
            raise InputError(f"the {self.name} loss takes {self.labels}: got {float(wrong[0]):g}")


def loss_named(given: str | Loss | Function) -> Loss:
    """A loss by name: "ridge(0.1)", "huber"; a `Function` is the derivative of a loss of the residual. By default ridge and lasso
    have λ = 0.01, huber δ = 1.35, quantile τ = 0.5; logistic has no penalty, and "logistic(λ)" a ridge.

    >>> loss_named("ridge(0.5)").ridge, loss_named("huber(1)").function.label
    (0.5, 'clip(-1,1)')
    """
    if type(given) is Loss:
        return given
    if isinstance(given, Function):
        return Loss(given.label, given, of_residual=True)
    found = re.fullmatch(
        r"\s*([a-z]+)\s*(?:\(\s*([^()]*?)\s*\))?\s*", given if isinstance(given, str) else ""
    )
    name, word = found.groups() if found else ("", None)
    try:
        number = DEFAULTS.get(name) if word is None else float(word)
    except ValueError:
        number = math.nan
    match name, number:
        case "squared", None:
            return Loss("squared")
        case "logistic", None:
            return Loss("logistic", sigmoid())
        case "logistic", float() if 0 <= number < math.inf:
            return Loss("logistic", sigmoid(), ridge=number)
        case "poisson", None:
            return Loss("poisson", exp())
        case "ridge", float() if 0 <= number < math.inf:
            return Loss("ridge", ridge=number)
        case "lasso", float() if 0 <= number < math.inf:
            return Loss("lasso", lasso=number)
        case "huber", float() if 0 < number < math.inf:
            return Loss("huber", clip(-number, number), of_residual=True)
        case "quantile", float() if 0 < number < 1:  # its derivative jumps at 0: sigmoid(s/h) - τ is smooth
            note = f"the jump of the quantile loss at 0 is smoothed: sigmoid(s/0.1) - {number:g}"
            return Loss(f"quantile({number:g})", pinball(number, 0.1), of_residual=True, note=note)
    near = difflib.get_close_matches(name or str(given), [known.partition("(")[0] for known in NAMES], 1)
    meant = f" (did you mean {near[0]!r}?)" if near and near[0] != name else ""
    raise InputError(
        f"loss={given!r}{meant}: accepted are {', '.join(NAMES)} with λ >= 0, δ > 0, 0 < τ < 1, an attnc.Function ψ, or an "
        "attnc.incontext.Loss"
    )


def exact_step(loss: Loss, x: Array, y: Array, w: Array, step_size: float, intercept: bool = False) -> Array:
    """One step of exact gradient descent in float64: w - η((1/n) Σ r_i x_i + λw), of lasso with the soft threshold.

    An `intercept` is the last coefficient, its column of x is of ones, and no penalty counts it."""
    free = np.arange(x.shape[1]) == (x.shape[1] - 1 if intercept else -1)
    u = x @ w - (y if loss.of_residual else 0.0)
    psi = u if loss.function is None else loss.function.torch_form(torch.from_numpy(u)).numpy()
    r = psi if loss.of_residual else psi - y
    w = w - step_size * (x.T @ r / len(x) + loss.ridge * np.where(free, 0, w))
    level = step_size * loss.lasso
    return np.where(free, w, np.sign(w) * np.maximum(np.abs(w) - level, 0)) if loss.lasso > 0 else w


def exact_trajectory(
    loss: Loss, x: Array, y: Array, steps: int, step_size: float, intercept: bool = False
) -> Array:
    """The coefficients of exact gradient descent from 0, (steps + 1, d). A step size that diverges ends in inf or NaN."""
    found = [np.zeros(x.shape[1])]
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            found.append(exact_step(loss, x, y, found[-1], step_size, intercept))
    return np.stack(found)


_LEAST_TRIED = 5000


@dataclass(frozen=True)
class Convergence:
    """What is left of the gradient after `steps` of exact gradient descent, and the steps that reach the tolerance (None: more
    than were tried). If the labels are `separable` and nothing penalises the coefficients, these grow without end, and no number
    of steps is enough."""

    steps: int
    gradient: float
    tolerance: float
    enough: int | None
    tried: int
    separable: bool = False

    @property
    def reached(self) -> bool:
        return self.gradient <= self.tolerance and not self.separable


def convergence(
    loss: Loss,
    x: Array,
    y: Array,
    steps: int,
    step_size: float,
    intercept: bool,
    tolerance: float,
) -> Convergence:
    """Whether gradient descent from 0 has converged after `steps`: the largest entry of (w - step(w))/η, the gradient of the
    loss, is at most the tolerance. If not, up to 16 times as many steps, and at least 5,000, are tried."""
    w, first, most = np.zeros(x.shape[1]), math.inf, max(16 * steps, _LEAST_TRIED)
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(most + 1):
            after = exact_step(loss, x, y, w, step_size, intercept)
            gradient = float(np.abs(w - after).max()) / step_size
            first = gradient if t == steps else first
            reached = t >= steps and not gradient > tolerance
            if (t in (steps, most) or reached) and separates(loss, x, y, w):
                return Convergence(steps, first, tolerance, None, t, separable=True)
            if reached:
                return Convergence(steps, first, tolerance, t, most)
            w = after
    return Convergence(steps, first, tolerance, None, most)


def separates(loss: Loss, x: Array, y: Array, w: Array) -> bool:
    """Whether w·x is positive for the label 1 and negative for 0, with the logistic loss and no penalty: then 2w fits better
    than w, 3w better than 2w, and no coefficients are the best."""
    if loss.name != "logistic" or loss.ridge > 0 or loss.lasso > 0:
        return False
    return bool(((2 * y - 1) * (x @ w) > 0).all())


def too_few(found: Convergence, standardised: bool) -> str:
    """Why the steps are too few, and what to do; `standardised` says whether the features are."""
    if found.separable:
        return (
            "the labels are separable, so larger coefficients always fit better and no number of steps is enough: use "
            "alpha=0.01 or another positive number"
        )
    after = f"after {found.steps} steps the gradient is {found.gradient:.2g}, above tol={found.tolerance:g}"
    if found.enough is not None:
        return f"{after}: use steps={found.enough}"
    other = "" if standardised else ", or standardise=True"
    return f"{after}, and {found.tried} steps are not enough either: use a larger alpha{other}"
