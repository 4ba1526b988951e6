"""Token networks in TransformerLens: the same logits and patterns, bit for bit."""

from __future__ import annotations

import warnings

import pytest
import torch

from attnc import tokens, zoo
from attnc.errors import InputError, UnsupportedError
from attnc.exporters.token_lens import TokenLens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformer_lens", reason="the extra `transformer-lens` is not installed")


@pytest.mark.parametrize("name", [n for n in zoo.names("tokens") if n != "dyck-2"])
def test_logits_and_patterns_are_equal(name: str) -> None:
    net, task = zoo.load(name), zoo.about(name)
    lens = net.to_transformer_lens()
    assert isinstance(lens, TokenLens) and lens.difference == 0 and lens.compared > 50
    ids = net.encode(task.tokens)[None]
    _, cache = lens.run_with_cache(ids)
    for key, weights in net.attention(ids).items():
        layer, head = map(int, key.split()[0].split("."))
        assert torch.equal(cache["pattern", layer][0, head], weights[0])
        assert lens.heads[layer][head] == key.split(" ", 1)[1]
    assert lens.run(task.tokens) == net.run(task.tokens)


def test_hooks_break_the_mechanism() -> None:
    net = zoo.load("induction")
    lens = net.to_transformer_lens()
    ids = net.encode("abcab")[None]
    hooked = lens.run_with_hooks(
        ids, fwd_hooks=[("blocks.0.attn.hook_pattern", lambda pattern, hook: 0 * pattern)]
    )
    assert [net.outputs[i] for i in hooked[0].argmax(-1)] == ["-"] * 5


def test_bad_input() -> None:
    lens = zoo.load("histogram").to_transformer_lens()
    for ids in (torch.tensor([[4]]), torch.zeros(1, 10, dtype=torch.long), torch.zeros(1, 2)):
        with pytest.raises(InputError):
            lens(ids)
    p = tokens.program("ab", 2)
    with pytest.raises(UnsupportedError):
        p.compile(p.tokens).to_transformer_lens()
