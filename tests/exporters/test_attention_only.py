"""Literal forms as blocks of attention over one residual stream: the same results, patterns and registers, step by step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attnc
from attnc import functions, incontext
from attnc.errors import InputError, MissingExtraError, UnsupportedError
from attnc.exporters import attention_only as exporter
from attnc.exporters.attention_only import NOTHING, AttentionOnly, attention_only
from attnc.exporters.reference import LiteralRounding
from attnc.exporters.subjects import subject_of
from attnc.network.literal import Layout, SelfAttentionNetwork, SequenceMap
from attnc.program import Affine, Combine, Pointwise, Program, Reshape
from tests.network.literal import examples

f64 = torch.float64
Case = tuple[SelfAttentionNetwork, tuple[Tensor, ...]]


def head() -> Case:
    literal = attnc.head("tanh", domain=(-8, 8), eps=1e-6, dtype=f64).as_self_attention(3)
    return literal, (torch.tensor([[-8.0, 0.5, 2.5], [1.0, 0.0, 8.0]], dtype=f64),)


def affine(value: int, rows: int, columns: int) -> Affine:
    draw = np.random.default_rng(rows)
    return Affine(value, draw.normal(size=(rows, columns)) / columns, draw.normal(size=rows))


def with_maps() -> Case:
    """x + W2 tanh(W1 x + b1) + b2: a map of every token adds the two registers."""
    steps = affine(0, 4, 3), Pointwise(1, functions.tanh()), affine(2, 3, 4), Combine((0, 3), (1.0, 1.0))
    net = attnc.compile(Program((3,), steps), domain=attnc.Box(-1, 1, shape=(3,)), eps=1e-4, dtype=f64)
    return net.as_self_attention(2), (torch.rand(4, 2, 3, dtype=f64) * 2 - 1,)


def two_layer(layout: str, n: int) -> Case:
    """(n, 3) → (4, 2): with n = 2, tokens 2 and 3 copy from tokens 0 and 1."""
    hidden = Reshape(0, (3 * n,)), affine(1, 4, 3 * n), Pointwise(2, functions.tanh())
    program = Program((n, 3), (*hidden, affine(3, 8, 4), Reshape(4, (4, 2))))
    net = attnc.paper.two_layer(program, attnc.Box(0, 1, shape=(n, 3)), eps=1e-4, layout=layout)
    return net.as_self_attention(), (torch.rand(5, n, 3, dtype=f64),)


def transformer(name: str) -> Case:
    net = examples.network(name)
    return net.as_self_attention(), (examples.inputs(net, 3),)


def learner() -> Case:
    made = incontext.gradient_descent("logistic", features=2, steps=3, step_size=0.5, radius=1.0, dtype=f64)
    x, query = torch.rand(5, 2, dtype=f64) - 0.5, torch.rand(2, 2, dtype=f64) - 0.5
    return made.as_self_attention(), (x, (x[:, 0] > 0).to(f64), query)


CASES: dict[str, Callable[[], Case]] = {
    "head": head,
    "maps": with_maps,
    "two-layer, tokens": lambda: two_layer("tokens", 4),
    "two-layer, heads": lambda: two_layer("heads", 2),
    "tiny transformer": lambda: transformer("tiny"),
    "rotary": lambda: transformer("rotary"),
    "learner": learner,
}


@cache
def case(name: str) -> Case:
    torch.manual_seed(0)
    return CASES[name]()


def streams(form: AttentionOnly, case: Case) -> tuple[list[Tensor], list[Tensor]]:
    """The stream before the first and after every block, and the patterns, by the formula alone."""
    literal, inputs = case
    x = literal.embed(*inputs)
    x = x.reshape(-1, *x.shape[-2:])
    for _, i in literal.order[: form.leading]:
        x = literal.steps[i](x)
    if form.constants is not None:
        start = torch.from_numpy(form.constants).to(x).repeat(len(x), 1, 1)
        start[:, : x.shape[1], : x.shape[2]] += x
        x = start
    found, patterns = [x], []
    for b in form.blocks:
        q, k, v, o = (torch.tensor(w, dtype=x.dtype) for w in (b.W_Q, b.W_K, b.W_V, b.W_O))
        query, key, value = (torch.einsum("btd,hdr->bhtr", found[-1], w) for w in (q, k, v))
        patterns.append(torch.softmax(query @ key.mT, -1))
        found.append(found[-1] + torch.einsum("bhtm,hme->bte", patterns[-1] @ value, o))
    return found, patterns


@pytest.mark.parametrize("name", CASES)
def test_the_blocks_compute_what_the_steps_compute(name: str) -> None:
    literal, inputs = case(name)
    form = attention_only(literal)
    found, patterns = streams(form, case(name))
    weights, sequences = literal.attention(*inputs), literal.sequences(*inputs)
    assert [b.name for b in form.blocks] == [step for step, _ in literal.order[form.leading :]]
    room = LiteralRounding(literal).allowed(inputs)[0]
    assert 0 < room < 1e-9
    for block, stream, pattern in zip(form.blocks, found[1:], patterns, strict=True):
        expected = sequences[block.name].reshape(-1, *sequences[block.name].shape[-2:])
        start = (
            0
            if literal.residual
            else form.layout[f"{block.name}: {next(iter(literal.layouts[block.name]))}"].start
        )
        n, d = expected.shape[1:]
        assert (stream[:, :n, start : start + d] - expected).abs().max() <= 10 * room
        if block.name in weights:
            own = weights[block.name].reshape(-1, *weights[block.name].shape[-3:])
            t = own.shape[-1]
            assert (pattern[..., :t, :t] - own).abs().max() <= 1e-11
            assert not pattern[..., :t, t:].any()
        else:
            assert pattern.unique().tolist() in ([0.0, 1.0], [1.0])
    shape = inputs[0].shape[: inputs[0].ndim - len(literal.inputs[0].shape)]
    held = found[-1][..., form.output]
    y = literal.result(held.reshape(*shape, *held.shape[1:]), *inputs)
    assert (y - literal(*inputs)).abs().max() <= room


@pytest.mark.parametrize("name", ["two-layer, tokens", "rotary"])
def test_the_token_nothing_stays_empty(name: str) -> None:
    form = attention_only(case(name)[0])
    assert form.layout.tokens[-1] == NOTHING
    own = [at for register, at in form.layout.items() if not register.startswith("route: ")]
    last = streams(form, case(name))[0][-1][:, -1]
    assert not torch.cat([last[:, at] for at in own], 1).any()


def test_what_has_this_form_is_left_as_it_is() -> None:
    for name in ("head", "learner"):
        literal, _ = case(name)
        form = attention_only(literal)
        assert form.constants is None and form.layout.tokens == literal.tokens
        for block, (_, i) in zip(form.blocks, literal.order, strict=True):
            step: Any = literal.steps[i]
            assert np.array_equal(block.W_Q, step.W_Q.numpy()) and np.array_equal(block.W_O, step.W_O.numpy())
            assert np.array_equal(block.W_V, step.W_V.numpy()[list(step.shared)])


@pytest.mark.parametrize("tokens", [3, 6])
def test_routes_are_the_blocks_of_the_matrix(tokens: int) -> None:
    """(3, 2) → (4, 3), of every three tokens: some blocks are equal, some are 0, one token gets two equal blocks."""
    draw = np.random.default_rng(0)
    blocks = draw.normal(size=(2, 3, 2))
    matrix = np.zeros((4, 3, 3, 2))
    for t, s, b in [(0, 0, 0), (0, 2, 0), (1, 1, 0), (3, 1, 1), (3, 0, 0)]:
        matrix[t, :, s] = blocks[b]
    flat = matrix.reshape(12, 6)
    at = np.arange(12), np.arange(6)
    step = SequenceMap(flat, np.zeros(12), ((3, 2), (4, 3)), at, Layout({"y": 3}), "float64")
    routes, found = exporter._routes(step, tokens), np.zeros((tokens // 3 * 4, 3, tokens, 2))
    assert len(routes) == 3  # the first block twice, since token 0 gets it from two tokens
    for route in routes:
        for t, s in enumerate(route.sources):
            if s >= 0:
                found[t, route.rows, s, route.columns] += route.values
    assert np.array_equal(found.reshape(-1, tokens * 2), np.kron(np.eye(tokens // 3), flat))


def test_wide_maps_are_split() -> None:
    stream = exporter._Stream(case("maps")[0])
    (i,) = [i for i, routes in stream.routes.items() if routes][:1]
    narrow, whole = stream._routing("map", i, 2), stream._routing("map", i, 16)
    assert len(narrow.heads) > len(whole.heads) and len(set(narrow.heads)) == len(narrow.heads)
    products = [np.einsum("hdm,hme->de", b.W_V, b.W_O) for b in (narrow, whole)]
    assert np.array_equal(*products)


def test_what_is_not_attention_is_refused() -> None:
    program = Program(
        (2, 1),
        (
            Reshape(0, (2,)),
            affine(1, 3, 2),
            Pointwise(2, functions.tanh()),
            affine(3, 2, 3),
            Reshape(4, (2, 1)),
        ),
    )
    net = attnc.paper.attention_softmax(program, attnc.Box(0, 1, shape=(2, 1)), eps=1e-2)
    literal = net.as_self_attention()
    with pytest.raises(UnsupportedError) as refused:
        attention_only(literal)
    assert [problem.where for problem in refused.value.problems] == ["softmax"]
    biased, _ = with_maps()
    biased.maps[0].bias.data[0] = 1.0
    with pytest.raises(UnsupportedError):
        attention_only(biased)


def test_sizes_are_refused_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "LARGEST", 1000)
    with pytest.raises(InputError):
        attention_only(case("two-layer, heads")[0])
    monkeypatch.setattr(exporter, "_PLACES", {"float64": 5})
    with pytest.raises(InputError):
        attention_only(case("two-layer, heads")[0])


def test_rounding_is_neither_ignored_nor_exaggerated() -> None:
    """In float32, what rounding explains is more than it does and less than 1000 times as much, also with gates of 2^98."""
    net = examples.network("tiny", torch.float32)
    literal, ids = net.as_self_attention(), examples.inputs(net, 5)
    allowed = LiteralRounding(literal).allowed((ids,))[0]
    error = (net.as_self_attention().double()(ids) - literal(ids)).abs().max()
    assert 0 < error <= allowed <= 1000 * error


def test_samples_of_token_ids_are_token_ids() -> None:
    (ids,) = subject_of(case("tiny transformer")[0], "softmax", None).samples(64, ())
    assert ids.dtype == torch.int64 and ids.unique().tolist() == list(range(examples.VOCABULARY))


@pytest.mark.parametrize("version", ["none", "3"])
def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    old = ModuleType("transformer_lens")
    monkeypatch.setitem(sys.modules, "transformer_lens", None if version == "none" else old)
    with pytest.raises(MissingExtraError):
        case("head")[0].to_transformer_lens()
