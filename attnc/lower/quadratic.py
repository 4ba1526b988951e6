"""A completely monotone function of a quadratic form becomes heads of two keys, with a proof of their relative error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from attnc.arguments import (
    check_arithmetic,
    checked_choice,
    checked_count,
    checked_eps,
    checked_interval,
    resolve_dtype,
)
from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array, Ball, Interval
from attnc.errors import InputError, PrecisionError
from attnc.heads.quadratic import power_heads
from attnc.network.norm import QuadraticHead
from attnc.progress import watched
from attnc.prove.quadratic import (
    closed_form_error,
    executed_error,
    exponential_executed_error,
    relative_error,
    score_weight,
)
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up, versions
from attnc.records.numbers import POWERS, QuadraticNumbers

_ROOM = 1 + 2.0**-6  # for the checker, which derives the rounding in another way
LEAST_OFFSET = 1e-24  # 1/u is unbounded at 0
_MORE_ROOM = 1 + 2.0**-5  # for a checker that bounds the rounding of all heads on cells
_SHARES = (0.9, 0.5, 0.25, 0.1)  # of eps, for the error in exact arithmetic


@dataclass(frozen=True)
class QuadraticProof:
    """Relative errors of Σ_j value_j w_j against u^-power for every u from the offset to `most`: in exact arithmetic, and as
    executed."""

    numbers: QuadraticNumbers
    most: float
    approximation: float
    executed: float  # by softmax
    closed_form: float  # executed, by a square root


@watched("building heads of two keys")
def quadratic_head(
    f: str,
    *,
    features: int,
    domain: tuple[float, float] | Interval,
    eps: float,
    dtype: torch.dtype | str | None = None,
    strict: bool | None = None,
) -> QuadraticHead:
    """A completely monotone function of a quadratic form as one layer of softmax heads with two keys, with a proof.

    f is "rsqrt" (1/√u), "reciprocal" (1/u) or "exp" (e^-u), of u = |z|²/features + lo for tokens z of `features` numbers and the
    domain (lo, hi) of u. `eps` bounds the executed *relative* error |head(z)/f(u) - 1| for every token with u <= hi. The heads
    are the fewest of their construction. A norm is such a head: z/√u = rsqrt(u)·z.

    >>> import attnc, torch
    >>> head = attnc.quadratic_head("rsqrt", features=8, domain=(1e-5, 1e6), eps=1e-6, dtype=torch.float64)
    >>> z = torch.randn(100, 8, dtype=torch.float64)
    >>> u = z.square().mean(-1) + 1e-5
    >>> bool((head(z) * u.sqrt() - 1).abs().max() <= head.certificate.bound <= 1e-6)
    True
    >>> print(attnc.verify(head).status), len(head.slope)
    proved
    (None, 46)
    """
    name, eps, size = resolve_dtype(dtype), checked_eps(eps), checked_count("features", features)
    interval, power = checked_interval(domain, name), POWERS[checked_choice("f", f, tuple(POWERS))]
    if interval.lo < 0 or (power < math.inf and interval.lo < LEAST_OFFSET):
        least = "0" if power == math.inf else f"{LEAST_OFFSET:g}"
        raise InputError(f"domain={domain}: u = |z|²/features + lo with lo >= {least} for {f!r}")
    check_arithmetic(name, network=True)
    reached = math.inf
    for share in _SHARES:
        try:
            proof = proved_heads(size, interval.lo, interval.hi, share * eps, name, power)
        except PrecisionError as problem:
            closest = 4 * (problem.reachable or 1.0)
            if closest >= 1:
                break
            proof = proved_heads(size, interval.lo, interval.hi, closest, name, power)
        bound = round_up(proof.executed * _MORE_ROOM)
        reached = min(reached, bound)
        if bound <= eps:
            return QuadraticHead(proof.numbers, _certificate(f, interval, proof, bound), strict)
    known = f"; {round_up(reached, 2):.1e} can be met" if reached < math.inf else ""
    other = ", or dtype=torch.float64" if name == "float32" else ""
    raise PrecisionError(
        f"eps={eps:g} cannot be met in {name} for {f} on {interval}{known}: use a larger eps{other}",
        reached if reached < math.inf else None,
    )


def _certificate(f: str, domain: Interval, proof: QuadraticProof, bound: float) -> Certificate:
    numbers, approximation = proof.numbers, min(proof.approximation, bound)
    radius = math.sqrt(numbers.dim * (domain.hi - domain.lo)) * (1 - 2.0**-50)
    return Certificate(
        subject="quadratic",
        name=f,
        status=Status.PROVED,
        approximation=approximation,
        rounding=round_up(bound - approximation),
        bound=bound,
        holds_for=Ball(numbers.dim, radius, False),
        dtype=numbers.dtype,
        digests=numbers.digests(),
        facts={"function": f, "features": numbers.dim, "offset": numbers.offset, "relative": True},
        versions=versions(),
    )


def quadratic_numbers(
    dim: int, offset: float, most: float, target: float, dtype: str, power: float = 0.5
) -> QuadraticNumbers:
    """The heads for u = |z|²/dim + offset <= 2·most, stored in a dtype: slope_j = λ_j/dim, intercept_j = b - λ_j·offset."""
    heads = power_heads(offset, 2 * most, target, power)
    intercept = np.minimum(heads.bias - heads.scale * offset, 0.0)
    slope, intercept, value = (_stored(array, dtype) for array in (heads.scale / dim, intercept, heads.value))
    if power == math.inf:
        value = _stored(np.exp(-intercept - slope * dim * offset), dtype)  # e^-b for the b that is stored
    return QuadraticNumbers(slope, intercept, value, dim, offset, power, dtype)


@cache
def proved_heads(
    dim: int, offset: float, most: float, target: float, dtype: str, power: float = 0.5
) -> QuadraticProof:
    """The fewest heads whose relative error in exact arithmetic is proved to be at most `target`, with both errors."""
    numbers, a = quadratic_numbers(dim, offset, most, 0.9 * target, dtype, power), ARITHMETIC[dtype]
    reach = most if power == math.inf else 2 * most
    relative = relative_error(numbers, reach)
    if power == math.inf:
        executed = closed = exponential_executed_error(numbers, most, relative, a)
    else:
        executed = executed_error(numbers, most, relative, score_weight(numbers, reach), a)
        closed = closed_form_error(numbers, most, a) if power == 0.5 else math.inf
    if not relative <= target or not executed < 1:
        other = ", or float64" if dtype == "float32" else ""
        raise PrecisionError(
            f"a relative error of {target:g} cannot be met with numbers stored in {dtype}: the heads that come closest have "
            f"{relative:.2g}; use a larger one{other}",
            relative,
        )
    errors = (
        round_up(error * _ROOM) if error < math.inf else error for error in (relative, executed, closed)
    )
    return QuadraticProof(numbers, most, *errors)


def _stored(array: Array, dtype: str) -> Array:
    """Rounded to the dtype; what would be subnormal is 0."""
    rounded = array.astype(dtype)
    rounded[np.abs(rounded) < np.finfo(dtype).tiny] = 0.0
    return rounded.astype(np.float64)
