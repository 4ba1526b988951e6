"""The verdict on a norm that became attention, from its stored numbers.

The relative error of the heads, in exact arithmetic and as executed, is proved again (`check.quadratic`). With |z_i| <= √d √u,
the errors of R, of the products R z_i and γ_i (R z_i) and of the sum with β_i move an output by at most

    |γ_i| √d g                                             exact
    |γ_i| √d ((1 + e)/(1 - u)³ - 1) + u|β_i| + 6τ(1 + |γ_i|)    executed

`bound` is about a norm inside a network. Its argument z = x - mean x is off by C(x̂ - x), C a projection, and by what subtracting
the mean loses, d + 3 roundings of the mean and one of the difference. N(z) = z/√(|z|²/d + ε) has the derivative (I - NNᵀ/d)/s, a
contraction by s >= √(least |z|²/d + ε)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from flint import arb

from attnc.arithmetic import ARITHMETIC, Arithmetic, probe_network
from attnc.check.quadratic import check_executed_error, check_relative_error
from attnc.check.upward import EPS, Long, gamma, largest, long, up
from attnc.check.values import CheckError, NormErrors, Passing, Value, value
from attnc.domain import Array, Ball, Normed
from attnc.functions.balls import upper, working
from attnc.program import Norm
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up
from attnc.records.quadratic_numbers import QuadraticNumbers
from attnc.records.verdict import Verdict

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
    relative, softmax = relative_errors(numbers, most)
    executed = {"softmax": softmax, "closed-form": _closed_form(numbers, most, a)}
    derived = {"approximation": (_exact(gain, relative), claim.approximation)}
    for engine, stated in claim.facts["roundings"].items():
        derived[f"rounding ({engine})"] = _executed(gain, shift, executed[engine], a), stated
    for term, (found, stated) in derived.items():
        if not (math.isfinite(found) and found <= stated):
            return f"{term} is {found:g} when derived again, but {stated:g} is certified"
    return None


def relative_errors(numbers: QuadraticNumbers, most: float) -> tuple[float, float]:
    """Of the root, for tokens with a mean square up to `most`: in exact arithmetic, and executed by softmax."""
    key = (*numbers.digests().values(), numbers.dim, numbers.offset, most)
    if key not in _known:
        relative = check_relative_error(numbers, 2 * most)
        _known[key] = relative, check_executed_error(numbers, most, relative, ARITHMETIC[numbers.dtype])
    return _known[key]


def bound(at: Passing) -> Value:
    (x,), step, heads, a = at.inputs, at.step, at.errors, at.arithmetic
    assert isinstance(step, Norm) and isinstance(heads, NormErrors)
    d, u, tau = x.lo.shape[1], np.longdouble(a.unit), np.longdouble(a.tiny)
    lo, hi, off, lost = x.lo, x.hi, np.maximum(x.error, x.approximation), long(np.zeros(x.lo.shape))
    if step.centred:
        mean = up(x.size.sum(1, keepdims=True) / d, d)
        lost = up((gamma(d + 3, a) + u) * mean * (1 + gamma(d + 3, a)) + u * x.size + (2 * d + 8) * tau)
        pad = up((2 * d + 16) * EPS * (x.magnitude + x.magnitude.sum(1, keepdims=True) / d), d)
        lo = x.lo - (x.lo + x.hi.sum(1, keepdims=True) - x.hi) / d - pad
        hi = x.hi - (x.hi + x.lo.sum(1, keepdims=True) - x.lo) / d + pad
        off = up(off + off.sum(1, keepdims=True) / d + lost, d)
    wide = 8 * EPS * (largest(lo, hi) + off) + off
    low, high, least = _root_range(lo - wide, hi + wide, step.epsilon)
    if not (up((largest(lo - wide, hi + wide) ** 2).sum(1) / d + step.epsilon, d) <= heads.most).all():
        raise CheckError("a token may exceed what the heads of the norm are proved for")
    gain, shift = (long(at.layer.tensors[name]) for name in ("gain", "shift"))
    size, reach = np.abs(gain), largest(low, high)
    executed = np.longdouble(heads.executed)
    own = size * reach * (executed + (1 + executed) * gamma(3, a)) + u * np.abs(shift) + 6 * tau * (1 + size)
    own = up(own + np.abs(gain - long(step.gain)) * reach + np.abs(shift - long(step.shift)))
    moved = up((_length(x.error) + _length(lost)) / least)
    exact = up(_length(x.approximation) / least)
    spread = up(high - low + 4 * EPS * reach)
    low, high, _ = _root_range(lo, hi, step.epsilon)
    g, b = long(step.gain), long(step.shift)
    ends = np.stack([g * low, g * high])
    pad = up(8 * EPS * (np.abs(ends).max(0) + np.abs(b)))
    found = value(
        ends.min(0) + b - pad,
        ends.max(0) + b + pad,
        up(size * np.minimum(moved, spread) + own),
        up(size * (np.minimum(exact, spread) + np.longdouble(heads.approximation) * reach)),
    )
    unit = up(own + size * _length(lost) / least / np.sqrt(np.longdouble(d)))  # in a feature and in the mean
    fits = (unit <= 2.0**-11 * np.abs(g)) | ((g == 0) & (own <= 2.0**-11 * (np.abs(b) + 2.0**-100)))
    normed = Normed(step.centred, step.gain, step.shift) if fits.all() else None
    return replace(found, normed=normed)


def _root_range(lo: Long, hi: Long, epsilon: float) -> tuple[Long, Long, Long]:
    """Bounds of z/√(|z|²/d + ε) for lo <= z <= hi, and the least root (tokens, 1)."""
    d, e = lo.shape[1], np.longdouble(epsilon)
    nearest = np.where((lo > 0) | (hi < 0), np.minimum(np.abs(lo), np.abs(hi)), 0)
    room = (2 * d + 64) * EPS
    least = np.sqrt((nearest**2).sum(1, keepdims=True) / d + e) * (1 - room)
    most = np.sqrt((largest(lo, hi) ** 2).sum(1, keepdims=True) / d + e) * (1 + room)
    top = np.sqrt(np.longdouble(d)) * (1 + room)
    low, high = (end / np.where(outwards, least, most) for end, outwards in ((lo, lo < 0), (hi, hi > 0)))
    return np.maximum(low - room * np.abs(low), -top), np.minimum(high + room * np.abs(high), top), least


def _length(x: Long) -> Long:
    """(tokens, 1): at least ‖x‖₂."""
    return up(np.sqrt((x * x).sum(1, keepdims=True)), x.shape[1])


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
