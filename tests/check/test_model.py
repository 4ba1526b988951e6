"""Directories of converted models, checked from their files alone: what was converted is proved, what was edited is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import attnc
from attnc.check import model as checker
from attnc.check.model import Block, Proofs, check_directory, read_parts, read_record
from attnc.domain import Box, Normed
from attnc.errors import CertificateError, FileError, MissingExtraError
from attnc.pretrained import convert_
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import round_up, seal
from attnc.records.files import TensorFile, read_file
from attnc.records.numbers import digest
from tests.frontends.tiny_models import tiny
from tests.sampled import only

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


def test_numbers_that_were_proved_are_not_proved_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files and the model of a directory have the same numbers. Others are another block, whatever is known."""
    calls, plain, proofs = [], checker._check_engine, Proofs()
    monkeypatch.setattr(checker, "_check_engine", lambda *args: calls.append(1) or plain(*args))
    assert check_directory(directory, proofs) and (once := len(calls))
    assert check_directory(directory, proofs) and len(calls) == once
    (_, block), *_ = read_parts(directory, *read_record(directory))
    assert isinstance(block, Block)
    W, b = block.program.steps[0].weight, block.program.steps[-1].bias
    first = replace(block.program.steps[0], weight=W + 1e-3)
    last = replace(block.program.steps[-1], bias=b + 1e-9)
    keys = {checker._key(block)}
    for step, at in ((first, 0), (last, -1)):
        steps = list(block.program.steps)
        steps[at] = step
        keys.add(checker._key(replace(block, program=replace(block.program, steps=tuple(steps)))))
    head = replace(block.heads[0][1], output=block.heads[0][1].output * 2)
    keys.add(checker._key(replace(block, heads=[(block.heads[0][0], head), *block.heads[1:]])))
    keys.add(checker._key(replace(block, claim=replace(block.claim, name="another"))))
    assert len(keys) == 5


def _record(where: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((where / "config.json").read_text())["attnc"]
    return found


def _edit(where: Path, change: Callable[[dict[str, Any]], object], sealed: bool = True) -> None:
    """Change the record, and seal it again."""
    config = json.loads((where / "config.json").read_text())
    change(config["attnc"])
    if sealed:
        config["attnc"]["seal"] = seal({k: v for k, v in config["attnc"].items() if k != "seal"})
    (where / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("role", ["first.weight", "second.weight", "norm.weight"])
def test_another_weight_is_noticed(directory: Path, role: str, tmp_path: Path) -> None:
    where = tmp_path / "model"
    shutil.copytree(directory, where)
    file = where / "attnc.safetensors"
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


def _facts(claim: Certificate, **facts: Any) -> Certificate:
    return replace(claim, facts={**claim.facts, **facts})


def _terms(claim: Certificate, approximation: float, rounding: float) -> Certificate:
    bound = round_up(approximation + rounding)
    return replace(claim, approximation=approximation, rounding=rounding, bound=bound)


EDITS: dict[str, Callable[[Certificate], Certificate]] = {
    "approximation": lambda c: _terms(c, 0.9 * c.approximation, c.rounding),
    "sum": lambda c: _facts(
        _terms(c, 0.999 * c.approximation, 0.0), roundings=dict.fromkeys(c.facts["roundings"], 0.0)
    ),
    "bound": lambda c: replace(c, bound=0.9 * c.bound),
    "rounding of no engine": lambda c: _terms(c, c.approximation, 2 * c.rounding),
    "products": lambda c: _facts(c, products=c.facts["products"] / 2),
    "interval": lambda c: _facts(c, interval=[x / 2 for x in c.facts["interval"]]),
    "interval of strings": lambda c: _facts(c, interval=["a", "b"]),
    "status": lambda c: replace(c, status=Status.MEASURED),
    "domain": lambda c: replace(
        c, holds_for=Normed(c.holds_for.centred, 2 * c.holds_for.gain, c.holds_for.shift)
    ),
    "box": lambda c: replace(c, holds_for=Box(-1, 1, shape=c.holds_for.shape)),
    "function": lambda c: _facts(c, activation="gelu"),
    "dtype": lambda c: replace(c, dtype="float32"),
    "head": lambda c: replace(
        c, children=(replace(c.children[0], bound=0.5 * c.children[0].bound), *c.children[1:])
    ),
}


FIELDS = ("status", "dtype", "approximation", "rounding", "bound")  # of a model, which has those of its block


@pytest.mark.parametrize(
    ("directory", "edit"),
    only([("gemma", edit) for edit in EDITS], product(MODELS, EDITS)),
    indirect=["directory"],
)
def test_no_claim_that_was_edited_is_proved(directory: Path, edit: str, tmp_path: Path) -> None:
    where = tmp_path / "model"
    shutil.copytree(directory, where)

    def change(record: dict[str, Any]) -> None:
        model = Certificate.from_json(record["report"]["certificate"])
        blocks = tuple(map(EDITS[edit], model.children))
        terms = {name: getattr(blocks[0], name) for name in FIELDS}
        made = replace(model, children=blocks, **terms)
        record["report"]["certificate"] = made.to_json()

    _edit(where, change)
    assert check_directory(where).status in ("unknown", "refuted")


@pytest.mark.parametrize("field", [{"dtype": "float32"}, {"holds_for": Box(-1, 1, shape=(1,))}])
def test_no_field_of_the_model_that_was_edited_is_proved(
    directory: Path, field: dict[str, Any], tmp_path: Path
) -> None:
    where = tmp_path / "model"
    shutil.copytree(directory, where)

    def change(record: dict[str, Any]) -> None:
        model = Certificate.from_json(record["report"]["certificate"])
        record["report"]["certificate"] = replace(model, **field).to_json()

    _edit(where, change)
    with pytest.raises(CertificateError):
        check_directory(where)


def test_without_transformers_the_verdict_is_unknown(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files do not say what the model runs: here an activation that config.json names, and no tensor shows."""
    where = tmp_path / "model"
    shutil.copytree(directory, where)
    config = json.loads((where / "config.json").read_text())
    read = {name: "gelu" if value == "relu" else value for name, value in config["original"].items()}
    other = {**config, "original": read}
    (where / "config.json").write_text(json.dumps(other))
    assert other != config

    def absent(path: Path) -> Any:
        raise MissingExtraError("no transformers")

    assert check_directory(where)
    monkeypatch.setattr("attnc.pretrained.verify.map_converted", absent)
    assert attnc.verify(where).status == "unknown"


def test_a_second_claim_of_the_same_name_is_not_passed_over(directory: Path, tmp_path: Path) -> None:
    where = tmp_path / "model"
    shutil.copytree(directory, where)

    def change(record: dict[str, Any]) -> None:
        model = Certificate.from_json(record["report"]["certificate"])
        (claim,) = model.children
        smaller = _terms(claim, 0.5 * claim.approximation, claim.rounding)
        record["report"]["certificate"] = replace(model, children=(claim, smaller)).to_json()

    _edit(where, change)
    with pytest.raises(CertificateError):
        check_directory(where)


def test_a_record_that_was_edited_is_not_read(directory: Path, tmp_path: Path) -> None:
    where = tmp_path / "model"
    shutil.copytree(directory, where)
    _edit(where, lambda record: record["report"]["certificate"].update(bound=1e-9))
    with pytest.raises(CertificateError):
        check_directory(where)
    shutil.copyfile(directory / "config.json", where / "config.json")
    _edit(where, lambda record: record["blocks"].clear())
    with pytest.raises(CertificateError):
        check_directory(where)
    shutil.copyfile(directory / "config.json", where / "config.json")
    _edit(where, lambda record: record.update(engine="other"), sealed=False)
    with pytest.raises(CertificateError):
        check_directory(where)


def test_files_are_read_as_safetensors_reads_them(directory: Path, tmp_path: Path) -> None:
    file = directory / "attnc.safetensors"
    mine, theirs = TensorFile(file), load_file(file)
    assert set(mine.names) == set(theirs)
    assert all(torch.equal(torch.from_numpy(mine.read(name).copy()), theirs[name]) for name in theirs)
    half = {"x": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)}
    save_file(half, tmp_path / "half.safetensors", {"attnc": "{}"})
    about, tensors = read_file(tmp_path / "half.safetensors")
    assert about == {} and torch.equal(torch.from_numpy(tensors["x"]), half["x"].float())


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_a_file_that_is_cut_off_is_refused(directory: Path, size: int, tmp_path: Path) -> None:
    data = (directory / "attnc.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[:size])
    with pytest.raises(FileError):
        TensorFile(tmp_path / "cut.safetensors")


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        check_directory(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileError):
        check_directory(tmp_path)
