"""Learning in context: algorithms as attention with fixed weights."""

from typing import TYPE_CHECKING

from attnc.incontext.learner import Learner, gradient_descent
from attnc.incontext.losses import Loss
from attnc.incontext.settings import Radius, SolverRadius
from attnc.incontext.solver import Solver, ridge_regression

if TYPE_CHECKING:
    from attnc.incontext.estimators import InContextClassifier as InContextClassifier
    from attnc.incontext.estimators import InContextRegressor as InContextRegressor

__all__ = ["Learner", "Loss", "Radius", "Solver", "SolverRadius", "gradient_descent", "ridge_regression"]
_ESTIMATORS = ("InContextClassifier", "InContextRegressor")


def __getattr__(name: str) -> object:
    """The estimators are imported on first use, because they need the extra `sklearn`."""
    if name in _ESTIMATORS:
        from attnc.incontext import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ESTIMATORS})
