"""Directories of converted models, checked from their files alone: what was converted is proved, what was edited is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnc.check.files import TensorFile, read_safetensors
from attnc.check.model import check_directory
from attnc.errors import CertificateError, FileError
from attnc.pretrained import convert_
from attnc.records.fields import round_up
from attnc.records.layers import digest
from tests.frontends.tiny_models import tiny
from tests.parts import reseal

# transposed maps; tensors that transformers renames; a gated block behind a norm with the gain 1 + weight
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"activation_function": "relu", "n_layer": 1},
    "vit": {"hidden_act": "relu", "num_hidden_layers": 1},
    "gemma": {"hidden_activation": "relu", "num_hidden_layers": 1},
}


@pytest.fixture(scope="module", params=MODELS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny(request.param, **MODELS[request.param])
    convert_(model, approximation=1e-2)
    where = tmp_path_factory.mktemp(request.param) / "model"
    model.save_pretrained(where)
    return where


def test_what_was_converted_is_proved_without_the_model(directory: Path) -> None:
    verdict = check_directory(directory)
    assert verdict.status == "proved", verdict.reason
    assert len(verdict.children) == 1 and verdict.cells > 20


def _record(where: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((where / "config.json").read_text())["attnc"]
    return found


def _edit(where: Path, change: Callable[[dict[str, Any]], object], sealed: bool = True) -> None:
    """Change the record, and seal it again."""
    config = json.loads((where / "config.json").read_text())
    change(config["attnc"])
    if sealed:
        reseal(config["attnc"])
    (where / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("role", ["first.weight", "second.weight", "norm.weight"])
def test_another_weight_is_noticed(directory: Path, role: str, tmp_path: Path) -> None:
    where = tmp_path / "model"
    shutil.copytree(directory, where)
    file = where / "model.safetensors"
    tensors = load_file(file)
    (block,) = _record(where)["blocks"]
    (stored,) = (n for n, t in tensors.items() if digest(role, t.numpy()) == block["tensors"][role][1])
    tensors[stored].view(-1)[0] += 1e-6
    save_file(tensors, file)
    with pytest.raises(CertificateError, match="weight"):
        check_directory(where)
    del tensors[stored]
    save_file(tensors, file)
    with pytest.raises((CertificateError, FileError)):
        check_directory(where)


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "approximation": lambda b: b.update(approximation=0.9 * b["approximation"]),
    "sum": lambda b: (
        b["facts"].update(roundings=dict.fromkeys(b["facts"]["roundings"], 0.0)),
        b.update(approximation=0.999 * b["approximation"], rounding=0.0),
    ),
    "products": lambda b: b["facts"].update(products=b["facts"]["products"] / 2),
    "domain": lambda b: b["holds_for"].update(shift=0.5),
    "status": lambda b: b.update(status="measured"),
    "function": lambda b: b["facts"].update(activation="gelu"),
    "dtype": lambda b: b.update(dtype="float32"),
    "head": lambda b: b["children"][0].update(bound=0.5),
}


@pytest.mark.parametrize("edit", EDITS)
def test_no_claim_that_was_edited_is_proved(directory: Path, edit: str, tmp_path: Path) -> None:
    where = tmp_path / "model"
    shutil.copytree(directory, where)

    def change(record: dict[str, Any]) -> None:
        model = record["report"]["certificate"]
        (block,) = model["children"]
        EDITS[edit](block)
        block["bound"] = round_up(block["approximation"] + block["rounding"])
        model |= {name: block[name] for name in ("approximation", "rounding", "bound", "status")}

    _edit(where, change)
    assert check_directory(where).status == "unknown"
    _edit(where, lambda record: record["report"]["certificate"]["children"][0].update(rounding=0.5))
    with pytest.raises(CertificateError):
        check_directory(where)
    shutil.copyfile(directory / "config.json", where / "config.json")
    _edit(where, lambda record: record["blocks"].clear())
    assert check_directory(where).status == "unknown"
    _edit(where, lambda record: record.update(engine="other"), sealed=False)
    with pytest.raises(CertificateError):
        check_directory(where)


def test_files_are_read_as_safetensors_reads_them(directory: Path, tmp_path: Path) -> None:
    file = directory / "model.safetensors"
    mine, theirs = TensorFile(file), load_file(file)
    assert set(mine.names) == set(theirs)
    assert all(torch.equal(torch.from_numpy(mine.read(name).copy()), theirs[name]) for name in theirs)
    half = {"x": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)}
    save_file(half, tmp_path / "half.safetensors", {"attnc": "{}"})
    about, tensors = read_safetensors(tmp_path / "half.safetensors")
    assert about == {} and torch.equal(torch.from_numpy(tensors["x"]), half["x"].float())


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_a_file_that_is_cut_off_is_refused(directory: Path, size: int, tmp_path: Path) -> None:
    data = (directory / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[:size])
    with pytest.raises(FileError):
        TensorFile(tmp_path / "cut.safetensors")


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        check_directory(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileError):
        check_directory(tmp_path)
