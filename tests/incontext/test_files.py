"""Learners and solvers in files: what is loaded computes the same numbers, and the checker derives their bounds by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import attnc
from attnc.check.learner import check_learner
from attnc.errors import CertificateError, FileError
from attnc.incontext import Learner, Radius, Solver, SolverRadius, gradient_descent, ridge_regression
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import seal
from attnc.records.files import read_file, write_file
from tests.sampled import every

LOSSES = ["squared", "ridge(0.1)", "lasso(0.1)", "logistic", "poisson", "huber(1)", "quantile(0.3)"]


@cache
def learner(loss: str, dtype: torch.dtype = torch.float64, **options: Any) -> Learner:
    radius = Radius(2.0, 3.0, 4.0, 2.0 if loss == "poisson" else 6.0)
    return gradient_descent(loss, features=2, steps=4, step_size=0.05, radius=radius, dtype=dtype, **options)


@cache
def solver() -> Solver:
    radius = SolverRadius(2.0, 3.0, 4.0, 12.0)
    return ridge_regression(0.5, features=2, iterations=6, radius=radius, start=0.1, dtype=torch.float64)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", every(2, [torch.float32, torch.float64]))
def test_the_checker_derives_the_bound(loss: str, dtype: torch.dtype) -> None:
    made = learner(loss, dtype)
    assert attnc.verify(made).status is made.certificate.status
    assert made.certificate.bound >= made.error_bound(1000)


@pytest.mark.parametrize(
    "make", [lambda: learner("logistic", intercept=True), lambda: learner("quantile(0.3)"), solver]
)
def test_a_file_gives_back_the_module(tmp_path: Path, make: Any) -> None:
    made, path = make(), tmp_path / "learner.safetensors"
    made.save(path)
    again = attnc.load(path)
    x, y = torch.tensor([[1.0, 0.5], [-0.5, 1.0], [1.0, 1.0]]), torch.tensor([1.0, 0.0, 1.0])
    assert torch.equal(again.trajectory(x, y), made.trajectory(x, y))
    assert again.certificate == made.certificate and again.why_not_certified() is None
    assert attnc.verify(path).status is Status.PROVED and attnc.verify(again).status is Status.PROVED


def forged(certificate: Certificate, **changes: Any) -> Certificate:
    facts = {**certificate.facts, **{k: v for k, v in changes.items() if k in certificate.facts}}
    rest = {k: v for k, v in changes.items() if k not in certificate.facts}
    return replace(certificate, facts=facts, **rest)


FALSE = [
    {"bound": 1e-13}, {"approximation": 0.0, "rounding": 1.0}, {"steps": 4000},
    {"step_size": 50.0}, {"e": 0.3}, {"features": 2000},
]  # fmt: skip


@pytest.mark.parametrize("changes", FALSE, ids=lambda c: ",".join(c))
def test_a_false_certificate_is_not_proved(changes: dict[str, Any]) -> None:
    made = learner("logistic")
    heads = {name: head.numbers() for name, head in made._heads().items()}
    assert check_learner(heads, made.certificate)
    assert not check_learner(heads, forged(made.certificate, **changes))


def test_heads_of_other_functions_are_not_proved() -> None:
    made, other = learner("logistic"), learner("huber(1)")
    heads = {name: head.numbers() for name, head in other._heads().items()}
    certificate = replace(made.certificate, children=other.certificate.children)
    assert not check_learner(heads, certificate)


def test_an_edited_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "learner.safetensors"
    learner("squared").save(path)
    about, tensors = read_file(path)
    with pytest.raises((CertificateError, FileError)):
        write_file(path, tensors, {**about, "dtype": "float32"})
        attnc.load(path)
    body = json.loads(json.dumps(about))
    body["certificate"]["facts"]["steps"] = 1
    body["certificate"].pop("seal")
    body["certificate"]["seal"] = seal(body["certificate"])
    body.pop("seal")
    body["seal"] = seal(body)
    write_file(path, tensors, body)
    with pytest.raises(CertificateError):
        attnc.load(path)
    tensors = {**tensors, "reading.value": tensors["reading.value"] * 1.01}
    write_file(path, tensors, about)
    assert not attnc.verify(path)


def test_the_dtype_of_a_file_is_that_of_its_certificate(tmp_path: Path) -> None:
    path = tmp_path / "learner.safetensors"
    learner("squared").save(path)
    about, tensors = read_file(path)
    body = {**{k: v for k, v in about.items() if k != "seal"}, "dtype": "float32"}
    write_file(path, tensors, {**body, "seal": seal(body)})
    for read in (attnc.load, attnc.verify):
        with pytest.raises(FileError):
            read(path)
