"""Every term of how errors pass a stage is needed, in the prover's composition and in the checker's.

An adversary executes one stage with the arithmetic that is assumed, errs in every operation by as much as it may, and is given an
input that is off by as much as is said. Each case is chosen so that one term is most of the bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from flint import arb

from attnc import functions
from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.check.compose import KINDS
from attnc.check.values import CheckError, HeadErrors, Passing, Value, floats, long
from attnc.domain import Interval
from attnc.functions.balls import working
from attnc.lower.layers import lower_steps
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program
from attnc.prove import bounds
from attnc.prove.bounds import ValueBounds
from attnc.prove.compose import advance
from attnc.records.layers import Layer

WHO = pytest.mark.parametrize("who", ["prover", "checker"])
FINE, COARSE = 2.0**-100, 2.0**-14


@dataclass(frozen=True)
class Passed:
    lo: float
    hi: float
    error: float


def passed(
    who: str, program: Program, x: float, error: float, delta: float = 0.0, domain: Interval | None = None
) -> Passed:
    """What is known of the first output of a program of one stage, all of whose inputs are x, off by at most `error`."""
    (stage,), a = lower_steps(program, "float32"), ARITHMETIC["float32"]
    shape = program.shape
    if who == "prover":
        given = ValueBounds(np.full(shape, x), np.full(shape, x), np.zeros(shape), np.full(shape, error))
        known = advance(program, stage, {0: given}, "float32", bounds.HeadErrors(delta, delta))
        return Passed(known.lo[0], known.hi[0], known.error[0])
    given, off = (long(np.full((1, *shape), v)) for v in (x, error))
    with np.errstate(all="ignore"):
        made = checked(
            program, stage, Value.of(given, given, off, off), a, delta, domain or Interval(-64, 64)
        )
    (lo, hi), (_, off) = floats(made.lo, made.hi), floats(made.error, made.error)
    return Passed(float(lo[0, 0]), float(hi[0, 0]), float(off[0, 0]))


def checked(program: Program, stage: Layer, x: Value, a: Arithmetic, delta: float, domain: Interval) -> Value:
    layer, n = stage, program.shapes[-1][-1]
    heads = HeadErrors(*(np.full(n, v) for v in (domain.lo, domain.hi, delta, delta)))
    return KINDS[layer.kind](Passing(program, layer, [x] * len(layer.inputs), a, heads))


def executed(program: Program, x: float, error: float, a: Arithmetic) -> tuple[arb, arb]:
    """The first output of a stage as executed with every error upwards, and as meant. Terms are added from the left; an operand
    that is subnormal is taken for zero."""
    (stage,), step, u = lower_steps(program, "float32"), program.steps[0], arb(a.unit)
    x_hat = arb(x) + arb(error) if abs(x) >= a.tiny else arb(0)
    if isinstance(step, Affine):
        stored, meant = stage.tensor("weight")[0].tolist(), step.weight[0].tolist()
        last, bias = (0.0 if b is None else float(b[0]) for b in (stage.tensors.get("bias"), step.bias))
    elif isinstance(step, BatchNorm):
        exact = arb(float(step.gain[0])) / (arb(float(step.variance[0])) + arb(step.epsilon)).sqrt()
        shift = arb(float(step.shift[0])) - exact * arb(float(step.mean[0]))
        product = arb(float(stage.tensor("scale")[0])) * x_hat * (1 + u)
        return (product + arb(float(stage.tensor("shift")[0]))) * (1 + u), exact * arb(x) + shift
    else:
        assert isinstance(step, Combine)
        stored, meant, last, bias = list(stage.settings["coefficients"]), list(step.coefficients), 0.0, 0.0
    total = arb(0)
    for i, w in enumerate(stored):
        product = arb(w) * x_hat * (1 + u)
        total = product if i == 0 else (total + product) * (1 + u)
    if last:
        total = (total + arb(last)) * (1 + u)
    return total, sum((arb(w) for w in meant), arb(0)) * arb(x) + arb(bias)


def affine(weight: list[float], bias: float | None = None) -> Program:
    return Program(
        (len(weight),), (Affine(0, np.array([weight]), None if bias is None else np.array([bias])),)
    )


def normalise(variance: float, gain: float, shift: float = 0.0) -> Program:
    mean, *rest = (np.array([v]) for v in (0.0, variance, gain, shift))
    return Program((1,), (BatchNorm(0, mean, *rest, 0.0),))


def combine(coefficients: tuple[float, ...]) -> Program:
    return Program((1,), (Combine((0,) * len(coefficients), coefficients),))


BIG_FIRST = [1.0] + [2.0**-20] * 6
# program, input, its error, unit, tiny, the part of the bound that is attained
STAGES = {
    "errors before a linear map": (affine([3.0, -3.0, 2.0**-20]), 1.0, 0.5, FINE, 0.0, 0.0),
    "one error before a linear map": (affine([3.0]), 1.0, 0.5, FINE, 0.0, 0.99),
    "rounded weights": (affine([1 - 2.0**-26]), 1.0, 0.0, FINE, 0.0, 0.99),
    "rounded bias": (affine([1.0], 1 - 2.0**-26), 1.0, 0.0, FINE, 0.0, 0.99),
    "roundings of a linear map": (affine(BIG_FIRST, 2.0**-20), 1.0, 0.0, COARSE, 0.0, 0.99),
    "underflow of a linear map": (affine([2.0**10]), 2.0**-21, 0.0, FINE, 2.0**-20, 0.2),
    "errors before a scale": (normalise(1.0, 3.0), 1.0, 0.5, FINE, 0.0, 0.99),
    "rounded scale": (normalise(3.0, 1.0), 1.0, 0.0, FINE, 0.0, 0.99),
    "rounded shift": (normalise(1.0, 1.0, 1 - 2.0**-26), 1.0, 0.0, FINE, 0.0, 0.99),
    "roundings of a scale": (normalise(1.0, 1.0, 2.0**-20), 1.0, 0.0, COARSE, 0.0, 0.99),
    "underflow of a scale": (normalise(1.0, 2.0**10), 2.0**-21, 0.0, FINE, 2.0**-20, 0.1),
    "errors before a sum": (combine((3.0, 2.0**-20)), 1.0, 0.5, FINE, 0.0, 0.99),
    "rounded coefficients": (combine((1 - 2.0**-26, 2.0**-40)), 1.0, 0.0, FINE, 0.0, 0.99),
    "roundings of a sum": (combine((1.0, 2.0**-20, 2.0**-20)), 1.0, 0.0, COARSE, 0.0, 0.7),
    "underflow of a sum": (combine((2.0**10, 1.0)), 2.0**-21, 0.0, FINE, 2.0**-20, 0.05),
}


@WHO
@pytest.mark.parametrize("name", STAGES)
def test_every_term_is_needed(name: str, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, x, error, unit, tiny, part = STAGES[name]
    a = Arithmetic("float32", unit, tiny, 2.0**126, 40)
    monkeypatch.setitem(ARITHMETIC, "float32", a)
    found = passed(who, program, x, error)
    with working(200):
        now, meant = executed(program, x, error, a)
        lost = abs(now - meant)
        assert lost <= arb(found.error)
        assert lost >= arb(part) * arb(found.error)
        assert not meant < arb(found.lo) and not meant > arb(found.hi)


@WHO
def test_sums_that_may_overflow_promise_nothing(who: str) -> None:
    assert passed(who, affine([1e38, 1e38]), 10.0, 0.0).error == np.inf
    assert passed(who, combine((1e38, 1e38)), 10.0, 0.0).error == np.inf
    assert passed(who, normalise(1.0, 1e38), 10.0, 0.0).error == np.inf


def pointwise(name: str, deviation: float = 0.0, beyond: float = np.inf) -> Program:
    return Program((1,), (Pointwise(0, functions.get(name), deviation, beyond),))


@WHO
@pytest.mark.parametrize(
    ("name", "x", "error", "delta", "lost"),
    [
        ("relu", -1.0, 2.0, 0.0, 1.0),  # exactly 0, executed up to 1: the kink is within reach
        ("relu", 1.0, 0.5, 0.0, 0.5),
        ("relu", 1.0, 0.0, 0.25, 0.25),
        ("relu", 1.0, 0.5, 0.25, 0.75),
        ("square", 3.0, 0.5, 0.0, 3.25),
        ("tanh", 0.0, 50.0, 0.0, 1.0),
    ],
)
def test_errors_pass_the_function_and_heads_add_theirs(
    name: str, x: float, error: float, delta: float, lost: float, who: str
) -> None:
    found = passed(who, pointwise(name), x, error, delta)
    assert lost * (1 - 1e-9) <= found.error <= 2.01 * lost
    if name == "relu":
        assert lost <= found.error


@WHO
def test_a_source_that_deviates_costs_its_deviation(who: str) -> None:
    """Its own value is off the function: so are the interval of what is exact, and the error."""
    found = passed(who, pointwise("relu", 0.5, 0.0), 1.0, 0.0)
    assert found.error >= 0.5 and found.lo <= 0.5 and found.hi >= 1.5
    below = passed(who, pointwise("relu", 0.5, 2.0), 1.0, 0.0)
    assert below.error < 1e-12 and below.lo > 0.999


def test_a_head_must_be_proved_wherever_its_input_may_be() -> None:
    """Executed, anything of [0.5, 1.5] may enter."""
    program = pointwise("relu")
    for fits in (Interval(0.4999, 1.5001), Interval(-1, 2)):
        assert passed("checker", program, 1.0, 0.5, 0.125, fits).error >= 0.625
    for short in (
        Interval(0.5, 1.4999),
        Interval(0.5001, 1.5),
        Interval(0.9, 1.1),
        Interval(-3, 0),
        Interval(2, 3),
    ):
        with pytest.raises(CheckError):
            passed("checker", program, 1.0, 0.5, 0.125, short)
