"""Learners and solvers from their files."""

from __future__ import annotations

import math

from attnc.errors import AttncError, CertificateError, FileError
from attnc.functions import Function, get
from attnc.functions.function import label_of
from attnc.incontext.learner import Learner
from attnc.incontext.losses import Loss
from attnc.incontext.settings import LearnerSettings, Radius, SolverRadius, SolverSettings
from attnc.incontext.solver import Solver
from attnc.network.head import Head
from attnc.records.fields import DAMAGE
from attnc.records.learners import check_settings
from attnc.records.record import Record


def learner_of(record: Record, function: Function | None = None) -> Learner | Solver:
    """The module that a record describes; its certificate must be the stored one."""
    try:
        return _learner_of(record, function)
    except AttncError:
        raise
    except DAMAGE as problem:
        raise FileError(f"the learner is not valid: {type(problem).__name__}: {problem}") from problem


def _learner_of(record: Record, function: Function | None) -> Learner | Solver:
    certificate = record.certificate
    limits, dtype = check_settings(certificate).limits, certificate.dtype
    facts = {name: value for name, value in certificate.facts.items() if name not in ("algorithm", "heads")}
    stored = zip(record.heads.items(), certificate.children, strict=True)
    heads = {name: Head(numbers, str(known.facts["design"]), known) for (name, numbers), known in stored}
    parts = heads["reading"], heads.get("activation"), heads.get("threshold")
    built: Learner | Solver
    if certificate.facts["algorithm"] == "ridge_regression":
        facts["scales"] = tuple(facts["scales"])
        built = Solver(SolverSettings(**facts, radius=SolverRadius(**limits), dtype=dtype), *parts)
    else:
        label = facts["loss"]["function"]
        own = function is not None and label_of(function) == label
        psi = None if label is None else function if own else get(label)
        facts["loss"] = Loss(**{**facts["loss"], "function": psi})
        built = Learner(LearnerSettings(**facts, radius=Radius(**limits), dtype=dtype), *parts)
    same = math.isclose(built.certificate.bound, certificate.bound, rel_tol=0.019)
    if not same or built.certificate.facts != certificate.facts:
        raise CertificateError("the certificate is not the one of this learner: build the learner again")
    built.certificate = certificate
    return built
