"""The checker's Taylor coefficients of a function that a certificate states, and false statements that it must not accept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor

import attnc
from attnc.check import traced_function as checker
from attnc.check.head import check_head
from attnc.functions.balls import ball, lower, upper, variable, working
from attnc.network.head import Head
from attnc.program import Traced
from attnc.prove.traced_function import traced_function
from attnc.records.certificate import Status
from attnc.records.traced import stated_function
from tests.prove.traced_functions import random_function

F64 = torch.float64
LENGTH = 7


def checked(f: Traced, x: arb) -> list[arb]:
    series = checker._branch(f)(variable(x))
    return [series[k] for k in range(LENGTH)]


def flint_series(f: Traced, x: arb) -> list[arb]:
    series = traced_function(f, "f")._branch(0)(variable(x))
    return [series[k] for k in range(LENGTH)]


@pytest.mark.parametrize("seed", range(60))
def test_coefficients_are_those_of_flint_s_series(seed: int) -> None:
    draw = np.random.default_rng(seed)
    f = random_function(draw, 1, kinks=seed % 2 == 0)
    with working(192, LENGTH):
        for s in draw.uniform(-1, 1, 5).tolist():
            for own, other in zip(checked(f, arb(s)), flint_series(f, arb(s)), strict=True):
                assert own.overlaps(other)
                assert own.rad() <= 1e-30 * (1 + abs(own)).upper()


@pytest.mark.parametrize("seed", range(60))
def test_coefficients_over_a_cell_hold_for_every_point_of_it(seed: int) -> None:
    draw = np.random.default_rng(100 + seed)
    f = random_function(draw, 1)
    lo = float(draw.uniform(-1, 1))
    hi = lo + float(10 ** draw.uniform(-4, -0.3))
    with working(192, LENGTH):
        whole, series = checked(f, ball(lo, hi)), flint_series(f, ball(lo, hi))
        for s in [lo, hi, *draw.uniform(lo, hi, 8).tolist()]:
            at = checked(f, arb(min(max(s, lo), hi)))
            for k, coefficient in enumerate(at):
                if coefficient.is_finite():
                    for over in (whole[k], series[k]):
                        assert not over.is_finite() or over.overlaps(coefficient)


def test_a_kink_leaves_a_range_and_no_derivatives() -> None:
    f = Traced(0, 1, (("absolute", 0), ("sqrt", 1), ("add", 1, 2)), (3,))
    with working(128, LENGTH):
        for series in (checked(f, ball(-0.25, 1.0)), flint_series(f, ball(-0.25, 1.0))):
            assert lower(series[0]) <= 0
            assert 2 <= upper(series[0]) < 2.5
            assert not any(c.is_finite() for c in series[1:])
        assert checked(f, arb(0))[0] == 0


@pytest.mark.parametrize("name", ["sqrt", "log", "divide", "power"])
def test_what_is_undefined_is_not_finite(name: str) -> None:
    operation = {"divide": ("divide", 1, 0), "power": ("power", 0, -1.5)}.get(name, (name, 0))
    f = Traced(0, 1, (("constant", 1.0), operation), (2,))
    with working(128, LENGTH):
        for x in (ball(-0.5, -0.25), arb(-1)):
            assert name == "divide" or not any(c.is_finite() for c in checked(f, x))
        assert name == "sqrt" or not any(c.is_finite() for c in checked(f, ball(-0.5, 0.5)))


def wave(s: Tensor) -> Tensor:
    return torch.sin(2 * s) * torch.exp(-s * s)


def bent(s: Tensor) -> Tensor:
    return torch.relu(s - 0.3) - 0.25 * s.abs()


@pytest.fixture(scope="module")
def heads() -> dict[str, Head]:
    made = {f.__name__: attnc.head(f, domain=(-1, 1), eps=1e-3, dtype=F64) for f in (wave, bent)}
    assert all(head.certificate.proved for head in made.values())
    return made


@pytest.mark.parametrize("name", ["wave", "bent"])
def test_a_file_of_a_traced_head_is_proved_again(heads: dict[str, Head], name: str, tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    heads[name].save(path)
    assert attnc.verify(heads[name])
    assert attnc.verify(path)
    loaded = attnc.load(path)
    assert loaded.certificate == heads[name].certificate
    certified = loaded.certified(torch.tensor([-0.5, 0.25], dtype=F64))
    exact = (wave if name == "wave" else bent)(torch.tensor([-0.5, 0.25], dtype=F64))
    assert bool(((certified.value - exact).abs() <= certified.bound + 1e-14).all())


def forged(head: Head, change: Callable[[dict[str, Any]], None], **more: Any) -> Any:
    """The verdict on the head with another certificate."""
    facts = {**head.certificate.facts}
    body = {k: [list(o) for o in v] if k == "operations" else v for k, v in facts["operations"].items()}
    change(body)
    certificate = replace(head.certificate, facts=facts | {"operations": body}, **more)
    return checker_verdict(head, certificate)


def checker_verdict(head: Head, certificate: Any) -> Any:
    from attnc.check.head import check_alone

    return check_alone(head.numbers(), certificate)


def constant_of(body: dict[str, Any], old: float, new: float) -> None:
    (operation,) = (o for o in body["operations"] if o == ["constant", old])
    operation[1] = new


def test_another_function_is_refuted(heads: dict[str, Head]) -> None:
    verdict = forged(heads["bent"], lambda body: constant_of(body, 0.3, 0.35))
    assert verdict.status is Status.REFUTED
    assert verdict.error > heads["bent"].certificate.bound


@pytest.mark.parametrize("kinks", [[], [0.2999], [-0.5, 0.25]])
def test_kinks_claim_nothing(heads: dict[str, Head], kinks: list[float]) -> None:
    assert forged(heads["bent"], lambda body: body.update(kinks=kinks))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("kinks"),
        lambda body: body.update(kinks=[0.5, 0.25]),
        lambda body: body.update(kinks=["0"]),
        lambda body: body.update(width=2),
        lambda body: body.update(returned=[0, 0]),
        lambda body: body.update(returned=[99]),
        lambda body: body.update(more=1),
        lambda body: body["operations"].append(["launch", 0]),
    ],
)
def test_damaged_statements_are_not_proved(heads: dict[str, Head], change: Any) -> None:
    assert forged(heads["bent"], change).status is Status.UNKNOWN


def test_a_function_that_is_undefined_somewhere_is_not_proved(heads: dict[str, Head]) -> None:
    def undefined(body: dict[str, Any]) -> None:
        """0·√(s - 2) is added, which has no value on [-1, 1]."""
        last = body["returned"][0]
        body["operations"] += [["constant", 2.0], ["subtract", 0, last + 1], ["sqrt", last + 2]]
        body["operations"] += [["constant", 0.0], ["multiply", last + 3, last + 4], ["add", last, last + 5]]
        body["returned"] = [last + 6]

    assert forged(heads["wave"], undefined).status is Status.UNKNOWN


def test_names_of_other_functions_are_refused(heads: dict[str, Head]) -> None:
    head = heads["wave"]
    facts = {**head.certificate.facts, "function": "tanh"}
    assert checker_verdict(head, replace(head.certificate, facts=facts)).status is Status.UNKNOWN
    both = replace(head.certificate, facts=facts, name="tanh")
    assert checker_verdict(head, both).status is Status.UNKNOWN
    assert checker_verdict(head, replace(head.certificate, name="tanh")).status is Status.UNKNOWN


def test_a_part_of_a_network_may_not_state_its_own_function(heads: dict[str, Head]) -> None:
    """A network's program says which function a head is for."""
    head = heads["wave"]
    own = attnc.function(wave, name="wave", enclosure=lambda x: (2 * x).sin() * (-x * x).exp())
    assert check_head(head.numbers(), head.certificate, own).status is Status.UNKNOWN
    assert attnc.verify(head, function=own).status is Status.UNKNOWN


def test_the_name_of_a_registered_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = dict(attnc.functions.registry._FACTORIES)
    monkeypatch.setattr(attnc.functions.registry, "_FACTORIES", registry)

    def runge(s: Tensor) -> Tensor:
        return 1 / (1 + s * s)

    head = attnc.head(runge, domain=(-1, 1), eps=1e-2, dtype=F64)
    assert attnc.verify(head)
    attnc.functions.register(attnc.function(lambda s: s, name="runge", enclosure=lambda x: x))
    assert attnc.verify(head).status is Status.UNKNOWN


def test_the_statement_is_read_back(heads: dict[str, Head]) -> None:
    f, kinks = stated_function(heads["bent"].certificate)  # type: ignore[misc]
    s = torch.linspace(-1, 1, 101, dtype=F64)
    assert torch.allclose(f.approximate(s[:, None])[:, 0], bent(s), atol=1e-15)
    assert kinks == (0.0, 0.3)
