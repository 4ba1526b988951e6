"""attnc.export to ONNX: what is written is what ran, or nothing is written."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import attnc
from attnc import incontext
from attnc.domain import Interval
from attnc.errors import (
    CertificateError,
    ExportError,
    FileError,
    InputError,
    MissingExtraError,
    UnsupportedError,
)
from attnc.exporters import onnx as exporter
from attnc.functions import get
from attnc.network.literal.network import literal_from_record
from attnc.network.pointwise import Pointwise
from tests.lower.exact_heads import activation_head
from tests.network.literal import examples as transformers

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")


def run(path: Path, *inputs: Tensor) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})[0]


def props(path: Path) -> dict[str, str]:
    return {prop.key: prop.value for prop in onnx.load(path).metadata_props}


@pytest.fixture(scope="module")
def tanh() -> attnc.Head:
    return attnc.head("tanh", domain=(-8, 8), eps=1e-5)


@pytest.fixture(scope="module")
def network() -> attnc.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double().eval()
    return attnc.compile(model, domain=attnc.Box(-1, 1, shape=(4,)), eps=1e-6)


@pytest.fixture(scope="module")
def block() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    return attnc.convert(model, approximation=1e-4, parts="all")


@pytest.fixture(scope="module")
def written(tanh: attnc.Head, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("onnx") / "tanh.onnx"
    done = attnc.export(tanh, path)
    assert (done.path, done.engine, done.axes) == (path, "softmax", {"s": {0: "batch"}})
    assert 0 < done.difference <= done.allowed <= 2 * tanh.certificate.rounding
    assert "Softmax" in done.operations
    return path


@pytest.mark.parametrize("n", [1, 7, 200_000])
def test_a_head_takes_every_batch(tanh: attnc.Head, written: Path, n: int) -> None:
    s = torch.rand(n) * 16 - 8
    found = run(written, s)
    assert found.shape == (n,)
    assert np.abs(found - tanh(s).numpy()).max() <= 1e-6


def test_the_file_carries_the_certificate(tanh: attnc.Head, written: Path) -> None:
    about = props(written)
    assert attnc.Certificate.from_json(json.loads(about["attnc.certificate"])) == tanh.certificate
    assert list(json.loads(about["attnc.digests"]).values()) == [dict(tanh.certificate.digests)]
    assert (about["attnc"], about["attnc.engine"], about["attnc.status"]) == (
        attnc.__version__,
        "softmax",
        "proved",
    )
    assert "torch" in about["attnc.statement"] and "rounding" in about["attnc.statement"]


def test_nothing_of_this_machine_is_in_the_file(written: Path) -> None:
    assert str(Path(attnc.__file__).parents[1]).encode() not in written.read_bytes()


def test_many_anchors_stand_along_the_last_axis(tmp_path: Path) -> None:
    """In the file alone: the graph of torch.export returns the bits of the head."""
    head = attnc.head("gelu", domain=(-8, 8), anchors=24, design="nearest", dtype=torch.float64)
    done = attnc.export(head, tmp_path / "gelu.onnx")
    softmax = next(node for node in onnx.load(done.path).graph.node if node.op_type == "Softmax")
    assert softmax.attribute[0].i == -1 and "Gemm" in done.operations
    s = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    assert np.abs(run(done.path, s) - head(s).numpy()).max() <= 1e-13
    assert torch.equal(torch.export.export(head, (s,)).module()(s), head(s))


def test_a_network_in_float64(network: attnc.Network, tmp_path: Path) -> None:
    attnc.export(network, tmp_path / "net.onnx")
    for n in (1, 7, 5000):
        x = torch.rand(n, 4, dtype=torch.float64) * 2 - 1
        assert np.abs(run(tmp_path / "net.onnx", x) - network(x).numpy()).max() <= 1e-13


def test_a_literal_form_has_its_own_certificate(network: attnc.Network, tmp_path: Path) -> None:
    literal = network.as_self_attention(3)
    attnc.export(literal, tmp_path / "net.onnx")
    x = torch.rand(5, 3, 4, dtype=torch.float64) * 2 - 1
    assert np.abs(run(tmp_path / "net.onnx", x) - literal(x).numpy()).max() <= 1e-13
    about = props(tmp_path / "net.onnx")
    carried = attnc.Certificate.from_json(json.loads(about["attnc.certificate"]))
    assert carried == literal.certificate and carried.approximation >= network.certificate.approximation
    assert about["attnc.subject"] == "literal" and about["attnc.status"] == "unknown"


@pytest.mark.slow
def test_the_literal_form_of_a_transformer_takes_token_ids(tmp_path: Path) -> None:
    literal = transformers.network("tiny").as_self_attention()
    done = attnc.export(literal, tmp_path / "tiny.onnx")
    assert done.difference <= done.allowed <= 1e-12  # the gates of its heads have scores of 2^98
    ids = torch.randint(0, transformers.VOCABULARY, (20, *literal.inputs[0].shape))  # type: ignore[arg-type]
    assert np.abs(run(tmp_path / "tiny.onnx", ids) - literal(ids).numpy()).max() <= 1e-13


def test_a_learner_takes_every_context(tmp_path: Path) -> None:
    learner = incontext.ridge_regression(0.1, features=2, iterations=1, dtype=torch.float64)
    done = attnc.export(learner, tmp_path / "learner.onnx")
    assert done.axes["context_x"] == {0: "examples"} and done.axes["query_x"] == {0: "queries"}
    x, query = (torch.rand(n, 2, dtype=torch.float64) for n in (23, 4))
    found = run(tmp_path / "learner.onnx", x, x[:, 0] - x[:, 1], query)
    expected = learner(x, x[:, 0] - x[:, 1], query)
    assert np.abs(found - expected.numpy()).max() <= 1e-10  # numbers in float32 would leave 4e-9


@pytest.mark.parametrize("engine", ["softmax", "closed-form"])
def test_a_converted_model(block: nn.Module, tmp_path: Path, engine: str) -> None:
    before = [part.engine for part in block.modules() if hasattr(part, "engine")]
    done = attnc.export(block, tmp_path / "block.onnx", engine=engine)
    assert [part.engine for part in block.modules() if hasattr(part, "engine")] == before
    assert ("Softmax" in done.operations) == (engine == "softmax")
    assert done.axes["input"][0] == "batch"
    exact = "holds in exact arithmetic" in props(tmp_path / "block.onnx")["attnc.statement"]
    assert exact == (engine == "softmax")  # a closed form is not attention
    x = torch.randn(64, 3, 4)
    assert np.abs(run(tmp_path / "block.onnx", x) - block(x).detach().numpy()).max() <= 1e-4


@pytest.mark.filterwarnings("ignore")
def test_torch_onnx_and_its_optimiser_keep_every_coefficient(tmp_path: Path) -> None:
    """The closed form of a lattice has coefficients below 1e-8, and float64 numbers that float32 does not have."""
    head = activation_head(get("gelu"), Interval(-8, 8), 1e-5, "float64")
    layer = Pointwise([(None, head)], "closed-form")
    program = torch.onnx.export(
        layer,
        (torch.zeros(5, 3, dtype=torch.float64),),
        dynamic_shapes=({0: Dim("n")},),
        dynamo=True,
        verbose=False,
    )
    program.save(tmp_path / "layer.onnx")  # type: ignore[union-attr]
    x = torch.rand(999, 3, dtype=torch.float64) * 16 - 8
    assert layer.runs == "closed-form"
    assert np.abs(run(tmp_path / "layer.onnx", x) - layer(x).numpy()).max() <= 1e-13


def test_other_nonlinear_operations_are_refused_by_name(tmp_path: Path) -> None:
    block = nn.LayerNorm(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)
    made = attnc.convert(nn.Sequential(*block, nn.Softplus()).eval(), approximation=1e-2, parts="all")
    with pytest.raises(UnsupportedError) as refused:
        attnc.export(made, tmp_path / "block.onnx")
    assert "Softplus" in [problem.where for problem in refused.value.problems]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_computes_something_else_is_not_kept(
    tanh: attnc.Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One anchor's value moved by 1e-4, as an optimiser that drops small numbers would."""
    translated = exporter._translated

    def wrong(*given: Any) -> Any:
        model = translated(*given)
        for held in model.graph.initializer:
            array = onnx.numpy_helper.to_array(held)
            if array.size == tanh.value[..., 1].numel() and np.array_equal(
                array.ravel(), tanh.value[0, :, 1].numpy()
            ):
                held.CopyFrom(onnx.numpy_helper.from_array(array + np.float32(1e-4), held.name))
        return model

    path = tmp_path / "tanh.onnx"
    path.write_bytes(b"what was there")
    monkeypatch.setattr(exporter, "_translated", wrong)
    with pytest.raises(ExportError, match=r"0\.0001"):
        attnc.export(tanh, path)
    assert path.read_bytes() == b"what was there" and list(tmp_path.iterdir()) == [path]


BAD: dict[str, tuple[Callable[[attnc.Head], Any], str, dict[str, Any], type[Exception]]] = {
    "opset": (lambda head: head, "a.onnx", {"opset": 7}, InputError),
    "opset of another type": (lambda head: head, "a.onnx", {"opset": "20"}, InputError),
    "suffix": (lambda head: head, "a.onnxx", {}, InputError),
    "no path": (lambda head: head, "", {}, InputError),
    "no directory": (lambda head: head, "missing/a.onnx", {}, FileError),
    "engine": (lambda head: head, "a.onnx", {"engine": "sdpa"}, InputError),
    "no window": (lambda head: head, "a.onnx", {"engine": "closed-form"}, InputError),
    "inputs of a head": (lambda head: head, "a.onnx", {"inputs": torch.zeros(1)}, InputError),
    "half precision": (
        lambda head: attnc.head("relu", domain=(-1, 1), eps=1e-2).half(),
        "a.onnx",
        {},
        InputError,
    ),
    "not converted": (lambda head: nn.Linear(2, 2), "a.onnx", {}, InputError),
    "no module": (lambda head: "head", "a.onnx", {}, InputError),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(tanh: attnc.Head, tmp_path: Path, kind: str) -> None:
    make, name, options, error = BAD[kind]
    with pytest.raises(error):
        attnc.export(make(tanh), tmp_path / name if name else 7, **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_changed_module_is_not_exported_with_its_certificate(tmp_path: Path) -> None:
    head = attnc.head("relu", domain=(-1, 1), eps=1e-2)
    with torch.no_grad():
        head.value[0, 0, 1] += 1
    with pytest.raises(CertificateError):
        attnc.export(head, tmp_path / "relu.onnx")


def test_a_measured_head_states_no_proof_and_must_not_be_changed(tmp_path: Path) -> None:
    head = attnc.head(lambda s: torch.lgamma(s + 4), domain=(-2, 2), eps=1e-2)
    attnc.export(head, tmp_path / "lgamma.onnx")
    about = props(tmp_path / "lgamma.onnx")
    assert about["attnc.status"] == "measured" and "holds" not in about["attnc.statement"]
    with torch.no_grad():
        head.output.mul_(2)
    with pytest.raises(CertificateError):
        attnc.export(head, tmp_path / "other.onnx")


def test_a_certificate_that_the_checker_does_not_confirm_is_not_carried(
    tanh: attnc.Head, tmp_path: Path
) -> None:
    """The digests fit the numbers, the bound is too small: the file claims nothing, and says why. A bound that an input exceeds
    is refused."""
    forged, known = copy.deepcopy(tanh), tanh.certificate
    assert known.error is not None
    rounding = known.rounding / 2
    forged.certificate = replace(known, rounding=rounding, bound=known.approximation + rounding)
    about = props(attnc.export(forged, tmp_path / "x.onnx").path)
    assert about["attnc.status"] == "unknown" and about["attnc.verdict"].startswith("unknown")
    assert "attnc.certificate" not in about and about["attnc.statement"] == "Nothing is claimed of this file."
    forged.certificate = replace(known, approximation=known.error / 4, rounding=0.0, bound=known.error / 4)
    with pytest.raises(CertificateError):
        attnc.export(forged, tmp_path / "y.onnx")
    assert not (tmp_path / "y.onnx").exists()


def test_a_literal_form_must_encode_its_source(tanh: attnc.Head, tmp_path: Path) -> None:
    record = tanh.as_self_attention(2).record()
    tensors = {name: 3 * x if name.endswith("W_O") else x for name, x in record.tensors.items()}
    with pytest.raises(CertificateError):
        attnc.export(literal_from_record(replace(record, tensors=tensors)), tmp_path / "x.onnx")


def test_a_model_without_a_record_is_proved_anew(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4)).eval()
    attnc.convert_(model, 1e-3, parts="all", config={"engine": "softmax"}, samples=torch.randn(2, 4))
    with torch.no_grad():
        model[1].weight.mul_(5)
    with pytest.raises(CertificateError):
        attnc.export(model, tmp_path / "model.onnx")


def test_a_changed_model_is_not_exported_with_its_report(block: nn.Module, tmp_path: Path) -> None:
    part: Any = block[0]  # type: ignore[index]
    handle = part.register_forward_hook(lambda *given: None)
    try:
        with pytest.raises(CertificateError):
            attnc.export(block, tmp_path / "block.onnx")
    finally:
        handle.remove()


def test_the_extra_is_named(tanh: attnc.Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"attnc\[onnx\]"):
        attnc.export(tanh, tmp_path / "tanh.onnx")
