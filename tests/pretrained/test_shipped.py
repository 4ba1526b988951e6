"""What attnc checks of a directory that transformers would run: its code, and that it runs what attnc builds."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import attnc
from attnc.errors import AttncError, CertificateError, FileError
from attnc.pretrained import from_pretrained
from attnc.pretrained.directory import read_report
from attnc.pretrained.shipped import MODELLING
from attnc.pretrained.verify import verify_directory
from attnc.records.files import CONVERTED, CONVERTED_INDEX
from tests.frontends.tiny_models import hf
from tests.pretrained.directories import Config, Saved, edit


@pytest.fixture(scope="module", autouse=True)
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the modules that transformers copies out of the home directory."""
    with pytest.MonkeyPatch.context() as patched:
        place = tmp_path_factory.mktemp("modules")
        patched.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(place))
        patched.setattr(sys, "path", [*sys.path])
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved("bert", "closed-form", tmp_path_factory.mktemp("saved"))


@pytest.fixture
def bert(saved: Saved, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved.where, tmp_path / "bert"))


def _code(where: Path) -> None:
    marker = where / "ran"
    with (where / MODELLING).open("a") as file:
        file.write(f"open({str(marker)!r}, 'w')\n")


def _spaces(where: Path) -> None:
    (where / MODELLING).write_text((where / MODELLING).read_text() + "\n")


def _elsewhere(where: Path) -> None:
    edit(where, lambda config: config["auto_map"].update(AutoModel="someone/else--modeling_attnc.AttncModel"))


def _another_class(where: Path) -> None:
    edit(where, lambda config: config["auto_map"].update(AutoModel="other.AttncModel"))


def _no_map(where: Path) -> None:
    edit(where, lambda config: config.pop("auto_map"))


def _other_file(where: Path) -> None:
    (where / "1_Pooling").mkdir()
    (where / "1_Pooling" / "other.py").write_text("")


def _tokenizer(where: Path) -> None:
    about = {"auto_map": {"AutoTokenizer": ["someone/else--tokens.Tokens", None]}}
    (where / "tokenizer_config.json").write_text(json.dumps(about))


def _module(where: Path) -> None:
    (where / "modules.json").write_text(json.dumps([{"type": "other.Module", "path": ""}]))


def _module_elsewhere(where: Path) -> None:
    """sentence-transformers would open another directory."""
    module = {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}
    (where / "modules.json").write_text(json.dumps([module]))


def _module_above(where: Path) -> None:
    module = {"type": "sentence_transformers.models.Pooling", "path": "../other"}
    (where / "modules.json").write_text(json.dumps([module]))


def _arguments(where: Path) -> None:
    about = {"model_kwargs": {"attn_implementation": "someone/kernel"}}
    (where / "sentence_bert_config.json").write_text(json.dumps(about))


def _second_model(where: Path) -> None:
    (where / "0_Transformer").mkdir()
    (where / "0_Transformer" / "config.json").write_text(json.dumps({"model_type": "bert"}))


def _inner_map(where: Path) -> None:
    about = {"image_processor": {"auto_map": {"AutoImageProcessor": "someone/else--x.X"}}}
    (where / "processor_config.json").write_text(json.dumps(about))


def _linked(where: Path) -> None:
    """Code behind a link to a directory, which no search for files finds."""
    other = where.parent / "elsewhere"
    other.mkdir()
    (other / "other.py").write_text("")
    (where / "1_Pooling").symlink_to(other, target_is_directory=True)


def _field(where: Path) -> None:
    edit(where, lambda config: config.update(hidden_act="relu"))


CODE = [
    _code, _spaces, _elsewhere, _another_class, _no_map, _other_file, _tokenizer, _module, _module_elsewhere, _module_above,
    _arguments, _second_model, _inner_map, _linked, _field,
]  # fmt: skip


@pytest.mark.parametrize("change", CODE)
def test_code_that_is_not_attncs(bert: Path, change: Callable[[Path], None]) -> None:
    change(bert)
    for read in (from_pretrained, verify_directory, attnc.verify):
        with pytest.raises(CertificateError):
            read(bert)
    assert read_report(bert)[1] is not None
    assert not (bert / "ran").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "tf_model.h5"])
def test_weights_that_transformers_would_load(bert: Path, name: str) -> None:
    shutil.copyfile(bert / CONVERTED, bert / name)
    for read in (from_pretrained, read_report, verify_directory):
        with pytest.raises(FileError, match=re.escape(name)):
            read(bert)
    (bert / MODELLING).unlink()
    with pytest.raises(CertificateError, match=MODELLING):
        from_pretrained(bert)


def _runs(config: Config, kind: str) -> Config:
    return next(e["runs"] for e in config["attnc"]["blocks"] if e["runs"]["kind"] == kind)


def _other_form(config: Config) -> None:
    form = _runs(config, "activation")["forms"][0]
    form[next(name for name, value in form.items() if isinstance(value, float))] *= 1.5


def _by_softmax(config: Config) -> None:
    runs = _runs(config, "activation")
    runs["forms"] = [None for _ in runs["forms"]]


def _other_place(config: Config) -> None:
    runs = _runs(config, "activation")
    runs["places"] = ["encoder.layer.1.intermediate.dense"]


def _second_place(config: Config) -> None:
    _runs(config, "activation")["places"].append("pooler.activation")


def _other_epsilon(config: Config) -> None:
    _runs(config, "norm")["epsilon"] *= 2


def _setting(config: Config) -> None:
    _runs(config, "norm")["settings"].append(["", "use_nested_tensor", True])


RUNS = [_other_form, _by_softmax, _other_place, _second_place, _other_epsilon, _setting]


@pytest.mark.parametrize("change", RUNS)
def test_what_the_file_would_run_is_what_attnc_runs(bert: Path, change: Callable[[Config], None]) -> None:
    edit(bert, change)
    with pytest.raises(CertificateError):
        from_pretrained(bert)


def _inner(where: Path, at: str) -> str:
    """Anchors that only one of the readers would take: a copy of the numbers under another name, others in their place."""
    name = "encoder.layer.0.intermediate.intermediate_act_fn"
    tensors = load_file(where / CONVERTED)
    own = {key: t for key, t in tensors.items() if key.startswith(f"{name}.")}
    changed = {key: t * 2 if t.is_floating_point() else t for key, t in own.items()}
    save_file(
        {**tensors, **changed, **{f"{at}.{key}": t.clone() for key, t in own.items()}}, where / CONVERTED
    )
    return name


def test_numbers_that_only_one_reader_takes(bert: Path) -> None:
    name = _inner(bert, "x")

    def change(config: Config) -> None:
        entry = next(e for e in config["attnc"]["blocks"] if e["name"] == name)
        entry["name"] = f"x.{name}"
        for role, (place, digest) in entry["tensors"].items():
            if place.startswith(name):
                entry["tensors"][role] = [f"x.{place}", digest]

    edit(bert, change)
    with pytest.raises(CertificateError, match="other numbers"):
        from_pretrained(bert)


def test_a_file_and_an_index(bert: Path) -> None:
    (bert / CONVERTED_INDEX).write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    with pytest.raises(FileError, match=CONVERTED_INDEX):
        from_pretrained(bert)


def _kernel(config: Config) -> None:
    config["original"]["sub"] = {"_attn_implementation": "someone/else"}


def _itself(config: Config) -> None:
    config["original"]["model_type"] = "attnc"


def _no_class(config: Config) -> None:
    config["original"]["architectures"] = ["AutoModel"]


@pytest.mark.parametrize("change", [_kernel, _itself, _no_class])
def test_a_config_that_names_code(bert: Path, change: Callable[[Config], None]) -> None:
    edit(bert, change)
    with pytest.raises(AttncError):
        from_pretrained(bert)
    with pytest.raises(ValueError):
        hf.AutoModel.from_pretrained(bert, trust_remote_code=True)


def test_files_outside_of_the_directory(saved: Saved, tmp_path: Path) -> None:
    saved.model.save_pretrained(tmp_path / "a" / "b", max_shard_size="20KB")
    index = json.loads((tmp_path / "a" / "b" / CONVERTED_INDEX).read_text())
    name, file = next(iter(index["weight_map"].items()))
    index["weight_map"][name] = f"../{file}"
    (tmp_path / "a" / "b" / CONVERTED_INDEX).write_text(json.dumps(index))
    (tmp_path / "a" / "b" / file).rename(tmp_path / "a" / file)
    with pytest.raises(FileError):
        from_pretrained(tmp_path / "a" / "b")
    with pytest.raises(ValueError, match="same directory"):
        hf.AutoModel.from_pretrained(tmp_path / "a" / "b", trust_remote_code=True)
