"""`attnc convert` and `attnc show` on what it wrote."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attnc.errors import MissingExtraError
from attnc.frontends.transformers import example_call
from attnc.pretrained import ConversionReport, convert_, from_pretrained, report_of
from attnc.records.certificate import Certificate, Status
from attnc.records.fields import seal
from tests.frontends.tiny_models import hf, tiny

from .checks import flip, refused

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
    ran = run("convert", source, "-o", out, "--approximation", "1e-4")
    assert (ran.code, ran.err) == (0, "")
    report = report_of(from_pretrained(out))
    assert report.converted == 2 and report.approximation == 1e-4 and len(report.measured) == 2
    _, *rest = str(report).splitlines()  # time and memory are in the report of the run alone
    assert "\n".join(rest) in ran.out and str(report.certificate) in ran.out and "GiB" in ran.out
    assert (out / "vocab.txt").exists() and (out / "attnc_report.html").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bert", "out"]

    shown = run("show", out)
    assert (shown.code, shown.err) == (0, "")
    assert str(report) in shown.out and str(report.certificate) in shown.out


def test_all_parts(run: Any, source: Path, tmp_path: Path) -> None:
    given = ("--approximation", "1e-4", "--parts", "all", "--engine", "softmax")
    planned = run("convert", source, "--dry-run", "--json", *given)
    ran = run("convert", source, "-o", tmp_path / "out", *given)
    assert (ran.code, ran.err) == (0, "")
    model = from_pretrained(tmp_path / "out")
    report = report_of(model)
    assert len(report.norms) == 5 and len(planned.json["plan"]["others"]) == 6
    assert {part.facts["engine"] for part in report.certificate.children} == {"softmax"}


def test_a_directory_without_a_model(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(run("convert", ".", "-o", "out", "--json"), "FileError", str(tmp_path.resolve()))


def test_json(run: Any, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = run(
        "convert", source, "-o", out, "--only", "layer.1", "--engine", "softmax", "--no-check", "--json"
    )
    assert (ran.code, ran.err) == (0, "")
    record = ran.json
    report = ConversionReport.from_json(record.pop("report"))
    assert (record["status"], record["reason"]) == ("proved", None)
    assert (record["source"], record["files"]) == (str(source), {"output": str(out)})
    assert report == report_of(from_pretrained(out))
    assert [(b.name, b.facts["engine"]) for b in report.blocks] == [(ACTIVATION.replace("0", "1"), "softmax")]
    assert ACTIVATION in {skipped.name for skipped in report.skipped}
    assert (report.measured, report.samples) == ((), 0)

    shown = run("show", out, "--json").json
    assert ConversionReport.from_json(shown.pop("report")) == report
    assert shown == {"file": str(out), "kind": "model", "status": "proved", "reason": None}


@pytest.mark.parametrize("name", ["t5", "vit"])
def test_the_example_input_is_compared(run: Any, tmp_path: Path, name: str) -> None:
    tiny(name).save_pretrained(tmp_path / name)
    ran = run("convert", tmp_path / name, "-o", tmp_path / "out", "--json")
    assert ran.code == 0
    report = ConversionReport.from_json(ran.json["report"])
    assert report.samples == 1 and "last_hidden_state" in {one.output for one in report.measured}


def test_an_example_input_has_at_most_as_many_tokens_as_positions() -> None:
    call = example_call(tiny("bert", max_position_embeddings=5))
    assert call.kwargs["input_ids"].shape[1] == 5


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
    "missing": (shutil.rmtree, "FileError", "bert"),
    "no config": (lambda d: (d / "config.json").unlink(), "FileError", "config.json"),
    "not JSON": (lambda d: _replace(d, "{"), "FileError", "config.json"),
    "a list": (lambda d: _replace(d, "[]"), "FileError", "config.json"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "FileError", "model.safetensors"),
    "only bin": (_only_bin, "FileError", "pytorch_model.bin"),
    "cut off": (_cut, "FileError", "model.safetensors"),
    "empty": (lambda d: (d / "model.safetensors").write_bytes(b""), "FileError", "model.safetensors"),
    "unknown": (_config(architectures=["ZebraModel"]), "FileError", "ZebraModel"),
    "no model": (_config(architectures=["pipeline"]), "FileError", "pipeline"),
    "remote": (_config(auto_map={"AutoModel": "m.M"}), "FileError", "auto_map"),
    "kernel": (_config(attn_implementation="org/kernel"), "FileError", "attn_implementation"),
    "adapter": (lambda d: (d / "adapter_config.json").write_text("{}"), "FileError", "adapter_config.json"),
    "sizes": (_config(intermediate_size=25), "FileError", "(25,)"),
    "layers": (_config(num_hidden_layers=3), "FileError", "16"),
    "converted": (_config(attnc={}), "InputError", "bert"),
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
    refused(ran, "FileError", "config.json")


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (("--approximation", "-1"), "InputError", "--approximation -1"),
        (("--approximation", "nan"), "InputError", "--approximation nan"),
        (("--approximation", "1e-30"), "PrecisionError", "encoder.layer.0"),
        (("--engine", "sparse"), "InputError", "--engine sparse"),
        (("--design", "round"), "InputError", "--design round"),
        (("--parts", "norms"), "InputError", "--parts norms"),
        (("--only", "layer.9"), "InputError", "2"),
        (("--jobs", "0"), "InputError", "--jobs 0"),
    ],
)
def test_options_that_are_refused(
    run: Any, source: Path, tmp_path: Path, options: tuple[str, ...], kind: str, said: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    refused(run("convert", source, "-o", tmp_path / "out", "--json", *options), kind, said)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run(run: Any, source: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    text, machine = run("convert", source, "--dry-run"), run("convert", source, "--dry-run", "--json")
    assert (text.code, machine.code, text.err) == (0, 0, "") and ACTIVATION in text.out
    plan = machine.json["plan"]
    assert plan["blocks"][0]["name"] == ACTIVATION and plan["memory"] > 0
    assert [left["name"] for left in plan["skipped"]] == ["pooler.activation"]
    assert sorted(tmp_path.rglob("*")) == before


def test_options_that_are_no_numbers_or_are_missing(run: Any, source: Path, tmp_path: Path) -> None:
    assert run("convert", source, "-o", tmp_path / "out", "--approximation", "small").code == 2
    assert run("convert", source).code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["directory", "file", "link", "no parent"])
def test_out_is_looked_at_before_the_work(
    run: Any, source: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "attnc.pretrained.convert_directory.map_model", lambda _: pytest.fail("the work began")
    )
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
    refused(run("convert", source, "-o", out, "--json"), "FileError", str(out))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_without_blocks(run: Any, tmp_path: Path) -> None:
    layers = {"num_hidden_layers": 0, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    hf.BertModel(hf.BertConfig(vocab_size=5, **layers)).save_pretrained(tmp_path / "none")
    ran = run("convert", tmp_path / "none", "-o", tmp_path / "out", "--json")
    refused(ran, "UnsupportedError", "BertModel")
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

    monkeypatch.setattr("attnc.records.files.save", full)
    before = sorted(tmp_path.rglob("*"))
    ran = run("convert", source, "-o", tmp_path / "out", "--json")
    refused(ran, "FileError", "No space left on device")
    assert sorted(tmp_path.rglob("*")) == before


def test_show_notices_an_edited_head(run: Any, converted: Path) -> None:
    flip(converted / "attnc.safetensors", f"{ACTIVATION}.0.value")
    table, machine = run("show", converted), run("show", converted, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert f"{ACTIVATION}.0" in table.out and "rounding" not in table.out
    assert machine.json["status"] == "unknown" and f"{ACTIVATION}.0" in machine.json["reason"]


def test_show_of_bounds_that_rest_on_calibration(run: Any, converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    record = {key: value for key, value in config["attnc"].items() if key != "seal"}
    certificate = Certificate.from_json(record["report"]["certificate"])
    first, second = certificate.children
    measured = (replace(first, status=Status.MEASURED), second)
    record["report"]["certificate"] = replace(
        certificate, status=Status.MEASURED, children=measured
    ).to_json()
    config["attnc"] = {**record, "seal": seal(record)}
    _replace(converted, json.dumps(config))
    ran = run("show", converted, "--json")
    assert (ran.code, ran.json["status"]) == (1, "measured")


def test_show_of_other_directories(run: Any, source: Path, converted: Path, tmp_path: Path) -> None:
    refused(run("show", source, "--json"), "FileError", "config.json")
    refused(run("show", tmp_path, "--json"), "FileError", "config.json")
    (converted / "attnc.safetensors").unlink()
    refused(run("show", converted, "--json"), "FileError", "safetensors")
