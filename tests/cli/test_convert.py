"""`attnc convert` and `attnc show` on what it wrote."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnc.cli import convert as command
from attnc.errors import MissingExtraError
from attnc.pretrained import ConversionReport, convert_, from_pretrained, report_of
from attnc.pretrained.report import COLUMNS
from tests.frontends.tiny_models import hf, tiny
from tests.parts import reseal

from .checks import flip, refused, words

ACTIVATION = "encoder.layer.0.intermediate.intermediate_act_fn"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT in float64, with a tokenizer's file."""
    where = tmp_path_factory.mktemp("model") / "bert"
    tiny("bert").save_pretrained(where)
    (where / "vocab.txt").write_text("[PAD]\n")
    return where


@pytest.fixture(scope="module")
def finished(original: Path) -> Path:
    """Converted once, not by the command."""
    out = original.parent / "converted"
    model = tiny("bert")
    convert_(model, approximation=1e-4)
    model.save_pretrained(out)
    return out


@pytest.fixture
def source(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(original, tmp_path / "bert"))


@pytest.fixture
def converted(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "converted"))


def test_a_table_and_a_directory(run: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = run("convert", source, "-o", out, "--eps", "1e-4")
    assert (ran.code, ran.err) == (0, "")
    text = words(ran.out)
    for word in (
        *COLUMNS,
        ACTIVATION,
        "every input",
        "each within 0.0001",
        "numbers added",
        "in no feed-forward block",
    ):
        assert word in text
    assert "last_hidden_state differs by at most" in text
    report = report_of(from_pretrained(out))
    assert report.converted == 2 and report.approximation == 1e-4 and len(report.measured) == 2
    assert (out / "vocab.txt").exists() and (out / "attnc_report.html").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bert", "out"]

    shown = run("show", out)
    assert (shown.code, shown.err) == (0, "")
    for word in (
        *COLUMNS,
        ACTIVATION,
        "measured on 1 sample",
        "read, not proved",
    ):
        assert word in words(shown.out)


def test_json(run: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = run(
        "convert", source, "-o", out, "--only", "layer.1", "--engine", "softmax", "--no-check", "--json"
    )
    assert (ran.code, ran.err) == (0, "")
    record = ran.json
    report = ConversionReport.from_json(record.pop("report"))
    assert record == {
        "status": "proved", "source": str(source), "check": "not run: --no-check", "files": {"output": str(out)},
    }  # fmt: skip
    assert report == report_of(from_pretrained(out))
    assert [(b.name, b.facts["engine"]) for b in report.blocks] == [(ACTIVATION.replace("0", "1"), "softmax")]
    assert {(s.name, s.reason) for s in report.skipped} > {(ACTIVATION, "left out by filter_fn")}
    assert (report.measured, report.samples) == ((), 0)

    shown = run("show", out, "--json").json
    assert ConversionReport.from_json(shown.pop("report")) == report
    assert shown == {
        "file": str(out),
        "kind": "model",
        "engine": "softmax",
        "certified": True,
        "reason": None,
        "heads": len(report.blocks[0].facts["anchors"]),
    }


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("bert", {"input_ids": (1, 32)}),
        ("gpt2", {"input_ids": (1, 32)}),
        ("t5", {"input_ids": (1, 32), "decoder_input_ids": (1, 32)}),
        ("vit", {"pixel_values": (1, 3, 8, 8)}),
        ("llama", {"input_ids": (1, 32)}),
    ],
)
def test_the_random_input(name: str, names: dict[str, tuple[int, ...]]) -> None:
    model = tiny(name)
    sample, note = command.random_input(model)
    assert {key: tuple(tensor.shape) for key, tensor in sample.items()} == names
    assert not note.startswith("not run")
    again, _ = command.random_input(model)
    assert all(torch.equal(again[key], tensor) for key, tensor in sample.items())


def test_a_random_input_has_at_most_as_many_tokens_as_positions() -> None:
    sample, _ = command.random_input(tiny("bert", max_position_embeddings=5))
    assert sample["input_ids"].shape == (1, 5)


def test_where_no_random_input_runs_the_table_says_so(
    run: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf.BertModel, "main_input_name", "waves")
    ran = run("convert", source, "-o", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    assert "not run" in ran.out and "waves" in ran.out


def _replace(where: Path, text: str) -> None:
    (where / "config.json").write_text(text)


def _config(**changes: Any) -> Change:
    def change(where: Path) -> None:
        _replace(where, json.dumps({**json.loads((where / "config.json").read_text()), **changes}))

    return change


def _only_bin(where: Path) -> None:
    (where / "model.safetensors").rename(where / "pytorch_model.bin")


def _cut(where: Path) -> None:
    data = (where / "model.safetensors").read_bytes()
    (where / "model.safetensors").write_bytes(data[: len(data) // 2])


DIRECTORIES: dict[str, tuple[Change, str, str]] = {
    "missing": (shutil.rmtree, "FileError", "bert is not a directory: give one that holds config.json"),
    "no config": (lambda d: (d / "config.json").unlink(), "FileError", "has no config.json"),
    "not JSON": (lambda d: _replace(d, "{"), "FileError", "config.json cannot be read"),
    "a list": (lambda d: _replace(d, "[]"), "FileError", "config.json is not a JSON object"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "FileError", "has no model.safetensors"),
    "only bin": (_only_bin, "FileError", "pytorch_model.bin is not read, as only safetensors are"),
    "cut off": (_cut, "FileError", "model.safetensors is missing, damaged or cut off"),
    "empty": (lambda d: (d / "model.safetensors").write_bytes(b""), "FileError", "damaged or cut off"),
    "unknown": (_config(architectures=["ZebraModel"]), "FileError", "is a ZebraModel (architectures"),
    "no model": (_config(architectures=["pipeline"]), "FileError", "is a pipeline (architectures"),
    "remote": (_config(auto_map={"AutoModel": "m.M"}), "FileError", "needs code of its own (auto_map"),
    "kernel": (_config(attn_implementation="org/kernel"), "FileError", "needs code from elsewhere"),
    "adapter": (lambda d: (d / "adapter_config.json").write_text("{}"), "FileError", "adapter of peft"),
    "sizes": (_config(intermediate_size=25), "FileError", "transformers cannot load"),
    "layers": (_config(num_hidden_layers=3), "FileError", "lacks 16 tensors of a BertModel"),
    "converted": (_config(attnc={}), "InputError", "already converted"),
}


@pytest.mark.parametrize("case", DIRECTORIES)
def test_directories_that_are_refused(run: Any, source: Path, tmp_path: Path, case: str) -> None:
    change, kind, said = DIRECTORIES[case]
    change(source)
    before = sorted(tmp_path.rglob("*"))
    refused(run("convert", source, "-o", tmp_path / "out", "--json"), kind, said)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_is_no_directory(run: Any, source: Path, tmp_path: Path) -> None:
    ran = run("convert", source / "config.json", "-o", tmp_path / "out", "--json")
    refused(ran, "FileError", "config.json is not a directory")


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (("--eps", "-1"), "InputError", "eps=-1"),
        (("--eps", "nan"), "InputError", "eps=nan"),
        (("--eps", "1e-30"), "PrecisionError", "is below what float64 can hold at encoder.layer.0"),
        (("--engine", "sparse"), "InputError", "engine='sparse': accepted are 'closed-form', 'softmax'"),
        (("--design", "round"), "InputError", "design='round': accepted are 'auto'"),
        (("--only", "layer.9"), "InputError", "2 blocks"),
    ],
)
def test_options_that_are_refused(
    run: Any, source: Path, tmp_path: Path, options: tuple[str, ...], kind: str, said: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    refused(run("convert", source, "-o", tmp_path / "out", "--json", *options), kind, said)
    assert sorted(tmp_path.rglob("*")) == before


def test_options_that_are_no_numbers_or_are_missing(run: Any, source: Path, tmp_path: Path) -> None:
    assert run("convert", source, "-o", tmp_path / "out", "--eps", "small").code == 2
    assert run("convert", source).code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["directory", "file", "link", "no parent"])
def test_out_is_looked_at_before_the_work(
    run: Any, source: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnc.pretrained.directory.load_model", lambda _: pytest.fail("the work began"))
    out = tmp_path / "out"
    if kind == "directory":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    elif kind == "link":
        out.symlink_to(tmp_path / "nowhere")
    else:
        out = tmp_path / "absent" / "out"
    before = sorted(tmp_path.rglob("*"))
    said = "exists and is left as it is" if kind != "no parent" else "absent does not exist; make it first"
    refused(run("convert", source, "-o", out, "--json"), "FileError", said)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_without_blocks(run: Any, tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 0, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    hf.BertModel(hf.BertConfig(vocab_size=5, **layers)).save_pretrained(tmp_path / "none")
    ran = run("convert", tmp_path / "none", "-o", tmp_path / "out", "--json")
    refused(ran, "UnsupportedError", "BertModel runs no feed-forward block")
    assert not (tmp_path / "out").exists()


def test_without_transformers(
    run: Any, source: Path, converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    ran = run("convert", source, "-o", tmp_path / "out", "--json")
    refused(ran, MissingExtraError.__name__, "pip install 'attnc[transformers]'")
    assert not (tmp_path / "out").exists()
    assert run("show", converted).code == 0


def test_a_disk_that_is_full(run: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf.BertModel, "save_pretrained", full)
    before = sorted(tmp_path.rglob("*"))
    ran = run("convert", source, "-o", tmp_path / "out", "--json")
    refused(ran, "FileError", "out: No space left on device; nothing was written")
    assert sorted(tmp_path.rglob("*")) == before


def test_show_notices_an_edited_head(run: Any, converted: Path) -> None:
    flip(converted / "model.safetensors", f"{ACTIVATION}.0.value")
    table, machine = run("show", converted), run("show", converted, "--json")
    assert (table.code, machine.code) == (1, 1)
    reason = f"1 head changed since certified: {ACTIVATION}.0"
    assert "not certified" in table.out and reason in words(table.out) and "rounding" not in table.out
    assert (machine.json["certified"], machine.json["reason"]) == (False, reason)


def test_show_of_bounds_that_rest_on_calibration(run: Any, converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    certificate = config["attnc"]["report"]["certificate"]
    certificate["status"] = certificate["children"][0]["status"] = "measured"
    reseal(config["attnc"])
    _replace(converted, json.dumps(config))
    ran = run("show", converted)
    assert ran.code == 1
    assert "not certified" in words(ran.out)


def test_show_of_other_directories(run: Any, source: Path, converted: Path, tmp_path: Path) -> None:
    refused(run("show", source, "--json"), "FileError", "holds no model that attnc converted")
    refused(run("show", tmp_path, "--json"), "FileError", "config.json")
    (converted / "model.safetensors").unlink()
    refused(run("show", converted, "--json"), "FileError", "has no model.safetensors")
