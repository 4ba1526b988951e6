"""The checker of networks with norms, products and attention between tokens: claims that do not follow are not proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import attnc
from attnc.check import network
from attnc.check.network import check_network
from attnc.network.network import Network
from attnc.program import Affine, Attend, Norm, Product, Program
from attnc.records.certificate import Certificate
from attnc.records.layers import NetworkNumbers

WEIGHT = np.array([[0.5, -0.25], [0.125, 1.0]])
STEPS = (
    Norm(0, np.ones(2), np.zeros(2), 0.1, False),
    Affine(1, WEIGHT),
    Attend((2, 1, 1), 1, 0.5, np.tril(np.ones((3, 3)))),
    Product((2, 3)),
    Affine(4, WEIGHT),
)


@pytest.fixture(autouse=True)
def few_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ATTACKS", 8)
    monkeypatch.setattr(network, "COMPARED", 2)


@pytest.fixture(scope="module")
def net() -> Network:
    return attnc.compile(Program((3, 2), STEPS), domain=attnc.Box(-1, 1, shape=(3, 2)), approximation=1e-3)


def verdict(net: Network, certificate: Certificate, numbers: NetworkNumbers | None = None) -> str:
    return str(check_network(net.program, numbers or net.numbers(), certificate).status)


def with_norm(c: Certificate, **facts: object) -> Certificate:
    """The certificate with other facts about its norm."""
    children = [replace(p, facts={**p.facts, **facts}) if p.subject == "norm" else p for p in c.children]
    return replace(c, children=tuple(children))


def test_the_certificate_is_proved_again(net: Network) -> None:
    assert verdict(net, net.certificate) == "proved"


FORGED: dict[str, Callable[[Certificate], Certificate]] = {
    "less is requested of each": lambda c: replace(c, facts={**c.facts, "requested": 1e-12}),
    "a smaller bound": lambda c: replace(c, bound=c.bound / 2),
    "a smaller approximation": lambda c: replace(c, approximation=c.approximation / 2, rounding=c.bound),
    "heads of the norm that err less": lambda c: with_norm(c, relative=1e-12),
    "heads of the norm that round less": lambda c: with_norm(c, executed={"softmax": 1e-12}),
    "heads of the norm for larger tokens": lambda c: with_norm(c, most=1e9),
    "heads of the norm for smaller tokens": lambda c: with_norm(c, most=1e-3),
    "another epsilon": lambda c: with_norm(c, epsilon=0.2),
    "the other kind of norm": lambda c: with_norm(c, kind="layer"),
    "no norm": lambda c: replace(c, children=c.parts("layer")),
    "no product": lambda c: replace(c, children=c.parts("norm")),
    "token ids": lambda c: replace(c, holds_for=attnc.Tokens(2, 6)),
}


@pytest.mark.parametrize("name", FORGED)
def test_what_does_not_follow_is_not_proved(name: str, net: Network) -> None:
    try:
        status = verdict(net, FORGED[name](net.certificate))
    except attnc.errors.AttncError:
        status = "refused"
    assert status != "proved"


@pytest.mark.parametrize(
    ("kind", "name"), [("norm", "output"), ("norm", "gain"), ("product", "radius"), ("attend", "mask")]
)
def test_other_numbers_are_not_proved(kind: str, name: str, net: Network) -> None:
    numbers = net.numbers()
    layers = []
    for layer in numbers.layers:
        array = layer.tensors.get(name)
        changed = layer.kind == kind and array is not None
        layers.append(replace(layer, tensors={**layer.tensors, name: 1 - array}) if changed else layer)
    assert verdict(net, net.certificate, NetworkNumbers(tuple(layers), numbers.dtype)) != "proved"


def test_a_network_that_runs_other_code_is_not_certified(net: Network) -> None:
    x = torch.rand(4, 3, 2)
    assert net.why_not_certified() is None and attnc.purity(net, x) == ("softmax",)
    assert net.attention(x)["layer 2"].shape == (4, 1, 3, 3)
    handle = net.stages[2].register_forward_hook(lambda module, given, made: made)
    assert attnc.verify(net).status == "unknown"
    handle.remove()
