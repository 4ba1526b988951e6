"""nnsight traces and edits attnc's modules as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnc.network.literal import SelfAttentionNetwork
from tests.network.examples import head, network

nnsight = pytest.importorskip("nnsight", reason="nnsight is not installed")

# nnsight reads the bodies of `with` blocks: what is saved there is a local variable after the block.


def test_a_head() -> None:
    own = head("tanh", eps=1e-5)
    s = torch.linspace(-8, 8, 9)
    expected, traced = own(s), nnsight.NNsight(own)
    with traced.trace(s):
        found = traced.output.save()
    assert torch.equal(found, expected)


def test_a_network_and_a_neuron_that_is_switched_off() -> None:
    net, x = network(), torch.rand(4, 3)
    expected = net(x)
    with torch.no_grad():
        h = net.stages[1](net.stages[0](x))
        h[:, 2] = 0.0
        without = net.stages[2](h)
    traced = nnsight.NNsight(net)
    with traced.trace(x):
        found = traced.output.save()
    with traced.trace(x):
        traced.stages[1].output[:, 2] = 0.0
        changed = traced.output.save()
    assert torch.equal(found, expected) and torch.equal(changed, without)
    assert net.why_not_certified() is not None  # nnsight replaces `forward` of what it traces


def test_the_pattern_of_a_literal_form() -> None:
    literal: SelfAttentionNetwork = network().as_self_attention(2)
    x = torch.rand(3, 2, 3)
    (weights,), expected = literal.attention(x).values(), literal(x)
    traced: Any = nnsight.NNsight(literal)
    with traced.trace(x):
        pattern = traced.steps[0].pattern.output.save()
        found = traced.output.save()
    with traced.trace(x):
        traced.steps[0].pattern.output[..., -1] = 0.0
        changed = traced.output.save()
    assert torch.equal(pattern, weights) and torch.equal(found, expected)
    assert (changed - expected).abs().max() > 1e-3
