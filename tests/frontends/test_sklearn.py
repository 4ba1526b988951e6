"""scikit-learn's networks, against their own predictions."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb, fmpq
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PolynomialFeatures, RobustScaler, StandardScaler

import attnc
from attnc.errors import InputError, UnsupportedError
from attnc.frontends import to_program
from attnc.functions.balls import working
from attnc.program import Affine, Pointwise
from attnc.program.evaluate import approximate, exact

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 3)) * [1, 10, 0.1] + [0, 3, 1]
Y = np.sin(X[:, 0]) + X[:, 1]


def fitted(network: Any, y: Any = Y, x: Any = X) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stops before it converges
        return network.fit(x, y)


def regressor(**options: Any) -> Any:
    return MLPRegressor(
        **{"hidden_layer_sizes": (6, 4), "max_iter": 3, "random_state": 0, "solver": "lbfgs"} | options
    )


def classifier(**options: Any) -> Any:
    return MLPClassifier(
        **{"hidden_layer_sizes": (5,), "max_iter": 3, "random_state": 0, "solver": "lbfgs"} | options
    )


@pytest.mark.parametrize("activation", ["identity", "logistic", "tanh", "relu"])
def test_regressors(activation: str) -> None:
    net = fitted(regressor(activation=activation))
    program = to_program(net, (3,))
    np.testing.assert_allclose(approximate(program, X)[:, 0], net.predict(X), rtol=1e-12, atol=1e-12)
    assert sum(isinstance(s, Pointwise) for s in program.steps) == (0 if activation == "identity" else 2)


def test_several_outputs_single_precision_and_poisson() -> None:
    net = fitted(regressor(), np.stack([Y, -Y], 1).astype(np.float32), X.astype(np.float32))
    program = to_program(net, (3,))
    assert program.shapes[-1] == (2,) and program.steps[0].tensors()["weight"].dtype == net.coefs_[0].dtype
    np.testing.assert_allclose(approximate(program, X), net.predict(X), rtol=1e-5, atol=1e-5)
    counts = fitted(regressor(loss="poisson", hidden_layer_sizes=(3,)), np.abs(Y))
    assert to_program(counts, (3,)).steps[-1].kind == "pointwise"


def test_a_classifier_becomes_its_logits() -> None:
    net = fitted(classifier(), np.digitize(Y, [0, 3]))
    logits = approximate(to_program(net, (3,)), X)
    assert logits.shape == (60, 3)
    np.testing.assert_allclose(
        torch.softmax(torch.from_numpy(logits), -1).numpy(), net.predict_proba(X), atol=1e-12
    )
    assert (net.classes_[logits.argmax(-1)] == net.predict(X)).all()


def test_two_classes_have_one_logit() -> None:
    net = fitted(classifier(), Y > 3)
    logits = approximate(to_program(net, (3,)), X)[:, 0]
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), net.predict_proba(X)[:, 1], atol=1e-12)
    assert (net.classes_[(logits > 0).astype(int)] == net.predict(X)).all()


def test_many_labels() -> None:
    net = fitted(classifier(), np.stack([Y > 3, Y < 0, X[:, 0] > 0], 1))
    logits = approximate(to_program(net, (3,)), X)
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), net.predict_proba(X), atol=1e-12)


@pytest.mark.parametrize(
    "scaler",
    [
        StandardScaler(),
        StandardScaler(with_std=False),
        StandardScaler(with_mean=False),
        RobustScaler(),
        RobustScaler(with_centering=False),
        RobustScaler(with_scaling=False),
        MaxAbsScaler(),
        MinMaxScaler(),
    ],
    ids=repr,
)
def test_scalers_in_front(scaler: Any) -> None:
    net = fitted(make_pipeline(scaler, "passthrough", regressor()))
    program = to_program(net, (3,))
    np.testing.assert_allclose(approximate(program, X)[:, 0], net.predict(X), rtol=1e-11, atol=1e-11)
    assert program.steps[0].kind == "batch_norm"


def test_scaling_is_exact() -> None:
    """(x - mean)/scale in rational numbers, through a network that passes one feature on."""
    net = fitted(make_pipeline(StandardScaler(), regressor(hidden_layer_sizes=(3,), activation="identity")))
    net[-1].coefs_ = [np.eye(3), np.array([[0.0], [1.0], [0.0]])]
    net[-1].intercepts_ = [np.zeros(3), np.zeros(1)]
    mean, scale = (Fraction(float(v[1])) for v in (net[0].mean_, net[0].scale_))
    truth = (Fraction(0.7) - mean) / scale
    with working(300):
        ball = exact(to_program(net, (3,)), np.array([0.1, 0.7, 3.0]), 300)[0]
        assert ball.contains(arb(fmpq(truth.numerator, truth.denominator))) and ball.rad() < 1e-60


class Mine(MLPRegressor):
    """A class of one's own."""


@pytest.mark.parametrize(
    ("estimator", "where", "reason"),
    [
        (LinearRegression().fit(X, Y), "LinearRegression", "accepted are MLPRegressor"),
        (
            fitted(Mine(hidden_layer_sizes=(2,), max_iter=1)),
            "Mine",
            "no subclasses",
        ),
        (make_pipeline(PolynomialFeatures(), regressor()), "polynomialfeatures", "is a PolynomialFeatures"),
        (make_pipeline(StandardScaler(), LinearRegression()), "linearregression", "is a LinearRegression"),
        (Pipeline([("skip", "passthrough")]), "Pipeline", "is empty"),
        (fitted(make_pipeline(MinMaxScaler(clip=True), regressor())), "minmaxscaler", "clips its result"),
        (fitted(regressor()), "MLPRegressor", "takes 3 features"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_refused(estimator: Any, where: str, reason: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        to_program(estimator, (4,))
    assert any(p.where == where and reason in p.reason for p in raised.value.problems), raised.value


def test_a_search_names_what_to_give() -> None:
    search = fitted(GridSearchCV(regressor(hidden_layer_sizes=(2,), max_iter=1), {"alpha": [0.1]}, cv=2))
    with pytest.raises(UnsupportedError, match="best_estimator_"):
        to_program(search, (3,))
    assert isinstance(to_program(search.best_estimator_, (3,)).steps[0], Affine)


@pytest.mark.parametrize(
    "estimator",
    [regressor(), classifier(), make_pipeline(StandardScaler(), regressor())],
    ids=["r", "c", "p"],
)
def test_not_fitted(estimator: Any) -> None:
    with pytest.raises(InputError):
        to_program(estimator, (3,))


def test_every_problem_is_told() -> None:
    net = fitted(regressor())
    net.coefs_[0][0, 0] = np.nan
    net.intercepts_[2] = np.array([1])
    net.activation = "swish"
    with pytest.raises(UnsupportedError) as raised:
        to_program(net, (2,))
    assert [p.where for p in raised.value.problems] == [
        "activation",
        "coefs_[0]",
        "intercepts_[2]",
        "MLPRegressor",
    ]


def test_a_replaced_prediction_is_found_out() -> None:
    net = fitted(regressor())
    net.predict = lambda x: np.zeros(len(x))
    with pytest.raises(UnsupportedError):
        to_program(net, (3,))


def test_attnc_does_not_import_scikit_learn() -> None:
    """Nor does the front end name it: estimators are told by what they have. What needs it imports it when it is asked for."""
    code = "import sys, attnc, attnc.cli, attnc.incontext; print('sklearn' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
    for path in (Path(attnc.__file__).parent / "frontends").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [n.name for n in node.names] if isinstance(node, ast.Import) else []
            assert not any(str(name).startswith("sklearn") for name in names), path


def test_a_linear_model_is_led_to_the_learners() -> None:
    with pytest.raises(UnsupportedError) as refused:
        attnc.compile(
            LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0]), domain=attnc.Box(0, 1, shape=(1,)), eps=1e-3
        )
    assert "InContextRegressor" in refused.value.advice
