"""`attnc head`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnc

TANH = ("head", "tanh", "--domain", -8, 8, "--eps", 1e-5)


def test_the_table_says_what_was_proved(run: Any, tanh: attnc.Head) -> None:
    ran = run(*TANH)
    assert ran.code == 0
    assert ran.err == ""
    for fact in ("tanh", tanh.design, f"anchors:     {tanh.key.shape[1]}\n", str(tanh.certificate)):
        assert fact in ran.out


def test_json_is_one_object_with_the_certificate(run: Any, tanh: attnc.Head) -> None:
    ran = run(*TANH, "--json")
    assert ran.code == 0
    record = ran.json
    assert (record["kind"], record["status"], record["reason"]) == ("head", "proved", None)
    assert (record["heads"], record["anchors"]) == (1, tanh.key.shape[1])
    certificate = attnc.Certificate.from_json(record["certificate"])
    assert certificate == tanh.certificate and certificate.bound <= 1e-5
    assert record["files"] == {} and record["seconds"] >= 0


def test_every_option_reaches_the_compiler(
    run: Any, monkeypatch: pytest.MonkeyPatch, tanh: attnc.Head
) -> None:
    asked: dict[str, Any] = {}

    def spy(name: str, **wishes: Any) -> attnc.Head:
        asked.update(wishes, name=name)
        return tanh

    monkeypatch.setattr(attnc, "head", spy)
    options = ("--anchors", 12, "--design", "smooth", "--heads", 3, "--dtype", "float64")
    assert run("head", "clip(-25,25)", "--domain", "-80.5", "-1e-3", *options).code == 0
    del asked["progress"]
    assert asked == {
        "name": "clip(-25,25)", "domain": (-80.5, -1e-3), "eps": None, "anchors": 12, "design": "smooth",
        "heads": 3, "dtype": torch.float64,
    }  # fmt: skip


def test_files_are_written_and_named(run: Any, tmp_path: Path) -> None:
    save, plot = tmp_path / "tanh.safetensors", tmp_path / "tanh.png"
    ran = run(*TANH, "--output", save, "--plot", plot, "--json")
    assert ran.code == 0
    assert ran.json["files"] == {"output": str(save), "plot": str(plot)}
    assert attnc.verify(save).status == "proved"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tanh.png", "tanh.safetensors"]


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_an_existing_file_is_left_untouched(run: Any, tmp_path: Path, option: str) -> None:
    path = tmp_path / "mine.png"
    path.write_bytes(b"mine")
    ran = run(*TANH, option, path)
    assert ran.code == 2
    assert "--force" in ran.err
    assert path.read_bytes() == b"mine"


def test_force_overwrites(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "tanh.safetensors"
    path.write_bytes(b"old")
    assert run(*TANH, "--output", path, "--force").code == 0
    assert attnc.load(path).certificate.proved


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_a_missing_directory_is_told_before_any_work(run: Any, tmp_path: Path, option: str) -> None:
    ran = run(*TANH, option, tmp_path / "nowhere" / "tanh.png", "--force")
    assert ran.code == 2
    assert "cannot write" in ran.err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("no_work")
def test_a_directory_and_a_file_in_place_of_one_are_told(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a directory" in run(*TANH, "--output", tmp_path, "--force").err
    assert "cannot write" in run(*TANH, "--output", tmp_path / "file" / "tanh.safetensors").err
    assert "too long" in run(*TANH, "--output", tmp_path / ("a" * 300)).err


@pytest.mark.usefixtures("no_work")
def test_an_unwritable_directory_is_told_before_any_work(run: Any, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):  # nothing is closed to the superuser but what the kernel keeps
        closed = Path("/proc/self")
    ran = run(*TANH, "--output", closed / "tanh.safetensors")
    assert ran.code == 2
    assert "cannot write" in ran.err


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("tanh", "--domain", -8, 8), "InputError", "--eps"),
        (("tanh", "--domain", -8, 8, "--eps", 1e-5, "--anchors", 4), "InputError", "--anchors"),
        (
            ("tanh", "--domain", -8, 8, "--eps", 1e-5, "--dtype", "float16"),
            "InputError",
            "float64",
        ),
        (("tanh", "--domain", -8, 8, "--eps", 1e-5, "--plot", "tanh.docx"), "InputError", ".png"),
        (
            ("tanh", "--domain", -8, 8, "--eps", 1e-5, "--output", "t.png", "--plot", "./t.png"),
            "InputError",
            "t.png",
        ),
    ],
)
def test_a_request_that_makes_no_sense(run: Any, arguments: tuple[object, ...], kind: str, said: str) -> None:
    ran = run("head", *arguments, "--json")
    assert ran.code == 2
    assert ran.json["error"]["kind"] == kind
    assert said in ran.json["error"]["message"]


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("tahn", "--domain", -8, 8, "--eps", 1e-5), "UnknownFunctionError", "'tanh'"),
        (("clip(1)", "--domain", -8, 8, "--eps", 1e-5), "InputError", "clip(a, b)"),
        (("tanh", "--domain", 8, -8, "--eps", 1e-5), "InputError", "-8"),
        (("tanh", "--domain", 8, 8, "--eps", 1e-5), "InputError", "8.0, 8.0"),
        (("tanh", "--domain", "nan", 8, "--eps", 1e-5), "InputError", "nan"),
        (("tanh", "--domain", "-inf", 8, "--eps", 1e-5), "InputError", "-inf"),
        (("tanh", "--domain", -8, 8, "--eps", 0), "InputError", "--eps 0"),
        (("tanh", "--domain", -8, 8, "--eps", -1e-5), "InputError", "--eps -1e-05"),
        (("tanh", "--domain", -8, 8, "--eps", "nan"), "InputError", "--eps nan"),
        (("tanh", "--domain", -8, 8, "--eps", 1e-30), "PrecisionError", "float32"),
        (("tanh", "--domain", -8, 8, "--anchors", 1), "InputError", "--anchors 1"),
        (("tanh", "--domain", -8, 8, "--eps", 1e-5, "--design", "best"), "InputError", "'smooth'"),
        (("tanh", "--domain", -8, 8, "--eps", 1e-5, "--heads", 0), "InputError", "--heads 0"),
    ],
)
def test_bad_input(run: Any, arguments: tuple[object, ...], kind: str, said: str) -> None:
    ran = run("head", *arguments, "--json")
    assert ran.code == 2
    assert ran.json["error"]["kind"] == kind
    assert said in ran.json["error"]["message"]
    assert ran.err == f"error: {ran.json['error']['message']}\n"


def test_without_json_an_error_leaves_stdout_empty(run: Any) -> None:
    ran = run("head", "tahn", "--domain", -8, 8, "--eps", 1e-5)
    assert (ran.code, ran.out) == (2, "")
    assert "tanh" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("arguments", [("tanh", "--eps", 1), ("tanh", "--domain", -8, "--eps", "x"), ()])
def test_what_cannot_be_parsed_is_bad_input_too(run: Any, arguments: tuple[object, ...]) -> None:
    ran = run("head", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err


@pytest.mark.usefixtures("no_work")
def test_a_picture_without_matplotlib_is_refused_before_any_work(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run(*TANH, "--plot", tmp_path / "tanh.png", "--json")
    assert ran.code == 2
    assert ran.json["error"]["kind"] == "MissingExtraError"
    assert "pip install 'attnc[plot]'" in ran.json["error"]["message"]


def test_a_head_that_is_only_measured_is_no_success(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = attnc.head(lambda s: torch.lgamma(s + 4), domain=(-3, 3), anchors=6, design="smooth")
    monkeypatch.setattr(attnc, "head", lambda *_, **__: measured)
    table, machine = run(*TANH), run(*TANH, "--json")
    assert (table.code, machine.code) == (1, 1)
    assert str(measured.certificate) in table.out
    assert (machine.json["status"], machine.json["certificate"]["status"]) == ("measured", "measured")
    assert machine.json["certificate"]["facts"]["points"] > 1000


def test_a_function_of_ones_own(run: Any, module: Callable[[str], str], tmp_path: Path) -> None:
    name = module("import torch\ndef wave(s): return torch.relu(torch.sin(s))\ndef two(x, y): return x * y\n")
    asked = ("--domain", -1, 1, "--eps", 1e-2, "--dtype", "float64")
    ran = run("head", f"{name}:wave", *asked, "-o", tmp_path / "wave.safetensors", "--json")
    assert ran.code == 0 and ran.json["status"] == "proved"
    assert run("verify", tmp_path / "wave.safetensors").code == 0
    assert run("head", f"{name}:two", *asked).code == 2
    assert "module:function" in run("head", "my", *asked).err
