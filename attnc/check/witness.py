"""What a witness may claim: the error that its input is seen to have when the stored numbers are executed, in ball arithmetic.

The numbers are executed here, one input alone, by sums in a fixed order; the same code says how much a new certificate may claim.
So a witness that was made on this machine is met exactly, without any room, and one that claims more is false. On a machine whose
exp rounds otherwise an error that is all rounding may differ: the verdict is then "unknown"."""

from __future__ import annotations

import numpy as np
import torch
from flint import arb

from attnc.check.execution import execute, execute_one
from attnc.domain import Array
from attnc.functions import Function
from attnc.functions.balls import lower, upper, working
from attnc.program.evaluate import exact
from attnc.program.program import Program
from attnc.records.layers import NetworkNumbers
from attnc.records.numbers import HeadNumbers

PRECISION = 192
ROOM = (
    1 - 2.0**-10
)  # of an error, so that last bits of another machine do not matter where approximation is what errs


def head_error(numbers: HeadNumbers, f: Function, s: float) -> arb:
    """|executed - f| at s, a number of the dtype."""
    (y,) = execute(numbers, torch.tensor([s], dtype=torch.float64)).tolist()
    with working(PRECISION):
        return abs(arb(y) - f.value(s)) if np.isfinite(y) else arb("inf")


def network_errors(program: Program, numbers: NetworkNumbers, x: Array) -> list[arb]:
    """|executed - program| at one input, output by output."""
    meant = exact(program, np.asarray(x, np.float64).reshape(program.shape), PRECISION).ravel()
    with working(PRECISION):
        return [
            abs(arb(float(y)) - ball) if np.isfinite(y) else arb("inf")
            for y, ball in zip(execute_one(program, numbers, x), meant, strict=True)
        ]


def attained(error: arb, known: bool = True) -> float:
    """What a witness may claim of an error. Of a function that is not `known`, but for values and a Lipschitz constant, no more
    can be said than that some such function has this error: the upper end."""
    with working(PRECISION):
        return max(0.0, lower(error)) if known else upper(error)


def overstated(claimed: float, error: arb, known: bool = True) -> str | None:
    """Why the claim of a witness is false, or None."""
    if claimed <= attained(error, known):
        return None
    return f"the witness claims an error of {claimed:.6g}, executed it has {float(error.mid()):.6g}"


def understated(claimed: float, error: arb, rounding: float) -> str | None:
    """Why a witness is not the one that was found, or None: it may differ by the room and by what rounding differs elsewhere."""
    with working(PRECISION):
        if not error.lower() * arb(ROOM) - 2 * arb(rounding) > arb(claimed):
            return None
    return f"the witness claims an error of {claimed:.6g}, executed it has {float(error.mid()):.6g}"
