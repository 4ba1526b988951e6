"""Learners and solvers from their files."""

from __future__ import annotations

import math

from attnc.errors import AttncError, CertificateError, FileError
from attnc.functions import Function
from attnc.incontext.learner import Learner
from attnc.incontext.settings import SolverSettings, settings_of
from attnc.incontext.solver import Solver
from attnc.network.head import Head
from attnc.records.fields import DAMAGE
from attnc.records.record import Record


def learner_of(record: Record, function: Function | None = None) -> Learner | Solver:
    """The module that a record describes; its certificate must be the stored one."""
    certificate = record.certificate
    try:
        settings = settings_of(certificate, function)
        stored = zip(record.heads.items(), certificate.children, strict=True)
        heads = {name: Head(numbers, str(known.facts["design"]), known) for (name, numbers), known in stored}
        built = (
            Solver(settings, **heads) if isinstance(settings, SolverSettings) else Learner(settings, **heads)
        )
    except AttncError:
        raise
    except DAMAGE as problem:
        raise FileError(f"the learner is not valid: {type(problem).__name__}: {problem}") from problem
    same = math.isclose(built.certificate.bound, certificate.bound, rel_tol=0.019)
    if not same or built.certificate.facts != certificate.facts:
        raise CertificateError("the certificate is not the one of this learner: build the learner again")
    built.certificate = certificate
    return built
