"""Models that are tied, routed or quantised: converted with what is shared kept, or refused with an error that says why."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import attnc
from attnc.domain import Normed
from attnc.errors import AttncError, FileError, UnsupportedError
from attnc.pretrained import convert_, from_pretrained
from attnc.pretrained import convert_directory as driver
from attnc.pretrained.convert_directory import convert_directory
from attnc.pretrained.verify import verify_directory
from attnc.pretrained.work import Work
from attnc.records.files import INDEX, WEIGHTS, Directory, read_json
from tests.frontends.tiny_models import GROUPED, TEXT, hf, tiny

EPS = 1e-4
IDS = torch.arange(6)[None]


def one_layer(**options: Any) -> Any:
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**{**GROUPED, "num_hidden_layers": 1, **options})).eval()


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    model = one_layer(tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "tied", max_shard_size="4KB")
    assert "lm_head.weight" not in read_json(tmp_path / "tied" / INDEX)["weight_map"]
    convert_directory(tmp_path / "tied", tmp_path / "out", EPS)
    read = from_pretrained(tmp_path / "out")
    assert read.lm_head.weight is read.model.embed_tokens.weight and verify_directory(tmp_path / "out")
    convert_(model, EPS)
    assert torch.equal(read(IDS).logits, model(IDS).logits)


def test_a_shared_layer_is_one_block_of_a_directory(tmp_path: Path) -> None:
    config = hf.AlbertConfig(**{**TEXT, "num_hidden_layers": 3}, embedding_size=8)
    model = hf.AlbertModel(config).eval()
    model.save_pretrained(tmp_path / "albert")
    assert convert_directory(tmp_path / "albert", tmp_path / "out", EPS).converted == 1
    assert len(verify_directory(tmp_path / "out").children) == 1
    convert_(model, EPS)
    again = from_pretrained(tmp_path / "out")
    assert torch.equal(again(IDS).last_hidden_state, model(IDS).last_hidden_state)


def test_blocks_with_tied_weights_have_a_bound_each() -> None:
    model = one_layer(num_hidden_layers=2)
    first, second = (layer.mlp for layer in model.model.layers)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(second, name).weight = getattr(first, name).weight
    report = convert_(model, EPS)
    assert report.converted == 2 and attnc.verify(model)
    assert model.model.layers[1].mlp.up_proj.weight is model.model.layers[0].mlp.up_proj.weight


class Routed(nn.Module):
    """Two experts behind one norm, and a router."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.norm, self.gate = how, nn.LayerNorm(8), nn.Linear(8, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        scores = self.gate(y)
        if self.how == "soft":
            weights = scores.softmax(-1)
            return x + sum(weights[..., i : i + 1] * expert(y) for i, expert in enumerate(self.experts))
        chosen = scores.argmax(-1, keepdim=True)
        if self.how == "all, then one":
            return x + torch.where(chosen == 0, self.experts[0](y), self.experts[1](y))
        if self.how == "by the first token":
            return x + self.experts[int(chosen[0])](y)
        out = torch.zeros_like(y)
        for i, expert in enumerate(self.experts):
            mine = chosen[:, 0] == i
            out[mine] = expert(y[mine])
        return x + out


@pytest.mark.parametrize("how", ["soft", "all, then one"])
def test_a_router_is_kept_and_every_expert_has_a_bound(how: str) -> None:
    model, x = Routed(how).eval(), 3 * torch.randn(64, 8)
    before = model(x)
    report = convert_(model, EPS, samples=x)
    assert report.converted == 2 and report.proved
    assert all(isinstance(block.holds_for, Normed) for block in report.blocks)
    assert float((model(x) - before).abs().max()) <= report.certificate.bound


@pytest.mark.parametrize("how", ["some tokens", "by the first token"])
def test_a_router_that_depends_on_the_numbers_is_refused(how: str) -> None:
    model, x = Routed(how).eval(), torch.randn(5, 8)
    before = model(x)
    with pytest.raises(UnsupportedError):
        convert_(model, EPS, samples=x)
    assert torch.equal(model(x), before) and isinstance(model.experts[0][1], nn.ReLU)


def test_a_quantised_model_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        model = torch.ao.quantization.quantize_dynamic(tiny("bert").float(), {nn.Linear}, torch.qint8).eval()
    with pytest.raises(AttncError):
        convert_(model, EPS)


def _quantised(where: Path, dtype: torch.dtype) -> None:
    tensors = load_file(where / WEIGHTS)
    name = next(name for name in tensors if name.endswith("mlp.up_proj.weight"))
    save_file({**tensors, name: (8 * tensors[name]).to(dtype)}, where / WEIGHTS, {"format": "pt"})


def _declared(where: Path) -> None:
    config = read_json(where / "config.json")
    (where / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "any"}}))


@pytest.mark.parametrize(
    "change",
    [
        _declared,
        lambda where: _quantised(where, torch.int8),
        lambda where: _quantised(where, torch.float8_e4m3fn),
    ],
)
def test_a_quantised_directory_is_refused(change: Callable[[Path], None], tmp_path: Path) -> None:
    one_layer().save_pretrained(tmp_path / "llama")
    change(tmp_path / "llama")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileError, match="quantised"):
        convert_directory(tmp_path / "llama", tmp_path / "out", EPS)
    assert sorted(tmp_path.rglob("*")) == before


def test_calibration_sees_the_stored_numbers_and_is_part_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {**GROUPED, "num_hidden_layers": 1}
    torch.manual_seed(0)
    model = hf.Olmo2ForCausalLM(hf.Olmo2Config(**sizes)).eval()
    model.save_pretrained(tmp_path / "olmo")
    config = {"calibration": [{"input_ids": IDS}]}
    expected = convert_(model, EPS, config).blocks[0].holds_for
    with monkeypatch.context() as patched:
        patched.setattr(Work, "write_weights", _stop)
        with pytest.raises(KeyboardInterrupt):
            convert_directory(tmp_path / "olmo", tmp_path / "out", EPS, config)
    other = {"calibration": [{"input_ids": IDS.flip(1) + 9}]}
    with pytest.raises(FileError, match="unfinished"):
        convert_directory(tmp_path / "olmo", tmp_path / "out", EPS, other)
    report = convert_directory(tmp_path / "olmo", tmp_path / "out", EPS, config)
    assert report.blocks[0].holds_for == expected and report.blocks[0].status == "measured"


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_lost_worker_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_layer(num_hidden_layers=2).save_pretrained(tmp_path / "llama")
    convert = driver.convert_alone

    def lost(task: Any) -> Any:
        if "1" in task.site.name:
            raise MemoryError
        return convert(task)

    with monkeypatch.context() as patched:
        patched.setattr(driver, "convert_alone", lost)
        with pytest.raises(FileError, match="resume"):
            convert_directory(tmp_path / "llama", tmp_path / "out", EPS)
    assert not (tmp_path / "out").exists()
    assert convert_directory(tmp_path / "llama", tmp_path / "out", EPS).converted == 2
    assert len(Directory(tmp_path / "out").names) == 2
