"""The checker of learners and solvers: settings of other types or signs, and premises that fail, are not proved."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from flint import arb

import attnc
from attnc import functions
from attnc.arithmetic import ARITHMETIC
from attnc.check.learner import Claim, HeadBound, check_learner, descent_bound, newton_bound
from attnc.domain import Interval
from attnc.errors import AttncError, CertificateError, InputError
from attnc.functions.balls import working
from attnc.incontext import Learner, Loss, Radius, Solver, SolverRadius, gradient_descent, ridge_regression
from attnc.incontext.base import InContext
from attnc.incontext.bounds import HeadErrors, LearnerBound, SolverBound
from attnc.incontext.settings import LearnerSettings, SolverSettings, facts_of
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import seal
from attnc.records.files import read_file, write_file

WIDE = torch.float64


@cache
def made(kind: str) -> Learner | Solver:
    if kind == "solver":
        radius = SolverRadius(0.5, 2.0, 4.0, 4.0)
        return ridge_regression(0.5, features=2, iterations=5, radius=radius, dtype=WIDE)
    radius = Radius(0.5, 2.0, 4.0, 4.0)
    return gradient_descent(kind, features=2, steps=5, step_size=0.1, radius=radius, dtype=WIDE)


def checked(kind: str, **changes: Any) -> bool:
    """The verdict on the certificate with other facts; those of the loss as "loss.ridge"."""
    learner = made(kind)
    facts = copy.deepcopy(dict(learner.certificate.facts))
    for name, value in changes.items():
        inner = facts["loss"] if name.startswith("loss_") else facts
        inner[name.removeprefix("loss_")] = value
    heads = {name: head.numbers() for name, head in learner._heads().items()}
    return bool(check_learner(heads, replace(learner.certificate, facts=facts)))


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("squared", {"intercept": True}),  # the column of ones is above |x| <= 0.5
    ("squared", {"intercept": 0}),
    ("squared", {"intercept": None}),
    ("squared", {"step_size": -0.1}),
    ("squared", {"step_size": "0.1"}),
    ("squared", {"step_size": 0.0}),
    ("squared", {"steps": -1}),
    ("squared", {"steps": 0}),
    ("squared", {"steps": 1e-9}),
    ("squared", {"steps": True}),
    ("squared", {"algorithm": "adam"}),
    ("squared", {"loss": {}}),
    ("squared", {"loss_ridge": -3.0}),
    ("squared", {"loss_lasso": -3.0}),
    ("squared", {"loss_of_residual": 1}),
    ("squared", {"loss_name": 0.0}),
    ("squared", {"heads": []}),
    ("squared", {"features": 10**400}),
    ("squared", {"momentum": 0.9}),
    ("solver", {"intercept": True}),
    ("solver", {"start": -0.1, "ridge": -0.1}),
    ("solver", {"ridge": -0.5}),
    ("solver", {"iterations": -1}),
    ("solver", {"scales": [0]}),
    ("solver", {"scales": [0.0, 0.0, 0.0]}),
    ("solver", {"scales": "unknown"}),
    ("solver", {"ridge": "0.5"}),
]


@pytest.mark.parametrize(("kind", "changes"), SETTINGS, ids=str)
def test_settings_of_other_types_or_signs_are_refused(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    assert checked(kind)
    assert not checked(kind, **changes)
    learner, path = made(kind), tmp_path / "learner.safetensors"
    learner.save(path)
    about, tensors = read_file(path)
    facts = about["certificate"]["facts"]
    for name, value in changes.items():
        (facts["loss"] if name.startswith("loss_") else facts)[name.removeprefix("loss_")] = value
    for part in (about["certificate"], about):
        part["seal"] = seal({k: v for k, v in part.items() if k != "seal"})
    write_file(path, tensors, about)
    with pytest.raises(AttncError):
        attnc.load(path)
    with pytest.raises(AttncError):
        assert not attnc.verify(path)
        raise AttncError


def test_an_intercept_needs_a_radius_of_1() -> None:
    learner = gradient_descent(
        "squared", features=1, steps=2, step_size=0.1, radius=2.0, intercept=True, dtype=WIDE
    )
    heads, certificate = {"reading": learner.reading.numbers()}, learner.certificate
    assert check_learner(heads, certificate)
    context = certificate.holds_for
    smaller = replace(context, limits={**context.limits, "x": 0.99})  # type: ignore[type-var, union-attr, arg-type]
    assert not check_learner(heads, replace(certificate, holds_for=smaller))
    extra = replace(context, limits={**context.limits, "z": 1.0})  # type: ignore[type-var, union-attr, arg-type]
    assert not check_learner(heads, replace(certificate, holds_for=extra))


def test_a_child_that_is_no_head() -> None:
    learner = made("squared")
    child = Certificate.unknown("model", "float64")
    certificate = replace(learner.certificate, status=Status.MEASURED, children=(child,))
    assert not check_learner({"reading": learner.reading.numbers()}, certificate)
    assert not check_learner({}, learner.certificate)


def test_the_head_of_a_local_function_covers_what_exact_descent_reaches() -> None:
    """The slope of exp is known on the domain of its head alone: it must reach 1 % beyond |w·x| <= u."""
    loss = {"ridge": 0.0, "lasso": 0.0, "of_residual": False}
    facts = {"features": 1, "steps": 1, "step_size": 1e-3, "e": 2.0**-6, "loss": loss}
    limits = {"x": 1.0, "y": 1.0, "w": 1.0, "u": 1.0}
    a, found = ARITHMETIC["float64"], []
    for psi in (functions.exp(), functions.sigmoid()):
        for reach in (1.0001, 1.02):
            heads = {"reading": HeadBound(-1.02, 1.02, 1e-9), "activation": HeadBound(-reach, reach, 1e-9)}
            with working(128):
                found.append(bool(descent_bound(Claim(facts, limits, heads, psi), 10, a).is_finite()))
    assert found == [False, True, True, True]
    robust = {**facts, "loss": {**loss, "of_residual": True}}
    for reach, finite in ((2.0001, False), (2.02, True)):  # |w·x - y|
        heads["activation"] = HeadBound(-reach, reach, 1e-9)
        with working(128):
            bound = descent_bound(Claim(robust, limits, heads, functions.exp()), 10, a)
        assert bool(bound.is_finite()) is finite
    assert isinstance(bound, arb)


BASE = {
    "steps": 3,
    "step_size": 0.5,
    "e": 2.0**-6,
    "ridge": 0.0,
    "dtype": "float64",
    "x": 1.0,
    "w": 1.0,
    "features": 2,
}
REGIMES: dict[str, dict[str, Any]] = {  # in each, another term of the bound is the largest
    "reading": {"reading": 1e-3},
    "activation": {"activation": 1e-3},
    "reading through the activation": {"reading": 1e-3, "activation": 0.0},
    "series": {"e": 2.0**-3},
    "rounding of the means": {"dtype": "float32", "e": 2.0**-12},
    "rounding of the sum": {"dtype": "float32", "w": 1e4},
    "products": {"dtype": "float32", "features": 60},
    "threshold": {"threshold": 1e-2},
}


@pytest.mark.parametrize("regime", REGIMES)
def test_both_derivations_of_descent_agree_in_every_term(regime: str) -> None:
    given: dict[str, Any] = BASE | REGIMES[regime]
    psi = functions.sigmoid() if "activation" in given else None
    lasso = 0.1 if "threshold" in given else 0.0
    radius = Radius(given["x"], 1.0, given["w"], 1.0)
    numbers = given["features"], given["steps"], given["step_size"]
    settings = LearnerSettings(Loss("mine", psi, lasso=lasso), *numbers, radius, given["dtype"], given["e"])
    reading, wide = given.get("reading", 0.0), 4 * given["w"]
    errors = HeadErrors(
        reading, given.get("activation", 0.0), psi and Interval(-2.0, 2.0), given.get("threshold")
    )
    heads = {"reading": HeadBound(-2.0, 2.0, reading)}
    heads |= {"activation": HeadBound(-2.0, 2.0, given["activation"])} if psi else {}
    heads |= {"threshold": HeadBound(-wide, wide, given["threshold"])} if lasso else {}
    a = ARITHMETIC[given["dtype"]]
    proved = LearnerBound(settings, errors, a).bound(50)
    with working(128):
        found = descent_bound(Claim(facts_of(settings), vars(radius), heads, psi), 50, a)
    assert 0.7 * proved <= float(found.upper()) <= 1.02 * proved


SOLVERS: dict[str, dict[str, Any]] = {
    "reading": {"reading": 1e-5, "iterations": 9},
    "gathering": {"scales": (2.0**-4, 2.0**-9, 2.0**-9), "iterations": 9},
    "product": {"scales": (2.0**-9, 2.0**-5, 2.0**-9), "iterations": 9},
    "b": {"scales": (2.0**-9, 2.0**-9, 2.0**-3), "iterations": 9},
    "start": {"iterations": 1},
}


@pytest.mark.parametrize("regime", SOLVERS)
def test_both_derivations_of_newton_agree_in_every_term(regime: str) -> None:
    given: dict[str, Any] = {"reading": 0.0, "scales": (2.0**-9,) * 3} | SOLVERS[regime]
    radius, a = SolverRadius(1.0, 1.0, 1.0, 1.0), ARITHMETIC["float64"]
    settings = SolverSettings(1.0, 2, given["iterations"], 0.3, radius, "float64", given["scales"])
    proved = SolverBound(settings, given["reading"], a).bound(50)
    heads = {"reading": HeadBound(-2.0, 2.0, given["reading"])}
    with working(128):
        found = newton_bound(Claim(facts_of(settings), vars(radius), heads, None), 50, a)
    assert 0.7 * proved <= float(found.upper()) <= 1.02 * proved


def test_the_slope_of_a_function_is_that_of_the_whole_line() -> None:
    """clip(5, 6) is flat near 0 and has the slope 1 elsewhere."""
    flat = Loss("flat", functions.clip(5, 6), of_residual=True)
    assert flat.steepest(-2.0, 2.0) == 1.0 and not flat.local
    radius = Radius(1.0, 1.0, 2.0, 2.0)
    learner = gradient_descent(flat, features=1, steps=2, radius=radius, step_size=3.0, dtype=WIDE)
    with pytest.raises(InputError):
        learner.coefficients(torch.ones(1, 1, dtype=WIDE), torch.ones(1, dtype=WIDE))


def test_a_loss_that_is_flat_within_the_radius() -> None:
    flat = attnc.function(lambda s: s * 0 + 2, name="flat", enclosure=lambda x: x * 0 + 2)
    radius = Radius(1.0, 1.0, 2.0, 2.0)
    with pytest.raises(InputError):
        gradient_descent(Loss("flat", flat), features=1, steps=2, radius=radius, dtype=WIDE)


def test_a_loss_of_another_class_is_refused() -> None:
    class Steep(Loss):
        def steepest(self, lo: float, hi: float) -> float:
            return 1e-9

    mine = Steep("huber", functions.clip(-0.5, 0.5), of_residual=True)
    with pytest.raises(InputError):
        gradient_descent(mine, features=1, steps=2, step_size=6.0, radius=2.0, dtype=WIDE)
    settings = made("squared").settings
    assert isinstance(settings, LearnerSettings)
    with pytest.raises(InputError):
        replace(settings, loss=mine)


@pytest.mark.parametrize("name", ["_gathered", "coefficients", "_examples"])
def test_replaced_code_of_the_base_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learners = made("squared"), made("solver")
    assert all(attnc.verify(learner) for learner in learners)
    monkeypatch.setattr(InContext, name, lambda *given: None)
    for learner in learners:
        assert learner.why_not_certified() is not None and not attnc.verify(learner)


def test_a_head_that_is_none() -> None:
    learner = gradient_descent("squared", features=1, steps=2, radius=2.0, dtype=WIDE)
    learner.threshold = 0  # type: ignore[assignment]
    assert learner.why_not_certified() is not None


def test_more_examples_than_the_certificate_is_for() -> None:
    learner = gradient_descent("squared", features=1, steps=2, radius=2.0, dtype=WIDE)
    for n, covered in ((1000, True), (1001, False)):
        learner.coefficients(torch.ones(n, 1, dtype=WIDE), torch.ones(n, dtype=WIDE))
        assert (learner.uncertified is None) is covered


@pytest.mark.parametrize(
    ("ridge", "radius", "iterations", "dtype"),
    [(0.05, 0.001, 8, torch.float32), (2.0, SolverRadius(1e-6, 2.0, 1.0, 1.0), 9, WIDE)],
)
def test_honest_solvers_are_proved(ridge: float, radius: Any, iterations: int, dtype: torch.dtype) -> None:
    solver = ridge_regression(ridge, features=3, iterations=iterations, radius=radius, dtype=dtype)
    assert attnc.verify(solver).status is Status.PROVED


def test_a_witness_stands_only_where_it_is_checked() -> None:
    with pytest.raises(CertificateError):
        replace(made("squared").certificate, witness=Witness((7.0,), 3, 1e9))
