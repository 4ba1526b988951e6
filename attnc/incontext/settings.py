"""The numbers that define a learner or a solver, and the contexts for which its bound holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnc.arguments import checked_positive
from attnc.errors import InputError
from attnc.functions import Function, get
from attnc.functions.function import label_of
from attnc.incontext.losses import Loss
from attnc.records.certificate import Certificate
from attnc.records.learners import check_settings

EXAMPLES = 1000  # the bound of a certificate holds for contexts of up to this many examples


class _Sizes:
    """Every field is positive and finite, and stored as a float."""

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            object.__setattr__(self, name, checked_positive(f"radius {name}", size))


@dataclass(frozen=True)
class Radius(_Sizes):
    """|x_ij| <= x, |y_i| <= y, |w_j| <= w at every step, and |w·x_i| <= u.

    >>> Radius(4.0, 3.0, 2.0, 10.0).u
    10.0
    """

    x: float
    y: float
    w: float
    u: float


@dataclass(frozen=True)
class SolverRadius(_Sizes):
    """|x_ij| <= x, |y_i| <= y, and at every iteration |P_jk| <= p and |P_j·x_i| <= u."""

    x: float
    y: float
    p: float
    u: float


@dataclass(frozen=True)
class LearnerSettings:
    """Gradient descent on a loss: T steps of size η on `features` coefficients, and the scale e of layer C."""

    loss: Loss
    features: int  # with the intercept
    steps: int
    step_size: float
    radius: Radius
    dtype: str
    e: float = 1.0
    intercept: bool = False  # the last coefficient has no penalty: then a ridge does not contract

    def __post_init__(self) -> None:
        if type(self.loss) is not Loss:
            raise InputError(
                f"{type(self.loss).__name__}: the loss of a learner must be an attnc.incontext.Loss itself"
            )


@dataclass(frozen=True)
class SolverSettings:
    """Newton's iteration for ridge regression, from P = start·I."""

    ridge: float
    features: int  # with the intercept
    iterations: int
    start: float
    radius: SolverRadius
    dtype: str
    scales: tuple[float, float, float]  # e of gathering, of products and of b
    intercept: bool = False


Settings = LearnerSettings | SolverSettings


def facts_of(settings: Settings) -> dict[str, Any]:
    """The settings as JSON, without the radius and the dtype, which a certificate states itself."""
    facts = {name: value for name, value in vars(settings).items() if name not in ("radius", "dtype")}
    if isinstance(settings, SolverSettings):
        return facts | {"scales": list(settings.scales)}
    loss = {name: value for name, value in vars(settings.loss).items() if name != "note"}
    return facts | {"loss": loss | {"function": loss["function"] and label_of(loss["function"])}}


def settings_of(certificate: Certificate, function: Function | None) -> Settings:
    """The settings that a certificate states; `function` is the ψ of its loss, if that is one of your own."""
    limits, dtype = check_settings(certificate).limits, certificate.dtype
    facts = {name: value for name, value in certificate.facts.items() if name not in ("algorithm", "heads")}
    if certificate.facts["algorithm"] == "ridge_regression":
        facts["scales"] = tuple(facts["scales"])
        return SolverSettings(**facts, radius=SolverRadius(**limits), dtype=dtype)
    label = facts["loss"]["function"]
    own = function is not None and label_of(function) == label
    psi = None if label is None else function if own else get(label)
    facts["loss"] = Loss(**{**facts["loss"], "function": psi})
    return LearnerSettings(**facts, radius=Radius(**limits), dtype=dtype)


def radius_of(given: Any, features: int, loss: str) -> Radius:
    """One number bounds x, y and w; then |w·x| is at most features·x·w, capped for the activation's sake."""
    if isinstance(given, Radius):
        return given
    size = checked_positive("radius", given, " or an attnc.incontext.Radius(x=, y=, w=, u=)")
    return Radius(size, size, size, min(features * size * size, 6.0 if loss == "poisson" else 64.0))
