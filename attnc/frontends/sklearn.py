"""estimator_to_program: scikit-learn's networks as programs. attnc does not import scikit-learn: the estimator has done so."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attnc import functions
from attnc.domain import Array
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends.activations import Activation, RefusedError
from attnc.frontends.builder import Builder, Value
from attnc.frontends.problems import tensor_problem
from attnc.functions import Function
from attnc.program import Affine, Program
from attnc.program.evaluate import approximate
from attnc.program.step import Shape

_ACTIVATIONS: dict[str, Callable[[], Function] | None] = {
    "identity": None, "logistic": functions.sigmoid, "tanh": functions.tanh, "relu": functions.relu, "exp": functions.exp,
}  # fmt: skip
_NETWORKS = ("MLPRegressor", "MLPClassifier")
_ACCEPTED = (
    "MLPRegressor, MLPClassifier, and a Pipeline of StandardScaler, RobustScaler, MaxAbsScaler or MinMaxScaler with one of "
    "them at its end"
)


def is_estimator(model: object) -> bool:
    """Whether the object is of a class of scikit-learn, or of a subclass."""
    return any(kind.__module__.split(".")[0] == "sklearn" for kind in type(model).__mro__)


def estimator_to_program(estimator: Any, shape: Shape) -> Program:
    """The program of a fitted MLPRegressor or MLPClassifier, alone or behind scalers in a Pipeline.

    The program of a classifier computes its *logits*, without the softmax (or the logistic function, for two classes and for
    many labels) that follows. If every logit has the error bound B, the decision is the same if the two largest logits differ by
    more than 2B (one logit: if it is more than B from 0); a probability changes by at most B/2 through the softmax, by at most
    B/4 through the logistic function.

    >>> from sklearn.neural_network import MLPRegressor
    >>> x = np.linspace(-1, 1, 40)[:, None]
    >>> net = MLPRegressor(hidden_layer_sizes=(8,), solver="lbfgs", tol=1, random_state=0).fit(x, x[:, 0] ** 2)
    >>> [step.kind for step in estimator_to_program(net, (1,)).steps]
    ['affine', 'pointwise', 'affine']
    """
    name = type(estimator).__name__
    scalers, network = _parts(estimator)
    for part in (*(s for _, s in scalers), network):
        if not _is_fitted(part):
            raise InputError(f"{type(part).__name__} is not fitted: call fit(X, y) first")
    problems = [*_network_problems(network), *(p for where, s in scalers for p in _scaler_problems(where, s))]
    features = getattr(scalers[0][1] if scalers else network, "n_features_in_", None)
    if shape != (features,):
        problems.append(Problem(name, f"takes {features} features, and the shape is {shape}"))
    if problems:
        raise UnsupportedError(f"{name} cannot be compiled", problems)
    program = _built(network, scalers, shape)
    found = _disagreement(estimator, network, program)
    if found:
        raise UnsupportedError(f"{name} cannot be compiled", [Problem(name, found)])
    return program


def _built(network: Any, scalers: list[tuple[str, Any]], shape: Shape) -> Program:
    b = Builder(shape, np.dtype(np.float64))
    x = b.input
    try:
        for where, scaler in scalers:
            b.where = b.name = where
            x = _SCALERS[_kind(scaler)](b, x, scaler)
    except RefusedError as refusal:
        raise UnsupportedError(f"{where} cannot be compiled", [Problem(where, str(refusal))]) from None
    last = len(network.coefs_) - 1
    for i, (weight, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        b.name = f"coefs_[{i}]"
        x = b.add(Affine(x.index, weight.T, bias, name=b.name), x)
        left_off = ("softmax", "logistic") if _kind(network) == "MLPClassifier" else ()
        after = network.out_activation_ if i == last else network.activation
        make = None if i == last and after in left_off else _ACTIVATIONS[after]
        x = x if make is None else b.apply(x, Activation(make()))
    return b.program(x)


def _parts(estimator: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The scalers, with their names, and the network."""
    name = type(estimator).__name__
    steps = [(name, estimator)]
    if _kind(estimator) == "Pipeline":
        steps = [(key, s) for key, s in estimator.steps if s is not None and not isinstance(s, str)]
    unknown = [Problem(key, _refused(s)) for key, s in steps[:-1] if _kind(s) not in _SCALERS]
    unknown += [Problem(key, _refused(s)) for key, s in steps[-1:] if _kind(s) not in _NETWORKS]
    if unknown or not steps:
        raise UnsupportedError(f"{name} is not supported", unknown or [Problem("Pipeline", "is empty")])
    return steps[:-1], steps[-1][1]


def _refused(part: Any) -> str:
    if hasattr(part, "best_estimator_"):
        return "is a search: give its best_estimator_"
    own = [k.__name__ for k in type(part).__mro__[1:] if k.__module__.startswith("sklearn.neural_network")]
    if any(n in _NETWORKS for n in own):
        return f"is a subclass of {own[0]}, which may compute something else: accepted are {_ACCEPTED}"
    return f"is a {type(part).__name__}: accepted are {_ACCEPTED}"


def _kind(part: Any) -> str:
    """The name of scikit-learn's own class; '' for any other, also for subclasses."""
    kind = type(part)
    home = ".".join(kind.__module__.split(".")[:2])
    return kind.__name__ if getattr(sys.modules.get(home), kind.__name__, None) is kind else ""


def _is_fitted(part: Any) -> bool:
    return hasattr(part, "coefs_") or any(hasattr(part, name) for name in ("scale_", "center_"))


def _network_problems(network: Any) -> Iterator[Problem]:
    for name in {network.activation, network.out_activation_} - {*_ACTIVATIONS, "softmax"}:
        yield Problem("activation", f"is {name!r}: accepted are {', '.join(_ACTIVATIONS)}")
    for i, (weight, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        for where, numbers in ((f"coefs_[{i}]", weight), (f"intercepts_[{i}]", bias)):
            if (reason := tensor_problem(numbers)) is not None:
                yield Problem(where, reason)
    widths = [w.shape for w in network.coefs_]
    for i, (left, right) in enumerate(pairwise(widths)):
        if left[1] != right[0]:
            yield Problem(f"coefs_[{i + 1}]", f"takes {right[0]} features, and gets {left[1]}")


def _scaler_problems(where: str, scaler: Any) -> Iterator[Problem]:
    if getattr(scaler, "clip", False):
        yield Problem(where, "clips its result: give clip=False")
    for part in ("mean_", "center_", "scale_", "min_"):
        numbers = getattr(scaler, part, None)
        if numbers is not None and (reason := tensor_problem(numbers)) is not None:
            yield Problem(f"{where}.{part}", reason)


def _centred(centre: str, if_centred: str, if_scaled: str) -> Callable[[Builder, Value, Any], Value]:
    """(x - centre)/scale, each part of it as the scaler's flags say."""

    def steps(b: Builder, x: Value, scaler: Any) -> Value:
        if getattr(scaler, if_centred, False):
            x = b.diagonal(x, shift=-getattr(scaler, centre))
        return b.divided(x, scaler.scale_) if getattr(scaler, if_scaled, True) else x

    return steps


_SCALERS: dict[str, Callable[[Builder, Value, Any], Value]] = {
    "StandardScaler": _centred("mean_", "with_mean", "with_std"),
    "RobustScaler": _centred("center_", "with_centering", "with_scaling"),
    "MaxAbsScaler": _centred("", "", ""),
    "MinMaxScaler": lambda b, x, s: b.diagonal(x, gain=s.scale_, shift=s.min_),
}


def _disagreement(estimator: Any, network: Any, program: Program) -> str | None:
    """How far the estimator's own prediction is from the program, followed by the softmax or logistic function."""
    x = np.random.default_rng(0).uniform(-2, 2, (8, *program.shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the names of columns
        predict = estimator.predict_proba if _kind(network) == "MLPClassifier" else estimator.predict
        theirs = np.asarray(predict(x), dtype=np.float64)
    ours = _finished(network, approximate(program, x)).reshape(theirs.shape)
    gap = float(np.abs(theirs - ours).max())
    if gap <= 1e-6 * (1e-3 + float(np.abs(theirs).max())):
        return None
    return f"differs from its program by {gap:.3g} at a random input: a part of it was replaced"


def _finished(network: Any, outputs: Array) -> Array:
    """Probabilities of logits; the outputs of a regressor unchanged."""
    if _kind(network) != "MLPClassifier":
        return outputs
    logits = torch.from_numpy(outputs)
    if network.out_activation_ == "softmax":
        return torch.softmax(logits, -1).numpy()
    likely = torch.sigmoid(logits).numpy()
    return np.concatenate([1 - likely, likely], axis=-1) if likely.shape[-1] == 1 else likely
