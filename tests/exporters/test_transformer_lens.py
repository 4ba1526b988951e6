"""TransformerLens models of literal forms: results, patterns and streams are those of the literal form, and hooks work."""

from __future__ import annotations

import copy
import warnings
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import attnc
from attnc.errors import CertificateError, DomainWarning, ExportError, InputError
from attnc.exporters import transformer_lens as exporter
from attnc.exporters.transformer_lens import LensModel
from tests.exporters.test_attention_only import CASES, case

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformer_lens", reason="the extra `transformer-lens` is not installed")

PATTERN = "blocks.0.attn.hook_pattern"


@cache
def lens(name: str) -> LensModel:
    found: LensModel = case(name)[0].to_transformer_lens()
    return found


SLOW = ("tiny transformer", "rotary")  # attnc proves first that the matrices are those of the source


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_results_patterns_and_streams(name: str) -> None:
    (literal, inputs), model = case(name), lens(name)
    assert 0 <= model.difference <= model.allowed < 1e-9 and model.difference <= 1e-12
    outputs, cache = model.run_with_cache(*inputs)
    assert outputs.shape == literal(*inputs).shape and outputs.dtype == torch.float64
    assert (outputs - literal(*inputs)).abs().max() <= 1e-12
    assert torch.equal(model(*inputs), outputs)
    weights, sequences = literal.attention(*inputs), literal.sequences(*inputs)
    for i, step in enumerate(model.steps):
        pattern, stream = cache["pattern", i], cache["resid_post", i]
        assert pattern.dtype == stream.dtype == torch.float64 and model.block(step) == i
        if step in weights:
            own = weights[step].reshape(-1, *weights[step].shape[-3:])
            heads, t = own.shape[1], own.shape[-1]
            assert (pattern[:, :heads, :t, :t] - own).abs().max() <= 1e-11
            assert model.heads[i][:heads] == literal.step(step).heads  # type: ignore[union-attr]
            assert set(model.heads[i][heads:]) <= {"unused"}
        if literal.residual:
            own = sequences[step].reshape(-1, *sequences[step].shape[-2:])
            n, d = own.shape[1:]
            assert (stream[:, :n, :d] - own).abs().max() <= 1e-11
    names = model.tokens(*inputs)
    assert len(names) == stream.shape[1] and len(set(names)) == len(names)
    assert len(model.coordinates) == stream.shape[2]


def test_names_of_a_learner() -> None:
    model, (_, inputs) = lens("learner"), case("learner")
    names = model.tokens(*inputs)
    assert [names.index(name) for name in ("example 0", "twin 0", "query 0", "weight")] == [0, 5, 10, 12]
    assert model.outputs == ("g",) and model.heads[0][0] == "write u: head 0"
    with pytest.raises(InputError):
        model.tokens()
    with pytest.raises(InputError):
        model.block("step 9: A")


def test_an_ablation_is_that_of_the_literal_form() -> None:
    (literal, (x,)), model = case("head"), lens("head")
    anchor = model.tokens().index("anchor 1")

    def ablate(pattern: Tensor, hook: Any = None) -> Tensor:
        pattern = pattern.clone()
        pattern[..., anchor] = 0.0
        return pattern

    found = model.run_with_hooks(x, fwd_hooks=[(PATTERN, ablate)])
    handle = literal.layers[0].pattern.register_forward_hook(lambda module, scores, pattern: ablate(pattern))
    expected = literal(x)
    handle.remove()
    assert (found - expected).abs().max() <= 1e-12
    assert (found - torch.tanh(x)).abs().max() > 1e3 * (model(x) - torch.tanh(x)).abs().max()
    assert torch.equal(model(x), model.run_with_hooks(x, fwd_hooks=[]))


def test_the_bridge_is_attention_alone() -> None:
    model = lens("two-layer, heads")
    cfg, bridge = model.bridge.cfg, model.bridge
    assert cfg.attn_only and cfg.normalization_type is None and cfg.attention_dir == "bidirectional"
    assert cfg.dtype == torch.float64 and not bridge.training
    root = cfg.d_head**0.5
    assert root == int(root) and int(root) & (int(root) - 1) == 0
    for parameter in bridge.parameters():
        assert parameter.dtype == torch.float64 and not parameter.requires_grad
    state = bridge.state_dict()
    for name in ("embed.weight", "pos_embed.weight", "unembed.bias", "blocks.0.attn.q.bias"):
        assert not state[name].any()
    assert torch.equal(bridge(model.embed(*case("two-layer, heads")[1])), model.run_with_cache(
        *case("two-layer, heads")[1])[1]["hook_unembed"])  # fmt: skip
    assert bridge.W_U.T.nonzero()[:, 1].tolist() == list(range(len(model.coordinates)))[model.output]


def test_gradients_of_inputs_pass() -> None:
    model, x = lens("head"), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None and (x.grad - (1 - torch.tanh(x) ** 2)).abs().max() <= 1e-2


def test_float32_and_the_random_numbers_of_the_user() -> None:
    literal = attnc.head("tanh", domain=(-8, 8), eps=1e-5, dtype=torch.float32).as_self_attention(2)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    model = literal.to_transformer_lens()
    assert torch.equal(torch.get_rng_state(), before)
    x = torch.rand(50, 2) * 16 - 8
    assert model(x).dtype == torch.float32 and (model(x) - literal(x)).abs().max() <= model.allowed < 1e-4


def test_n_ctx() -> None:
    literal, _ = case("learner")
    model = literal.to_transformer_lens(n_ctx=40)
    x, query = torch.zeros(20, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(InputError, match="n_ctx"):
        model(x, x[:, 0], query)
    for n_ctx in (3, 0, 2.5):
        with pytest.raises(InputError):
            literal.to_transformer_lens(n_ctx=n_ctx)  # type: ignore[arg-type]


def test_the_domain_is_that_of_the_literal_form() -> None:
    literal = copy.deepcopy(case("head")[0])
    model, far = literal.to_transformer_lens(), torch.full((3,), 9.0, dtype=torch.float64)
    with pytest.warns(DomainWarning):
        model(far)
    literal.strict = True
    with pytest.raises(InputError):
        model(far)


def test_what_was_changed_or_is_half_precision_is_refused() -> None:
    changed = copy.deepcopy(case("head")[0])
    changed.layers[0].W_V.data[0, 0, 0] += 1.0
    with pytest.raises(CertificateError):
        changed.to_transformer_lens()
    with pytest.raises(InputError):
        copy.deepcopy(case("head")[0]).half().to_transformer_lens()


@pytest.mark.parametrize("letter", ["W_Q", "W_K", "W_V", "W_O"])
def test_other_weights_are_refused(monkeypatch: pytest.MonkeyPatch, letter: str) -> None:
    """A relative error of 1e-9 in one matrix is not rounding."""
    weights = exporter._weights

    def wrong(*given: Any) -> Any:
        found = weights(*given)
        return found | {letter: found[letter] * (1 + 1e-9)}

    monkeypatch.setattr(exporter, "_weights", wrong)
    with pytest.raises(ExportError):
        case("head")[0].to_transformer_lens()


def test_an_unknown_layout_of_the_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_LINEAR", dict.fromkeys(exporter._LINEAR, "qkv"))
    with pytest.raises(ExportError):
        case("head")[0].to_transformer_lens()
