"""No verdict "proved" from stale or foreign state: a module that answers for its numbers otherwise is unknown."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import attnc
from attnc.network.head import Head


@pytest.fixture(scope="module")
def net() -> attnc.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2)


def nudged(net: attnc.Network) -> attnc.Network:
    """The last bit of a weight changed: no attack can see it."""
    made = copy.deepcopy(net)
    with torch.no_grad():
        weight = next(p for p in made.parameters() if p.ndim == 2)
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    return made


def test_the_network_itself_is_proved_and_the_nudged_one_unknown(net: attnc.Network) -> None:
    assert attnc.verify(net).status == "proved"
    assert attnc.verify(nudged(net)).status == "unknown"


def test_numbers_of_another_network(net: attnc.Network) -> None:
    made, honest = nudged(net), net.numbers()
    made.numbers = lambda: honest  # type: ignore[method-assign]
    assert attnc.verify(made).status == "unknown"


@pytest.mark.parametrize("name", ["forward", "numbers", "_call_impl"])
def test_a_method_that_an_instance_hides(net: attnc.Network, name: str) -> None:
    made = copy.deepcopy(net)
    object.__setattr__(made, name, getattr(made, name))
    assert attnc.verify(made).status == "unknown"


def test_a_class_that_says_it_is_attncs() -> None:
    head = attnc.head("tanh", domain=(-1, 1), eps=1e-2)

    class Other(Head):
        def forward(self, s: torch.Tensor) -> torch.Tensor:
            return super().forward(s)

    Other.__module__, Other.__qualname__ = "attnc.network.head", "Head"
    assert attnc.verify(head).status == "proved"
    head.__class__ = Other
    assert attnc.verify(head).status == "unknown"


def test_the_certificate_of_another_head() -> None:
    one, other = (attnc.head(name, domain=(-1, 1), eps=1e-2) for name in ("tanh", "sin"))
    for certificate in (
        other.certificate,
        replace(other.certificate, digests=one.certificate.digests),
        replace(one.certificate, facts={**one.certificate.facts, "function": "sin"}),
    ):
        one_copy = copy.deepcopy(one)
        one_copy.certificate = certificate
        assert attnc.verify(one_copy).status != "proved"
