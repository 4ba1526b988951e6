"""The verdict on a norm that became attention, from its stored numbers.

The relative error of the heads, in exact arithmetic and as executed, is proved again (`check.quadratic`). With |z_i| <= √d √u,
the errors of R, of the products R z_i and γ_i (R z_i) and of the sum with β_i move an output by at most

    |γ_i| √d g                                             exact
    |γ_i| √d ((1 + e)/(1 - u)³ - 1) + u|β_i| + 6τ(1 + |γ_i|)    executed"""

from __future__ import annotations

import math

import numpy as np
from flint import arb

from attnc.arithmetic import ARITHMETIC, Arithmetic, probe_network
from attnc.check.quadratic import check_executed_error, check_relative_error
from attnc.domain import Array, Ball
from attnc.functions.balls import upper, working
from attnc.records.certificate import Certificate, Status, Verdict
from attnc.records.fields import round_up
from attnc.records.numbers import QuadraticNumbers

_known: dict[
    object, tuple[float, float]
] = {}  # relative errors of heads, by their digests: norms share heads


def check_norm(
    claim: Certificate, numbers: QuadraticNumbers, gain: Array, shift: Array, requested: float
) -> Verdict:
    """The verdict on the certificate of a norm with this gain and shift."""
    reason = _contradiction(claim, numbers, gain, requested)
    if reason is None:
        reason = _bounds(claim, numbers, gain, shift)
    status = Status.PROVED if reason is None else Status.UNKNOWN
    return Verdict(status, reason or "the bounds hold in every output", claim.bound, name=claim.name)


def _contradiction(
    claim: Certificate, numbers: QuadraticNumbers, gain: Array, requested: float
) -> str | None:
    facts, domain = claim.facts, claim.holds_for
    if not claim.proved or claim.subject != "norm":
        return f"its status is {claim.status}"
    if claim.digests != numbers.digests() or claim.dtype != numbers.dtype:
        return "its numbers are not those of its certificate"
    stated = (facts["features"], facts["epsilon"], facts.get("heads"), facts["engine"] in facts["roundings"])
    if (
        stated != (numbers.dim, numbers.offset, len(numbers), True)
        or len(gain) != numbers.dim
        or numbers.power != 0.5
    ):
        return "its facts are not those of its numbers"
    if not isinstance(domain, Ball) or (domain.features, domain.centred) != (
        numbers.dim,
        facts["kind"] == "layer",
    ):
        return f"it holds for {domain}, not for tokens of {numbers.dim} features"
    if not claim.approximation <= requested:
        return f"approximation is {claim.approximation:g}, above the requested {requested:g}"
    if claim.rounding != facts["roundings"][facts["engine"]]:
        return "its rounding is not that of its engine"
    if claim.bound != round_up(claim.approximation + claim.rounding) or claim.witness is not None:
        return f"its bound {claim.bound:g} is not the sum of its terms"
    if not set(facts["roundings"]) <= {"softmax", "closed-form"}:
        return f"its roundings are of unknown engines: {', '.join(facts['roundings'])}"
    return probe_network(claim.dtype)


def _bounds(claim: Certificate, numbers: QuadraticNumbers, gain: Array, shift: Array) -> str | None:
    assert isinstance(claim.holds_for, Ball)
    a = ARITHMETIC[numbers.dtype]
    most = claim.holds_for.radius**2 / numbers.dim * (1 + 2.0**-40)
    key = (*numbers.digests().values(), numbers.dim, numbers.offset, most)
    if key not in _known:
        relative = check_relative_error(numbers, 2 * most)
        _known[key] = relative, check_executed_error(numbers, most, relative, a)
    relative, softmax = _known[key]
    executed = {"softmax": softmax, "closed-form": _closed_form(numbers, most, a)}
    derived = {"approximation": (_exact(gain, relative), claim.approximation)}
    for engine, stated in claim.facts["roundings"].items():
        derived[f"rounding ({engine})"] = _executed(gain, shift, executed[engine], a), stated
    for term, (found, stated) in derived.items():
        if not (math.isfinite(found) and found <= stated):
            return f"{term} is {found:g} when derived again, but {stated:g} is certified"
    return None


def _exact(gain: Array, relative: float) -> float:
    with working(128):
        return upper(arb(float(np.abs(gain).max())) * arb(len(gain)).sqrt() * arb(relative))


def _executed(gain: Array, shift: Array, relative: float, a: Arithmetic) -> float:
    with working(128):
        u, tau = arb(a.unit), arb(a.tiny)
        largest, offset = arb(float(np.abs(gain).max())), arb(float(np.abs(shift).max()))
        moved = largest * arb(len(gain)).sqrt() * ((1 + arb(relative)) * (1 - u) ** -3 - 1)
        return upper(moved + u * offset + 6 * tau * (1 + largest))


def _closed_form(numbers: QuadraticNumbers, most: float, a: Arithmetic) -> float:
    """At least |√u R̂ - 1| for R̂ = fl(1/fl(√fl(fl(q̂ fl(1/d)) + ε))): d + 1 roundings of q̂, four up to the root, 4u of
    the root itself and one of the division."""
    with working(128):
        u, tau = arb(a.unit), arb(a.tiny)
        inside = (1 - u) ** -(numbers.dim + 5) - 1 + 4 * tau / arb(numbers.offset)
        if not (inside < 1 and arb(most) * numbers.dim * (1 + inside) < arb(a.largest)):
            return math.inf
        return upper((1 + 4 * u) * (1 + u) * (1 - inside) ** arb(-0.5) - 1)
