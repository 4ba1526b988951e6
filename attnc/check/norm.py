"""A norm that became attention, proved again from its stored numbers: by interpolation instead of Taylor series.

Its heads compute a power of a quadratic form. With u = e^t, λ_j = d·slope_j, b_j = intercept_j + λ_j ε, their relative error is
g(t) = e^{pt} Σ c_j σ(b_j - λ_j u) - 1. On a cell [m - r, m + r] let P interpolate g at n + 1 Chebyshev nodes. On the ellipse with
foci m ± r and half-axes r(ρ ± 1/ρ)/2, where |Im t| <= θ = 1, f = g + 1 is analytic and

    |σ(b - λu)| <= e^{b - λ Re u} Q,     Q = 1/(1 - e^{b⁺ - cot θ π/2}),     Re u >= e^{Re t} cos θ,     b⁺ = max(b, 0)

since |1 + e^{b - λu}| >= 1 if |λ Im u| <= π/2, and else λ Re u >= cot θ·π/2. With M such a bound of |f| on the ellipse,
|g - P| <= 4M ρ^-n/(ρ - 1) on the cell: the Chebyshev coefficients of f are at most 2M ρ^-k, and each beyond n counts twice,
itself and aliased. P is a polynomial in ball arithmetic, bounded on parts of the cell.

`check_executed_error` derives the rounding of a token's value cell by cell: with scores that may be off by η_j, weights
ŵ_j <= w_j e^{η_j}(1 + E)(1 + u)⁴ + 8τ, and sums of H terms, R̂/R is bounded on the cell itself.

With |z_i| <= √d √u, the errors of R, of the products R z_i and γ_i (R z_i) and of the sum with β_i move an output by at most

    |γ_i| √d g                                             exact
    |γ_i| √d ((1 + e)/(1 - u)³ - 1) + u|β_i| + 6τ(1 + |γ_i| + √d)    executed, if nothing overflows

`bound` is about a norm inside a network. Its argument z = x - mean x is off by C(x̂ - x), C a projection, and by what subtracting
the mean loses, d + 3 roundings of the mean and one of the difference. N(z) = z/√(|z|²/d + ε) has the derivative (I - NNᵀ/d)/s, a
contraction by s >= √(least |z|²/d + ε)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from flint import arb

from attnc.arithmetic import ARITHMETIC, Arithmetic, probe, probe_network
from attnc.check.head import check_machine
from attnc.check.values import EPS, CheckError, Long, NormErrors, Passing, Value, gamma, largest, long, up
from attnc.domain import Ball, Normed
from attnc.functions.balls import upper, working
from attnc.program import Norm
from attnc.records.certificate import HALF, Certificate, Status, Verdict
from attnc.records.numbers import POWERS, QuadraticNumbers

Heads = Sequence[tuple[arb, arb, arb]]  # λ_j, b_j, c_j
_PRECISION = 192
_NODES = 24  # n + 1
_WIDTH = 0.46  # of a cell
_PARTS = 18
_NEGLIGIBLE = {"float32": 256, "float64": 2048}  # an exponential of minus that is below τ
_known: dict[object, tuple[float, float]] = {}  # relative errors by digests of heads, which norms share


def check_norm(claim: Certificate, numbers: QuadraticNumbers, norm: Normed) -> None:
    """Raise `CheckError` unless the bounds of a norm with this gain and shift hold, and its facts are those of its numbers."""
    facts, domain, a = claim.facts, claim.holds_for, ARITHMETIC[numbers.dtype]
    half = claim.dtype in HALF  # nothing is claimed of its rounding then
    if claim.digests != numbers.digests() or ("float32" if half else claim.dtype) != numbers.dtype:
        raise CheckError("its numbers are not those of its certificate")
    known = (numbers.dim, numbers.offset, len(numbers), 0.5, numbers.dim)
    if known != (facts["features"], facts["epsilon"], facts.get("heads"), numbers.power, len(norm.gain)):
        raise CheckError("its facts are not those of its numbers")
    kind = (numbers.dim, facts["kind"] == "layer")
    if not isinstance(domain, Ball) or (domain.features, domain.centred) != kind:
        raise CheckError(f"it holds for {domain}, not for tokens of {numbers.dim} features")
    if claim.rounding != (math.inf if half else facts["roundings"].get(facts["engine"])):
        raise CheckError("its rounding is not that of its engine")
    if claim.children:
        raise CheckError("a norm has no parts")
    most = domain.radius**2 / numbers.dim * (1 + 2.0**-40)
    relative, softmax = relative_errors(numbers, most)
    executed = {"softmax": softmax, "closed-form": _closed_form(numbers, most, a)}
    with working(128):
        u, tau = arb(a.unit), arb(a.tiny)
        gain, shift = (arb(float(np.abs(x).max())) for x in (norm.gain, norm.shift))
        length = gain * arb(numbers.dim).sqrt()
        derived = {"approximation": (upper(length * arb(relative)), claim.approximation)}
        for engine, stated in facts["roundings"].items():
            size = length * (1 + arb(executed[engine])) * (1 - u) ** -3
            moved = size - length + u * shift + 6 * tau * (1 + gain + arb(numbers.dim).sqrt())
            fits = (size + shift) / (1 - u) < arb(a.largest)
            derived[f"rounding ({engine})"] = upper(moved) if fits else math.inf, stated
    for term, (found, stated) in derived.items():
        if not (math.isfinite(found) and found <= stated):
            raise CheckError(f"{term} is {found:g} when derived again, but {stated:g} is certified")


def relative_errors(numbers: QuadraticNumbers, most: float) -> tuple[float, float]:
    """Of the root, for tokens with a mean square up to `most`: in exact arithmetic, and executed by softmax."""
    if not most >= numbers.offset:  # u reaches most + ε, and is covered up to 2·most
        return math.inf, math.inf
    key = (*numbers.digests().values(), numbers.dim, numbers.offset, most)
    if key not in _known:
        relative = check_relative_error(numbers, 2 * most)
        _known[key] = relative, check_executed_error(numbers, most, relative, ARITHMETIC[numbers.dtype])
    return _known[key]


def bound(at: Passing) -> Value:
    (x,), step, heads, a = at.inputs, at.step, at.errors, at.arithmetic
    assert isinstance(step, Norm) and isinstance(heads, NormErrors)
    d, u, tau = x.lo.shape[1], np.longdouble(a.unit), np.longdouble(a.tiny)
    lo, hi, off, lost = x.lo, x.hi, np.maximum(x.error, x.approximation), long(np.full(x.lo.shape, 2 * tau))
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
    own = size * reach * (executed + (1 + executed) * gamma(3, a)) + u * np.abs(shift)
    own = own + 6 * tau * (1 + size + reach)
    own = up(own + np.abs(gain - long(step.gain)) * reach + np.abs(shift - long(step.shift)))
    moved = up((_length(x.error) + _length(lost)) / least)
    exact = up(_length(x.approximation) / least)
    spread = up(high - low + 4 * EPS * reach)
    low, high, _ = _root_range(lo, hi, step.epsilon)
    g, b = long(step.gain), long(step.shift)
    ends = np.stack([g * low, g * high])
    pad = up(8 * EPS * (np.abs(ends).max(0) + np.abs(b)))
    error = up(size * np.minimum(moved, spread) + own)
    error = np.where(up(size * reach + np.abs(shift) + error) < a.largest, error, np.longdouble(np.inf))
    found = Value.of(
        ends.min(0) + b - pad,
        ends.max(0) + b + pad,
        error,
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
    tiny = np.longdouble(2.0**-1020)  # squares of smaller numbers may underflow
    length = up(np.sqrt((x * x).sum(1, keepdims=True) + tiny), x.shape[1])
    return np.where((x == 0).all(1, keepdims=True), np.longdouble(0), length)


def check_quadratic(numbers: QuadraticNumbers, certificate: Certificate) -> Verdict:
    """The verdict on heads for a function of a quadratic form: both relative errors, derived again."""
    try:
        _check_quadratic(numbers, certificate)
    except CheckError as problem:
        return problem.verdict(certificate.bound)
    return Verdict(Status.PROVED, "the relative errors hold for every token of the domain", certificate.bound)


def _check_quadratic(numbers: QuadraticNumbers, certificate: Certificate) -> None:
    facts, domain, a = certificate.facts, certificate.holds_for, ARITHMETIC[numbers.dtype]
    check_machine(probe(numbers.dtype) or probe_network(numbers.dtype))
    if certificate.digests != numbers.digests() or certificate.dtype != numbers.dtype:
        raise CheckError("its numbers are not those of its certificate")
    known = (POWERS.get(facts["function"]), facts["features"], facts["offset"])
    named = (
        certificate.name == facts["function"] and facts.get("relative") is True and not certificate.children
    )
    if known != (numbers.power, numbers.dim, numbers.offset) or not named:
        raise CheckError("its facts are not those of its numbers")
    if not isinstance(domain, Ball) or domain.features != numbers.dim or domain.centred:
        raise CheckError(f"it holds for {domain}, not for tokens of {numbers.dim} features")
    with working(128):
        most = upper(arb(domain.radius) ** 2 / numbers.dim + arb(numbers.offset))
    if numbers.power == math.inf:
        relative, executed = _exponential(numbers, most, a)
    else:
        relative = check_relative_error(numbers, 2 * most)
        executed = check_executed_error(numbers, most, relative, a)
    with working(128):
        terms = arb(executed) <= arb(certificate.approximation) + arb(certificate.rounding)
    if not (relative <= certificate.approximation and executed <= certificate.bound and terms):
        raise CheckError(f"the relative errors are {relative:g} and {executed:g}: more than is certified")


def _exponential(numbers: QuadraticNumbers, most: float, a: Arithmetic) -> tuple[float, float]:
    """At least |e^u R - 1| and |e^u R̂ - 1| for u from ε to `most`, by logarithms: with one head,

        ln(e^u R) = ln c + b + (1 - λ)u - ln(1 + e^{b - λu}),     0 <= ln(1 + x) <= x

    and execution adds at most L to |ln|: the errors of q (d + 1 roundings, and underflow), of the score, E of exp, four roundings
    of the weight and two of the product; what underflows is added to the relative error."""
    if len(numbers) != 1:
        return math.inf, math.inf
    with working(_PRECISION):
        u, tau, reach, ((scale, b, c),) = arb(a.unit), arb(a.tiny), arb(most), _heads(numbers)
        tilt = [(1 - scale) * arb(t) for t in (numbers.offset, most)]
        high = c.log() + b + tilt[0].max(tilt[1])
        low = c.log() + b + tilt[0].min(tilt[1]) - (b - scale * arb(numbers.offset)).exp()
        sums = (1 - u) ** -(numbers.dim + 1) - 1
        q = scale * (sums * reach + 4 * tau)
        score = u * (1 + u) * (2 * (scale * reach + q) + abs(arb(float(numbers.intercept[0])))) + 4 * tau
        L = q + score - (1 - a.exp_units * u).log() - 6 * (1 - u).log()
        lost = 16 * tau * (c + 1) * reach.exp() * (1 + 8 * u)
        if not reach * numbers.dim * (1 + sums) < arb(a.largest):
            return math.inf, math.inf
        exact = (high.exp() - 1).max(1 - low.exp())
        return upper(exact), upper(((high + L).exp() - 1).max(1 - (low - L).exp()) + lost)


def _closed_form(numbers: QuadraticNumbers, most: float, a: Arithmetic) -> float:
    """At least |√u R̂ - 1| for R̂ = fl(1/fl(√fl(fl(q̂ fl(1/d)) + ε))): d + 1 roundings of q̂, four up to the root, 4u of
    the root itself and one of the division."""
    with working(128):
        u, tau = arb(a.unit), arb(a.tiny)
        inside = (1 - u) ** -(numbers.dim + 5) - 1 + 4 * tau / arb(numbers.offset)
        if not (inside < 1 and arb(most) * numbers.dim * (1 + inside) < arb(a.largest)):
            return math.inf
        return upper((1 + 4 * u) * (1 + u) * (1 - inside) ** arb(-0.5) - 1)


def check_relative_error(numbers: QuadraticNumbers, most: float) -> float:
    """At least |u^p R - 1| for every u from ε to `most`; infinity if that cannot be bounded."""
    with working(_PRECISION):
        if not most > numbers.offset:
            return math.inf
        heads, p, worst = _heads(numbers), arb(numbers.power), arb(0)
        middles, half = _middles(numbers.offset, most, _WIDTH)
        for middle in middles:
            worst = worst.max(_cell(heads, p, middle, half))
        return upper(worst)


def check_executed_error(numbers: QuadraticNumbers, most: float, relative: float, a: Arithmetic) -> float:
    """At least |u^p R̂ - 1| for every token with u from ε to `most`, where |u^p R - 1| <= relative up to 2·most."""
    with working(_PRECISION):
        u, tau, heads = arb(a.unit), arb(a.tiny), _heads(numbers)
        stored = [abs(arb(x)) for x in reversed(numbers.intercept.tolist())]
        p, count = arb(numbers.power), len(heads)
        worst = arb(1)
        middles, half = _middles(numbers.offset, 2 * most, _WIDTH / 8)
        for middle in middles:
            ends = (middle - half).exp(), (middle + half).exp()
            worst = worst.max(_weights_error(heads, stored, *ends, a))
        terms = (1 - u) ** -(count + 1)  # also at least (1 + u)^(count + 1)
        square = (1 - u) ** -(numbers.dim + 1) + 2 * tau / arb(numbers.offset)
        lost = 16 * tau * (sum((c for _, _, c in heads), arb(0)) + count) * arb(2 * most) ** p * terms
        total = (1 + arb(relative)) * worst * terms * square**p - 1 + lost
        reach = arb(most) * numbers.dim * square < arb(a.largest) and square < 2
        return upper(total) if reach else math.inf


def _weights_error(heads: Heads, stored: Sequence[arb], left: arb, right: arb, a: Arithmetic) -> arb:
    """At least Σ c_j ŵ_j/Σ c_j w_j and its inverse for left <= u <= right, without what underflows."""
    u, tau = arb(a.unit), arb(a.tiny)
    above, mass = arb(0), arb(0)
    for (scale, b, c), intercept in zip(heads, stored, strict=True):
        if scale * left > _NEGLIGIBLE[a.dtype] + intercept:
            continue  # both weights are below τ: counted with what underflows
        mass += c / (1 + (scale * right - b).exp())
        off = u * (1 + u) * (2 * scale * right + intercept) + 4 * tau  # slope·q <= scale·u
        above += c / (1 + (scale * left - b).exp()) * (off.exp() * (1 + a.exp_units * u) * (1 + u) ** 4 - 1)
    return (1 / (1 - above / mass)).upper() if above < mass else arb("inf")


def _heads(numbers: QuadraticNumbers) -> Heads:
    scales = [arb(x) * numbers.dim for x in reversed(numbers.slope.tolist())]
    rest = zip(reversed(numbers.intercept.tolist()), reversed(numbers.value.tolist()), strict=True)
    return [(s, arb(b) + s * arb(numbers.offset), arb(c)) for s, (b, c) in zip(scales, rest, strict=True)]


def _middles(lo: float, hi: float, width: float) -> tuple[list[arb], arb]:
    """The middles and the half-width of cells that cover [ln lo, ln hi], from the right to the left."""
    start, end = arb(lo).log().lower(), arb(hi).log().upper()
    count = 1 + int(float(end - start) / width)
    half = ((end - start) / (2 * count)).upper()
    return [(end - half * (2 * i + 1)).mid() for i in range(count)], half * (1 + arb(2) ** -100)


def _cell(heads: Heads, p: arb, middle: arb, half: arb) -> arb:
    nodes = [half * (arb.pi() * (2 * i + 1) / (2 * _NODES)).cos() for i in range(_NODES)]
    coefficients, worst = _newton(nodes, [_value(heads, p, middle + s) - 1 for s in nodes]), arb(0)
    for i in range(_PARTS):
        centre, radius = half * arb(2 * i + 1 - _PARTS) / _PARTS, half / _PARTS
        shifted = _shifted(coefficients, centre)
        size = arb(0)
        for k in range(_NODES - 1, 1, -1):
            size = (size + abs(shifted[k])) * radius
        worst = worst.max((abs(shifted[0]) + abs(shifted[1]) * radius + size * radius).upper())
    return worst + _remainder(heads, p, middle, half)


def _value(heads: Heads, p: arb, t: arb) -> arb:
    u = t.exp()
    terms = (c / (1 + (scale * u - b).exp()) for scale, b, c in heads)
    return sum(terms, arb(0)) * (p * t).exp()


def _newton(nodes: Sequence[arb], values: Sequence[arb]) -> list[arb]:
    """The coefficients of the interpolating polynomial, lowest first, by divided differences."""
    table = list(values)
    for k in range(1, len(nodes)):
        for i in range(len(nodes) - 1, k - 1, -1):
            table[i] = (table[i] - table[i - 1]) / (nodes[i] - nodes[i - k])
    polynomial = [table[-1]]
    for node, value in zip(reversed(nodes[:-1]), reversed(table[:-1]), strict=True):
        pairs = zip([arb(0), *polynomial], [*polynomial, arb(0)], strict=True)
        polynomial = [low - node * high for low, high in pairs]
        polynomial[0] += value
    return polynomial


def _shifted(coefficients: Sequence[arb], centre: arb) -> list[arb]:
    """The coefficients around another centre, by repeated synthetic division."""
    shifted = list(coefficients)
    for k in range(len(shifted) - 1):
        for i in range(len(shifted) - 2, k - 1, -1):
            shifted[i] = shifted[i] + centre * shifted[i + 1]
    return shifted


def _remainder(heads: Heads, p: arb, middle: arb, half: arb) -> arb:
    """4M ρ^-n/(ρ - 1), with the ellipse whose half-axis in the imaginary direction is 1."""
    theta = arb(1)
    inverse = theta / half  # (ρ - 1/ρ)/2
    rho = inverse + (inverse**2 + 1).sqrt()
    wide = half * (inverse**2 + 1).sqrt()
    bound = arb(0)
    least = ((middle - wide).exp() * theta.cos()).lower()
    for scale, b, c in heads:
        far = (b.max(arb(0)) - arb.pi() / 2 * theta.cos() / theta.sin()).exp()
        if not far < 1:
            return arb("inf")
        bound += c * (b - scale * least).exp() / (1 - far)
    bound *= (p * (middle + wide)).exp()
    return (4 * bound * rho ** (1 - _NODES) / (rho - 1)).upper()
