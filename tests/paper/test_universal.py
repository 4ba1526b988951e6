"""two_layer and attention_softmax: the theorem's layers, its bound, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnc
import attnc.paper
from attnc.network.network import Network
from tests.network.executed import impurities

BOX = attnc.Box(0, 1, shape=(3, 2))


def model(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(3)
    layers = (nn.Flatten(), nn.Linear(6, 5), activation(), nn.Linear(5, 6), nn.Unflatten(1, (3, 2)))
    return nn.Sequential(*layers).double().eval()


def batch(count: int, shape: tuple[int, ...]) -> Tensor:
    return torch.rand(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("layout", ["heads", "tokens"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh], ids=["relu", "tanh"])
def test_two_layers_of_a_network(layout: str, activation: type[nn.Module]) -> None:
    source = model(activation)
    net = attnc.paper.two_layer(source, BOX, eps=1e-6, layout=layout)
    literal, x = net.as_self_attention(), batch(20, (3, 2))
    assert [step for step in literal.kinds if step == "attention"] == ["attention"] * 2
    with torch.no_grad():
        assert float((literal(x) - source(x)).abs().max()) <= 1e-6
    assert impurities(literal, x) == []
    assert net.certificate.proved and net.certificate.bound <= 1e-6 and net.theorem is not None
    assert net.theorem.bound is not None and net.certificate.bound < net.theorem.bound


def test_one_layer_and_a_softmax_of_a_network() -> None:
    source = model()
    net = attnc.paper.attention_softmax(source, BOX, eps=1e-6)
    literal, x = net.as_self_attention(), batch(20, (3, 2))
    assert sorted(literal.kinds) == ["attention", "map", "map", "map", "softmax"]
    with torch.no_grad():
        assert float((literal(x) - source(x)).abs().max()) <= 1e-6
    assert impurities(literal, x) == []


@pytest.mark.parametrize("make", [attnc.paper.two_layer, attnc.paper.attention_softmax], ids=["two", "one"])
def test_a_function_with_a_constant(make, tmp_path: Path) -> None:
    f, box = (lambda x: x.flip(1) / 2), attnc.Box(0, 1, shape=(2, 1))
    net = make(f, box, eps=0.1, lipschitz=0.5)
    assert net.theorem is not None and net.theorem.bound is not None and net.certificate.proved
    assert net.theorem.bound <= net.certificate.bound <= 1.02 * net.theorem.bound <= 0.1
    literal, x = net.as_self_attention(), batch(20, (2, 1))
    assert float((literal(x) - f(x)).abs().max()) <= net.certificate.bound
    net.save(tmp_path / "net.safetensors")
    again = attnc.load(tmp_path / "net.safetensors")
    assert isinstance(again, Network)
    assert (again.form, again.layout, again.theorem) == (net.form, net.layout, net.theorem)
    assert again.as_self_attention().kinds == literal.kinds


@pytest.mark.parametrize("f", [torch.sin, torch.i0], ids=["proved", "measured"])
def test_a_function_without_a_constant_has_no_number_from_the_theorem(f: Any) -> None:
    net = attnc.paper.two_layer(f, attnc.Box(0, 1, shape=(2, 1)), eps=1e-3)
    assert (
        net.theorem is not None
        and net.theorem.bound is None
        and "every continuous f" in net.theorem.statement
    )
    assert net.certificate.proved == (f is torch.sin) and "named" in net.theorem.statement


def test_layouts() -> None:
    with pytest.raises(attnc.errors.InputError, match="'tokens'"):
        attnc.paper.two_layer(model(), BOX, eps=1e-3, layout="rows")
    with pytest.raises(attnc.errors.InputError):
        attnc.paper.two_layer(torch.sin, attnc.Box(0, 1, shape=(2, 1)), eps=1e-2, layout="tokens")
    net = attnc.paper.two_layer(
        lambda x: x.cumsum(1), attnc.Box(0, 1, shape=(5, 1)), eps=1e-2, layout="tokens", method="fit"
    )
    x = batch(50, (5, 1))
    assert float((net.as_self_attention()(x) - x.cumsum(1)).abs().max()) <= 1e-2
    with pytest.raises(attnc.errors.InputError):
        net.as_self_attention(3)
