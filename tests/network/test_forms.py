"""The theorems' networks: matrices of maps and plain attention that compute what the network computes."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc import functions
from attnc.compiler import compile
from attnc.domain import Box, Interval
from attnc.errors import InputError
from attnc.network import pointwise
from attnc.network.layer import AffineLayer, LookupLayer, ReshapeLayer
from attnc.network.literal import Layout, SelfAttention, SelfAttentionNetwork, SequenceMap, Softmax
from attnc.network.literal.forms import literal_form
from attnc.network.network import Network, Stage
from attnc.program import Affine, BlackBox, Pointwise, Program, Reshape
from attnc.records.certificate import Certificate, Status
from attnc.records.numbers import HeadNumbers
from attnc.records.presentation import Presentation
from tests import parts
from tests.network.executed import impurities, operations

FORMS = [("two-layer", "tokens"), ("two-layer", "heads"), ("attention-softmax", "")]
TWO_LAYER = ("map", "attention", "map", "attention", "map")
SOFTMAX = ("map", "attention", "map", "softmax", "map")
f64 = torch.float64


@cache
def mlp(flat: bool = True, dtype: torch.dtype = f64, activation: type[nn.Module] = nn.ReLU) -> Network:
    """(4, 3) → (4, 2): of the whole sequence, or of every token."""
    torch.manual_seed(0)
    whole = [nn.Flatten(), nn.Linear(12, 6), activation(), nn.Linear(6, 8), nn.Unflatten(1, (4, 2))]
    model = nn.Sequential(*(whole if flat else [nn.Linear(3, 5), activation(), nn.Linear(5, 2)]))
    eps = 1e-4 if dtype == f64 else 3e-3
    return compile(model.eval().to(dtype), domain=Box(0, 1, shape=(4, 3)), eps=eps, dtype=dtype)


def shown(net: Network, form: str, layout: str = "") -> Network:
    return Network(
        list(net.stages),  # type: ignore[arg-type]
        net.program,
        net.certificate,
        presentation=Presentation(form, layout),
    )


def placed(
    head: attnc.Head, coordinates: list[int], form: str, dtype: torch.dtype = f64, extra: Any = None
) -> Network:
    """Token i of n gets head(w_i·x_i + t_i) in its coordinate: (n, 2) → (n, largest coordinate + 1)."""
    n, width, kind = len(coordinates), max(coordinates) + 1, str(dtype).removeprefix("torch.")
    rng = np.random.default_rng(3)
    first, place = np.zeros((n, 2 * n)), np.zeros((n * width, n))
    for i, k in enumerate(coordinates):
        first[i, 2 * i : 2 * i + 2] = rng.normal(size=2)
        place[i * width + k, i] = 1.0
    offset = 0.3 * rng.normal(size=n)
    first, offset, place = (a.astype(kind) for a in (first, offset, place))
    program = Program(
        (n, 2),
        (
            Reshape(0, (2 * n,)),
            Affine(1, first, offset),
            Pointwise(2, functions.tanh()),
            Affine(3, place, extra),
            Reshape(4, (n, width)),
        ),
    )
    stages: list[Stage] = [
        ReshapeLayer(parts.reshape(0, 1, (2 * n,))),
        AffineLayer(parts.affine(1, 2, first, offset)),
        pointwise.Pointwise([(None, head)], "softmax", name="layer 1", inputs=(2,), value=3),
        AffineLayer(parts.affine(3, 4, place, extra)),
        ReshapeLayer(parts.reshape(4, 5, (n, width))),
    ]
    return Network(stages, program, presentation=Presentation(form))


@cache
def nearest(anchors: int, heads: int = 1, dtype: torch.dtype = f64) -> attnc.Head:
    return attnc.head(
        "clip(-1,1)", domain=(-6, 6), design="nearest", anchors=anchors, heads=heads, dtype=dtype
    )


def lookup(form: str, dtype: torch.dtype = f64, centre: float = 3.0, points: int = 6) -> Network:
    """(2, 1) → (3, 2): a lattice of anchors in a square, soft enough that several have weight."""
    kind = str(dtype).removeprefix("torch.")
    axis, b = np.linspace(-1, 1, points), 0.5 * (points / 2) ** 2
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    values = np.stack([np.sin(k * grid[:, 0] + grid[:, 1] ** 2) for k in range(6)], 1)
    key, offset = 2 * b * grid, -b * (grid**2).sum(1)
    made = parts.lookup(1, 2, *(a.astype(kind) for a in (np.full(2, centre), key, offset, values)))
    program = Program((2, 1), (Reshape(0, (2,)), BlackBox(1, 6), Reshape(2, (3, 2))))
    stages: list[Stage] = [
        ReshapeLayer(parts.reshape(0, 1, (2,))),
        LookupLayer(made),
        ReshapeLayer(parts.reshape(2, 3, (3, 2))),
    ]
    box = Box(centre - 1, centre + 1, shape=(2, 1))
    said = parts.network_certificate(Status.MEASURED, box, kind)
    return Network(stages, program, said, presentation=Presentation(form, "tokens"))


def inputs(net: Network, *lead: int) -> Tensor:
    """Random inputs of the domain ([0, 1] where none is known), the first of them corners."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(*lead, *net.program.shape, generator=generator, dtype=f64)
    if lead:
        x[: lead[0] // 2] = x[: lead[0] // 2].round()
    if net.certificate.status is Status.MEASURED:
        x = torch.tensor(net.domain.lo) + x * torch.tensor(net.domain.hi - net.domain.lo)
    return x.to(next(net.parameters()).dtype)


def agree(net: Network, x: Tensor, found: Tensor | None = None) -> bool:
    """Within a few units in the last place of the largest sum that is rounded on the way to an output."""
    literal, wanted = literal_form(net), net(x)
    found = literal(x) if found is None else found
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    allowed = 64 * torch.finfo(wanted.dtype).eps * float(wanted.abs().max())
    if net.certificate.proved and net.why_not_certified() is None:
        allowed = max(net.certificate.rounding, 4 * literal.encoding)
    return float((found - wanted).abs().max()) <= allowed


@cache
def all_nets(dtype: torch.dtype = f64) -> dict[str, Network]:
    nets = {
        f"{form} {layout} {'flat' if flat else 'token-wise'}": shown(mlp(flat, dtype), form, layout)
        for form, layout in FORMS
        for flat in (True, False)
    }
    for form, layout in FORMS:
        nets[f"{form} {layout} tanh"] = shown(mlp(True, dtype, nn.Tanh), form, layout)
    nets["one-head"] = placed(nearest(9, 1, dtype), [0, 0, 0, 0, 0], "one-head", dtype)
    nets["one-head, coordinates"] = placed(nearest(9, 1, dtype), [2, 0, 1, 2, 0, 0], "one-head", dtype)
    nets["many-heads"] = placed(nearest(5, 4, dtype), [1, 1, 1, 1, 1], "many-heads", dtype)
    for form in ("two-layer", "attention-softmax"):
        nets[f"{form} lookup"] = lookup(form, dtype)
    return nets


NAMES = [
    *(f"{form} {layout} {kind}" for form, layout in FORMS for kind in ("flat", "token-wise", "tanh")),
    *("one-head", "one-head, coordinates", "many-heads", "two-layer lookup", "attention-softmax lookup"),
]


def test_every_network_has_a_name() -> None:
    assert sorted(NAMES) == sorted(all_nets())


def by_hand(literal: SelfAttentionNetwork, x: Tensor) -> Any:
    """One input through the matrices that are shown, in numpy, head by head."""
    y = x.numpy().reshape(literal.maps[0].in_shape)
    for step in literal.steps:
        if isinstance(step, SequenceMap):
            y = (step.matrix.numpy() @ y.reshape(-1) + step.bias.numpy()).reshape(step.out_shape)
        elif isinstance(step, SelfAttention):
            q, k, v, o = (getattr(step, name).numpy() for name in ("W_Q", "W_K", "W_V", "W_O"))
            y = sum(softmax((y @ q[h]) @ (y @ k[g]).T) @ y @ v[g] @ o[h] for h, g in enumerate(step.shared))
        else:
            assert isinstance(step, Softmax)
            y = softmax(y.T).T
    return y[: math.prod(result(literal)[:-1])].reshape(result(literal))


def result(literal: SelfAttentionNetwork) -> tuple[int, ...]:
    assert literal.output[1] is not None
    return literal.output[1]


def softmax(z: Any) -> Any:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("dtype", [f64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_the_network_computes(name: str, dtype: torch.dtype) -> None:
    net = all_nets(dtype)[name]
    assert agree(net, inputs(net, 40))


@pytest.mark.parametrize("name", NAMES)
def test_the_matrices_shown_are_all_there_is(name: str) -> None:
    net = all_nets()[name]
    literal, x = literal_form(net), inputs(net, 3)
    for one in x:
        assert agree(net, one, torch.from_numpy(by_hand(literal, one)))


@pytest.mark.parametrize("name", [name for name in NAMES if "wise" not in name and "tanh" not in name])
def test_nothing_but_affine_maps_and_softmax(name: str) -> None:
    net = all_nets()[name]
    literal, x = literal_form(net), inputs(net, 2)
    assert impurities(literal, x) == []
    assert operations(literal, x).count("_softmax") == sum(kind != "map" for kind in literal.kinds)


@pytest.mark.parametrize("name", NAMES)
def test_the_steps_are_those_of_the_theorem(name: str) -> None:
    net = all_nets()[name]
    literal = literal_form(net)
    wanted = {"two-layer": TWO_LAYER, "attention-softmax": SOFTMAX}.get(net.form, ("map", "attention"))
    assert literal.kinds == wanted
    assert len(literal.layers) == wanted.count("attention") and len(literal.maps) == wanted.count("map")
    heads = [layer.W_Q.shape[0] for layer in literal.layers]
    neurons = math.prod(net.program.shapes[net.layers[0].value]) if net.layers else 1
    expected = {"many-heads": [4], "two-layer": [1, neurons if net.layout == "heads" else 1]}
    assert heads == expected.get(net.form, [1])


def test_one_head_data_tokens_see_the_anchors_of_their_coordinate_and_nothing_else() -> None:
    coordinates = [2, 0, 1, 2, 0, 0]
    net = all_nets()["one-head, coordinates"]
    literal, x = literal_form(net), inputs(net, 20)
    weights = literal.attention(x)["anchors"]
    assert weights.shape == (20, 1, 6 + 3 * 9, 6 + 3 * 9)
    assert not weights[..., :6, :6].any()
    own = net.attention(x)["layer 1"]
    for i, k in enumerate(coordinates):
        place = list(dict.fromkeys(coordinates)).index(k)
        there = slice(6 + 9 * place, 6 + 9 * place + 9)
        row = weights[:, 0, i].clone()
        assert torch.allclose(row[:, there], own[:, i], rtol=0, atol=1e-14)
        row[:, there] = 0
        assert not row.any()


def test_one_head_anchor_tokens_hold_keys_and_values() -> None:
    net = all_nets()["one-head"]
    literal, head = literal_form(net), nearest(9)
    tokens = literal.sequences(inputs(net, 2))["lay out"]
    assert tokens.shape == (2, 5 + 9, 6)
    anchors = torch.cat([torch.zeros(9, 3, dtype=f64), head.key[0], head.value[0, :, 1:]], 1)
    assert torch.equal(tokens[0, 5:], anchors) and torch.equal(tokens[0, 5:], tokens[1, 5:])
    assert torch.equal(tokens[..., :5, 1:], torch.tensor([1.0, 1, 0, 0, 0], dtype=f64).expand(2, 5, 5))
    layer = literal.layers[0]
    far = -float(layer.W_Q[0, 1, 2])
    assert math.log2(far).is_integer()
    assert far > 2 * float((head.key[0, :, 0].abs() * 6 + head.key[0, :, 1].abs()).max()) * 0.5
    assert int(layer.W_Q.count_nonzero()) == 3 + int(head.query[0, 1] != 0)


def test_many_heads_have_no_tokens_but_the_data_and_scores_do_not_depend_on_the_keys_data() -> None:
    net = all_nets()["many-heads"]
    literal, x = literal_form(net), inputs(net, 20)
    weights = literal.attention(x)["anchors"]
    assert weights.shape == (20, 4, 5, 5)
    own = nearest(5, 4).weights(net.stages[1](net.stages[0](x)))
    assert torch.allclose(weights, own.transpose(1, 2), rtol=0, atol=1e-14)
    other = x.clone()
    other[:, 1:] = -x[:, 1:].flip(0)
    assert torch.equal(literal.attention(other)["anchors"][:, :, 0], weights[:, :, 0])
    assert torch.equal(literal(other)[:, 0], literal(x)[:, 0])
    layer = literal.layers[0]
    assert not layer.W_K[:, :2].any() and not layer.W_V[:, :2].any()  # neither reads s
    assert torch.equal(layer.W_K[:, 2:], nearest(5, 4).key)


def test_many_heads_of_fewer_anchors_than_tokens_leave_the_others_unseen() -> None:
    net = placed(nearest(5, 4), [0] * 8, "many-heads")
    literal, x = literal_form(net), inputs(net, 20)
    assert agree(net, x)
    assert not literal.attention(x)["anchors"][..., 5:].any()


@pytest.mark.parametrize(("form", "layout"), FORMS)
@pytest.mark.parametrize("flat", [True, False])
def test_the_other_layer_of_attention_is_uniform(form: str, layout: str, flat: bool) -> None:
    net = shown(mlp(flat), form, layout)
    literal, x = literal_form(net), inputs(net, 5)
    name = next(n for n in literal.attention(x) if n in ("gather", "sum", "scores"))
    layer, weights = literal.step(name), literal.attention(x)[name]
    assert isinstance(layer, SelfAttention)
    assert not layer.W_Q.any() and not layer.W_K.any()
    assert torch.equal(weights, torch.full_like(weights, 1 / weights.shape[-1]))
    held = literal.sequences(x)[name]
    assert torch.equal(held, held[:, :1].expand_as(held))


def test_two_layer_neurons_as_tokens_holds_what_the_theorem_says() -> None:
    net = shown(mlp(activation=nn.Tanh), "two-layer", "tokens")
    literal, x = literal_form(net), inputs(net, 5)
    flat, first, layer, second, _ = net.stages
    hidden = layer(first(flat(x)))
    after = literal.sequences(x)
    assert torch.allclose(after["anchors"][:, :6, 0], hidden, rtol=0, atol=1e-14)
    assert torch.allclose(after["spread"], torch.diag_embed(hidden), rtol=0, atol=1e-14)
    assert after["sum"].shape == (5, 6, 8)
    assert torch.allclose(after["sum"][:, 3] + second.bias, second(hidden), rtol=0, atol=1e-14)
    assert torch.equal(literal.layers[1].W_O[0], second.weight.T)
    weights = literal.attention(x)["anchors"]
    assert not weights[..., :6, :6].any()
    own = net.attention(x)[net.layers[0].name]
    assert torch.allclose(weights[:, 0, :6, 6:], own, rtol=0, atol=1e-14)


def test_two_layer_neurons_as_heads_holds_what_the_theorem_says() -> None:
    net = shown(mlp(activation=nn.Tanh), "two-layer", "heads")
    literal, x = literal_form(net), inputs(net, 5)
    after = literal.sequences(x)
    assert after["lay out"].count_nonzero() == x.count_nonzero()
    assert torch.allclose(after["gather"], x.reshape(5, 1, 12).expand(5, 4, 12), rtol=1e-15, atol=0)
    weights = literal.attention(x)["anchors"]
    assert weights.shape[1] == 6 and not weights[:, :, :4, :4].any()
    assert literal.layers[1].W_K.shape[0] == literal.layers[1].W_V.shape[0] == 1  # shared by all neurons
    own = net.attention(x)[net.layers[0].name]
    for i in range(4):
        assert torch.allclose(weights[:, :, i, 4:], own, rtol=0, atol=1e-14)
    second = net.stages[3]
    assert torch.equal(literal.layers[1].W_O[:, 0], second.weight.T)


def test_attention_softmax_columns_are_the_weights_of_the_neurons() -> None:
    net = shown(mlp(activation=nn.Tanh), "attention-softmax")
    literal, x = literal_form(net), inputs(net, 5)
    columns = literal.attention(x)["softmax"]
    own = net.attention(x)[net.layers[0].name]
    assert torch.allclose(columns.transpose(1, 2), own, rtol=0, atol=1e-14)


@pytest.mark.parametrize("form", ["two-layer", "attention-softmax"])
def test_a_lookup_selects_the_same_anchors(form: str) -> None:
    net = lookup(form)
    literal, x = literal_form(net), inputs(net, 10)
    assert agree(net, x)
    own, found = net.attention(x)["lookup"], literal.attention(x)
    if form == "two-layer":
        weights = found["anchors"][:, 0]
        assert weights.shape == (10, 3 + 36, 3 + 36) and not weights[:, :3, :3].any()
        assert torch.allclose(weights[:, :3, 3:], own[:, None], rtol=0, atol=1e-14)
        assert torch.equal(literal.maps[1].bias.reshape(39, -1)[3:, 4:6], net.selections[0].key)
    else:
        assert torch.allclose(found["softmax"][..., 0], own, rtol=0, atol=1e-14)
        assert torch.equal(literal.maps[2].matrix, net.selections[0].values.T)


@pytest.mark.parametrize("form", ["two-layer", "attention-softmax"])
def test_a_lookup_far_from_zero_is_centred_first(form: str) -> None:
    net = lookup(form, torch.float32, centre=1000.0)
    assert agree(net, inputs(net, 40))


def test_maps_before_and_behind_a_lookup_are_folded() -> None:
    """1 number → 2 numbers → a lookup of them → 5 numbers."""
    rng = np.random.default_rng(0)
    first, offset = rng.normal(size=(2, 1)), np.full(2, 3.0)
    second, shift = rng.normal(size=(5, 6)), rng.normal(size=5)
    program = Program((1,), (Affine(0, first, offset), BlackBox(1, 6), Affine(2, second, shift)))
    stages: list[Stage] = [
        AffineLayer(parts.affine(0, 1, first, offset)),
        lookup("two-layer").selections[0],
        AffineLayer(parts.affine(2, 3, second, shift)),
    ]
    said = parts.network_certificate(Status.MEASURED, Box(-0.4, 0.4, shape=(1,)), "float64")
    for form in ("two-layer", "attention-softmax"):
        net = Network(stages, program, said, presentation=Presentation(form))
        assert agree(net, inputs(net, 40))


def in_groups(
    net: Network, groups: list[tuple[list[int] | None, attnc.Head]], form: str, layout: str
) -> Network:
    """The same network with other heads."""
    stages: list[Any] = list(net.stages)
    i = next(i for i, stage in enumerate(stages) if isinstance(stage, pointwise.Pointwise))
    chosen = [(None if n is None else np.array(n), head) for n, head in groups]
    stages[i] = pointwise.Pointwise(chosen, name="layer 1", inputs=stages[i].inputs, value=stages[i].value)
    return Network(stages, net.program, net.certificate, presentation=Presentation(form, layout))


@cache
def uneven() -> tuple[attnc.Head, attnc.Head]:
    """Two heads of five anchors for each neuron, one of three; on other intervals."""
    few = attnc.head("tanh", domain=(-8, 8), anchors=3, dtype=f64)
    return attnc.head("tanh", domain=(-4, 4), anchors=5, heads=2, design="nearest", dtype=f64), few


@pytest.mark.parametrize(("form", "layout"), FORMS)
@pytest.mark.parametrize("flat", [True, False])
def test_groups_and_several_heads_for_a_neuron(form: str, layout: str, flat: bool) -> None:
    two, few = uneven()
    net = in_groups(mlp(flat), [([0, 3, 4], two), ([1, 2, *([5] if flat else [])], few)], form, layout)
    literal, x = literal_form(net), inputs(net, 20)
    assert agree(net, x)
    assert impurities(literal, x[:2]) == []
    tokens = 1 if flat else 4
    if layout == "tokens":
        assert literal.layers[0].W_Q.shape[0] == 2
        n = (6 if flat else 5) * tokens
        assert not literal.attention(x)["anchors"][..., :n, :n].any()
    elif layout == "heads":
        assert literal.layers[1].W_Q.shape[0] == tokens * (3 * 2 + (3 if flat else 2))
    else:
        assert literal.attention(x)["softmax"].shape[1:] == (5, tokens * (3 * 2 + (3 if flat else 2)))


def test_one_head_over_groups_has_a_set_of_anchors_for_each() -> None:
    net = placed(nearest(9), [0, 1, 0, 1], "one-head")
    wide = attnc.head("clip(-1,1)", domain=(-60, 60), design="nearest", anchors=4, dtype=f64)
    net = in_groups(net, [([0, 1], nearest(9)), ([2, 3], wide)], "one-head", "")
    literal, x = literal_form(net), inputs(net, 20)
    assert agree(net, x)
    assert literal.layers[0].W_Q.shape[0] == 1 and literal.maps[0].out_shape[0] == 4 + 2 * 9 + 2 * 4
    assert not literal.attention(x)["anchors"][..., :4, :4].any()


def two_anchors(steepness: float, reach: float) -> attnc.Head:
    """softmax(0, steepness·s) over the values 1 and 2, said to serve where |s| <= reach."""
    key, value = np.array([[[0.0, 0.0], [steepness, 0.0]]]), np.array([[[0.0, 1.0], [0.0, 2.0]]])
    made = HeadNumbers(np.array([[1.0, 0.0]]), key, value, np.ones(1), "float64")
    said = Certificate(
        subject="head", status=Status.MEASURED, approximation=0.0, rounding=0.0, bound=0.0, holds_for=Interval(-reach, reach),
        dtype="float64", digests=made.digests(), facts={"function": "tanh", "design": "nearest", "points": 1},
    )  # fmt: skip
    return attnc.Head(made, "nearest", said)


def test_what_is_hidden_from_a_token_stays_so_however_large_the_score_it_would_have_had() -> None:
    """Queries of 5000 meet, in the anchors of the other group, keys of 50: far beyond any score of a group by itself."""
    groups = [([0, 1], two_anchors(1e-3, 5000)), ([2, 3], two_anchors(50, 6))]
    net = in_groups(placed(nearest(4), [0] * 4, ""), groups, "one-head", "")
    x = inputs(net, 20)
    x[:, :2] *= 1000
    assert float(net.stages[1](net.stages[0](x)).abs().max()) > 300
    assert agree(net, x)
    weights = literal_form(net).attention(x)["anchors"][:, 0]
    assert not weights[:, :4, :4].any() and not weights[:, :2, 6:].any() and not weights[:, 2:4, 4:6].any()


@pytest.mark.parametrize(("form", "layout"), FORMS)
def test_more_tokens_come_out_than_there_are_neurons(form: str, layout: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 10), nn.Unflatten(1, (5, 2))).double()
    net = shown(compile(model.eval(), domain=Box(0, 1, shape=(3,)), eps=1e-3, dtype=f64), form, layout)
    literal, x = literal_form(net), inputs(net, 20)
    assert agree(net, x) and literal.maps[0].in_shape == (1, 3)


def test_a_normalisation_and_a_sum_of_neurons_are_folded() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.norm = nn.Linear(3, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)
            self.norm.running_mean = torch.linspace(-0.5, 0.5, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(2 * self.a(x))
            y: Tensor = self.norm(self.b(h) - 0.5 * h)
            return y

    torch.manual_seed(0)
    whole = compile(Model().eval().double(), domain=Box(0, 1, shape=(3,)), eps=1e-3, dtype=f64)
    for form, layout in FORMS:
        net = shown(whole, form, layout)
        x = inputs(net, 20)
        assert agree(net, x)


class Deep(nn.Module):
    def __init__(self, skip: bool) -> None:
        super().__init__()
        self.a, self.b, self.skip = nn.Linear(3, 3), nn.Linear(3, 3), skip

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        y: Tensor = h + x if self.skip else torch.tanh(self.b(h))
        return y


@pytest.mark.parametrize(("skip", "message"), [(True, "residual"), (False, "not 2")])
def test_what_is_not_one_layer_of_neurons_is_refused(skip: bool, message: str) -> None:
    torch.manual_seed(0)
    net = compile(Deep(skip).eval().double(), domain=Box(0, 1, shape=(3,)), eps=1e-3, dtype=f64)
    with pytest.raises(InputError, match=f"{message}.*'layers'"):
        literal_form(shown(net, "two-layer", "tokens"))


@cache
def refusals() -> dict[str, tuple[Network, str]]:
    gated = attnc.head("silu", domain=(-6, 6), anchors=2, design="gated", dtype=f64)
    bias = np.ones(4)
    sums = placed(nearest(4), [0] * 2, "one-head")
    with torch.no_grad():
        sums.stages[3].weight[1, 0] = 0.5  # type: ignore[union-attr, index, operator]
    two = in_groups(placed(nearest(4), [0] * 4, ""), [([0], nearest(4)), ([1, 2, 3], nearest(3))], "", "")
    return {
        "several heads": (
            placed(nearest(5, 4), [0] * 5, "one-head"),
            "4.*'many-heads'",
        ),
        "a bias": (
            placed(nearest(4), [0] * 4, "one-head", extra=bias),
            "bias.*'two-layer'",
        ),
        "sums": (sums, "1 gets 2.*'two-layer'"),
        "anchors": (placed(nearest(9), [0] * 4, "many-heads"), "9 anchors.* 4 tokens"),
        "coordinates": (
            placed(nearest(4), [0, 1, 0, 0], "many-heads"),
            "output coordinate.*'one-head'",
        ),
        "groups": (shown(two, "many-heads"), "keys and values.*'one-head'"),
        "gated": (placed(gated, [0] * 4, "one-head"), "gated"),
        "silent": (
            placed(attnc.Head(nearest(4).numbers(), "nearest"), [0] * 4, "one-head"),
            "unknown interval",
        ),
        "lookup": (lookup("one-head"), "'two-layer'.*'attention-softmax'"),
        "layout": (shown(mlp(), "two-layer", "rows"), "'rows'.*'tokens'.*'heads'"),
        "form": (shown(mlp(), "layers"), "'one-head', 'many-heads', 'two-layer', 'attention-softmax'"),
    }


REFUSED = [
    *("several heads", "a bias", "sums", "anchors", "coordinates", "groups"),
    *("gated", "silent", "lookup", "layout", "form"),
]


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_theorem_has_no_room_for_is_refused(name: str) -> None:
    assert list(refusals()) == REFUSED
    net, message = refusals()[name]
    with pytest.raises(InputError, match=message):
        literal_form(net)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_too_large_is_refused_with_its_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = all_nets()[name]
    literal = literal_form(net)
    size = sum(p.numel() for p in literal.parameters())
    weights = max(layer.W_Q.shape[0] * t**2 for layer, t in zip(literal.layers, tokens(literal), strict=True))
    if size >= weights:
        monkeypatch.setattr("attnc.network.literal.steps.LARGEST", size)
        literal_form(net)
        monkeypatch.setattr("attnc.network.literal.steps.LARGEST", size - 1)
        with pytest.raises(InputError, match=f"{size:,} numbers"):
            literal_form(net)
    else:
        monkeypatch.setattr("attnc.network.literal.steps.LARGEST", weights)
        literal_form(net)
        monkeypatch.setattr("attnc.network.literal.steps.LARGEST", weights - 1)
        with pytest.raises(InputError, match=f"{weights:,} weights"):
            literal_form(net)


def tokens(literal: SelfAttentionNetwork) -> list[int]:
    return [w.shape[-1] for name, w in literal.attention(inputs_of(literal)).items() if name != "softmax"]


def inputs_of(literal: SelfAttentionNetwork) -> Tensor:
    return torch.zeros(literal.inputs[0].shape, dtype=f64)  # type: ignore[arg-type]


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 3)])
def test_any_batch(lead: tuple[int, ...]) -> None:
    for name in ("two-layer tokens flat", "attention-softmax lookup", "many-heads"):
        net = all_nets()[name]
        literal, x = literal_form(net), inputs(net, *lead)
        assert literal(x).shape == net(x).shape == (*lead, *result(literal))
        assert torch.allclose(literal(x), net(x), rtol=0, atol=1e-12)
        assert all(w.shape[: len(lead)] == lead for w in literal.attention(x).values())


def test_chunks_and_autocast_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net = all_nets()["two-layer heads flat"]
    literal, x = literal_form(net), inputs(net, 50)
    whole = literal(x)
    monkeypatch.setattr("attnc.network.literal.network._CHUNK", 5000)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(literal(x), whole, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("x", [None, [0.0] * 12, torch.zeros(4, 3), torch.zeros(3, 4, dtype=f64)])
def test_inputs_are_never_cast_or_reshaped(x: Any) -> None:
    literal = literal_form(all_nets()["two-layer tokens flat"])
    for call in (literal, literal.attention, literal.sequences):
        with pytest.raises(InputError, match="x must"):
            call(x)


def test_it_tells_its_steps_and_the_shapes_of_its_matrices() -> None:
    net = placed(nearest(9), [0] * 5, "one-head")
    assert literal_form(net).describe().splitlines() == [
        "form 'one-head': x (5, 2)",
        "1  map        lay out  (5, 2) → (14, 6): 5 rows, 10 columns",
        "2  attention  anchors  1 head: W_Q (1, 6, 3), W_K (1, 6, 3), W_V (1, 6, 1), W_O (1, 1, 1)",
    ]
    said = repr(literal_form(shown(mlp(), "two-layer", "heads")))
    assert "layout 'heads'" in said and "6 heads: W_Q (6, " in said


def test_a_map_is_its_matrix_however_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, names = np.random.default_rng(0), Layout({"x": 2}, ["a", "b", "c"])
    whole = rng.normal(size=(6, 4)) * (rng.random((6, 4)) < 0.5) * (np.arange(6) != 2)[:, None]
    bias = rng.normal(size=6)
    x = torch.from_numpy(rng.normal(size=(7, 2, 2)))
    at = np.flatnonzero(whole.any(1)), np.flatnonzero(whole.any(0))
    made = SequenceMap(whole[np.ix_(*at)], bias, (2, 2), (3, 2), names, "float64", at)
    assert np.array_equal(made.matrix.numpy(), whole) and len(made.rows) < 6
    wanted = torch.from_numpy(x.numpy().reshape(7, 4) @ whole.T + bias).reshape(7, 3, 2)
    assert torch.allclose(made(x), wanted, rtol=0, atol=1e-14)
    at = np.array([4, 1]), np.array([0, 0])
    picks = SequenceMap(np.array([2.0, 3.0]), bias, (2, 2), (3, 2), names, "float64", at)
    assert torch.allclose(
        picks(x).reshape(7, 6), x.reshape(7, 4) @ picks.matrix.T + picks.bias, rtol=0, atol=1e-15
    )
    assert picks.matrix.count_nonzero() == 2 and picks.matrix[4, 0] == 2 and picks.matrix[1, 0] == 3
    monkeypatch.setattr("attnc.network.literal.steps.LARGEST", 23)
    with pytest.raises(InputError):
        _ = made.matrix
    with pytest.raises(InputError):
        SequenceMap(whole, bias, (2, 2), (3, 2), names, "float64", at)
    with pytest.raises(InputError):
        SequenceMap(np.ones(2), bias[:5], (2, 2), (3, 2), names, "float64", at)


def test_the_network_gives_its_form_by_itself() -> None:
    net = all_nets()["two-layer tokens flat"]
    assert net.as_self_attention().form == "two-layer"
