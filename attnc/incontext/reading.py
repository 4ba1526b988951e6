"""Layer A: every example reads w·x from the weight token.

Its score with the weight token is e·w·x, with the BOS token 0; values ±2/e give (2/e) tanh(e s/2) = s - e²s³/12 + …, s = w·x. A
second head with 2e cancels the cubic term:

    (4 a(e) - a(2e))/3 = s - e⁴ s⁵/30 + …

As a function of s this is a head with two keys; it is proved to be close to the identity on [-S, S] like any other head."""

from __future__ import annotations

import math

import numpy as np

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Interval
from attnc.errors import PrecisionError
from attnc.functions import identity
from attnc.heads.plan import HeadCandidate
from attnc.heads.target import Plan
from attnc.lower.function_to_head import finished_head
from attnc.network.head import Head
from attnc.prove.supnorm import SupNorm, supnorm
from attnc.records.numbers import HeadNumbers


def reading_head(reach: float, dtype: str) -> Head:
    """The head of layer A for |w·x| <= reach, with the e that leaves the smallest proved error."""
    plan = Plan(identity(), Interval(-reach, reach), dtype, "reading", 2)
    numbers, proof = _best(plan)
    if not math.isfinite(proof.bound):
        raise PrecisionError(
            f"no head can read w·x up to {reach:g} with a proof in {dtype}: use a smaller radius"
        )
    found = HeadCandidate("reading", numbers, proof, proof.attained, proof.at, proof.rounding)
    return finished_head(plan, found, math.inf)


def _best(plan: Plan) -> tuple[HeadNumbers, SupNorm]:
    """Powers of two around the one at which e⁴ S⁴ is the rounding u/e, so that e·s is exact."""
    reach = plan.domain.hi
    start = round(math.log2((ARITHMETIC[plan.dtype].unit * 60) ** 0.2 / reach))
    found = []
    for k in range(start - 2, start + 3):
        numbers = _numbers(2.0**k, plan.dtype)
        found.append((numbers, supnorm(numbers, plan.f, plan.domain, quality=1.3)))
    return min(found, key=lambda pair: pair[1].bound)


def _numbers(e: float, dtype: str) -> HeadNumbers:
    """Heads e and 2e, keys for the weight token and for BOS; the weights 4/3 and -1/3 are in the values."""
    query, key = np.array([[e, 0.0], [2 * e, 0.0]]), np.array([[[1.0, 0.0], [0.0, 0.0]]] * 2)
    value = np.zeros((2, 2, 2))
    for h, size in enumerate((8 / (3 * e), -1 / (3 * e))):
        value[h, :, 1] = (size, -size)
    rounded = value.astype(dtype).astype(np.float64)
    return HeadNumbers(query, key, rounded, np.ones(2), dtype)
