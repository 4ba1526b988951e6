"""The certificate of a learner or a solver: its settings, its heads, and the bound for contexts of up to 1,000 examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Protocol

from attnc.domain import Context
from attnc.functions.function import label_of
from attnc.incontext.losses import Loss
from attnc.incontext.settings import EXAMPLES, LearnerSettings, SolverSettings
from attnc.network.head import Head
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up, versions


class Bound(Protocol):
    def bound(self, n: int) -> float: ...


def certificate_of(
    algorithm: str,
    settings: LearnerSettings | SolverSettings,
    heads: Mapping[str, Head],
    bounds: Callable[[str], Bound],
) -> Certificate:
    """|w - w of the exact algorithm|₂ <= bound for every context within the radius; UNKNOWN if no finite bound was found.

    The claim leaves room of one part in 256, so that another derivation of the bound need not agree to the last digit."""
    executed, exact = (bounds(term).bound(EXAMPLES) for term in ("bound", "approximation"))
    known = math.isfinite(executed) and math.isfinite(exact)
    bound, approximation = (round_up(x * (1 + 2.0**-8)) if known else 0.0 for x in (executed, exact))
    approximation = min(approximation, bound)
    left = bound - approximation
    children = tuple(head.certificate for head in heads.values() if head.certificate is not None)
    return Certificate(
        subject="learner",
        name=algorithm.replace("_", " "),
        status=Status.PROVED if known else Status.UNKNOWN,
        approximation=approximation,
        rounding=round_up(math.nextafter(left, math.inf)) if left > 0 else 0.0,
        bound=bound,
        holds_for=Context(EXAMPLES, dict(vars(settings.radius))),
        dtype=settings.dtype,
        facts={"algorithm": algorithm, "heads": list(heads), **facts_of(settings)},
        children=children,
        versions=versions(),
    )


def facts_of(settings: LearnerSettings | SolverSettings) -> dict[str, Any]:
    """The settings as JSON, without the radius and the dtype, which the certificate states itself."""
    found = {
        f.name: getattr(settings, f.name)
        for f in fields(settings)
        if f.name not in ("radius", "dtype", "loss", "scales")
    }
    if isinstance(settings, SolverSettings):
        return {**found, "scales": list(settings.scales)}
    return {**found, "loss": _loss_json(settings.loss)}


def changed_settings(settings: LearnerSettings | SolverSettings, certificate: Certificate) -> list[str]:
    """The names of the settings that are not those of the certificate."""
    domain, stated = certificate.holds_for, facts_of(settings)
    names = [name for name, value in stated.items() if certificate.facts.get(name) != value]
    if domain != Context(EXAMPLES, dict(vars(settings.radius))):
        names.append("radius")
    return names if settings.dtype == certificate.dtype else [*names, "dtype"]


def _loss_json(loss: Loss) -> dict[str, Any]:
    function = None if loss.function is None else label_of(loss.function)
    return {
        "name": loss.name,
        "function": function,
        "of_residual": loss.of_residual,
        "ridge": loss.ridge,
        "lasso": loss.lasso,
    }
