"""estimator_to_program: scikit-learn's networks as programs. attnc does not import scikit-learn: the estimator has done so."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from attnc import functions
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.activations import RefusedError
from attnc.frontends.operations import Builder, Value
from attnc.frontends.problems import tensor_problem
from attnc.functions import Function
from attnc.program import Affine, Program
from attnc.program.evaluate import approximate
from attnc.program.step import Shape

_ACTIVATIONS: dict[str, Callable[[], Function]] = {
    "identity": functions.identity, "logistic": functions.sigmoid, "tanh": functions.tanh, "relu": functions.relu,
    "exp": functions.exp,
}  # fmt: skip
_NETWORKS = ("MLPRegressor", "MLPClassifier")
_SCALERS = {  # the centre, and the flags for centre and scale
    "StandardScaler": ("mean_", "with_mean", "with_std"), "RobustScaler": ("center_", "with_centering", "with_scaling"),
    "MaxAbsScaler": ("", "", ""), "MinMaxScaler": ("", "", ""),
}  # fmt: skip


def is_estimator(model: object) -> bool:
    """Whether the object is of a class of scikit-learn, or of a subclass."""
    return any(kind.__module__.split(".")[0] == "sklearn" for kind in type(model).__mro__)


def estimator_to_program(estimator: Any, shape: Shape) -> Program:
    """The program of a fitted MLPRegressor or MLPClassifier, alone or behind scalers in a Pipeline.

    The program of a classifier computes its *logits*, without the softmax (or the logistic function, for two classes and for
    many labels) that follows: see docs/networks.md.

    >>> from sklearn.neural_network import MLPRegressor
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> net = MLPRegressor(hidden_layer_sizes=(8,), solver="lbfgs", tol=1, random_state=0).fit(x, x[:, 0] ** 2)
    >>> [step.kind for step in estimator_to_program(net, (1,)).steps]
    ['affine', 'pointwise', 'affine']
    """
    name = type(estimator).__name__
    scalers, network = _parts(estimator)
    problems = list(_problems(scalers, network))
    features = getattr(scalers[0][1] if scalers else network, "n_features_in_", None)
    if shape != (features,):
        problems.append(Problem(name, f"takes {features} features, and the shape is {shape}"))
    if not problems:
        try:
            program = _built(network, scalers, shape)
            _check_prediction(estimator, network, program)
            return program
        except RefusedError as refusal:
            problems = [Problem(name, str(refusal))]
    raise UnsupportedError(f"{name} cannot be compiled", problems)


def _built(network: Any, scalers: list[tuple[str, Any]], shape: Shape) -> Program:
    b = Builder(shape, np.dtype(np.float64))
    x = b.input
    for b.name, scaler in scalers:
        x = _scaled(b, x, scaler)
    activations = [network.activation] * (len(network.coefs_) - 1) + [network.out_activation_]
    if _kind(network) == "MLPClassifier":
        activations[-1] = "identity"  # its softmax, or logistic function, is left off
    for i, (weight, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        b.name = f"coefs_[{i}]"
        x = b.add(Affine, x, weight=weight.T, bias=bias)
        x = b.apply(x, _ACTIVATIONS[activations[i]]())
    return b.program(x)


def _parts(estimator: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The scalers, with their names, and the network."""
    name = type(estimator).__name__
    steps = [(name, estimator)]
    if _kind(estimator) == "Pipeline":
        steps = [(key, s) for key, s in estimator.steps if s is not None and not isinstance(s, str)]
    accepted = f"{', '.join(_NETWORKS)}, and a Pipeline of {', '.join(_SCALERS)} with one of them at its end"
    unknown = [] if steps else [Problem("Pipeline", "is empty")]
    for i, (key, step) in enumerate(steps, 1):
        if _kind(step) not in (_NETWORKS if i == len(steps) else _SCALERS):
            reason = f"is a {type(step).__name__}: accepted are {accepted}, but no subclasses of these"
            search = hasattr(step, "best_estimator_")
            unknown.append(Problem(key, "is a search: give its best_estimator_" if search else reason))
    if unknown:
        raise UnsupportedError(f"{name} is not supported", unknown, _advice(steps[-1][1] if steps else None))
    return steps[:-1], steps[-1][1]


def _advice(last: Any) -> str:
    """Where else linear models are attention."""
    if not hasattr(last, "coef_"):
        return ""
    return (
        "A linear model has no activation to replace. attnc.incontext.InContextRegressor and InContextClassifier are linear and "
        "logistic regression by attention: they learn from the examples in a forward pass."
    )


def task_of(estimator: Any) -> tuple[str, tuple[Any, ...]]:
    """What its predictions are, a word of `TASKS`, and the classes of a classifier."""
    network = _parts(estimator)[1]
    if _kind(network) == "MLPRegressor":
        return "regression", ()
    tasks = {1: "binary"} if network.out_activation_ == "logistic" else {}
    multi = "multiclass" if network.out_activation_ == "softmax" else "multilabel"
    return tasks.get(network.n_outputs_, multi), tuple(np.asarray(network.classes_).tolist())


def _kind(part: Any) -> str:
    """The name of scikit-learn's own class; '' for any other, also for subclasses."""
    kind = type(part)
    home = ".".join(kind.__module__.split(".")[:2])
    return kind.__name__ if getattr(sys.modules.get(home), kind.__name__, None) is kind else ""


def _problems(scalers: list[tuple[str, Any]], network: Any) -> Iterator[Problem]:
    for part in (*(scaler for _, scaler in scalers), network):
        if not any(hasattr(part, fitted) for fitted in ("coefs_", "scale_", "center_")):
            raise InputError(f"{type(part).__name__} is not fitted: call fit(X, y) first")
    for name in {network.activation, network.out_activation_} - {*_ACTIVATIONS, "softmax"}:
        yield Problem("activation", f"is {name!r}: accepted are {', '.join(_ACTIVATIONS)}")
    numbers: dict[str, Any] = {}
    for i, (weight, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        numbers |= {f"coefs_[{i}]": weight, f"intercepts_[{i}]": bias}
    for where, scaler in scalers:
        if getattr(scaler, "clip", False):
            yield Problem(where, "clips its result: give clip=False")
        parts = {part: getattr(scaler, part, None) for part in ("mean_", "center_", "scale_", "min_")}
        numbers |= {f"{where}.{part}": given for part, given in parts.items() if given is not None}
    for where, given in numbers.items():
        if (reason := tensor_problem(given)) is not None:
            yield Problem(where, reason)


def _scaled(b: Builder, x: Value, scaler: Any) -> Value:
    """x·scale + min, or (x - centre)/scale, each part of it as the scaler's flags say."""
    if _kind(scaler) == "MinMaxScaler":
        return b.diagonal(x, gain=scaler.scale_, shift=scaler.min_)
    centre, if_centred, if_scaled = _SCALERS[_kind(scaler)]
    if getattr(scaler, if_centred, False):
        x = b.diagonal(x, shift=-getattr(scaler, centre))
    return b.divided(x, scaler.scale_) if getattr(scaler, if_scaled, True) else x


def _check_prediction(estimator: Any, network: Any, program: Program) -> None:
    """Compare the estimator's own prediction with the program, followed by the softmax or logistic function of a classifier."""
    x = np.random.default_rng(0).uniform(-2, 2, (8, *program.shape))
    ours, classifies = torch.from_numpy(approximate(program, x)), _kind(network) == "MLPClassifier"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the names of columns
        predict = estimator.predict_proba if classifies else estimator.predict
        theirs = np.asarray(predict(x), dtype=np.float64)
    if classifies:
        ours = torch.softmax(ours, -1) if network.out_activation_ == "softmax" else torch.sigmoid(ours)
        ours = torch.cat([1 - ours, ours], -1) if ours.shape[-1] == 1 else ours
    gap = float(np.abs(theirs - ours.numpy().reshape(theirs.shape)).max())
    if not gap <= 1e-6 * (1e-3 + float(np.abs(theirs).max())):
        raise RefusedError(f"differs from its program by {gap:.3g} at a random input")
