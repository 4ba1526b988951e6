"""Nothing in a head is nonlinear but softmax: the traced graph is walked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import attnc
from attnc.errors import InputError, UnsupportedError
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


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@torch.library.custom_op("attnc_tests::square_like", mutates_args=())
def square_like(x: torch.Tensor) -> torch.Tensor:
    return x * x


@torch.library.custom_op("scaled_dot_product_tests::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


for _operation in (square_like, square):
    _operation.register_fake(torch.empty_like)


def whole(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


def assigned(x: torch.Tensor) -> torch.Tensor:
    y = whole(4, 3)
    y[:, :2] = x[:, :2]
    return y.to(x.dtype)


def two_keys(scores: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.stack([scores, torch.zeros_like(scores)]), 0)[0]


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
        (lambda x: torch.div(x, 1.0, rounding_mode="floor"), "div"),
        (lambda x: x.view(torch.int32).to(torch.float32) * 2.0**-23, "view"),
        (lambda x: x.double().view(torch.float32), "view"),
        (lambda x: whole(4, 3).copy_(x).to(x.dtype), "copy"),
        (assigned, "copy"),
        (lambda x: whole(3).fill_(x[0, 0]).float(), "fill"),
        (lambda x: whole(3).masked_fill(torch.ones(3, dtype=torch.bool), x[0, 0]).float(), "masked_fill"),
        (square_like, "attnc_tests::square_like"),
        (square, "scaled_dot_product_tests::square"),
        (lambda x: two_keys(x * x * x * x), "mul"),
        (lambda x: two_keys((x * x) * (2 * x)), "mul"),
    ],
)
def test_the_walk_notices_products_and_rounding(cheat: Any, name: str) -> None:
    assert name in impurities(Call(cheat), torch.ones(4, 3))


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


def test_functions_of_complex_inputs_are_listed() -> None:
    assert "tanh" in attnc.purity(Call(torch.tanh), torch.ones(3, dtype=torch.complex64))


def test_scores_of_degree_two_are_attention() -> None:
    turn, mask = torch.linspace(0, 1, 12).reshape(4, 3), torch.ones(4, 4).triu(1).bool()

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x * turn.cos() + x.flip(-1) * turn.sin()

    def attend(x: torch.Tensor) -> torch.Tensor:
        scores = (turned(x) @ turned(2 * x).T * 0.5).masked_fill(mask, -torch.inf)
        return torch.softmax(scores, -1) @ x

    def norm(x: torch.Tensor) -> torch.Tensor:
        return two_keys(3 - torch.arange(4) * (x * x).sum(-1)).unsqueeze(-1) * x

    for function in (attend, norm):
        assert attnc.purity(Call(function), torch.ones(4, 3)) == ()


class Hidden:
    """An output whose tensors torch does not see."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize(
    "function", [lambda x: Hidden(x.relu()), lambda x: (x, Hidden(x.relu())), lambda x: None, lambda x: 3]
)
def test_outputs_that_hide_tensors_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match="Call"):
        attnc.purity(Call(function), torch.ones(3))


def test_keys_and_values_of_a_cache_are_outputs() -> None:
    transformers = pytest.importorskip("transformers")

    def cached(x: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, object]:
        cache = transformers.DynamicCache()
        cache.update(x, values, 0)
        return x, cache

    x = torch.ones(1, 1, 4, 3)
    assert attnc.purity(Call(lambda x: cached(x, x)), x) == ()
    assert attnc.purity(Call(lambda x: cached(x, x.relu())), x) == ("relu",)
