"""Whole transformers: compiled, proved, verified, saved, loaded; softmax is all that is not linear."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.check.literal import encoding_error
from attnc.domain import Tokens
from tests.frontends.tiny_models import hf

TEXT = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 12,
}


def bert() -> nn.Module:
    model: nn.Module = hf.BertModel(hf.BertConfig(**TEXT))
    return model


def llama() -> nn.Module:
    model: nn.Module = hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, num_key_value_heads=1))
    return model


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


# the last number: what a model that casts to float32 inside differs from its program by
@pytest.mark.parametrize(("made", "own"), [(bert, 0.0), (llama, 1e-6), (encoder, 0.0)])
def test_a_whole_transformer(made: object, own: float, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model: nn.Module = made().eval().double()  # type: ignore[operator]
    domain: attnc.Box = attnc.Box(-1, 1, shape=(3, 8)) if made is encoder else Tokens(12, 3)
    net = attnc.compile(model, domain=domain, approximation=1e-6)
    x = torch.rand(4, 3, 8, dtype=torch.float64) * 2 - 1 if made is encoder else torch.randint(0, 12, (4, 3))
    with torch.no_grad():
        result = model(x)
        wanted = result if isinstance(result, Tensor) else result[0]
        assert (net(x) - wanted).abs().max() <= net.certificate.bound + own
        assert (net(x) - wanted).abs().max() <= 1e-5  # far below the bound of BERT
    assert net.certificate.status == "proved"
    assert attnc.purity(net, x) == ()
    net.save(tmp_path / "net.safetensors")
    again = attnc.load(tmp_path / "net.safetensors")
    assert torch.equal(again(x), net(x))
    assert attnc.verify(again).status == "proved"
    literal = net.as_self_attention()
    with torch.no_grad():
        assert (literal(x) - net(x)).abs().max() <= 256 * torch.finfo(torch.float64).eps * net(x).abs().max()
    if made is llama:  # rotary angles, grouped keys, a gated block
        assert literal.source is not None and encoding_error(literal.record(), literal.source) == 0
