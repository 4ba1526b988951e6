"""A refusal comes within seconds: what cannot be met is not searched for, and a search that fails is stopped and says so."""

from __future__ import annotations

import math
import time
from itertools import product

import pytest
import torch
from torch import nn

import attnc
from attnc import effort, functions
from attnc.domain import Interval
from attnc.errors import ConvergenceError, PrecisionError
from attnc.heads import patience
from attnc.heads.plan import least_error, smallest
from attnc.heads.target import Plan
from attnc.pretrained import convert_
from attnc.prove.supnorm import supnorm
from tests.lower.exact_heads import activation_head
from tests.sampled import every

SLACK = 4.0  # seconds, for the one step that runs when the time is over, and for the witness


def encoder(activation: str, weight: float | None = None) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    if weight is not None:
        with torch.no_grad():
            model.layers[0].linear2.weight.fill_(weight)
    return model


@pytest.mark.parametrize(("activation", "eps"), every(2, product(["relu", "gelu"], [1e-60, 1e-300, 5e-324])))
def test_a_conversion_that_cannot_be_is_refused_with_what_can(activation: str, eps: float) -> None:
    model, began = encoder(activation), effort.spent()
    with pytest.raises(PrecisionError) as refused:
        convert_(model, approximation=eps)
    assert effort.spent() - began < patience.SECONDS
    assert refused.value.reachable is not None
    assert (
        convert_(model, approximation=refused.value.reachable).blocks[0].approximation
        <= refused.value.reachable
    )


@pytest.mark.parametrize(("weight", "eps"), [(1e20, 1e-3), (1e38, 1e-3), (1e38, 1e-300)])
def test_weights_that_leave_nothing_of_eps(weight: float, eps: float) -> None:
    began = effort.spent()
    with pytest.raises(PrecisionError) as refused:
        convert_(encoder("relu", weight), approximation=eps)
    assert effort.spent() - began < patience.SECONDS
    assert refused.value.reachable is not None and refused.value.reachable > 1e-13 * weight


@pytest.mark.parametrize(
    ("name", "dtype"),
    every(3, product(["relu", "tanh", "gelu", "silu", "identity", "sin"], ["float32", "float64"])),
)
def test_nothing_is_proved_below_the_least_error(name: str, dtype: str) -> None:
    """The analytic floor is below what is proved of heads, whatever they are asked for."""
    on = Interval(-8.0, 8.0)
    plan = Plan(functions.get(name), on, dtype)
    numbers = attnc.head(name, domain=(on.lo, on.hi), anchors=4, dtype=getattr(torch, dtype)).numbers()
    assert supnorm(numbers, plan.f, on).bound > least_error(plan)


def test_a_search_that_fails_is_stopped_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SECONDS", 0.5)
    began = effort.spent()
    with pytest.raises((PrecisionError, ConvergenceError)) as refused:
        attnc.head("sin", domain=(-1e5, 1e5), eps=1e-3)
    assert effort.spent() - began < 0.5 + SLACK
    assert isinstance(refused.value, (PrecisionError, ConvergenceError))


def test_an_activation_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SECONDS", 0.5)
    began = effort.spent()
    with pytest.raises(PrecisionError):
        activation_head(functions.mish(), Interval(-3000.0, 3000.0), 1e-9, "float64")
    assert effort.spent() - began < 0.5 + SLACK


def test_what_was_found_is_not_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """With time for the first success only, the head is as small as ever."""
    plan = Plan(functions.tanh(), Interval(-8.0, 8.0), "float64")
    usual = smallest(plan, 1e-6).numbers.anchors_per_head
    monkeypatch.setattr(patience, "SECONDS", 5.0)
    assert smallest(plan, 1e-6).numbers.anchors_per_head == usual


def test_a_slow_processor_finds_the_same_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits count work: the head does not depend on the clock, nor on the load of the machine."""
    plan = Plan(functions.mish(), Interval(-8.0, 8.0), "float64")
    usual = smallest(plan, 1e-6)
    for name in ("thread_time", "process_time", "monotonic", "perf_counter", "time"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: 1000 * clock())
    slow = smallest(plan, 1e-6)
    assert slow.design == usual.design and slow.numbers.digests() == usual.numbers.digests()


def test_layers_that_fail_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Abs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.abs()

    torch.manual_seed(0)
    parts = [part for _ in range(3) for part in (nn.Linear(3, 3), Abs())]
    model = nn.Sequential(*parts, nn.Linear(3, 1)).eval()
    monkeypatch.setattr(patience, "SECONDS", 2.0)
    began = effort.spent()
    with pytest.raises(PrecisionError) as refused:
        attnc.compile(model, domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-9)
    assert effort.spent() - began < 2.0 + 3 * SLACK
    assert refused.value.reachable is not None and math.isfinite(refused.value.reachable)


def test_a_clock_stops_what_loops_inside() -> None:
    clock = patience.Clock(0.1)
    with clock.until(clock.closing):
        while True:
            patience.check()
    assert clock.stopped and clock.spent >= 0.1
    patience.check()  # outside there is no limit
