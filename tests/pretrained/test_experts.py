"""Directories of mixtures of experts: transformers stores the tensors of experts one by one, and merges them on loading."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from attnc.errors import CertificateError, FileError, UnsupportedError
from attnc.pretrained import convert_, from_pretrained, report_of
from attnc.pretrained.convert_directory import convert_directory
from attnc.pretrained.directory import load_model, map_model
from attnc.pretrained.inputs import calls, outputs
from attnc.pretrained.mapped import Merged, NotMappableError, in_memory
from attnc.pretrained.verify import verify_directory
from attnc.records.files import WEIGHTS, Directory
from attnc.records.merged import merged
from attnc.records.numbers import digest
from tests.frontends.tiny_models import GROUPED, hf

EPS = 1e-4
IDS = {"input_ids": torch.arange(6)[None]}
ONE_LAYER = {**GROUPED, "num_hidden_layers": 1, "num_local_experts": 3, "num_experts_per_tok": 2}
MODELS = {
    "mixtral": ("MixtralForCausalLM", "MixtralConfig"),
    "granite": ("GraniteMoeModel", "GraniteMoeConfig"),
}


def mixture(name: str = "mixtral") -> Any:
    torch.manual_seed(0)
    model, config = (getattr(hf, one) for one in MODELS[name])
    return model(config(**ONE_LAYER)).eval()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = Path(tmp_path_factory.mktemp("experts")) / "mixtral"
    mixture().save_pretrained(where, max_shard_size="4KB")
    assert len(Directory(where).names) > 1
    return where


@pytest.fixture(scope="module")
def converted(source: Path) -> Path:
    out = source.with_name("converted")
    convert_directory(source, out, EPS)
    return out


def same(one: Any, other: Any) -> bool:
    (a,), (b,) = (outputs(model, calls(IDS)) for model in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_experts_are_traced_to_the_tensors_that_are_stored(source: Path) -> None:
    mapped, loaded = map_model(source), load_model(source)
    (first,) = (at for name, at in mapped.sources.items() if name.endswith("experts.gate_up_proj"))
    assert isinstance(first, Merged) and len(first.pieces) == 2 and not first.stacked
    assert all(
        isinstance(piece, Merged) and piece.stacked and len(piece.pieces) == 3 for piece in first.pieces
    )
    held = {name: tensor.untyped_storage().nbytes() for name, tensor in mapped.model.named_parameters()}
    assert max(held.values()) < 4 * 64
    with in_memory(mapped.model, mapped.sources):
        for name, tensor in loaded.named_parameters():
            assert torch.equal(mapped.model.get_parameter(name), tensor)
    with in_memory(mapped.model, mapped.sources, release=True):
        assert same(mapped.model, loaded)
        assert not mapped.model.model.layers[0].mlp.experts.gate_up_proj.any()


def test_experts_that_are_not_called_are_not_taken_for_zeros(source: Path) -> None:
    mapped = map_model(source)
    with pytest.raises(NotMappableError), in_memory(mapped.model, mapped.sources, release=True):
        mapped.model.lm_head(torch.zeros(1, 16))


@pytest.mark.slow
def test_a_directory_of_experts_is_read_back_and_proved_again(source: Path, converted: Path) -> None:
    model = load_model(source)
    report = convert_(model, EPS, samples=IDS)
    read = from_pretrained(converted)
    assert report_of(read).certificate == report.certificate and same(read, model)
    verdict = verify_directory(converted)
    assert verdict and len(verdict.children) == 1


@pytest.mark.parametrize("name", ["mixtral", pytest.param("granite", marks=pytest.mark.slow)])
def test_a_live_model_of_experts_is_saved_and_read_back(name: str, tmp_path: Path) -> None:
    model = mixture(name)
    convert_(model, EPS, samples=IDS)
    model.save_pretrained(tmp_path / name)
    assert same(from_pretrained(tmp_path / name), model) and verify_directory(tmp_path / name)


def test_a_changed_expert_shows(converted: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(converted, tmp_path / "out"))
    name, file = next((name, file) for name, file in Directory(out).files.items() if "experts.2" in name)
    tensors = load_file(file.path)
    tensors[name][0, 0] += 1
    save_file(tensors, file.path, {"format": "pt"})
    with pytest.raises(CertificateError):
        from_pretrained(out)
    with pytest.raises(CertificateError):
        verify_directory(out)


def test_what_a_tensor_of_experts_can_be(tmp_path: Path) -> None:
    a, b, c = (torch.randn(2, 4, 3), torch.randn(2, 4, 3), torch.randn(2, 3, 4))
    tensors = {
        f"layers.1.e.{i}.{name}.weight": t[i].clone()
        for name, t in (("w1", a), ("w2", c), ("w3", b))
        for i in (0, 1)
    }
    other = {"layers.0.e.0.w1.weight": torch.ones(4, 3), "layers.1.norm.weight": torch.ones(3)}
    save_file({**tensors, **other}, tmp_path / WEIGHTS)
    stored = Directory(tmp_path)
    for found, role in ((torch.cat([a, b], 1), "first"), (torch.cat([b, a], 1), "up"), (c, "second")):
        known = digest(role, found.numpy())
        assert np.array_equal(stored.find("layers.1.mlp.experts.w", role, known), found.numpy())
    first = next(merged(stored.files, "layers.1.mlp.experts.w", "second"))
    assert np.array_equal(first, c.numpy())
    with pytest.raises(CertificateError):
        stored.find("layers.1.mlp.experts.w", "second", digest("first", c.numpy()))
    with pytest.raises(FileError):
        stored.find("layers.2.mlp.experts.w", "second", digest("second", c.numpy()))


def test_a_router_whose_loop_depends_on_the_numbers_is_refused() -> None:
    model = mixture()
    model.set_experts_implementation("eager")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedError):
        convert_(model, EPS, samples=IDS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(type(part).__module__.startswith("attnc") for part in model.modules())
