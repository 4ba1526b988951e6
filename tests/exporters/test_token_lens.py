"""Token networks in TransformerLens: the same logits and patterns, bit for bit."""

from __future__ import annotations

import warnings

import pytest
import torch

from attnc import tokens, zoo
from attnc.errors import ArgumentError, InputError, UnsupportedError
from attnc.exporters.token_lens import TokenLens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformer_lens", reason="the extra `transformer-lens` is not installed")
    from transformer_lens import patching


def rounding_of(net: tokens.TokenNetwork, ids: torch.Tensor) -> float:
    """How far two orders of summation may move a logit: not at all if the stream and the unembedding are whole numbers."""
    x, matrix = net.stream(ids), net.unembedding.detach()
    if all(torch.equal(part, part.round()) for part in (x, matrix)):
        return 0.0
    terms = int((matrix != 0).sum(0).max())
    return terms * torch.finfo(x.dtype).eps * float((x.abs() @ matrix.abs()).max())


@pytest.mark.parametrize("name", [n for n in zoo.names("tokens") if n != "dyck-2"])
def test_logits_and_patterns_are_equal(name: str) -> None:
    net, task = zoo.load(name), zoo.about(name)
    lens = net.to_transformer_lens()
    assert isinstance(lens, TokenLens) and lens.compared > 50
    assert lens.difference <= rounding_of(net, net.encode(task.tokens)) < 0.01
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


def test_the_bridge_refuses_ids_without_bos() -> None:
    """Without BOS it would return other outputs, silently; functions of TransformerLens call the bridge."""
    net = zoo.load("induction")
    lens = net.to_transformer_lens()
    ids = net.encode("abcab")[None]
    given = lens.with_bos(ids)
    assert given.tolist() == [[4, 0, 1, 2, 0, 1]]
    assert torch.equal(lens.bridge(given)[:, 1:], net(ids))
    _, cache = lens.bridge.run_with_cache(given)
    calls = (
        lambda x: lens.bridge(x),
        lambda x: lens.bridge(x[0]),
        lambda x: lens.bridge.run_with_cache(x),
        lambda x: lens.bridge.run_with_hooks(x, fwd_hooks=[]),
        lambda x: patching.get_act_patch_resid_pre(lens.bridge, x, cache, lambda logits: logits.sum()),
    )
    for call in calls:
        call(given)
        with pytest.raises(InputError, match="with_bos"):
            call(ids)
        with pytest.raises(InputError, match="with_bos"):
            call(torch.cat([ids[:, :1], given], 1))


def test_functions_of_transformer_lens_take_the_bridge() -> None:
    """Patching the stream at one place: only c after the first block, and b before it, carry the previous token."""
    net = zoo.load("induction")
    lens = net.to_transformer_lens()
    clean, corrupted = (lens.with_bos(net.encode(s)[None]) for s in ("abcab", "adcab"))
    _, cache = lens.bridge.run_with_cache(clean)
    right = net.outputs.index("c")
    found = patching.get_act_patch_resid_pre(
        lens.bridge, corrupted, cache, lambda logits: logits[0, -1, right]
    )
    assert found.tolist() == [[0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]
    for name in ("cfg", "hooks", "to_tokens"):  # positions would be those without BOS
        with pytest.raises(AttributeError, match="with_bos"):
            getattr(lens, name)
    with pytest.raises(AttributeError, match="with_bos"):
        patching.get_act_patch_resid_pre(lens, corrupted[:, 1:], cache, lambda logits: logits.sum())
    assert torch.equal(lens.W_Q, lens.bridge.W_Q) and lens.W_E.shape == (5, 25)


def test_there_is_no_loss() -> None:
    """Logit 0 of induction is for '-', and the id 0 is a: TransformerLens would compare them, in silence."""
    net = zoo.load("induction")
    lens = net.to_transformer_lens()
    given = lens.with_bos(net.encode("abcab")[None])
    assert (
        lens.outputs[0] == "-" and net.vocabulary[0] == "a" and lens.bridge.W_U.shape[1] == lens.W_E.shape[0]
    )
    for call in (
        lambda: lens.bridge(given, return_type="loss"),
        lambda: lens.bridge(given, return_type="both"),
        lambda: lens.bridge.forward(given, return_type="loss"),
        lambda: lens.bridge.run_with_cache(given, return_type="loss"),
        lambda: lens.run_with_hooks(given[:, 1:], fwd_hooks=[], return_type="loss"),
    ):
        with pytest.raises(UnsupportedError, match=r"lens\.outputs"):
            call()
    assert torch.equal(lens.bridge(given, return_type="logits")[:, 1:], net(given[:, 1:]))


def test_matrices_are_those_of_the_network() -> None:
    """As the page says: W_Q is multiplied by √d_head, the others are padded with 0."""
    net = zoo.load("induction")
    lens, first = net.to_transformer_lens(), net.layers[0]
    root = lens.bridge.cfg.d_head**0.5
    assert torch.equal(lens.W_Q[0, 0, :, : first.query.shape[2]], root * first.query[0])
    assert torch.equal(lens.W_K[0, 0, :, : first.key.shape[2]], first.key[0])
    assert torch.equal(lens.W_V[0, 0, :, : first.value.shape[2]], first.value[0])
    assert torch.equal(lens.W_O[0, 0, : first.output.shape[1]], first.output[0])


def test_names_and_lengths() -> None:
    net = zoo.load("sort")
    lens = net.to_transformer_lens()
    assert lens.block("sorted") == 3 and lens.block("1.0 smaller") == 1 and lens.layout == net.layout
    for name in ("smaller", "unused", "other"):  # in two blocks; in none
        with pytest.raises(InputError):
            lens.block(name)
    ids = net.encode("dac")
    assert lens.tokens(ids) == ("BOS", "d", "a", "c")
    with pytest.raises(ArgumentError, match=r"lens\.tokens\(net\.encode"):
        lens.tokens()
    with pytest.raises(InputError):
        lens.tokens(ids.expand(2, 3))
    with pytest.raises(InputError, match="length"):
        lens(ids[None], torch.tensor([2]))
