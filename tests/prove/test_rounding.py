"""Every term of a head's rounding error is needed, in the prover and in the checker.

An adversary executes the head with the assumed arithmetic, only coarser, and errs in every operation by as much as it may.
Each case is chosen so that one term is most of the bound: without it, the adversary would exceed what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from flint import arb, arb_series

from attnc.arithmetic import Arithmetic
from attnc.check.cell import _HeadCell, _summed
from attnc.functions.balls import working
from attnc.prove.cells import Cell, head_on_cell, rounding_on_cell
from attnc.prove.rounding import Keys, head_rounding, projection_rounding, query_error, score_error
from attnc.records.numbers import HeadNumbers

ORDER, PRECISION = 4, 256


def coarse(unit: float = 2.0**-14, tiny: float = 0.0, exp_units: int = 0) -> Arithmetic:
    return Arithmetic("float32", unit, tiny, 2.0**126, exp_units)


@dataclass(frozen=True)
class Push:
    """The sign of each operation's error: of exp and of scores by key, of everything else alike."""

    score: tuple[int, ...] = ()
    exp: tuple[int, ...] = ()
    query: int = 1
    rest: int = 1


@dataclass(frozen=True)
class Case:
    keys: list[tuple[float, float]]
    values: list[tuple[float, float]]
    s: float
    a: Arithmetic
    part: float  # of the bound that is attained
    gain: float = 1.0
    offset: float = 0.0
    push: Push = field(default_factory=Push)

    @property
    def numbers(self) -> HeadNumbers:
        arrays = ([[self.gain, self.offset]], [self.keys], [self.values], [1.0])
        return HeadNumbers(*(np.array(x, dtype=float) for x in arrays), "float32")


def exact(numbers: HeadNumbers, s: float) -> arb:
    (gain, offset), x = numbers.query[0], arb(s)
    scores = [arb(k) * (arb(gain) * x + arb(offset)) + arb(c) for k, c in numbers.key[0]]
    e = [z.exp() for z in scores]
    values = [arb(own) * x + arb(c) for own, c in numbers.value[0]]
    return sum((w * v for w, v in zip(e, values, strict=True)), arb(0)) / sum(e, arb(0))


def power_of_two(x: float) -> bool:
    return abs(np.frexp(x)[0]) in (0.0, 0.5)


def executed(case: Case) -> arb:
    """The head with every operation as far off as assumed, in the directions of `push`.

    Products are rounded up and so are sums of them; the sum of the exponentials is rounded down. Each may underflow, and its
    result may be read as 0 afterwards: 2τ."""
    u, tau, push = arb(case.a.unit), arb(case.a.tiny), case.push
    scores, exps = push.score or (1,) * len(case.keys), push.exp or (1,) * len(case.keys)
    s = arb(case.s)
    x = s * arb(case.gain) * (1 if case.gain == 1 else 1 + push.query * u)
    x = x + arb(case.offset) if case.offset == 0 else (x + arb(case.offset)) * (1 + push.query * u)
    z = []
    for (k, c), sign in zip(case.keys, scores, strict=True):
        product = arb(k) * x
        product += 0 if power_of_two(k) else sign * u * abs(product)
        total = product + arb(c)
        z.append(total if c == 0 else total + sign * u * abs(total))
    top = z[0]
    for other in z:
        top = top.max(other)
    e = []
    for d, score, sign in zip((other - top for other in z), scores, exps, strict=True):
        e.append((d + score * u * abs(d)).exp() * (1 + sign * case.a.exp_units * u))
    denominator = e[0]
    for term in e[1:]:
        denominator = (denominator + term) * (1 - push.rest * u)
    total = arb(0)
    for i, (term, (own, constant)) in enumerate(zip(e, case.values, strict=True)):
        value = arb(own) * s + arb(constant)
        value = value if own == 0 else value * (1 + push.rest * u) ** 2
        weighted = (
            term / denominator * (1 + push.rest * u) ** 3 * value * (1 + push.rest * u) + push.rest * 2 * tau
        )
        total = weighted if i == 0 else (total + weighted) * (1 + push.rest * u) + push.rest * 2 * tau
    return total


MANY = 30
CASES = {
    "a token that attends to itself": Case(
        [(16.0, 0.0), (0.0, 0.0)], [(1.0, 0.0), (0.0, 0.0)], 16.0, coarse(), 0.85
    ),
    "sums over the anchors": Case(
        [(0.0, 0.0)] + [(0.0, -128.0)] * (MANY - 1), [(0.0, 1.0)] * MANY, 1.0, coarse(), 0.95
    ),
    "exp": Case(
        [(0.0, 0.0), (0.0, 0.0)], [(0.0, 1.0), (0.0, -1.0)], 1.0, coarse(exp_units=40), 0.8, push=Push(exp=(1, -1))
    ),
    "exp, large": Case(
        [(0.0, 0.0), (0.0, -8.0)],
        [(0.0, 0.0), (0.0, -1.0)],
        1.0,
        coarse(2.0**-14, exp_units=2**13),
        0.6,
        push=Push(exp=(-1, 1), rest=1),
    ),
    "difference from the largest score": Case(
        [(0.0, 0.0), (-50.0, 0.0)], [(0.0, 0.0), (0.0, 1.0)], 1.0, coarse(), 0.9
    ),
    "product of the score": Case(
        [(0.0, 0.0), (-100.0, 64.0)], [(0.0, 0.0), (0.0, 1.0)], 1.0, coarse(), 0.9, push=Push(score=(1, 1))
    ),
    "sum of the score": Case(
        [(0.0, 0.0), (-16.0, -32.0)], [(0.0, 0.0), (0.0, 1.0)], 1.0, coarse(), 0.9, push=Push(score=(1, 1))
    ),
    "underflow": Case(
        [(0.0, 0.0)] * MANY, [(0.0, 2.0**-4)] * MANY, 1.0, coarse(2.0**-60, 2.0**-20), 0.4
    ),
}  # fmt: skip


def prover(case: Case) -> arb:
    numbers, cell = case.numbers, Cell(case.s, case.s)
    model = head_on_cell(numbers, 0, cell, ORDER, case.a)
    assert model is not None
    return rounding_on_cell(numbers, 0, cell, model, case.a)


def checker(case: Case) -> arb:
    zero = arb_series([0])
    part = _HeadCell(case.numbers, 0, arb(case.s), arb(0), (zero, zero), case.a)
    return part.rounding(arb(case.s))


@pytest.mark.parametrize("bound", [prover, checker], ids=["prover", "checker"])
@pytest.mark.parametrize("name", CASES)
def test_every_term_is_needed(name: str, bound: Callable[[Case], arb]) -> None:
    case = CASES[name]
    with working(PRECISION, 9):
        lost, allowed = abs(executed(case) - exact(case.numbers, case.s)), bound(case)
        assert lost <= allowed
        assert lost >= arb(case.part) * allowed


def test_far_keys_may_come_near_when_executed() -> None:
    """A key with value 1 that is 1 + 2η below the winner, whose value is 0; executed it is 1 below."""
    a = coarse(2.0**-20)
    with working(PRECISION):
        zero, eta = arb(0), arb(10)
        keys = Keys([zero], [zero], [zero], [zero], [arb(1)], [zero], [zero], 2, 1, arb(1), 1)
        bound = head_rounding(a, keys, arb(1), arb(1), zero, arb(0))
        was, now = (weight / (1 + weight) for weight in ((-1 - 2 * eta).exp(), arb(-1).exp()))
        assert now - was <= bound
        assert now - was >= arb(0.4) * bound


WEIGHTS = [3.0] + [2.0**-20] * 7
sums = pytest.mark.parametrize("error", [0.0, 0.25])


def added_up(outputs: list[arb], errors: list[arb], u: arb) -> arb:
    """Every head off by its error, every product and every sum rounded up; the first passes all roundings."""
    total = arb(0)
    for i, (y, e, w) in enumerate(zip(outputs, errors, WEIGHTS, strict=True)):
        product = (y + e) * arb(w) * (1 + u)
        total = product if i == 0 else (total + product) * (1 + u)
    return total


@sums
@pytest.mark.parametrize("who", ["prover", "checker"])
def test_the_sum_over_heads_rounds_and_carries_errors(error: float, who: str) -> None:
    a, n = coarse(), len(WEIGHTS)
    with working(PRECISION):
        outputs, errors = [arb(1)] * n, [arb(error)] * n
        weights = [arb(w) for w in WEIGHTS]
        meant = sum((w * y for w, y in zip(weights, outputs, strict=True)), arb(0))
        lost = added_up(outputs, errors, arb(a.unit)) - meant
        if who == "prover":
            bound = projection_rounding(a, outputs, errors, weights)
        else:
            parts = [
                SimpleNamespace(rounding=lambda s, e=e: e, output=y)
                for y, e in zip(outputs, errors, strict=True)
            ]
            bound = _summed(n, weights, parts, arb(1), a)  # type: ignore[arg-type]
        assert lost <= bound
        assert lost >= arb(0.99) * bound


def test_a_single_head_is_taken_as_it_is_only_with_weight_one() -> None:
    a = coarse()
    with working(PRECISION):
        alone = projection_rounding(a, [arb(1)], [arb(0)], [arb(1)])
        assert alone == 0
        assert projection_rounding(a, [arb(1)], [arb(0)], [arb(3)]) >= 3 * arb(a.unit)
        assert projection_rounding(a, [arb(1)] * 2, [arb(0)] * 2, [arb(1)] * 2) >= 2 * arb(a.unit)


@pytest.mark.parametrize("gain", [1.0, -3.0, 2.0**-9])
def test_the_underflow_of_queries_and_scores(gain: float) -> None:
    """An operand below τ is read as 0; a product and a sum err by τ each, and each result may be read as 0 afterwards."""
    a, tau = coarse(2.0**-60, 2.0**-20), arb(2.0**-20)
    assert query_error(a, arb(0), arb(gain), arb(1)) >= (abs(gain) + 4) * tau
    assert score_error(a, arb(gain), arb(1), arb(0), tau, arb(1)) >= (abs(gain) + 4) * tau
