"""Nothing in a head is nonlinear but softmax: the traced graph is walked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import attnc
from attnc.errors import InputError
from tests.network.examples import activation, gate, network
from tests.network.executed import impurities, operations


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("tanh", {}),
        ("relu", {"design": "graded"}),
        ("silu", {"design": "gated"}),
        ("sin", {"design": "nearest", "heads": 2}),
    ],
)
def test_head_and_its_literal_form_are_affine_but_for_softmax(spec: str, options: dict[str, object]) -> None:
    head = attnc.head(spec, domain=(-2, 2), anchors=5, **options)
    for module in (head, head.as_self_attention(3)):
        assert impurities(module, torch.linspace(-1, 1, 3)) == []
        assert operations(module, torch.linspace(-1, 1, 3)).count("softmax") == 1


def test_purity_names_what_executes() -> None:
    net = network()
    assert attnc.purity(net) == attnc.purity(net.as_self_attention()) == ()
    net.engine = "sdpa"
    assert attnc.purity(net) == ()
    assert attnc.purity(activation("softmax")) == attnc.purity(net.layers[0]) == ()
    assert attnc.purity(activation("closed-form")) == ("clamp", "mul", "sigmoid")
    block = gate()
    block.engine = "softmax"
    assert attnc.purity(block, torch.zeros(2, 4)) == ()
    with pytest.raises(InputError, match="Linear"):
        attnc.purity(nn.Linear(2, 2))


def test_what_runs_without_tracing_is_what_was_traced() -> None:
    """Tracing may take another path than a plain call: the profiler sees the plain call."""
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.Tanh()).eval()
    attnc.convert_(model, approximation=1e-3, parts="all", config={"engine": "softmax"})
    block = gate()
    block.engine = "softmax"
    net = network()
    literal = net.as_self_attention()
    for module, size in (
        (model, 4),
        (block, 4),
        (net, net.program.shape[0]),
        (literal, net.program.shape[0]),
    ):
        dtype = next(t.dtype for t in (*module.parameters(), *module.buffers()) if t.is_floating_point())
        with torch.no_grad(), torch.profiler.profile() as seen:
            module(torch.zeros(2, size, dtype=dtype))
        names = {event.name.removeprefix("aten::") for event in seen.events()}
        assert "softmax" in names
        assert not names & {
            "exp",
            "exp_",
            "exp2",
            "sigmoid",
            "tanh",
            "gelu",
            "erf",
            "sqrt",
            "rsqrt",
            "reciprocal",
            "clamp_",
        }


@pytest.mark.parametrize(
    "cheat",
    [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.LayerNorm(3), nn.Sigmoid(), nn.Hardtanh(), nn.Softplus()],
    ids=lambda m: type(m).__name__,
)
def test_the_walk_notices_another_nonlinearity(cheat: nn.Module) -> None:
    assert impurities(nn.Sequential(nn.Linear(3, 3), cheat), torch.zeros(2, 3))


def test_the_walk_notices_nonlinearity_by_operators() -> None:
    class Cheat(nn.Module):
        def forward(self, s: torch.Tensor) -> torch.Tensor:
            return torch.where(s > 0, s, 0 * s) + s.abs() / (1 + s.exp())

    assert {"gt", "where", "abs", "exp", "div"} <= set(impurities(Cheat(), torch.zeros(3)))


@pytest.mark.parametrize(
    ("cheat", "name"),
    [
        (lambda x: x * x, "mul"),
        (lambda x: torch.ones(3) / x, "div"),
        (lambda x: (x @ x.T) @ x, "matmul"),
        (lambda x: x.long().to(x.dtype), "_to_copy"),
        (lambda x: x.cumsum(1).cummax(1)[0], "cummax"),
        (lambda x: torch.cat([x, 0 * x]).clone().index_add_(0, torch.tensor([0]), (x * x)[:1]), "mul"),
    ],
)
def test_the_walk_notices_products_and_rounding(cheat: Any, name: str) -> None:
    class Cheat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cheat(x)

    assert name in impurities(Cheat(), torch.ones(4, 3))


def test_the_walk_follows_values_that_are_written_into_views() -> None:
    class Cheat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = torch.zeros(4, 4)
            out[:, :3] = x
            return out * out

    assert impurities(Cheat(), torch.ones(4, 3)) == ["mul"]


def test_attention_between_tokens_is_attention() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = (x @ x.T) / 2 + torch.ones(4, 4).triu(1) * -9
            return torch.softmax(scores, -1) @ x

    assert attnc.purity(Attention(), torch.ones(4, 3)) == ()
