"""Losses by name: the function of layer B, the labels that they accept, and their curvature.

The gradient of the mean loss at w is (1/n) Σ r_i x_i + λw, where

    r_i = ψ(w·x_i) - y_i      squared, ridge, lasso (ψ the identity), logistic, poisson
    r_i = ψ(w·x_i - y_i)      huber, quantile, and a loss of your own by its derivative ψ"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from attnc.domain import Array
from attnc.errors import InputError
from attnc.functions import Function, clip, exp, sigmoid
from attnc.functions.function import is_builtin
from attnc.functions.library import pinball

_STEEPEST_AT_ZERO = ("sigmoid", "tanh", "clip", "hardtanh")
DEFAULTS = {"ridge": 0.01, "lasso": 0.01, "huber": 1.35, "quantile": 0.5}
NAMES = ("squared", "ridge(λ)", "lasso(λ)", "logistic", "poisson", "huber(δ)", "quantile(τ)")


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
            size = getattr(self, part)
            if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 <= size < math.inf:
                raise InputError(f"{part}={size!r}: give a finite number >= 0")
            object.__setattr__(self, part, float(size))
        if self.function is not None and not isinstance(self.function, Function):
            raise InputError(
                f"the derivative of a loss must be an attnc.Function: got {type(self.function).__name__}"
            )

    @property
    def local(self) -> bool:
        """Whether its curvature is bounded on an interval only. Functions that are steepest at 0 are bounded everywhere."""
        f = self.function
        return f is not None and not (is_builtin(f) and f.name in _STEEPEST_AT_ZERO)

    def steepest(self, lo: float, hi: float) -> float:
        """At least ψ' on [lo, hi]: the curvature of the loss in u."""
        return 1.0 if self.function is None else self.function.lipschitz(lo, hi)

    def check_labels(self, y: Array) -> None:
        """Raise if a label does not fit the loss."""
        if self.name == "logistic":
            found = np.unique(y)
            if not set(found.tolist()) <= {0.0, 1.0}:
                raise InputError(f"the logistic loss takes the labels 0 and 1: got {found[:6].tolist()}")
        if self.name == "poisson" and ((y < 0) | (y != np.floor(y))).any():
            bad = y[(y < 0) | (y != np.floor(y))][0]
            raise InputError(f"the poisson loss takes counts 0, 1, 2, …: got {bad:g}")


def loss_named(given: str | Loss | Function) -> Loss:
    """A loss by name: "ridge(0.1)", "huber"; a `Function` is the derivative of a loss of the residual. By default ridge and lasso
    have λ = 0.01, huber δ = 1.35, quantile τ = 0.5.

    >>> loss_named("ridge(0.5)").ridge, loss_named("huber(1)").function.label
    (0.5, 'clip(-1,1)')
    """
    if isinstance(given, Loss):
        return given
    if isinstance(given, Function):
        return Loss(given.label, given, of_residual=True)
    match = (
        re.fullmatch(r"\s*([a-z]+)\s*(?:\(\s*([^()]*?)\s*\))?\s*", given) if isinstance(given, str) else None
    )
    if match is None:
        raise InputError(
            f"loss={given!r}: accepted are {', '.join(NAMES)}, an attnc.Function ψ, or an attnc.incontext.Loss"
        )
    name, word = match.groups()
    number = DEFAULTS.get(name) if word is None else _number(name, word)
    if name in ("squared", "logistic", "poisson") and number is None:
        return {
            "squared": Loss("squared"),
            "logistic": Loss("logistic", sigmoid()),
            "poisson": Loss("poisson", exp()),
        }[name]
    if name in ("ridge", "lasso") and number is not None and number >= 0:
        return Loss(name, ridge=number) if name == "ridge" else Loss(name, lasso=number)
    if name == "huber" and number is not None and number > 0:
        return Loss("huber", clip(-number, number), of_residual=True)
    if name == "quantile" and number is not None and 0 < number < 1:
        return _quantile(number)
    raise InputError(f"loss={given!r}: accepted are {', '.join(NAMES)}, λ >= 0, δ > 0, 0 < τ < 1")


def _quantile(tau: float, width: float = 0.1) -> Loss:
    """The derivative of the pinball loss jumps from -τ to 1 - τ at 0; smoothed, it is sigmoid(s/h) - τ, h = 0.1."""
    note = f"the jump of the quantile loss at 0 is smoothed: sigmoid(s/{width:g}) - {tau:g}"
    return Loss(f"quantile({tau:g})", pinball(tau, width), of_residual=True, note=note)


def _number(name: str, word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InputError(f"loss={name}({word}): give a finite number")
    return found
