"""The checker: proves what is true, refutes what is false, and says which change made a certificate inapplicable."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnc
from attnc.check.execution import execute
from attnc.check.head import check_head as check
from attnc.errors import InputError
from attnc.records.certificate import Witness
from attnc.records.numbers import HeadNumbers
from tests.sampled import every

CASES = [
    ("gelu", (-8, 8), {"eps": 1e-4}),
    ("relu", (-1, 1), {"anchors": 9, "design": "graded", "dtype": torch.float64}),
    ("clip(-25,25)", (-80, 80), {"eps": 1e-3, "dtype": torch.float64}),
    ("silu", (-8, 8), {"anchors": 2, "design": "gated"}),
    ("sin", (-3, 3), {"anchors": 6, "heads": 3}),
    ("softsign", (-4, 4), {"anchors": 24, "design": "nearest"}),
    ("exp", (2, 4), {"anchors": 4}),
    ("tanh", (-8, 8), {"eps": 1e-6, "dtype": torch.float64}),
]


@pytest.fixture(scope="module", params=CASES, ids=[f"{c[0]}-{c[2].get('design', 'auto')}" for c in CASES])
def head(request: pytest.FixtureRequest) -> attnc.Head:
    spec, on, options = request.param
    return attnc.head(spec, domain=on, **options)


def test_a_true_bound_is_proved_anew(head: attnc.Head) -> None:
    verdict = attnc.verify(head)
    assert verdict.status == "proved", verdict
    assert bool(verdict)
    assert verdict.cells > 20


def test_a_bound_below_the_witness_is_refuted_with_an_input(head: attnc.Head) -> None:
    false = replace(head.certificate, bound=0.8 * head.certificate.witness.error)
    verdict = check(head.numbers(), false)
    assert verdict.status == "refuted"
    assert not verdict
    executed = head(torch.tensor(verdict.input, dtype=torch.float64).to(head.key.dtype)).double()
    exact = attnc.functions.get(false.facts["function"])(torch.tensor(verdict.input, dtype=torch.float64))
    assert float((executed - exact).abs()) > 0.9 * false.bound


@pytest.mark.parametrize("name", ["query", "key", "value", "output"])
def test_a_changed_parameter_is_named(head: attnc.Head, name: str) -> None:
    changed = copy.deepcopy(head)
    tensor = getattr(changed, name).data.view(-1)
    tensor[-1] = torch.nextafter(tensor[-1], torch.tensor(math.inf, dtype=tensor.dtype))
    verdict = attnc.verify(changed)
    assert verdict.status == "unknown"
    assert name in verdict.reason
    assert changed.why_not_certified() == f"changed since it was certified: {name}"
    assert "not certified" in repr(changed)


def test_another_dtype_is_named(head: attnc.Head) -> None:
    for dtype in {torch.float16, torch.float32, torch.float64} - {head.key.dtype}:
        moved = copy.deepcopy(head).to(dtype)
        verdict = attnc.verify(moved)
        assert verdict.status == "unknown"
        assert str(dtype).removeprefix("torch.") in verdict.reason
        assert "not certified" in repr(moved)


@pytest.mark.parametrize("name", ["key", "value", "query", "output"])
def test_a_false_claim_about_other_numbers_is_never_proved(head: attnc.Head, name: str) -> None:
    """Break a number on purpose and forge the digests: the checker must notice by the mathematics alone."""
    numbers = head.numbers()
    arrays = {n: getattr(numbers, n).copy() for n in ("query", "key", "value", "output")}
    index = {"value": (0, -1, 1), "key": (0, 0, 0), "query": (0, 1), "output": (0,)}[name]
    arrays[name][index] += 0.125 * max(1.0, abs(arrays[name][index]))
    arrays = {n: array.astype(numbers.dtype).astype(np.float64) for n, array in arrays.items()}
    forged = HeadNumbers(**arrays, dtype=numbers.dtype)
    certificate = replace(head.certificate, digests=forged.digests())
    verdict = check(forged, certificate)
    s = torch.linspace(certificate.interval.lo, certificate.interval.hi, 5001, dtype=torch.float64).to(
        head.key.dtype
    )
    truth = attnc.functions.get(certificate.facts["function"])(s.double())
    worst = float((execute(forged, s) - truth).abs().max())
    assert (verdict.status == "refuted") == (worst > certificate.bound), (worst, verdict)
    assert name != "value" or worst > certificate.bound


def test_a_bound_that_is_too_good_by_a_little_is_not_proved() -> None:
    """Between witness and bound nothing is known; below the exact supremum nothing may be proved."""
    head = attnc.head("gelu", domain=(-4, 4), anchors=5, dtype=torch.float64)
    certificate = head.certificate
    assert certificate.quality < 1.2
    barely = replace(certificate, bound=certificate.witness.error * (1 - 1e-9))
    assert check(head.numbers(), barely).status == "refuted"


def test_overflow_is_unknown_or_refuted() -> None:
    head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    numbers = head.numbers()
    huge = HeadNumbers(numbers.query, numbers.key * 2.0**124, numbers.value, numbers.output, "float32")
    verdict = check(huge, replace(head.certificate, digests=huge.digests()))
    assert verdict.status != "proved"


def test_execution_is_the_head_s(head: attnc.Head) -> None:
    domain = head.certificate.interval
    s = torch.linspace(domain.lo, domain.hi, 999, dtype=torch.float64).to(head.key.dtype)
    ours, theirs = execute(head.numbers(), s), head(s).double()
    assert float((ours - theirs).abs().max()) <= 2 * head.certificate.rounding


def test_user_functions_need_to_be_known() -> None:
    f = attnc.function(lambda s: s / (1 + s * s), name="rational", enclosure=lambda x: x / (1 + x * x))
    head = attnc.head(f, domain=(-1, 1), anchors=5)
    assert attnc.verify(head).status == "unknown"
    assert "rational" in attnc.verify(head).reason
    assert attnc.verify(head, function=f).status == "proved"
    other = attnc.function(torch.sin, name="other", enclosure=lambda x: x.sin())
    assert attnc.verify(head, function=other).status == "unknown"


def test_measured_heads_are_unknown() -> None:
    verdict = attnc.verify(attnc.head(lambda s: torch.lgamma(s + 4), domain=(-1, 1), anchors=4))
    assert verdict.status == "unknown"
    assert "measured" in verdict.reason


def test_arithmetic_that_breaks_the_assumptions_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    monkeypatch.setattr("attnc.check.head.probe", lambda dtype: "exp is off")
    assert "exp is off" in attnc.verify(head).reason
    assert attnc.verify(head).status == "unknown"


@pytest.mark.parametrize("what", [3, None, torch.nn.Linear(1, 1)], ids=["number", "none", "module"])
def test_what_is_not_a_head_is_refused(what: object) -> None:
    with pytest.raises(InputError):
        attnc.verify(what)  # type: ignore[arg-type]


def test_nan_in_the_numbers_is_refused() -> None:
    with pytest.raises(InputError, match="NaN"):
        HeadNumbers(
            np.array([[1.0, math.nan]]), np.zeros((1, 2, 2)), np.zeros((1, 2, 2)), np.ones(1), "float32"
        )


LOWERED = {
    "bound": lambda c: replace(c, bound=0.97 * c.witness.error),
    "approximation": lambda c: replace(c, approximation=0.97 * c.witness.error, rounding=c.bound),
    "rounding": lambda c: replace(c, rounding=0.5 * c.rounding),
    "rounding to nothing": lambda c: replace(c, rounding=0.0),
}


@pytest.mark.parametrize("lower", LOWERED.values(), ids=LOWERED)
@pytest.mark.parametrize("spec", every(2, ["relu", "gelu"]))
def test_the_proof_itself_fails_where_the_claim_is_false(
    spec: str, lower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the attack and without the witness, the mathematics alone must not prove it."""
    head = attnc.head(spec, domain=(-4, 4), anchors=6, dtype=torch.float64)
    monkeypatch.setattr("attnc.check.head._attack", lambda *args: None)
    monkeypatch.setattr("attnc.check.head.MOST_CELLS", 3000)
    assert check(head.numbers(), head.certificate).status == "proved"
    assert check(head.numbers(), lower(head.certificate)).status == "unknown"


def test_a_false_witness_is_not_passed_over() -> None:
    head = attnc.head("gelu", domain=(-4, 4), anchors=5)
    for witness in (
        Witness((0.5,), 0, 1e-9),
        Witness((9.0,), 0, head.certificate.witness.error),
        Witness((0.1,), 0, 0.0),
    ):
        verdict = check(head.numbers(), replace(head.certificate, witness=witness))
        assert verdict.status == "unknown"
        assert "witness" in verdict.reason


def test_the_module_that_runs_is_attacked_too() -> None:
    """A module whose numbers are right and whose forward is not."""
    head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)

    class Wrong(attnc.Head):
        def forward(self, s: torch.Tensor) -> torch.Tensor:
            return super().forward(s) * 1.001

    class Broken(attnc.Head):
        def forward(self, s: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    class Summed(attnc.Head):
        def forward(self, s: torch.Tensor) -> torch.Tensor:
            return s.sum()

    for kind, status in ((Wrong, "refuted"), (Broken, "unknown"), (Summed, "unknown")):
        assert attnc.verify(kind(head.numbers(), "tuned", head.certificate)).status == status
    hooked = copy.deepcopy(head)
    hooked.register_forward_hook(lambda module, args, output: output + 1)
    assert attnc.verify(hooked).status == "refuted"


def test_a_gate_that_is_loaded_is_used() -> None:
    gated = attnc.head("silu", domain=(-8, 8), anchors=2, design="gated")
    numbers = gated.numbers()
    plain = attnc.Head(
        HeadNumbers(numbers.query, numbers.key, 0 * numbers.value, numbers.output, numbers.dtype), "gated"
    )
    plain.load_state_dict(gated.state_dict())
    s = torch.linspace(-8, 8, 99)
    assert torch.equal(plain(s), gated(s))


def test_an_enclosure_that_loses_a_coefficient_is_refused() -> None:
    with pytest.raises(attnc.errors.FunctionError):
        attnc.function(torch.cos, name="lossy", enclosure=lambda x: x.sin().derivative())


def test_a_jump_is_never_proved() -> None:
    step = attnc.function(
        lambda s: (s >= 0).to(s.dtype),
        name="step",
        kinks=(0.0,),
        enclosure=(lambda x: x * 0, lambda x: x * 0 + 1),
    )
    for on in ((-1, 0), (-1, 1), (0, 1)):
        with pytest.raises(attnc.AttncError):
            attnc.head(step, domain=on, eps=1e-3)


def test_a_user_s_function_cannot_take_a_built_in_name() -> None:
    with pytest.raises(InputError, match="built-in"):
        attnc.function(torch.square, name="gelu", enclosure=lambda x: x * x)


def test_numbers_that_the_dtype_cannot_hold_are_refused() -> None:
    with pytest.raises(InputError, match="cannot"):
        HeadNumbers(np.array([[1.0, 0.1]]), np.zeros((1, 2, 2)), np.zeros((1, 2, 2)), np.ones(1), "float32")


def test_every_cell_of_the_domain_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that returns s errs by 1 from clip(-1,1) at 2, the end of the last cell, and by less on every other."""
    numbers = HeadNumbers(
        np.array([[1.0, 0.0]]), np.zeros((1, 1, 2)), np.array([[(1.0, 0.0)]]), np.ones(1), "float64"
    )
    monkeypatch.setattr("attnc.check.head._attack", lambda *given: None)

    def claim(bound: float, lo: float = 0.5) -> attnc.Certificate:
        facts = {"function": "clip(-1,1)", "design": "any", "precision": 128, "cells": 1}
        return attnc.Certificate(
            subject="head", status=attnc.Status.PROVED, approximation=bound, rounding=0.0625, bound=bound, dtype="float64",
            holds_for=attnc.Interval(lo, 2.0), witness=Witness((2.0,), 0, bound), digests=numbers.digests(), facts=facts,
        )  # fmt: skip

    monkeypatch.setattr("attnc.check.head.MOST_CELLS", 2000)
    assert check(numbers, claim(1.25)).status == "proved"
    assert check(numbers, claim(0.97)).status == "unknown"
    assert check(numbers, claim(0.97, lo=-2.0)).status == "unknown"


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_module_that_returns_no_number_is_refuted(wrong: float) -> None:
    head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)

    class Odd(attnc.Head):
        def forward(self, s: torch.Tensor) -> torch.Tensor:
            return torch.where(s > 7.99, wrong, super().forward(s))

    assert attnc.verify(Odd(head.numbers(), "tuned", head.certificate)).status == "refuted"
