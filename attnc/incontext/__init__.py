"""Learning in context: algorithms as attention with fixed weights."""

from attnc.incontext.learner import Learner, gradient_descent
from attnc.incontext.losses import Loss
from attnc.incontext.settings import Radius, SolverRadius
from attnc.incontext.solver import Solver, ridge_regression

__all__ = ["Learner", "Loss", "Radius", "Solver", "SolverRadius", "gradient_descent", "ridge_regression"]


def __getattr__(name: str) -> object:
    """The estimators are imported on first use, because they need the extra `sklearn`."""
    if name in ("InContextClassifier", "InContextRegressor"):
        from attnc.incontext import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
