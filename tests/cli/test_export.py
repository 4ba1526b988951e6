"""`attnc export`: a saved head as ONNX; what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import attnc
from tests.cli.checks import refused

pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")


@pytest.fixture
def saved(tanh: attnc.Head, tmp_path: Path) -> Path:
    tanh.save(tmp_path / "tanh.safetensors")
    return tmp_path / "tanh.safetensors"


def test_a_head_is_written(run: Any, saved: Path, tmp_path: Path) -> None:
    ran = run("export", saved, "--to", "onnx", "-o", tmp_path / "tanh.onnx", "--json")
    assert ran.code == 0, ran.err
    assert (tmp_path / "tanh.onnx").is_file() and ran.json["output"] == str(tmp_path / "tanh.onnx")
    assert ran.json["difference"] <= ran.json["allowed"] and "Softmax" in ran.json["operations"]


def test_files_that_exist_need_force(run: Any, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "tanh.onnx").write_text("mine")
    refused(run("export", saved, "-o", tmp_path / "tanh.onnx", "--json"), "FileError", "--force")
    assert (tmp_path / "tanh.onnx").read_text() == "mine"


def test_bad_input(run: Any, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.onnx"
    refused(run("export", saved, "--to", "lean", "-o", out, "--json"), "InputError", "onnx")
    refused(run("export", saved, "--to", "coq", "-o", out, "--json"), "InputError", ".v")
    refused(
        run("export", saved, "--to", "transformer-lens", "-o", out, "--json"),
        "InputError",
        "to_transformer_lens",
    )
    refused(run("export", saved, "-o", tmp_path / "a.pt", "--json"), "InputError", ".onnx")
    refused(run("export", saved, "-o", out, "--opset", 3, "--json"), "InputError", "18")
    refused(run("export", tmp_path / "missing", "-o", out, "--json"), "FileError", "missing")
    assert not out.exists()


def test_a_head_for_coq(run: Any, saved: Path, tmp_path: Path) -> None:
    ran = run("export", saved, "--to", "coq", "-o", tmp_path / "tanh.v", "--no-native", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["theorems"] == ["approximation"] and "check" not in ran.json
    assert "i_prec" in (tmp_path / "tanh.v").read_text()


def test_coqc_is_never_assumed(
    run: Any, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnc.exporters.coq.checking.shutil.which", lambda name: None)
    ran = run("export", saved, "--to", "coq", "-o", tmp_path / "tanh.v", "--check", "--json")
    assert ran.code == 1 and ran.json["check"]["status"] == "not installed"


def test_the_theorem_of_a_norm_is_about_the_relative_error(run: Any, tmp_path: Path) -> None:
    head = attnc.quadratic_head("rsqrt", features=8, domain=(1e-3, 1.0), eps=1e-2)
    head.save(tmp_path / "norm.safetensors")
    ran = run("export", tmp_path / "norm.safetensors", "--to", "coq", "-o", tmp_path / "norm.v")
    assert ran.code == 0, ran.err
    assert f"|head/f - 1| <= {head.certificate.approximation!r}" in ran.out and "|head - f|" not in ran.out
    assert "rsqrt" in ran.out


def test_the_theorem_names_the_function_and_the_interval(run: Any, saved: Path, tmp_path: Path) -> None:
    ran = run("export", saved, "--to", "coq", "-o", tmp_path / "tanh.v")
    head = attnc.load(saved)
    assert ran.code == 0, ran.err
    assert "f = tanh" in ran.out
    assert f"[{head.certificate.interval.lo:g}, {head.certificate.interval.hi:g}]" in ran.out
