"""Learners as scikit-learn estimators: `fit` stores the context, `predict` is one forward pass over [context, query].

`fit` standardises the examples, derives the step size and the radius from them, and builds the learner for these numbers.

*Step size*, by default: η = 1/L, L = Lip(ψ)·(largest eigenvalue of XᵀX/n) + λ, X the stored examples with their column of ones.

*Radius*, by default: |x| is at most twice, and |y| at most, the largest of the context. Let F be the mean loss with its
penalty, w₀ = 0 and ηL < 2. A step decreases F by F(w_t) - F(w_{t+1}) >= (1/η - L/2)|w_{t+1} - w_t|², also a proximal one. By
summation and the Cauchy-Schwarz inequality,

    |w_t|₂ <= sqrt(t (F(0) - inf F)/(1/η - L/2)),     and λ|w_t|₂²/2 <= F(0) for ridge,     λ|w_t|₁ <= F(0) for lasso,

and |w·x_i| <= |w|₂|x_i|₂. These bounds, plus 1 % for the learner's own error, are the radius of w and of w·x. The curvature of
the poisson loss is unbounded, so |w·x| <= 1 + log(1 + max y) is assumed; `certified` reports whether it holds."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from attnc.arguments import (
    checked_count,
    checked_nonnegative,
    checked_positive,
    checked_strict,
    torch_dtype,
)
from attnc.domain import Array
from attnc.errors import DomainWarning, InputError, MissingExtraError
from attnc.functions import Function
from attnc.incontext.base import check_reached, with_ones
from attnc.incontext.learner import gradient_descent
from attnc.incontext.losses import Loss, convergence, loss_named, too_few
from attnc.incontext.settings import Radius, radius_of

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as problem:
    raise MissingExtraError(
        f"InContextRegressor and InContextClassifier need scikit-learn 1.6 or later ({problem}): pip install 'attnc[sklearn]'"
    ) from problem

_ROOM = 1.01  # factor on the radius of w and w·x, for the learner's own error


@dataclass(eq=False, repr=False, kw_only=True)
class _InContext(BaseEstimator):  # type: ignore[misc]
    """The common part of the regressor and the classifier: the stored context and the passes over it."""

    steps: int = 1000
    step_size: float | None = None
    intercept: bool = True
    standardise: bool = True
    radius: float | Radius | None = None
    dtype: str | torch.dtype = "float64"
    tol: float = 1e-4
    strict: bool | None = None

    def _store(self, x: Array, labels: Array, loss: Loss) -> None:
        """Store the context (x raw, a row of labels for each pass) and build the learner."""
        for name in ("standardise", "intercept"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise InputError(f"{name}={getattr(self, name)!r}: give True or False")
        steps, self._warned = checked_count("steps", self.steps), False
        checked_strict(self.strict)
        dtype = torch_dtype(self.dtype)
        self.x_scaler_ = StandardScaler(with_mean=self.standardise, with_std=self.standardise).fit(x)
        self.context_x_ = torch.tensor(self.x_scaler_.transform(x), dtype=dtype)
        self.context_y_ = torch.tensor(labels, dtype=dtype)
        wide, y = with_ones(self.context_x_, self.intercept), self.context_y_.double()
        reach = 64.0 + float(y.abs().max())
        if loss.name == "poisson":
            given = self.radius if self.radius is None else radius_of(self.radius, wide.shape[1], loss.name).u
            reach = 1.05 * (_poisson_reach(y) if given is None else given)
        largest = float(np.linalg.norm(_numpy(wide), 2)) ** 2 / len(x)
        curvature = loss.steepest(-reach, reach) * largest * (1 + 1e-9) + loss.ridge
        self.step_size_ = _step_size(self.step_size, curvature)
        self.learner_ = gradient_descent(
            loss,
            features=x.shape[1],
            steps=steps,
            step_size=self.step_size_,
            radius=self._radius(loss, wide, y, curvature) if self.radius is None else self.radius,
            intercept=bool(self.intercept),
            dtype=dtype,
        )
        self.radius_ = self.learner_.radius
        for name, sizes in (("x", self.context_x_), ("y", self.context_y_)):
            size, limit = float(sizes.abs().max()), getattr(self.radius_, name)
            check_reached(f"|{name}| of the context", size, limit, name, "use radius=None")
        _step_size(self.step_size_, self.learner_.curvature(wide) + loss.ridge)
        self.bound_ = self.learner_.error_bound(len(x), curvature - loss.ridge)
        self.n_iter_ = steps
        self._found: Array | None = None
        self._warn_if_too_few(loss, _numpy(wide), _numpy(y))

    def _warn_if_too_few(self, loss: Loss, x: Array, labels: Array) -> None:
        """Warn if exact gradient descent has not converged after the steps of the learner."""
        tolerance, eta = checked_positive("tol", self.tol), self.step_size_
        runs = (convergence(loss, x, y, self.n_iter_, eta, bool(self.intercept), tolerance) for y in labels)
        self.convergence_ = max(runs, key=lambda run: (run.separable, run.gradient))
        if not self.convergence_.reached:
            advice = too_few(self.convergence_, bool(self.standardise))
            warnings.warn(advice, ConvergenceWarning, stacklevel=4)

    def _radius(self, loss: Loss, x: Tensor, y: Tensor, curvature: float) -> Radius:
        """The radius that the module's docstring derives; x has its column of ones."""
        drop, slack = _drop(loss, y), 1 / self.step_size_ - curvature / 2
        ways = [math.sqrt(self.steps * drop / slack) if slack > 0 else math.inf]
        if loss.ridge > 0 and not self.intercept:
            ways.append(math.sqrt(2 * drop / loss.ridge))
        if loss.lasso > 0 and not self.intercept:
            ways.append(drop / loss.lasso)
        w = _ROOM * min(ways) or 1.0
        if not math.isfinite(w):
            raise InputError(
                f"step_size={self.step_size_:g} is at the limit of divergence: use a smaller one, or give a radius"
            )
        u = w * float(np.linalg.norm(_numpy(x), axis=1).max()) or 1.0
        u = min(u, _poisson_reach(y)) if loss.name == "poisson" else u
        return Radius(2 * float(self.context_x_.abs().max()) or 1.0, float(y.abs().max()) or 1.0, w, u)

    def __sklearn_tags__(self) -> Any:
        """Sparse matrices, as of a OneHotEncoder, are taken: they become dense."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _query(self, x: Any, strict: bool | None = None) -> Tensor:
        check_is_fitted(self)
        x = _dense(validate_data(self, x, reset=False, dtype=np.float64, accept_sparse=True))
        query = torch.tensor(self.x_scaler_.transform(x), dtype=self.context_x_.dtype)
        self._check_outside(query, x, self.strict if strict is None else strict)
        return query

    def _check_outside(self, query: Tensor, x: Array, strict: bool | None) -> None:
        """Warn once, or raise if `strict`, about rows far outside the examples: no bound holds for their predictions."""
        outside = ~(query.abs() <= self.radius_.x).all(1)
        if strict is False or (strict is None and self._warned) or not bool(outside.any()):
            return
        i = int(outside.int().argmax())
        j = int((~(query[i].abs() <= self.radius_.x)).int().argmax())
        size, limit = float(query[i, j].abs()), self.radius_.x
        what = "standardised size" if self.standardise else "size"
        text = (
            f"{int(outside.sum())} of {len(query)} rows are far outside the examples: row {i}, column {j} is {x[i, j]:g}, "
            f"a {what} of {size:.4g}, and the bound holds up to {limit:.4g}. Give more examples, or a larger radius"
        )
        if strict:
            raise InputError(f"{text}, or use strict=False")
        self._warned = True
        text += (
            "; strict=False disables this warning, strict=True raises an error, certified(X) lists the rows"
        )
        warnings.warn(text, DomainWarning, stacklevel=4)

    def _passes(self, query: Tensor) -> Array:
        """The predictions for each row of labels, (labels, queries)."""
        found = [self.learner_(self.context_x_, y, query, strict=False) for y in self.context_y_]
        return _numpy(torch.stack(found))

    def _weights(self, strict: bool) -> Tensor:
        """The coefficients for each row of labels, (labels, d)."""
        return torch.stack([self.learner_.coefficients(self.context_x_, y, strict) for y in self.context_y_])

    def _unscaled(self) -> tuple[Array, Array]:
        """Coefficients and intercepts in the units of X, computed by the learner when they are first asked for."""
        check_is_fitted(self)
        if self._found is None:
            self._found = _numpy(self._weights(strict=False))
        w = self._found
        slope, shift = (w[:, :-1], w[:, -1]) if self.learner_.intercept else (w, np.zeros(len(w)))
        if self.x_scaler_.scale_ is None:
            return slope, shift
        slope = slope / self.x_scaler_.scale_
        return slope, shift - slope @ self.x_scaler_.mean_

    def certified(self, X: Any) -> Array:
        """Whether the proof covers each row of X: a boolean array.

        It does if the coefficients stay within the radius at every step, and so do |x| and |w·x| of the standardised row; then
        `bound_` is at least |w - w_GD|₂ in standardised units. `predict` works for the other rows too."""
        query, radius = self._query(X, strict=False), self.learner_.radius
        try:
            w = self._weights(strict=True)
        except InputError:
            return np.zeros(len(query), dtype=bool)
        s = torch.stack([with_ones(query, self.learner_.intercept) @ row for row in w], 1)
        return cast(Array, ((query.abs() <= radius.x).all(1) & (s.abs() <= radius.u).all(1)).numpy())


@dataclass(eq=False, repr=False)
class InContextRegressor(RegressorMixin, _InContext):  # type: ignore[misc]
    """Regression by gradient descent in context: attention with fixed weights reads the examples and predicts.

    `loss` is "squared", "ridge", "lasso", "huber(δ)", "quantile(τ)", "poisson", or an `attnc.Function` ψ, the derivative of your
    own loss. `alpha` is the weight of the penalty, as in scikit-learn's SGDRegressor and Lasso: the mean loss is
    (1/2n)|y - Xw|² + alpha·|w|²/2 for ridge (scikit-learn's Ridge calls n·alpha its alpha) and (1/2n)|y - Xw|² + alpha·|w|₁ for
    lasso. For the other losses alpha adds a ridge penalty. The default is 0.01 for ridge and lasso, else 0; "ridge(0.1)" is the
    same as "ridge" with alpha=0.1.

    `standardise` scales every column of x, and y (except for the poisson loss), to mean 0 and variance 1; a constant column
    becomes 0. `alpha`, δ, `step_size` and `radius` are in these units. `intercept` adds a feature 1, which no penalty counts.

    `fit` sets `learner_`, `step_size_`, `radius_`, `bound_` and `convergence_`, and warns if the largest entry of the gradient
    after the last step exceeds `tol`: then `steps` are too few. `bound_` is for these examples; `learner_.certificate.bound`,
    which the card and the file of the learner state, is for up to 1,000 examples and larger. `coef_` and `intercept_` are in
    the units of X and y. X may be a sparse matrix, which becomes dense. `certified(X)` reports which rows the proof covers.
    Predictions for rows far outside the examples (more than twice their largest standardised size) warn once (`strict=None`),
    raise (True) or are made without a word (False).

    >>> import numpy as np
    >>> from attnc.incontext.estimators import InContextRegressor
    >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]])
    >>> model = InContextRegressor("squared", steps=200).fit(x, x @ [1.0, -2.0] + 3)
    >>> model.predict([[1.0, 1.0]]).round(3), bool(model.certified([[1.0, 1.0]])[0])
    (array([2.]), True)
    """

    loss: str | Loss | Function = "ridge"
    alpha: float | None = None

    def fit(self, X: Any, y: Any) -> InContextRegressor:
        """Store the examples as the context and build the learner."""
        x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, accept_sparse=True)
        labels = np.asarray(y, dtype=np.float64)
        kind = _penalised(self.loss, self.alpha)
        if kind.name == "logistic":
            raise InputError("loss='logistic' is for classification: use attnc.incontext.InContextClassifier")
        kind.check_labels(labels)
        self.y_mean_, self.y_scale_ = 0.0, 1.0
        if self.standardise and kind.name != "poisson":
            scaler = StandardScaler().fit(labels[:, None])
            self.y_mean_, self.y_scale_ = float(scaler.mean_[0]), float(scaler.scale_[0])
        self._store(_dense(x), (labels[None] - self.y_mean_) / self.y_scale_, kind)
        return self

    def predict(self, X: Any) -> Array:
        """One forward pass of the learner over the stored context and the rows of X."""
        return cast(Array, self._passes(self._query(X))[0] * self.y_scale_ + self.y_mean_)

    @property
    def coef_(self) -> Array:
        """The coefficients (d,) in the units of X and y."""
        return self.coefficients()[0]

    @property
    def intercept_(self) -> float:
        """The intercept in the units of y."""
        return self.coefficients()[1]

    def coefficients(self) -> tuple[Array, float]:
        """w (d,) and the intercept in the units of X and y.

        >>> w, b = InContextRegressor("squared", steps=50).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).coefficients()
        >>> w.round(4), round(b, 4)
        (array([2.]), 1.0)
        """
        slope, shift = self._unscaled()
        return slope[0] * self.y_scale_, float(shift[0] * self.y_scale_ + self.y_mean_)


@dataclass(eq=False, repr=False)
class InContextClassifier(ClassifierMixin, _InContext):  # type: ignore[misc]
    """Logistic regression in context; for several classes one against the rest, each in its own pass with the same weights.

    The mean loss is (1/n) Σ log(1 + exp(∓w·x_i)) + alpha·|w|²/2: scikit-learn's LogisticRegression with C = 1/(n·alpha).
    The penalty leaves the intercept out, as scikit-learn does (except with its solver "liblinear"). The other parameters are
    those of `InContextRegressor`.

    >>> from attnc.incontext.estimators import InContextClassifier
    >>> model = InContextClassifier(steps=100).fit([[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"])
    >>> model.predict([[0.5], [2.5]]).tolist(), model.predict_proba([[1.5]]).round(3).tolist()
    (['low', 'high'], [[0.5, 0.5]])
    """

    alpha: float = 0.01

    def fit(self, X: Any, y: Any) -> InContextClassifier:
        """Store the examples as the context and build the learner."""
        x, y = validate_data(self, X, y, dtype=np.float64, accept_sparse=True)
        check_classification_targets(y)
        self.classes_, index = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y contains only 1 class, {self.classes_[:1].tolist()[0]!r}: give examples of two or more"
            )
        wanted = np.arange(len(self.classes_)) if len(self.classes_) > 2 else np.array([1])
        loss = replace(loss_named("logistic"), ridge=checked_nonnegative("alpha", self.alpha))
        self._store(_dense(x), (index == wanted[:, None]).astype(np.float64), loss)
        return self

    def decision_function(self, X: Any) -> Array:
        """w·x: (n,) for the second of two classes, or (n, classes)."""
        tokens = with_ones(self._query(X), self.learner_.intercept)
        found = [_numpy(self.learner_.reading(tokens @ w, strict=False)) for w in self._weights(strict=False)]
        return found[0] if len(found) == 1 else np.stack(found, 1)

    def predict(self, X: Any) -> Array:
        """The class with the largest w·x."""
        found = self.decision_function(X)
        index = (found > 0).astype(int) if found.ndim == 1 else found.argmax(1)
        return cast(Array, self.classes_[index])

    def predict_proba(self, X: Any) -> Array:
        """Probabilities, (n, classes); those of more than two classes are divided by their sum.

        The head of the logistic function may leave [0, 1] by its error, so its output is clipped, which cannot increase the
        error."""
        found = self._passes(self._query(X)).clip(0, 1)
        if len(found) == 1:
            return np.stack([1 - found[0], found[0]], 1)
        with np.errstate(invalid="ignore"):  # 0/0, if all are 0
            return cast(Array, np.nan_to_num(found / found.sum(0), nan=1 / len(found)).T)

    @property
    def coef_(self) -> Array:
        """The coefficients in the units of X: (1, d) for two classes, else (classes, d)."""
        return self._unscaled()[0]

    @property
    def intercept_(self) -> Array:
        """The intercepts, (1,) or (classes,)."""
        return self._unscaled()[1]

    def coefficients(self) -> tuple[Array, Array]:
        """w (labels, d) and the intercepts (labels,) in the units of X: one row for two classes, else one per class."""
        return self._unscaled()


def _dense(x: Any) -> Array:
    """The array of a sparse matrix."""
    return cast(Array, x.toarray(order="C") if hasattr(x, "toarray") else x)


def _penalised(loss: str | Loss | Function, alpha: Any) -> Loss:
    """The loss with the penalty alpha, if it is given."""
    kind = loss_named(loss)
    if alpha is None:
        return kind
    level = checked_nonnegative("alpha", alpha)
    if isinstance(loss, str) and "(" in loss and kind.name in ("ridge", "lasso"):
        raise InputError(f"loss={loss!r} and alpha={alpha!r}: give the weight of the penalty once")
    return replace(kind, lasso=level) if kind.name == "lasso" else replace(kind, ridge=level)


def _poisson_reach(y: Tensor) -> float:
    return 1 + math.log1p(float(y.abs().max()))


def _drop(loss: Loss, y: Tensor) -> float:
    """At least F(0) - inf F, over all rows of labels."""
    labels = y.numpy()
    if loss.function is None:
        each = labels**2 / 2
    elif loss.name == "logistic":
        return math.log(2)
    elif loss.name == "poisson":
        each = 1 - labels + labels * np.log(np.maximum(labels, 1))
    else:  # convex, with its least value within 1 of 0: Ψ(-y) - inf Ψ <= |ψ(-y)|(|y| + 1)
        each = np.abs(_numpy(loss.function(-y))) * (np.abs(labels) + 1)
    return float(each.mean(1).max())


def _numpy(found: Tensor) -> Array:
    return found.detach().cpu().double().numpy()


def _step_size(given: Any, curvature: float) -> float:
    """1/L by default; raises if gradient descent may diverge on the context."""
    if not math.isfinite(curvature) or curvature > 1e150:
        raise InputError(
            f"the curvature of the context is {curvature:g}, which is too large: use standardise=True"
        )
    if given is None:
        return 1 / (curvature or 1.0)
    size = checked_positive("step_size", given, " or None")
    if not size * curvature <= 2:
        raise InputError(f"step_size={size:g} may diverge on these examples: use at most {2 / curvature:.6g}")
    return size
