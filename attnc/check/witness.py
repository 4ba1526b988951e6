"""The errors of executed numbers, in ball arithmetic, and what a witness may claim of them.

The numbers of one input are executed by sums in a fixed order, and the same code states the witness of a new certificate. So a
witness of this machine is met exactly, and one that claims more is false. On a machine whose exp rounds otherwise, an error that
is all rounding may differ: the verdict is then "unknown"."""

from __future__ import annotations

import numpy as np
import torch
from flint import arb

from attnc.check.execution import execute, execute_one
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.functions import Function
from attnc.functions.balls import lower, upper, working
from attnc.program.evaluate import exact
from attnc.program.program import Program
from attnc.records.layers import NetworkNumbers
from attnc.records.numbers import HeadNumbers

PRECISION = 192
ROOM = 1 - 2.0**-10  # of an error that is not rounding: last bits of another machine do not matter


def error_of(y: float, meant: arb) -> arb:
    """|y - meant|; infinite if y is not finite."""
    return abs(arb(y) - meant) if np.isfinite(y) else arb("inf")


def refutes(error: arb, bound: arb) -> bool:
    """Whether an error is above the bound for certain."""
    return not error <= bound and (error > bound or not error.is_finite())


def head_error(numbers: HeadNumbers, f: Function, s: float) -> arb:
    """|executed - f| at s, a number of the dtype."""
    (y,) = execute(numbers, torch.tensor([s], dtype=torch.float64)).tolist()
    with working(PRECISION):
        return error_of(y, f.value(s))


def network_errors(program: Program, numbers: NetworkNumbers, x: Array) -> list[arb]:
    """|executed - program| at one input, output by output."""
    meant = exact(program, np.asarray(x, np.float64).reshape(program.shape), PRECISION).ravel()
    executed = execute_one(program, numbers, x).tolist()
    with working(PRECISION):
        return [error_of(y, ball) for y, ball in zip(executed, meant, strict=True)]


def attained(error: arb, known: bool = True) -> float:
    """What a witness may claim of an error. If the function is not `known`, but for values and a Lipschitz constant, some such
    function has this error: the upper end."""
    with working(PRECISION):
        return max(0.0, lower(error)) if known else upper(error)


def check_claim(claimed: float, error: arb, rounding: float, known: bool = True) -> None:
    """Raise `CheckError` if the claim of a witness is false: it may not exceed the error, and fall below it only by the room and
    by what rounding may differ elsewhere."""
    with working(PRECISION):
        understated = error.lower() * arb(ROOM) - 2 * arb(rounding) > arb(claimed)
    if understated or not claimed <= attained(error, known):
        executed = float(error.mid())
        raise CheckError(f"the witness claims an error of {claimed:.6g}, but its error is {executed:.6g}")
