"""Learning in context: algorithms as attention with fixed weights."""

from attnc.incontext.learner import Learner, gradient_descent
from attnc.incontext.losses import Loss
from attnc.incontext.newton import Solver, SolverCertificate, SolverRadius, ridge_regression
from attnc.incontext.proof import LearnerCertificate
from attnc.incontext.radius import Radius

__all__ = [
    "Learner", "LearnerCertificate", "Loss", "Radius", "Solver", "SolverCertificate", "SolverRadius",
    "gradient_descent", "ridge_regression",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """The estimators need the extra `sklearn`, which is imported when they are asked for."""
    if name in ("InContextClassifier", "InContextRegressor"):
        from attnc.incontext import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
