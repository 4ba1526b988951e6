"""ONNX files of transformers take an attention mask: padding does not change the results of tokens."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.errors import UnsupportedError
from attnc.exporters import onnx as onnx_files
from attnc.exporters.export import Export

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
transformers = pytest.importorskip("transformers", reason="the extra `transformers` is not installed")

SIZES = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50,
}  # fmt: skip
BOTH = {"input_ids": {0: "batch", 1: "tokens"}, "attention_mask": {0: "batch", 1: "tokens"}}


@pytest.fixture(scope="module")
def bert() -> Any:
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    attnc.convert_(model, approximation=1e-4, parts="all")
    return model


@pytest.fixture(scope="module")
def file(bert: Any, tmp_path_factory: pytest.TempPathFactory) -> Export:
    done: Export = attnc.export(bert, tmp_path_factory.mktemp("onnx") / "bert.onnx")
    return done


def run(path: Path, **given: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {name: x.numpy() for name, x in given.items()})[0])


def test_the_mask_is_an_input_of_any_size(file: Export) -> None:
    assert file.axes == BOTH and file.engine == "softmax" and not file.notes
    assert not onnx_files.Graph(onnx.load(file.path)).nonlinear()


@pytest.mark.parametrize("front", [False, True])
def test_padding_does_not_change_the_tokens(bert: Any, file: Export, front: bool) -> None:
    ids, lengths = torch.randint(1, 50, (3, 9)), (9, 4, 1)
    mask = torch.stack([(torch.arange(9) < n).long() for n in lengths])
    mask = mask.flip(1) if front else mask
    found = run(file.path, input_ids=ids, attention_mask=mask)
    with torch.no_grad():
        expected = bert(input_ids=ids, attention_mask=mask).last_hidden_state
    assert float((found - expected).abs().max()) <= file.allowed
    if not front:
        alone = run(file.path, input_ids=ids[1:2, :4], attention_mask=mask[1:2, :4])
        assert float((found[1, :4] - alone[0]).abs().max()) <= file.allowed


def test_the_file_is_compared_on_masks_with_padding(
    bert: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Tensor] = []
    forward = type(bert).forward

    def noted(self: Any, *args: Any, attention_mask: Any = None, **named: Any) -> Any:
        if type(attention_mask) is Tensor:  # not while it is traced
            seen.append(attention_mask)
        return forward(self, *args, attention_mask=attention_mask, **named)

    noted.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(bert), "forward", noted)
    attnc.export(bert, tmp_path / "a.onnx", engine="closed-form")
    assert any(0 in mask for mask in seen) and {1, 7, 64} <= {len(mask) for mask in seen}


def test_a_file_without_the_mask_says_so(bert: Any, tmp_path: Path) -> None:
    done = attnc.export(bert, tmp_path / "a.onnx", inputs={"input_ids": torch.ones(2, 5, dtype=torch.long)})
    about = {entry.key: entry.value for entry in onnx.load(done.path).metadata_props}
    assert set(done.axes) == {"input_ids"} and "attention_mask" in done.notes[0]
    assert json.loads(about["attnc.note"]) == done.notes[0]


@pytest.mark.slow
def test_a_mask_that_cannot_be_exported_is_left_out_with_a_warning(
    bert: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    traced = onnx_files._traced

    def refuse(subject: Any) -> Any:
        if "attention_mask" in subject.names:
            raise UnsupportedError("torch.export cannot trace this module", [])
        return traced(subject)

    monkeypatch.setattr(onnx_files, "_traced", refuse)
    with pytest.warns(UserWarning, match="attention_mask"):
        done = attnc.export(bert, tmp_path / "a.onnx")
    assert set(done.axes) == {"input_ids"} and "attention_mask" in done.notes[0]


@pytest.mark.slow
def test_models_without_a_mask(tmp_path: Path) -> None:
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = transformers.ViTConfig(image_size=8, patch_size=4, **sizes)
    vit = transformers.ViTModel(config).eval()
    attnc.convert_(vit, approximation=1e-4, parts="all")
    done = attnc.export(vit, tmp_path / "vit.onnx")
    assert set(done.axes) == {"pixel_values"} and not done.notes


def test_an_unconverted_part_is_named_before_the_proof(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(*given: Any) -> Any:
        raise AssertionError("the model was traced or verified first")

    monkeypatch.setattr(onnx_files, "_traced", late)
    monkeypatch.setattr(onnx_files, "verify", late)
    block = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    attnc.convert_(block, approximation=1e-3)
    with pytest.raises(UnsupportedError, match="parts='all'") as refused:
        attnc.export(block, tmp_path / "a.onnx")
    assert [problem.where for problem in refused.value.problems] == ["0"]
