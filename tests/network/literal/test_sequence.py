"""The literal form of whole transformers: norms, attention between data tokens, products, embeddings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import attnc
from attnc.errors import InputError
from attnc.network.literal import SelfAttentionNetwork
from attnc.network.network import Network
from tests.network.executed import impurities
from tests.network.literal.examples import VOCABULARY, inputs, network

NAMES = ("encoder", "decoder", "rotary", "six features")


def close(found: Tensor, wanted: Tensor) -> bool:
    """Up to the roundings of sums of a hundred terms or fewer, in other orders, in some ten layers in a row."""
    return bool(
        (found - wanted).abs().max() <= 256 * torch.finfo(wanted.dtype).eps * max(1.0, wanted.abs().max())
    )


def count(literal: SelfAttentionNetwork) -> int:
    return sum(name.startswith("data") for name in literal.tokens)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_the_network_computes(name: str, dtype: torch.dtype) -> None:
    net = network(name, dtype)
    literal, x = net.as_self_attention(), inputs(net)
    assert literal(x).shape == net(x).shape
    assert close(literal(x), net(x))


@pytest.mark.parametrize("name", NAMES)
def test_the_stream_holds_every_value_that_is_kept(name: str) -> None:
    net = network(name)
    literal, x = net.as_self_attention(), inputs(net)
    stream, values = literal.stream(x), net._run(x, keep=True)
    named = {f"v{value}" for value in values}
    held = {register: at for register, at in literal.layout.items() if register.split(":")[0] in named}
    assert len(held) >= 4
    for register, at in held.items():
        value = values[int(register.split(":")[0][1:])]
        assert close(stream[:, : value.shape[1], at], value), register


@pytest.mark.parametrize("name", NAMES)
def test_who_attends_to_whom(name: str) -> None:
    """In a norm a data token sees itself and anchor 0, in attention the data tokens of the mask. Anchors keep their values."""
    net = network(name)
    literal, x = net.as_self_attention(), inputs(net, 4)
    n, weights = count(literal), literal.attention(x)
    norms = [w for step, w in weights.items() if step.startswith("norm") and not step.endswith("centred")]
    assert len(norms) == sum(step.kind == "norm" for step in net.program.steps)
    for found in norms:
        seen = found[..., :n, :].amax((0, 1)) > 0
        assert torch.equal(seen[:, :n], torch.eye(n, dtype=torch.bool)) and not seen[:, n + 1 :].any()
    (between,) = (w for step, w in weights.items() if step.startswith("attend"))
    mask = next(step.mask for step in net.program.steps if step.kind == "attend")  # type: ignore[attr-defined]
    wanted = torch.ones(n, n) if mask is None else torch.from_numpy(np.array(mask))
    assert torch.equal((between > 0).to(wanted.dtype)[..., :n, :n].amin((0, 1)), wanted)
    assert not between[..., :n, n:].any()
    (own,) = (w for w in net.attention(x).values() if w.shape[-2:] == (n, n) and w.shape[-3] < 3)
    assert close(between[..., :n, :n], own)
    assert torch.equal(literal.stream(x)[:, n:], literal.embed(x)[:, n:])


def test_names(tmp_path: Path) -> None:
    literal = network("rotary").as_self_attention()
    registers = list(literal.layout)
    roles = [name.split(": ")[1] for name in registers if name.startswith("attend")]
    assert roles == ["queries", "keys", "values"] and "second key" in registers and "x" not in registers
    assert len(set(literal.coordinates)) == len(literal.coordinates) == literal.layout.width
    heads = [name for layer in literal.layers for name in layer.heads]
    assert any("square of sum 0" in name for name in heads) and any(
        "square of difference 3" in n for n in heads
    )
    (between,) = (layer for layer in literal.layers if layer.heads[0].startswith("attend"))
    assert between.W_K.shape[0] == 1 and between.shared == (0, 0)  # grouped keys are shared


def test_softmax_is_all_that_is_not_linear() -> None:
    net = network("tiny")
    assert impurities(net.as_self_attention(), inputs(net, 2)) == []


def test_ids_become_one_hot_vectors() -> None:
    net = network("decoder")
    literal, ids = net.as_self_attention(), inputs(net, 5)
    assert torch.equal(literal(ids), literal(ids.double())) and torch.equal(literal(ids.int()), literal(ids))
    table = net.program.steps[0].table  # type: ignore[attr-defined]
    (register,) = (name for name in literal.layout if name.startswith("v1:"))
    assert torch.equal(literal.embed(ids)[:, :3, literal.layout[register]], torch.tensor(table)[ids])
    for wrong in (ids + VOCABULARY, -1 - ids, ids + 0.5, ids[:, :2], ids.float()):
        with pytest.raises(InputError):
            literal(wrong)


@pytest.mark.parametrize("name", ["encoder", "rotary"])
def test_files(name: str, tmp_path: Path) -> None:
    net = network(name)
    literal, x = net.as_self_attention(), inputs(net)
    literal.save(tmp_path / "net.safetensors")
    again = attnc.load(tmp_path / "net.safetensors")
    assert isinstance(again, SelfAttentionNetwork) and again.certificate == literal.certificate
    assert torch.equal(again(x), literal(x)) and again.layouts == literal.layouts
    assert again.domain == net.domain and again.describe() == literal.describe()


def test_a_network_of_vectors_takes_n_tokens() -> None:
    from attnc.program import Affine, Norm, Pointwise, Program

    weight = np.linspace(-1, 1, 8).reshape(2, 4)
    steps = (
        Norm(0, np.ones(4), np.zeros(4), 0.1, True),
        Affine(1, weight),
        Pointwise(2, attnc.functions.silu()),
        Affine(3, weight.T),
        Norm(4, np.ones(4), np.ones(4), 0.1, True),
    )
    net: Network = attnc.compile(
        Program((4,), steps), domain=attnc.Box(-1, 1, shape=(4,)), approximation=1e-2
    )
    literal, x = net.as_self_attention(3), torch.rand(5, 3, 4) * 2 - 1
    assert close(literal(x), net(x))
    assert attnc.verify(literal).status == "proved"
