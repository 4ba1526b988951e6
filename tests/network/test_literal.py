"""The literal form of a network: matrices over [data tokens; anchors] that compute what the network computes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.compiler import compile
from attnc.domain import Box
from attnc.errors import InputError
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.network import Network
from attnc.network.pointwise import Pointwise
from attnc.network.purity import LINEAR, MOVES, SOFTMAX
from tests.network.executed import operations
from tests.sampled import only

AGREE = {torch.float64: 4e-12, torch.float32: 1e-5}  # of the largest output


class Residual(nn.Module):
    """A residual block run twice, a normalisation behind a sum (a Scaling), one activation under one name."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.up, self.down, self.leave = (
            nn.Linear(*d) for d in ((4, 8), (8, 12), (12, 8), (8, 3))
        )
        self.act, self.norm = nn.Tanh(), nn.BatchNorm1d(8)
        self.norm.running_mean = torch.linspace(-0.5, 0.5, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for _ in range(2):
            h = h + 0.5 * self.down(self.act(self.up(h)))
        out: Tensor = self.leave(self.act(self.norm(h)))
        return out


class Plain(nn.Module):
    """A network with two readers of one activation, and an output that is an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 5, bias=False), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return torch.tanh(self.b(h) - h)


def mlp(activation: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), activation(), nn.Linear(16, 12), activation(), nn.Linear(12, 3))


def reshaping() -> nn.Module:
    """4 tokens of 8 → 1 of 32 → 2 of 3: numbers move between tokens."""
    split = nn.Unflatten(1, (2, 3))
    return nn.Sequential(
        nn.Linear(3, 8), nn.Tanh(), nn.Flatten(), nn.Linear(32, 6), nn.Tanh(), split, nn.Linear(3, 5)
    )


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tanh": (lambda: mlp(nn.Tanh), (6,)),
    "relu": (lambda: mlp(nn.ReLU), (6,)),
    "silu": (lambda: mlp(nn.SiLU), (6,)),
    "residual": (Residual, (4,)),
    "plain": (Plain, (3,)),
    "tokens": (lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5)), (4, 3)),
    "axes of tokens": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(1, 2)), (2, 3, 3)),
    "reshaping": (reshaping, (4, 3)),
    "no attention but to reshape": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), (4, 3)),
    "attention first": (lambda: nn.Sequential(nn.Tanh(), nn.Linear(6, 3)), (6,)),
}


def compiled(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Network:
    eps = 1e-5 if dtype == torch.float64 else 3e-3
    return compile(module.eval().to(dtype), domain=Box(-1, 1, shape=shape), eps=eps, dtype=dtype)


def inputs(net: Network, *lead: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(*lead, *net.program.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return x.to(getattr(torch, net.certificate.dtype))


def close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).abs().max() <= AGREE[wanted.dtype] * wanted.abs().max())


def data_tokens(literal: SelfAttentionNetwork) -> int:
    return sum(name.startswith("data") for name in literal.tokens)


def isolated(literal: SelfAttentionNetwork, x: Tensor) -> bool:
    """Data tokens attend to anchors and anchors to data tokens only: all other weights are 0. Anchors do not change."""
    n = data_tokens(literal)
    quiet = [
        float(weights[..., part, part].abs().max())
        for layer, weights in zip(literal.layers, literal.attention(x).values(), strict=True)
        if "neuron" in layer.heads[0]  # not a reshape
        for part in (slice(n), slice(n, None))
    ]
    still = torch.equal(literal.stream(x)[..., n:, :], literal.embed(x)[..., n:, :])
    return still and not any(quiet)


@pytest.mark.parametrize(
    ("name", "dtype"),
    only([*product(CASES, [torch.float64]), ("residual", torch.float32)], product(CASES, AGREE)),
)
def test_it_computes_what_the_network_computes(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    make, shape = CASES[name]
    net = compiled(make(), shape, dtype)
    literal, x = net.as_self_attention(), inputs(net, 20)
    assert literal(x).shape == net(x).shape
    assert close(literal(x), net(x))
    assert isolated(literal, x)


@pytest.mark.parametrize("name", ["residual", "reshaping"])
def test_nothing_but_affine_maps_and_softmax(name: str) -> None:
    make, shape = CASES[name]
    net = compiled(make(), shape)
    done = operations(net.as_self_attention(), inputs(net, 2))
    assert set(done) <= SOFTMAX | LINEAR | MOVES
    assert done.count("softmax") == len(net.as_self_attention().layers)


@pytest.fixture(scope="module")
def tanh() -> tuple[nn.Sequential, Network]:
    torch.manual_seed(0)
    model = mlp(nn.Tanh).eval().double()
    assert isinstance(model, nn.Sequential)
    return model, compiled(model, (6,))


def test_the_matrices_are_those_of_the_layers(tanh: tuple[Any, Network]) -> None:
    """W2 f(W1 x + b1) + b2: w_j in the query, the column j of W2 in the output, b2 waiting in the register."""
    (first, _, second, _, third), net = tanh
    literal = net.as_self_attention()
    a, b = literal.layers
    at = literal.layout
    anchors = [f"layer {i}: {what}" for i in (1, 2) for what in ("slope", "offset", "value", "unused")]
    assert list(at) == ["data", "anchor", "one", "x", "v3", "y", *anchors]
    assert not literal.maps
    head = net.layers[0].groups[0][1]
    gain, offset = head.query[0]
    assert torch.equal(a.W_Q[:, at["x"], 0], gain * first.weight)
    assert torch.equal(a.W_Q[:, 0, 0], gain * first.bias) and a.W_Q[0, at["one"], 0] == offset
    assert torch.equal(a.W_O[:, 0, at["v3"]], second.weight.T)
    assert torch.equal(literal.embed(inputs(net))[0, at["v3"]], second.bias)
    gain, _ = net.layers[1].groups[0][1].query[0]
    assert torch.equal(b.W_Q[:, at["v3"], 0], gain * torch.eye(12, dtype=torch.float64))
    assert torch.equal(b.W_O[:, 0, at["y"]], third.weight.T)
    assert a.W_K.shape == (1, len(literal.coordinates), 4)
    keys = literal.fixed[: head.key.shape[1], at["layer 1: slope"].start : at["layer 1: value"].stop]
    assert torch.equal(keys, torch.cat([head.key[0], head.value[0, :, 1:]], 1))
    for matrix, written in ((a.W_Q, 16 * 10), (a.W_O, 16 * 12), (a.W_K, 5), (a.W_V, 1)):
        assert int(matrix.count_nonzero()) == written


def test_it_is_plain_softmax_attention_head_by_head(tanh: tuple[Any, Network]) -> None:
    _, net = tanh
    literal = net.as_self_attention(2)
    x = inputs(net, 2)
    stream = literal.embed(x)
    for layer in literal.layers:
        added = torch.zeros_like(stream)
        for h, g in enumerate(layer.shared):
            weights = torch.softmax((stream @ layer.W_Q[h]) @ (stream @ layer.W_K[g]).T, -1)
            assert torch.allclose(weights, layer.weights(stream[None])[0, h], atol=1e-15)
            added += weights @ stream @ layer.W_V[g] @ layer.W_O[h]
        stream = stream + added
    assert torch.allclose(stream[:2, literal.layout["y"]], net(x), rtol=1e-13, atol=1e-13)


def test_the_stream_holds_every_value(tanh: tuple[Any, Network]) -> None:
    model, net = tanh
    literal, x = net.as_self_attention(), inputs(net, 9)
    at, stream = literal.layout, literal.stream(x)[:, 0].detach()
    for name, depth in {"x": 0, "v3": 3, "y": 5}.items():
        assert torch.allclose(stream[:, at[name]], model[:depth](x), atol=1e-5)


def test_data_tokens_do_not_disturb_each_other(tanh: tuple[Any, Network]) -> None:
    _, net = tanh
    literal, x = net.as_self_attention(3), inputs(net, 5, 3)
    assert close(literal(x), net(x))
    assert isolated(literal, x)
    other = x.clone()
    other[:, 1:] = -x[:, 1:].flip(0)
    assert torch.equal(literal(x)[:, 0], literal(other)[:, 0])


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 3)])
def test_any_batch(tanh: tuple[Any, Network], lead: tuple[int, ...]) -> None:
    _, net = tanh
    literal, x = net.as_self_attention(), inputs(net, *lead)
    assert literal(x).shape == (*lead, 3)
    assert torch.allclose(literal(x), net(x), rtol=1e-12, atol=1e-13)
    assert list(literal.attention(x)) == ["layer 1", "layer 2"]
    assert literal.attention(x)["layer 1"].shape == (*lead, 16, 3, 3)


def test_chunks_and_autocast_change_nothing(
    tanh: tuple[Any, Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, net = tanh
    literal, x = net.as_self_attention(), inputs(net, 50)
    whole = literal(x)
    monkeypatch.setattr("attnc.network.literal.network._CHUNK", 500)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(literal(x), whole, rtol=1e-14, atol=1e-14)


def in_groups(net: Network, groups: list[tuple[list[int] | None, attnc.Head]]) -> Network:
    """The same network with other heads in its first layer."""
    stages: list[Any] = list(net.stages)
    i = next(i for i, stage in enumerate(stages) if isinstance(stage, Pointwise))
    chosen = [(None if n is None else torch.tensor(n).numpy(), head) for n, head in groups]
    stages[i] = Pointwise(chosen, name=stages[i].name, inputs=stages[i].inputs, value=stages[i].value)
    return Network(stages, net.program, net.certificate)


def test_groups_have_their_own_keys_and_values(tanh: tuple[Any, Network]) -> None:
    _, net = tanh
    wish: Any = {"domain": (-4, 4), "dtype": torch.float64}
    heads = [attnc.head("tanh", anchors=2, **wish), attnc.head("tanh", anchors=5, design="smooth", **wish)]
    grouped = in_groups(net, [([0, 2, 3, 7], heads[0]), ([1, 4, 5, 6, *range(8, 16)], heads[1])])
    literal, x = grouped.as_self_attention(), inputs(net, 20)
    assert close(literal(x), grouped(x))
    assert isolated(literal, x)
    layer = literal.layers[0]
    assert layer.W_K.shape[0] == layer.W_V.shape[0] == 2
    assert list(layer.shared) == [0] * 4 + [1] * 12
    weights = literal.attention(x)["layer 1"][:, :, 0, 1:]
    assert torch.equal(weights[:, :4, 2:], torch.zeros_like(weights[:, :4, 2:]))  # anchors of the others
    assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_several_heads_for_one_neuron(tanh: tuple[Any, Network]) -> None:
    _, net = tanh
    three = attnc.head("tanh", domain=(-4, 4), anchors=6, heads=3, design="smooth", dtype=torch.float64)
    many = in_groups(net, [(None, three)])
    literal, x = many.as_self_attention(), inputs(net, 20)
    assert close(literal(x), many(x))
    assert isolated(literal, x)
    assert literal.layers[0].W_Q.shape[0] == 3 * 16


def test_neurons_that_attend_to_themselves(tanh: tuple[Any, Network]) -> None:
    _, net = tanh
    gated = attnc.head("silu", domain=(-4, 4), anchors=2, design="gated", dtype=torch.float64)
    own = in_groups(net, [(None, gated)])
    literal, x = own.as_self_attention(2), inputs(net, 20, 2)
    assert close(literal(x), own(x))


def test_a_head_that_cannot_be_written_so_is_refused(tanh: tuple[Any, Network]) -> None:
    _, net = tanh
    silent = attnc.Head(net.layers[0].groups[0][1].numbers(), "tuned")
    with pytest.raises(InputError):
        in_groups(net, [(None, silent)]).as_self_attention()


def test_a_layer_that_runs_twice_is_shown_twice() -> None:
    torch.manual_seed(0)
    net = compiled(Residual(), (4,))
    literal = net.as_self_attention()
    assert list(literal.attention(inputs(net))) == ["layer 1 (act)", "layer 2 (act)", "layer 3 (act)"]
    assert len(literal.maps) == 6  # enter, 2 · (half, sum), norm


def test_what_is_too_large_is_refused_with_its_size(
    tanh: tuple[Any, Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, net = tanh
    literal = net.as_self_attention()
    size = max(sum(p.numel() for step in literal.steps for p in step.parameters()), 16 * 9)
    monkeypatch.setattr("attnc.network.literal.steps.LARGEST", size)
    net.as_self_attention()
    monkeypatch.setattr("attnc.network.literal.steps.LARGEST", size - 1)
    with pytest.raises(InputError, match=f"{size:,} numbers"):
        net.as_self_attention()


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3"])
def test_the_number_of_tokens_is_checked(tanh: tuple[Any, Network], n: Any) -> None:
    with pytest.raises(InputError):
        tanh[1].as_self_attention(n)


def test_tokens_of_the_input_are_not_multiplied() -> None:
    make, shape = CASES["tokens"]
    net = compiled(make(), shape)
    assert data_tokens(net.as_self_attention(4)) == 4
    with pytest.raises(InputError, match="n=5"):
        net.as_self_attention(5)


@pytest.mark.parametrize("x", [None, [0.0] * 6, torch.zeros(6), torch.zeros(5, dtype=torch.float64)])
def test_inputs_are_never_cast_or_reshaped(tanh: tuple[Any, Network], x: Any) -> None:
    literal = tanh[1].as_self_attention()
    for call in (literal, literal.attention, literal.embed):
        with pytest.raises(InputError):
            call(x)


def test_every_token_and_coordinate_has_a_name(tanh: tuple[Any, Network]) -> None:
    literal, x = tanh[1].as_self_attention(2), inputs(tanh[1], 2)
    assert "data 0:1, anchor 1:2, one 2:3, x 3:9, v3 9:21, y 21:24" in repr(literal)
    assert literal.embed(x).shape == (len(literal.tokens), len(literal.coordinates))
    assert len(set(literal.tokens)) == len(literal.tokens) and len(set(literal.coordinates)) == len(
        literal.coordinates
    )
    assert literal.tokens[:3] == ("data 0", "data 1", "anchor 0")
    assert torch.equal(literal.embed(x)[:2, literal.coordinates.index("x[3]")], x[:, 3])
    assert literal.layers[0].heads[5] == "layer 1: neuron 5"
    with pytest.raises(InputError, match="'z'"):
        literal.layout["z"]


def test_hooks_see_and_replace_the_pattern(tanh: tuple[Any, Network]) -> None:
    literal, x, seen = tanh[1].as_self_attention(), inputs(tanh[1], 2), []
    before, layer = literal(x), literal.layers[0]

    def patch(module: nn.Module, scores: Any, pattern: Tensor) -> Tensor:
        seen.append((scores[0], pattern))
        return torch.full_like(pattern, 1 / pattern.shape[-1])

    handle = layer.pattern.register_forward_hook(patch)
    assert not torch.allclose(literal(x), before)
    handle.remove()
    assert torch.equal(literal(x), before)
    (scores, pattern) = seen[0]
    assert torch.equal(pattern, torch.softmax(scores, -1)) and pattern.shape == (2, 16, 3, 3)
    assert torch.equal(pattern, literal.attention(x)["layer 1"])


def test_no_matrix_has_a_negative_zero() -> None:
    literal = attnc.head("tanh", domain=(-8, 8), eps=1e-5).as_self_attention(2)
    for name, weight in literal.state_dict().items():
        assert not bool((weight.eq(0) & weight.signbit()).any()), name
