"""The literal form of the parts of a converted model: gated blocks, plain blocks, norms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.errors import InputError
from attnc.network.literal.blocks import linear_map
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from tests.network.literal.test_sequence import close


class Block(nn.Module):
    """A gated feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return out


class Turned(nn.Module):
    """A linear map that stores its weight transposed."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.arange(float(weight.shape[1])))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def converted(model: nn.Module, parts: str = "all") -> nn.Module:
    torch.manual_seed(0)
    settings = {"engine": "softmax"}
    return attnc.convert(model.eval().double(), approximation=1e-2, parts=parts, config=settings)


def test_a_gated_block(tmp_path: Path) -> None:
    model = converted(nn.Sequential(nn.RMSNorm(8, eps=1e-5), Block()), "feed-forward")
    assert isinstance(model, nn.Sequential)
    norm, block = model
    assert isinstance(block, GatedBlock)
    literal = block.as_self_attention(3)
    with torch.no_grad():
        x = norm(torch.randn(5, 3, 8, dtype=torch.float64))
        assert close(literal(x), block(x))
    assert "activation: neuron 5" in literal.layers[0].heads and len(literal.maps) == 1  # of `up`
    down, written = block.get_submodule("down").weight, literal.layers[1].W_O[:8, 0, literal.layout["y"]]
    assert torch.equal(torch.frexp(written)[0], torch.frexp(down.T)[0])  # times powers of two
    literal.save(tmp_path / "block.safetensors")
    assert torch.equal(attnc.load(tmp_path / "block.safetensors")(x), literal(x))
    verdict = attnc.verify(literal)
    assert verdict.status == "unknown" and "source" in verdict.reason


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_norms_and_a_plain_block(kind: type[nn.Module]) -> None:
    maps = nn.Linear(6, 5), nn.Linear(5, 6)
    model = converted(nn.Sequential(kind(6, eps=1e-3), maps[0], nn.GELU(), maps[1]))
    assert isinstance(model, nn.Sequential)
    norm, first, activation, second = model
    x = torch.randn(4, 2, 6, dtype=torch.float64)
    with torch.no_grad():
        assert close(norm.as_self_attention(2)(x), norm(x))  # type: ignore[operator]
        h = norm(x)
        block = activation.as_self_attention(2, maps=(first, second))  # type: ignore[operator]
        assert close(block(h), model[1:](h)) and len(block.layers) == 1 and not block.maps
        alone = activation.as_self_attention(2, 5)  # type: ignore[operator]
        assert close(alone(first(h)), activation(first(h)))


def test_what_does_not_fit_is_refused() -> None:
    activation = Pointwise([(None, attnc.head("tanh", domain=(-2, 2), anchors=2))])
    small, other = nn.Linear(3, 4), nn.Linear(5, 3)
    options: list[dict[str, Any]] = [{}, {"neurons": 0}, {"neurons": 5, "maps": (small, other)}]
    for given in options:
        with pytest.raises(InputError):
            activation.as_self_attention(2, **given)
    with pytest.raises(InputError):
        activation.as_self_attention(0, 5)


def test_a_map_is_read_as_it_runs() -> None:
    weight = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(torch.from_numpy(linear_map(Turned(weight), "map", "float32")["weight"]), weight.T)
    square = torch.arange(9.0).reshape(3, 3)
    assert torch.equal(
        torch.from_numpy(linear_map(Turned(square), "map", "float64")["weight"]), square.T.double()
    )
    for module in (nn.Identity(), nn.Embedding(3, 3), nn.Sequential(nn.Linear(3, 3))):
        with pytest.raises(InputError):
            linear_map(module, "map", "float64")
