"""Token networks as ONNX files: the same output tokens, with vocabulary and meaning in the metadata."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnc
from attnc import tokens, zoo
from attnc.errors import CertificateError, ExportError, FileError, InputError
from attnc.exporters import onnx as exporter
from attnc.exporters.export import Export
from attnc.network.tokens import TokenNetwork
from attnc.program.tokens import run
from attnc.records.certificate import Certificate
from attnc.records.tokens import program_from_json

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def previous(length: int = 4, causal: bool = True) -> TokenNetwork:
    p = tokens.program("ab", max_len=length, causal=causal)
    return p.compile(p.get(p.indices == p.indices.q - 1, p.tokens, default="-", name="previous"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenNetwork, Export]:
    net = previous()
    return net, attnc.export(net, tmp_path_factory.mktemp("token") / "x.onnx")


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def opened(path: Path) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda ids, lengths: session.run(None, {"ids": ids, "lengths": lengths})[0]


def test_the_file_runs_the_program(exported: tuple[TokenNetwork, Export]) -> None:
    """From the file alone: vocabulary, program and outputs of the metadata, for every sequence, alone and padded."""
    _, done = exported
    assert done.difference <= done.allowed and done.inputs == 72 + 30 and "Softmax" in done.operations
    assert done.axes == {"ids": {0: "batch", 1: "positions"}, "lengths": {0: "batch"}}
    known, call = metadata(done.path), opened(done.path)
    vocabulary, outputs = json.loads(known["attnc.vocabulary"]), json.loads(known["attnc.outputs"])
    program = program_from_json(json.loads(known["attnc.program"]))
    assert json.loads(known["attnc.length"]) == 4 and json.loads(known["attnc.causal"]) is True
    for n in range(1, 5):
        for ids in itertools.product(range(2), repeat=n):
            expected = run(program, [vocabulary[i] for i in ids])
            alone = call(np.array([ids]), np.array([n]))[0]
            padded = call(np.array([[*ids, *[1] * (4 - n)]] * 2), np.array([n, 4]))[0, :n]
            for logits in (alone, padded):
                assert [outputs[i] for i in logits.argmax(-1)] == expected


def test_what_the_metadata_claim(exported: tuple[TokenNetwork, Export]) -> None:
    net, known = exported[0], metadata(exported[1].path)
    carried = Certificate.from_json(json.loads(known["attnc.certificate"]))
    assert (
        known["attnc.subject"] == "tokens"
        and known["attnc.status"] == "proved"
        and carried == net.certificate
    )
    assert "nothing is proved of its runtime" in known["attnc.statement"]
    assert json.loads(known["attnc.digests"]) == {f"0 {carried.title}": dict(carried.digests)}


@pytest.mark.filterwarnings("ignore::attnc.errors.ConditionWarning")
@pytest.mark.parametrize("length", [1, 2])
def test_short_sequences_have_a_fixed_length(tmp_path: Path, length: int) -> None:
    done = attnc.export(previous(length, causal=False), tmp_path / "x.onnx")
    assert (
        done.axes == {"ids": {0: "batch"}, "lengths": {0: "batch"}}
        and done.inputs == 72 + 2 ** (length + 1) - 2
    )


def test_a_changed_network_is_refused(tmp_path: Path) -> None:
    changed, hooked, cast = previous(), previous(), previous().half()
    with torch.no_grad():
        changed.unembedding[0, 0] += 1
    hooked.layers[0].register_forward_hook(lambda *_: None)
    for net, kind in ((changed, CertificateError), (hooked, CertificateError), (cast, InputError)):
        with pytest.raises(kind):
            attnc.export(net, tmp_path / "x.onnx")
    with pytest.raises(InputError):
        attnc.export(previous(), tmp_path / "x.onnx", engine="closed-form")
    assert not list(tmp_path.iterdir())


def test_other_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime whose logits differ by less than rounding explains, and whose largest one is another."""
    net, plain = previous(), exporter._session

    class Wrong:
        def __init__(self, file: Path) -> None:
            self.session = plain(file)

        def run(self, names: None, given: dict[str, Any]) -> list[Any]:
            (logits,) = self.session.run(names, given)
            if logits.shape[:2] == (16, 4):  # all sequences of four
                logits[3, 2] = -logits[3, 2]
            return [logits]

    monkeypatch.setattr(exporter, "_session", Wrong)
    monkeypatch.setattr(exporter.Rounding, "allowed", lambda self, inputs: [100.0])
    with pytest.raises(ExportError, match="4"):
        attnc.export(net, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_logits_may_differ_by_rounding_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are whole numbers, which round nowhere: what is allowed is far below the margin of the tokens."""
    net, plain = previous(), exporter._session
    assert attnc.export(net, tmp_path / "x.onnx").allowed < 1e-5

    class Off:
        def __init__(self, file: Path) -> None:
            self.session = plain(file)

        def run(self, names: None, given: dict[str, Any]) -> list[Any]:
            return [logits + np.float32(1e-3) for logits in self.session.run(names, given)]

    monkeypatch.setattr(exporter, "_session", Off)
    with pytest.raises(ExportError):
        attnc.export(net, tmp_path / "y.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["x.onnx"]


def test_onnx_files_are_not_read(exported: tuple[TokenNetwork, Export]) -> None:
    for read in (attnc.verify, attnc.load):
        with pytest.raises(FileError, match="ONNX"):
            read(exported[1].path)


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names("tokens"))
def test_the_zoo(tmp_path: Path, name: str) -> None:
    done = attnc.export(zoo.load(name), tmp_path / "x.onnx")
    assert done.difference <= done.allowed and done.inputs > 100
    assert "Softmax" in done.operations
