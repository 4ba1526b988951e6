"""The estimators, against scikit-learn's own on real data, against exact gradient descent, and through scikit-learn's checks."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from attnc.errors import AttncError, InputError
from attnc.incontext import Radius
from attnc.incontext.estimators import InContextClassifier, InContextRegressor

Array = NDArray[np.float64]
pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning"
)  # few steps are meant
DRAW = np.random.default_rng(5)
X = DRAW.normal(size=(40, 3)) * [1, 10, 0.1] + [0, 3, 1]
Y = X @ [1.0, 0.2, -5.0] + 0.1 * DRAW.normal(size=40) + 7

PSI: dict[str, Callable[[Array, Array], Array]] = {
    "squared": lambda u, y: u - y,
    "huber(0.5)": lambda u, y: np.clip(u - y, -0.5, 0.5),
    "poisson": lambda u, y: np.exp(u) - y,
    "logistic": lambda u, y: 1 / (1 + np.exp(-u)) - y,
}


def descended(
    x: Array, y: Array, psi: Any, eta: float, steps: int, ridge: float = 0.0
) -> tuple[Array, float, float]:
    """Exact gradient descent from 0 with a 1 added to x: w, the largest |w|, the largest |w·x| on the way."""
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    w, sizes, reaches = np.zeros(x.shape[1]), [0.0], [0.0]
    for _ in range(steps):
        w = w - eta * (x.T @ psi(x @ w, y) / len(x) + ridge * w)
        sizes.append(float(np.abs(w).max()))
        reaches.append(float(np.abs(x @ w).max()))
    return w, max(sizes), max(reaches)


@pytest.mark.parametrize("loss", ["ridge(0.01)", "lasso(0.01)"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_diabetes(loss: str, seed: int) -> None:
    """R² within 0.002 of scikit-learn's on the same split, standardised by the same numbers."""
    split = train_test_split(*load_diabetes(return_X_y=True), random_state=seed)
    fit_x, test_x, fit_y, test_y = split
    model = InContextRegressor(loss).fit(fit_x, fit_y)
    scaler, centre, size = StandardScaler().fit(fit_x), fit_y.mean(), fit_y.std()
    own = Ridge(alpha=0.01 * len(fit_x)) if loss.startswith("ridge") else Lasso(alpha=0.01)
    own.fit(scaler.transform(fit_x), (fit_y - centre) / size)
    wanted = own.score(scaler.transform(test_x), (test_y - centre) / size)
    assert abs(model.score(test_x, test_y) - wanted) < 0.002
    assert wanted > 0.3
    assert model.certified(test_x).all()
    assert model.bound_ < 1e-5


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_breast_cancer(seed: int) -> None:
    """Accuracy within 0.002 of LogisticRegression with C = 1/(nλ)."""
    split = train_test_split(*load_breast_cancer(return_X_y=True), random_state=seed)
    fit_x, test_x, fit_y, test_y = split
    model = InContextClassifier(alpha=0.01).fit(fit_x, fit_y)
    own = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (0.01 * len(fit_x)), max_iter=1000)).fit(
        fit_x, fit_y
    )
    assert abs(model.score(test_x, test_y) - own.score(test_x, test_y)) < 0.002
    assert np.abs(model.predict_proba(test_x) - own.predict_proba(test_x)).max() < 0.01
    assert model.certified(test_x).all()


def test_iris_one_against_the_rest() -> None:
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = InContextClassifier(alpha=0.1, steps=200).fit(x, names)
    own = make_pipeline(
        StandardScaler(),
        OneVsRestClassifier(LogisticRegression(C=1 / (0.1 * len(x)), max_iter=1000)),
    ).fit(x, names)
    assert (model.predict(x) == own.predict(x)).all()
    chances = model.predict_proba(x)
    assert np.abs(chances - own.predict_proba(x)).max() < 0.01
    assert model.decision_function(x).shape == (150, 3)
    slope, shift = model.coefficients()
    assert np.abs(x @ slope.T + shift - model.decision_function(x)).max() < 1e-8


@pytest.mark.parametrize("loss", ["squared", "huber(0.5)", "poisson"])
def test_within_the_bound_of_exact_gradient_descent_and_the_radius_holds(loss: str) -> None:
    """Coefficients against numpy's descent on the same standardised context, with the step size that fit chose."""
    y = np.round(np.exp(0.3 * DRAW.normal(size=40) + 0.5)) if loss == "poisson" else Y
    model = InContextRegressor(loss, steps=60).fit(X, y)
    x = (X - X.mean(0)) / X.std(0)
    target = y if loss == "poisson" else (y - y.mean()) / y.std()
    w, largest, reach = descended(x, target, PSI[loss], model.step_size_, 60)
    found = model.learner_.coefficients(model.context_x_, model.context_y_[0]).numpy()
    assert np.linalg.norm(found - w) <= model.bound_ < 1e-4
    assert largest <= model.radius_.w and reach <= model.radius_.u
    assert model.certified(X).all()
    slope, shift = model.coefficients()
    size, centre = (1.0, 0.0) if loss == "poisson" else (y.std(), y.mean())
    assert np.allclose(slope, w[:-1] / X.std(0) * size, atol=1e-5)
    expected = size * (x @ w[:-1] + w[-1]) + centre
    assert np.allclose(X @ slope + shift, expected, atol=1e-5)
    assert np.allclose(model.predict(X), np.exp(expected) if loss == "poisson" else expected, atol=1e-5)


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_the_default_radius_holds_on_separable_classes(ridge: float) -> None:
    """w grows without end there, were it not for the ridge."""
    x = np.linspace(-1, 1, 20)[:, None]
    y = (x[:, 0] > 0).astype(float)
    model = InContextClassifier(ridge, steps=300).fit(x, y)
    scaled = (x - x.mean()) / x.std()
    w, largest, reach = descended(scaled, y, PSI["logistic"], model.step_size_, 300, ridge)
    assert largest <= model.radius_.w and reach <= model.radius_.u
    assert (
        np.linalg.norm(model.learner_.coefficients(model.context_x_, model.context_y_[0]).numpy() - w)
        <= model.bound_
    )
    assert model.certified(x).all()


def test_step_size_is_one_over_the_curvature() -> None:
    x = np.concatenate([(X - X.mean(0)) / X.std(0), np.ones((40, 1))], 1)
    largest = float(np.linalg.eigvalsh(x.T @ x / 40)[-1])
    exact = 1 / (largest + 0.5)
    assert InContextRegressor("ridge(0.5)", steps=2).fit(X, Y).step_size_ == pytest.approx(exact, rel=1e-6)
    exact = 1 / (largest / 4 + 0.5)  # the slope of ψ is known from above only, to a part in a hundred
    assert 0.99 * exact <= InContextClassifier(0.5, steps=2).fit(X, Y > 5).step_size_ <= exact


@pytest.mark.filterwarnings("ignore::attnc.DomainWarning")
def test_a_query_beyond_the_radius_is_predicted_and_not_certified() -> None:
    model = InContextRegressor(steps=100).fit(X, Y)
    far = X[:2] + np.array([[0, 0, 0], [1e3, 0, 0]])
    assert model.certified(far).tolist() == [True, False]
    slope, shift = model.coefficients()
    assert np.allclose(model.predict(far), far @ slope + shift, rtol=1e-3)


def test_coefficients_that_leave_a_given_radius_certify_nothing() -> None:
    model = InContextRegressor("squared", steps=100, radius=Radius(10, 10, 0.1, 20)).fit(X, Y)
    assert not model.certified(X).any()
    assert model.score(X, Y) > 0.9


def test_constant_columns_and_constant_targets() -> None:
    x = np.concatenate([X, np.full((40, 1), 0.1), np.zeros((40, 1))], 1)
    with_them, without = InContextRegressor(steps=100).fit(x, Y), InContextRegressor(steps=100).fit(X, Y)
    assert np.abs(with_them.predict(x) - without.predict(X)).max() < 1e-5
    assert InContextRegressor(steps=20).fit(X, np.full(40, 3.25)).predict(X) == pytest.approx(3.25, abs=1e-9)
    assert InContextRegressor(steps=20).fit(np.ones((5, 2)), np.arange(5.0)).predict(
        [[1, 1]]
    ) == pytest.approx(2, abs=1e-9)


@pytest.mark.filterwarnings("ignore::attnc.DomainWarning")
def test_one_example_only() -> None:
    assert InContextRegressor(steps=20).fit([[1.0, 2.0]], [5.0]).predict([[4.0, 4.0]]) == pytest.approx(5)
    with pytest.raises(InputError):
        InContextClassifier().fit([[1.0, 2.0]], ["a"])


def test_without_standardising_and_without_intercept() -> None:
    x, y = X / [1, 10, 0.1], Y / 10
    model = InContextRegressor("squared", steps=40, standardise=False, intercept=False).fit(x, y)
    w = np.zeros(3)
    for _ in range(40):
        w = w - model.step_size_ * x.T @ (x @ w - y) / 40
    slope, shift = model.coefficients()
    assert shift == 0 and np.linalg.norm(slope - w) <= model.bound_


def test_float32() -> None:
    wide, narrow = (
        InContextRegressor(steps=100, dtype=d).fit(X, Y).predict(X) for d in ("float64", "float32")
    )
    assert 0 < np.abs(wide - narrow).max() < 1e-3 * Y.std()


def test_copies_predict_the_same() -> None:
    model = InContextClassifier(steps=20).fit(X, Y > 5)
    again = copy.deepcopy(model)
    assert again.learner_ is not model.learner_
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    with pytest.raises(NotFittedError):
        clone(model).predict(X)


def test_a_grid_search_over_losses() -> None:
    search = GridSearchCV(InContextRegressor(steps=50), {"loss": ["ridge(0.01)", "ridge(100)"]}, cv=2).fit(
        X, Y
    )
    assert search.best_params_ == {"loss": "ridge(0.01)"}


def test_a_numeric_alpha_in_a_pipeline_and_a_grid_search() -> None:
    pipeline = make_pipeline(StandardScaler(), InContextRegressor("ridge", steps=50))
    grid = {"incontextregressor__alpha": [0.001, 100.0]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(X, Y)
    assert search.best_params_ == {"incontextregressor__alpha": 0.001}
    best = search.best_estimator_[-1]
    assert best.coef_.shape == (3,) and best.score(StandardScaler().fit_transform(X), Y) > 0.9


@pytest.mark.parametrize(
    ("loss", "alpha", "other"),
    [("ridge", 0.5, "ridge(0.5)"), ("lasso", 0.2, "lasso(0.2)"), ("squared", 0.0, "squared")],
)
def test_alpha_is_the_number_in_the_name(loss: str, alpha: float, other: str) -> None:
    a, b = (
        InContextRegressor(loss, alpha=alpha, steps=20).fit(X, Y),
        InContextRegressor(other, steps=20).fit(X, Y),
    )
    assert (a.coef_ == b.coef_).all() and a.intercept_ == b.intercept_


@pytest.mark.slow
def test_alpha_adds_a_ridge_to_other_losses() -> None:
    slopes = [InContextRegressor("huber(1)", alpha=a, steps=100).fit(X, Y).coef_ for a in (0.0, 10.0)]
    assert np.abs(slopes[1]).sum() < 0.5 * np.abs(slopes[0]).sum()
    with pytest.raises(InputError):
        InContextRegressor("ridge(0.1)", alpha=0.1).fit(X, Y)


def test_coefficients_are_attributes() -> None:
    model = InContextRegressor("squared", steps=200).fit(X, Y)
    assert np.allclose(model.predict(X), X @ model.coef_ + model.intercept_, atol=1e-6)
    classes = InContextClassifier(steps=20).fit(X, Y > 5)
    assert classes.coef_.shape == (1, 3) and classes.intercept_.shape == (1,)
    again = model.fit(X, 2 * Y)  # no coefficients of the first fit are left
    assert np.allclose(again.predict(X), X @ again.coef_ + again.intercept_, atol=1e-6)
    assert not hasattr(InContextRegressor(), "coef_")


@pytest.mark.filterwarnings("error")
def test_too_few_steps_warn_and_name_those_that_suffice() -> None:
    with pytest.warns(ConvergenceWarning) as caught:
        model = InContextRegressor("squared", steps=2).fit(X, Y)
    enough = model.convergence_.enough
    assert enough is not None and f"steps={enough}" in str(caught[0].message)
    assert InContextRegressor("squared", steps=enough).fit(X, Y).convergence_.reached  # and does not warn
    assert InContextRegressor("squared", steps=2, tol=10.0).fit(X, Y).convergence_.reached
    x = np.linspace(-1, 1, 20)[:, None]
    for steps in (30, 300):  # the classes are separable: no number of steps is enough
        with pytest.warns(ConvergenceWarning, match="alpha=0.01") as caught:
            found = InContextClassifier(0.0, steps=steps, tol=0.1).fit(x, x[:, 0] > 0).convergence_
        assert found.separable and not found.reached and found.enough is None
        assert "steps=" not in str(caught[0].message)
    three = np.arange(20) // 7
    with pytest.warns(
        ConvergenceWarning, match="alpha=0.01"
    ):  # a line separates the first and the last class only
        assert InContextClassifier(0.0, steps=30).fit(x, three).convergence_.separable
    assert not InContextClassifier(0.01, steps=500, tol=1e-3).fit(x, x[:, 0] > 0).convergence_.separable


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_read_only_target_does_not_warn() -> None:
    """A column of a pandas DataFrame is one."""
    y = Y.copy()
    y.flags.writeable = False
    assert (
        InContextRegressor("squared", steps=5).fit(X, y).coef_
        == InContextRegressor("squared", steps=5).fit(X, Y).coef_
    ).all()


def test_columns_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y})
    model = InContextRegressor("squared", steps=5).fit(frame[["a", "b"]], frame.y)
    assert (model.coef_ == InContextRegressor("squared", steps=5).fit(X[:, :2], Y).coef_).all()


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array"])
def test_sparse_matrices(kind: str) -> None:
    x = np.where(np.abs(X) > 1, X, 0)
    sparse = getattr(pytest.importorskip("scipy.sparse"), kind)(x)
    a, b = (InContextRegressor(steps=5).fit(given, Y) for given in (sparse, x))
    assert (a.coef_ == b.coef_).all() and (a.predict(sparse) == b.predict(x)).all()
    assert a.certified(sparse).all()
    c, d = (InContextClassifier(steps=5).fit(given, Y > 5) for given in (sparse, x))
    assert (c.predict_proba(sparse) == d.predict_proba(x)).all()


def test_words_in_a_pipeline() -> None:
    cities = np.array(["Bonn", "Rome"])[(Y > 5).astype(int)][:, None]
    model = make_pipeline(OneHotEncoder(), InContextRegressor(steps=50)).fit(cities, Y)
    means = [Y[(Y > 5) == warm].mean() for warm in (False, True)]
    assert model.predict([["Bonn"], ["Rome"]]) == pytest.approx(means, rel=0.05)


def test_the_card_says_for_how_many_examples_its_bound_is() -> None:
    model = InContextRegressor(steps=5).fit(X, Y)
    assert model.bound_ < model.learner_.certificate.bound
    assert "up to 1,000" in model.learner_._repr_html_()


def test_the_estimators_are_listed() -> None:
    import attnc.incontext

    assert {"InContextRegressor", "InContextClassifier"} <= {*dir(attnc.incontext)}
    assert attnc.incontext.InContextRegressor is InContextRegressor


@pytest.mark.parametrize(
    ("make", "x", "y", "words"),
    [
        (lambda: InContextRegressor(loss="hinge"), X, Y, "accepted are"),
        (lambda: InContextRegressor(loss="logistic"), X, Y, "InContextClassifier"),
        (lambda: InContextRegressor(loss="poisson"), X, Y - 100, "counts"),
        (lambda: InContextRegressor(steps=0), X, Y, "steps=0"),
        (lambda: InContextRegressor(step_size=2.0), X, Y, "step_size=2"),
        (lambda: InContextRegressor(step_size=-1.0), X, Y, "positive, finite number"),
        (lambda: InContextRegressor(standardise="yes"), X, Y, "True or False"),
        (lambda: InContextRegressor(dtype="float16"), X, Y, "float64"),
        (lambda: InContextRegressor(radius=1.0), X, Y, r"\|x\| of the context reached .* 1"),
        (lambda: InContextRegressor(standardise=False), X * 1e100, Y, "standardise=True"),
        (lambda: InContextClassifier(alpha=-1), X, Y > 5, "alpha=-1"),
        (lambda: InContextClassifier(), X, Y > 1e9, "class"),
    ],
)  # fmt: skip
def test_refusals(make: Callable[[], Any], x: Array, y: Array, words: str) -> None:
    with pytest.raises(AttncError, match=words):
        make().fit(x, y)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite(bad: float) -> None:
    x = X.copy()
    x[3, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        InContextRegressor().fit(x, Y)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        InContextRegressor(steps=1).fit(X, Y).predict(x)


def test_queries_that_do_not_fit() -> None:
    model = InContextRegressor(steps=1).fit(X, Y)
    with pytest.raises(ValueError):
        model.predict(X[:, :2])
    with pytest.raises(ValueError):
        model.predict(X[:0])


def test_scikit_learn_is_asked_for_only_here() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import attnc.incontext\n"
        "from attnc.errors import MissingExtraError\n"
        "try:\n    import attnc.incontext.estimators\n"
        "except MissingExtraError as problem:\n    print(problem)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'attnc[sklearn]'" in found.stdout


def failures(checked: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The checks that failed; that pandas is missing, or scipy's array interface is off, skips one each."""
    assert sum(c["status"] == "passed" for c in checked) > 45
    return [
        (c["check_name"], str(c["exception"])) for c in checked if c["status"] not in ("passed", "skipped")
    ]


@pytest.mark.filterwarnings("ignore")
def test_check_estimator_of_the_regressor() -> None:
    assert not failures(check_estimator(InContextRegressor(steps=60), on_skip=None, on_fail=None))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_check_estimator_of_the_classifier() -> None:
    assert not failures(check_estimator(InContextClassifier(steps=60), on_skip=None, on_fail=None))


@pytest.mark.filterwarnings("ignore")
def test_the_quick_checks_of_the_classifier() -> None:
    """Those of scikit-learn's that are about classes; the whole of them is slow, for a head is proved in every fit."""
    wanted = {
        "check_classifiers_one_label",
        "check_classifiers_classes",
        "check_dict_unchanged",
        "check_fit2d_1sample",
    }
    ran = set()
    for estimator, check in estimator_checks_generator(InContextClassifier(steps=60)):
        if check.func.__name__ in wanted:
            check(estimator)
            ran.add(check.func.__name__)
    assert ran == wanted


def test_the_default_estimators_are_parameters_only() -> None:
    assert InContextRegressor().get_params()["loss"] == "ridge"
    assert clone(InContextClassifier(0.3, steps=7)).get_params()["steps"] == 7


def test_standardising_is_not_advised_to_those_who_do() -> None:
    from attnc.incontext.losses import Convergence, too_few

    found = Convergence(steps=3, gradient=1.0, tolerance=1e-4, enough=None, tried=1000)
    assert "standardise" in too_few(found, False) and "standardise" not in too_few(found, True)
