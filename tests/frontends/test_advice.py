"""The entry points lead to each other, and what they advise works."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attnc
from attnc.errors import InputError, PrecisionError, UnsupportedError

CNN = nn.Sequential(
    nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 2)
)
CNN.eval()
MLP = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
BOX = attnc.Box(-1, 1, shape=(4,))


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    return transformers.BertModel(
        transformers.BertConfig(vocab_size=9, max_position_embeddings=8, **sizes)
    ).eval()


def test_compile_points_transformers_to_convert() -> None:
    with pytest.raises(UnsupportedError) as refusal:
        attnc.compile(bert(), domain=BOX, eps=1e-3)
    assert "attnc.convert_(" in refusal.value.advice and "attnc.Tokens(" in refusal.value.advice
    with pytest.raises(PrecisionError, match=r"attnc\.convert_\("):
        attnc.compile(bert(), domain=attnc.Tokens(9, 2), eps=1e-6)


class Wrapped(nn.Module):
    """A module around a transformer, with inputs of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([bert()])

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = self.parts[0](features["input_ids"]).last_hidden_state
        return output


@pytest.mark.parametrize("name", ["Wrapped", "SentenceTransformer"])
def test_convert_points_to_the_transformer_inside(name: str) -> None:
    model = type(name, (Wrapped,), {})().eval()
    with pytest.raises(InputError, match=r"attnc\.convert_\(model\.parts\[0\]") as refusal:
        attnc.convert_(model, approximation=1e-4)
    assert ("st[0].auto_model" in str(refusal.value)) == (name == "SentenceTransformer")
    assert attnc.convert_(model.parts[0], approximation=1e-4).proved


def test_convert_points_networks_to_compile() -> None:
    with pytest.raises(UnsupportedError) as refusal:
        attnc.convert_(MLP, approximation=1e-4)
    assert "attnc.compile(" in refusal.value.advice
    assert attnc.compile(MLP, domain=BOX, eps=1e-4).certificate.proved


@pytest.mark.parametrize("samples", [None, torch.zeros(1, 1, 8, 8)])
def test_a_cnn_gets_a_list_and_an_alternative_that_works(samples: Any) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        attnc.compile(CNN, domain=attnc.Box(0, 1, shape=(1, 8, 8)), eps=1e-2)
    with pytest.raises(InputError) as other:
        attnc.convert_(CNN, approximation=1e-4, samples=samples)
    for text in (refusal.value.advice, str(other.value)):
        for word in ("gelu", "LayerNorm", "attnc.compile(", "Box.from_data("):
            assert word in text
    features = CNN[:4](torch.rand(20, 1, 8, 8)).detach()
    net = attnc.compile(CNN[4:].eval(), domain=attnc.Box.from_data(features), eps=1e-3)
    assert net.certificate.proved and net.certificate.covers(features)


def test_a_recurrent_network_gets_the_list() -> None:
    with pytest.raises(UnsupportedError) as refusal:
        attnc.compile(nn.LSTM(4, 8, batch_first=True).eval(), domain=attnc.Box(0, 1, shape=(3, 4)), eps=1e-2)
    assert "gelu" in refusal.value.advice


def test_names_and_models_in_the_wrong_place() -> None:
    with pytest.raises(InputError, match=r"attnc\.head\('gelu'"):
        attnc.compile("gelu", domain=BOX, eps=1e-3)
    with pytest.raises(InputError, match=r"attnc\.compile\("):
        attnc.head(MLP, domain=(-1, 1), eps=1e-3)
    with pytest.raises(InputError, match="from_pretrained"):
        attnc.convert_("bert-base-uncased", approximation=1e-4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"attnc\.compile"):
        attnc.convert_(torch.sin, approximation=1e-4)  # type: ignore[arg-type]


def test_the_dtype_of_a_model_is_that_of_its_network() -> None:
    for dtype in (torch.float32, torch.float64):
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).to(dtype).eval()
        assert attnc.compile(model, domain=BOX, eps=1e-3).certificate.dtype == str(dtype).removeprefix(
            "torch."
        )


@pytest.mark.parametrize(
    ("x", "advice"),
    [
        (torch.ones(2, 4, dtype=torch.int64), "x.float()"),
        (torch.ones(2, 4, dtype=torch.float64), "dtype=torch.float64"),
        (np.ones((2, 4)), "torch.from_numpy(x).float()"),
        ([[0.0] * 4], "torch.tensor(x, dtype=torch.float32)"),
    ],
)
def test_inputs_of_another_kind_are_told_how_to_convert(x: Any, advice: str) -> None:
    net = attnc.compile(MLP, domain=BOX, eps=1e-3)
    with pytest.raises(InputError) as refusal:
        net(x)
    assert advice in str(refusal.value)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (nn.LSTM(4, 4).eval(), "attnc.compile("),
        (nn.Linear(4, 4).eval(), "attnc.compile("),
        (nn.Linear, "class Linear"),
        (MLP.state_dict(), "attnc.frontends.mlp("),
    ],
    ids=["lstm", "linear", "class", "state dict"],
)
def test_convert_names_the_right_entry_point(model: Any, advice: str) -> None:
    with pytest.raises(InputError) as refusal:
        attnc.convert_(model, approximation=1e-3)
    assert advice in str(refusal.value)


def test_embeddings_are_told_their_domain() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 2)).eval()
    with pytest.raises(UnsupportedError) as refusal:
        attnc.compile(model, domain=attnc.Box(0, 6, shape=(3,)), eps=1e-3)
    assert "domain=attnc.Tokens(vocabulary=7, length=3)" in refusal.value.advice


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_quantised_models_are_refused_alike() -> None:
    linear = torch.ao.nn.quantized.dynamic.Linear(4, 4)
    with pytest.raises(UnsupportedError) as refusal:
        attnc.convert_(nn.Sequential(nn.LayerNorm(4), linear).eval(), approximation=1e-3)
    assert [problem.where for problem in refusal.value.problems] == ["1 (Linear)"]
    assert "quantised" in refusal.value.problems[0].reason


def test_a_module_around_a_network_is_not_exported() -> None:
    pytest.importorskip("onnx")
    net = attnc.compile(MLP, domain=BOX, eps=1e-2)
    with pytest.raises(InputError) as refusal:
        attnc.export(nn.Sequential(net, nn.Softmax(-1)), "never.onnx")
    assert "get_submodule('0')" in str(refusal.value) and "convert_" not in str(refusal.value)


def test_purity_of_a_wrong_shape_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda self, record: logged.append(record))
    with pytest.raises(UnsupportedError):
        attnc.purity(MLP, torch.zeros(1, 7))
    assert not [record.getMessage() for record in logged if record.levelno > logging.INFO]
