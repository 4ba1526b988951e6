"""The prover: right on heads whose error is known, tight, and silent where it cannot prove."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from flint import arb

import attnc
from attnc import functions
from attnc.domain import Interval
from attnc.errors import FunctionError
from attnc.functions.balls import working
from attnc.prove.supnorm import supnorm
from attnc.records.numbers import HeadNumbers


def single(keys: list[tuple[float, float]], values: list[float], dtype: str = "float64") -> HeadNumbers:
    value = np.array([[(0.0, v) for v in values]])
    return HeadNumbers(np.array([[1.0, 0.0]]), np.array([keys], dtype=float), value, np.ones(1), dtype)


TANH = single([(2.0, 0.0), (0.0, 0.0)], [1.0, -1.0])


def test_two_keys_are_exactly_tanh() -> None:
    """Only rounding is left: a few units in the last place."""
    proof = supnorm(TANH, functions.tanh(), Interval(-8, 8))
    assert proof.approximation < 1e-15
    assert 2.0**-53 < proof.bound < 2e-15


@pytest.mark.parametrize("off", [1e-3, 1e-7, 1e-11])
def test_a_known_error_is_found_and_hardly_exceeded(off: float) -> None:
    """tanh with values off by a constant: the supremum is that constant."""
    shifted = single([(2.0, 0.0), (0.0, 0.0)], [1.0 + off, -1.0 + off])
    proof = supnorm(shifted, functions.tanh(), Interval(-8, 8))
    assert off * (1 - 1e-4) <= proof.attained <= proof.bound
    assert proof.bound <= 1.12 * off


@pytest.mark.parametrize("sharpness", [10.0, 1e3, 1e6])
def test_a_switch_of_two_values_misses_a_constant_by_its_size(sharpness: float) -> None:
    """Values ±1 against 0: sup is tanh(B) at the ends, and the saturated part must not fool the prover."""
    proof = supnorm(
        single([(sharpness, 0.0), (-sharpness, 0.0)], [1.0, -1.0]),
        functions.get("clip(-1e-9,1e-9)"),
        Interval(-1, 1),
    )
    assert 1 - 1e-4 <= proof.attained <= proof.bound <= 1.12


def test_gated_relu_has_the_error_of_its_closed_form() -> None:
    """s·sigmoid(Bs) against relu: max of x/(1 + e^x) over B, 0.27846/B."""
    b = 2.0**10
    gated = HeadNumbers(
        np.array([[1.0, 0.0]]),
        np.array([[(-b, 0.0), (0.0, 0.0)]]),
        np.array([[(0.0, 0.0), (1.0, 0.0)]]),
        np.ones(1),
        "float64",
    )
    proof = supnorm(gated, functions.relu(), Interval(-1, 1))
    assert 0.27846 / b * (1 - 1e-3) <= proof.attained
    assert proof.bound <= 1.12 * 0.27847 / b


def test_many_far_keys_change_nothing() -> None:
    """Keys that lose by far are dropped from the series, not from the bound."""
    far = single([(2.0, 0.0), (0.0, 0.0), *((0.0, -200.0 - i) for i in range(50))], [1.0, -1.0, *[1e6] * 50])
    proof = supnorm(far, functions.tanh(), Interval(-8, 8))
    assert proof.bound < 1e-13


def test_a_far_key_with_a_huge_value_is_counted() -> None:
    """exp(-100)·1e38 is not negligible: the far keys' share must enter the bound."""
    huge = single([(2.0, 0.0), (0.0, 0.0), (0.0, -100.0)], [1.0, -1.0, 1e38])
    proof = supnorm(huge, functions.tanh(), Interval(-1, 1))
    truth = 1e38 * math.exp(-100) / 2
    assert proof.bound >= truth * 0.2 > 1e-10


def test_overflowing_scores_prove_nothing() -> None:
    assert (
        supnorm(single([(1e200, 0.0), (0.0, 0.0)], [1.0, -1.0]), functions.tanh(), Interval(-1e200, 1)).bound
        == math.inf
    )
    scores = single([(2.0**126, 0.0), (0.0, 0.0)], [1.0, -1.0], "float32")
    assert supnorm(scores, functions.tanh(), Interval(-8, 8)).bound == math.inf


def test_rounding_that_drowns_everything_proves_nothing() -> None:
    """Scores of 1e9 in float32 err by tens: weights are arbitrary, and the prover must not claim otherwise."""
    slopes = [(1e9, 0.0), (1e9 + 64.0, 0.0)]
    proof = supnorm(single(slopes, [1.0, -1.0], "float32"), functions.tanh(), Interval(-8, 8))
    executed = attnc.Head(single(slopes, [1.0, -1.0], "float32"), "any")(torch.tensor([1.0]))
    assert proof.bound == math.inf or abs(float(executed) - math.tanh(1.0)) <= proof.bound


def test_needed_stops_early() -> None:
    shifted = single([(2.0, 0.0), (0.0, 0.0)], [1.1, -0.9])
    proof = supnorm(shifted, functions.tanh(), Interval(-8, 8), needed=1e-3)
    assert proof.bound == proof.approximation == proof.rounding == math.inf
    assert proof.cells < 20


def test_an_enclosure_with_a_hidden_kink_is_caught() -> None:
    def lying(x):  # |s| by the sign of the middle: right at points, wrong on cells across 0
        return x if x[0].mid() > 0 else -x

    f = attnc.function(torch.abs, name="sly", enclosure=lying)
    with pytest.raises(FunctionError, match="kink"):
        supnorm(TANH, f, Interval(-1, 1.7))


def test_an_honest_enclosure_with_a_kink_never_becomes_a_proof() -> None:
    f = attnc.function(torch.abs, name="honest", enclosure=lambda x: (x * x).sqrt())
    proof = supnorm(TANH, f, Interval(-1, 1))
    assert proof.bound == math.inf


def test_two_precisions_agree() -> None:
    head = attnc.head("gelu", domain=(-3, 3), anchors=6, dtype=torch.float64)
    low, high = (
        supnorm(head.numbers(), functions.gelu(), Interval(-3, 3), precision=p, order=o)
        for p, o in ((96, 6), (300, 14))
    )
    assert low.attained <= high.bound
    assert high.attained <= low.bound
    assert low.bound == pytest.approx(high.bound, rel=0.15)


@pytest.mark.parametrize("spec", ["gelu", "relu", "softsign", "sin"])
def test_attained_is_really_attained(spec: str) -> None:
    """The lower end is an error of the exact head at that point, recomputed from the formula."""
    head = attnc.head(spec, domain=(-2, 3), anchors=5, dtype=torch.float64)
    numbers, f = head.numbers(), functions.get(spec)
    proof = supnorm(numbers, f, Interval(-2, 3))
    with working(200):
        s = arb(proof.at)
        x = s + arb(numbers.query[0, 1])
        e = [(arb(k) * x + arb(c)).exp() for k, c in numbers.key[0]]
        g = sum((w * arb(v) for w, (_, v) in zip(e, numbers.value[0], strict=True)), arb(0)) / sum(e, arb(0))
        assert abs(g - f.value(proof.at)) >= arb(proof.attained)


@pytest.mark.parametrize("tensor", ["query", "key", "value", "output"])
def test_subnormal_numbers_prove_nothing(tensor: str) -> None:
    """A processor that flushes them to zero computes something else."""
    arrays = {
        name: getattr(TANH, name).astype(np.float32).astype(np.float64)
        for name in ("query", "key", "value", "output")
    }
    arrays[tensor] = arrays[tensor].copy()
    arrays[tensor].flat[-1] = 2.0**-140
    assert (
        supnorm(HeadNumbers(**arrays, dtype="float32"), functions.tanh(), Interval(-8, 8)).bound == math.inf
    )
    assert supnorm(HeadNumbers(**arrays, dtype="float64"), functions.tanh(), Interval(-8, 8)).bound < math.inf


def test_flushing_subnormals_stays_within_the_bound() -> None:
    """torch can flush and ignore subnormals: the same bound must hold."""
    head = attnc.head("silu", domain=(-8, 8), anchors=2, design="gated")
    s = torch.cat([torch.tensor([1e-45, -1e-45, 1e-40, 2.0**-126]), torch.linspace(-8, 8, 999)])
    if not torch.set_flush_denormal(True):
        return
    try:
        executed = head(s).double()
    finally:
        torch.set_flush_denormal(False)
    truth = torch.nn.functional.silu(s.double())
    assert float((executed - truth).abs().max()) <= head.certificate.bound
