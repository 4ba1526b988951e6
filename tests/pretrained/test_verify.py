"""attnc.verify of converted models: what was converted is proved anew, and nothing that was edited is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attnc
from attnc.errors import CertificateError
from attnc.network import pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained import convert_, report_of
from attnc.pretrained.verify import verify_conversion
from attnc.records.fields import round_up, seal
from tests.frontends.tiny_models import tiny

Change = Callable[[Any], object]
FIRST = "decoder.layers.0"


@pytest.fixture(scope="module")
def converted() -> dict[str, Any]:
    """A plain model with gates for heads, and a gated one."""
    found = {"opt": tiny("opt"), "llama": tiny("llama")}
    for model in found.values():
        convert_(model, approximation=1e-3)
    return found


@pytest.fixture
def opt(converted: dict[str, Any]) -> Any:
    return copy.deepcopy(converted["opt"])


@pytest.fixture
def llama(converted: dict[str, Any]) -> Any:
    return copy.deepcopy(converted["llama"])


@pytest.mark.parametrize("name", ["opt", "llama"])
def test_what_was_converted_is_proved(converted: dict[str, Any], name: str) -> None:
    verdict = attnc.verify(converted[name])
    assert isinstance(verdict, attnc.Verdict)
    assert (verdict.status, bool(verdict)) == ("proved", True), verdict.reason
    report = report_of(converted[name])
    assert [child.name for child in verdict.children] == [block.name for block in report.blocks]
    assert verdict.bound == max(block.bound for block in report.blocks)


@pytest.mark.parametrize(("engine", "dtype"), [("closed-form", torch.float64), ("softmax", torch.float32)])
def test_lattices_by_both_engines(engine: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True, dtype=dtype)
    model = nn.TransformerEncoder(layer, 1).eval()
    convert_(model, approximation=1e-4, config={"engine": engine})
    assert attnc.verify(model).status == "proved"
    if engine == "softmax":
        other = copy.deepcopy(model)
        _edit(rounding=lambda x: x * 0.1, roundings=lambda r: {k: v * 0.1 for k, v in r.items()})(other)
        assert "engine softmax: approximation + rounding" in attnc.verify(other).reason
        other = copy.deepcopy(model)
        _add(other.layers[0].activation[0].value, 1e-3)
        assert "changed since it was certified: value" in attnc.verify(other).reason
    model.layers[0].linear2.weight.data *= 1.01
    found = attnc.verify(model)
    assert (found.status, "approximation" in found.reason) == ("unknown", True)
    model.layers[0].linear1.weight.data *= 8
    assert "neuron" in attnc.verify(model).reason
    model.layers[0].activation_relu_or_gelu = 2
    assert "activation_relu_or_gelu" in attnc.verify(model).reason


def _first(model: Any) -> Any:
    return model.decoder.layers[0]


def _edit(**changes: Callable[[Any], Any]) -> Change:
    """The certificate of the first block, with fields or facts changed."""

    def change(model: Any) -> None:
        block = report_of(model).blocks[0]
        facts = {**block.facts, **{k: f(block.facts[k]) for k, f in changes.items() if k in block.facts}}
        fields = {k: f(getattr(block, k)) for k, f in changes.items() if k not in block.facts}
        terms = {name: getattr(block, name) for name in ("approximation", "rounding")} | fields
        bound = round_up(terms["approximation"] + terms["rounding"])
        _blocks(model, replace(block, facts=facts, bound=bound, **fields), *report_of(model).blocks[1:])

    return change


def _blocks(model: Any, *blocks: attnc.Certificate) -> None:
    """Other blocks, and the terms of the model that follow from them."""
    report = report_of(model)
    status = attnc.Status.PROVED if all(block.proved for block in blocks) else attnc.Status.MEASURED
    terms = {name: max(getattr(b, name) for b in blocks) for name in ("approximation", "rounding", "bound")}
    certificate = replace(report.certificate, children=blocks, status=status, **terms)
    model._attnc_report = replace(report, certificate=certificate)


def _request(model: Any, requested: float) -> None:
    report = report_of(model)
    facts = {**report.certificate.facts, "requested": requested}
    model._attnc_report = replace(report, certificate=replace(report.certificate, facts=facts))


def _add(tensor: torch.Tensor, amount: float) -> None:
    tensor.data.view(-1)[0] += amount


def _drop(model: Any) -> None:
    _blocks(model, *report_of(model).blocks[1:])


CHANGES: dict[str, tuple[Change, str]] = {
    "first weight": (lambda m: _add(_first(m).fc1.weight, 1e-6), "weights"),
    "second bias": (lambda m: _add(_first(m).fc2.bias, 1e-6), "weights"),
    "norm": (lambda m: _add(_first(m).final_layer_norm.weight, 1e-6), "weights"),
    "anchor": (lambda m: _add(_first(m).activation_fn[0].key, 1.0), "'closed-form and softmax'"),
    "value": (lambda m: _add(_first(m).activation_fn[0].value, 1e-3), "'closed-form and softmax'"),
    "approximation": (_edit(approximation=lambda x: x * 0.99), "approximation is"),
    "products": (_edit(products=lambda x: x * 0.5), "products is"),
    "only rounding": (_edit(rounding=lambda x: x * 0.5), "rounding"),
    "requested": (lambda m: _request(m, 1e-9), "1e-09"),
    "engine": (lambda m: setattr(_first(m).activation_fn, "engine", "softmax"), "'softmax'"),
    "activation": (_edit(activation=lambda _: "gelu"), "gelu"),
    "measured": (_edit(status=lambda _: attnc.Status.MEASURED), "measured"),
    "a box": (_edit(holds_for=lambda d: attnc.Box(-1, 1, shape=d.shape)), "Box"),
    "another name": (_edit(name=lambda x: x + "x"), f"{FIRST}.activation_fnx"),
    "a block left out": (_drop, f"{FIRST}.activation_fn"),
    "hook": (lambda m: _first(m).activation_fn.register_forward_hook(lambda *_: None), "hook"),
    "hook of a map": (lambda m: _first(m).fc1.register_forward_hook(lambda *_: None), "hook"),
    "forward": (lambda m: setattr(_first(m).activation_fn, "forward", torch.relu), "activation_fn"),
    "training": (lambda m: m.train(), "training"),
    "dtype": (lambda m: m.half(), "float16"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_nothing_that_was_changed_is_proved(opt: Any, case: str) -> None:
    change, said = CHANGES[case]
    change(opt)
    verdict = attnc.verify(opt)
    assert verdict.status == "unknown"
    assert said in verdict.reason


@pytest.mark.parametrize("what", ["radius", "scale", "places"])
def test_the_products_of_a_gated_block(llama: Any, what: str) -> None:
    gate = llama.model.layers[0].mlp
    assert isinstance(gate, GatedBlock)
    if what == "places":
        gate.roles = (gate.roles[1], gate.roles[0], gate.roles[2])
    else:
        getattr(gate.product, what).sub_(3)
    del llama.config.attnc  # whose digests show it first
    verdict = attnc.verify(llama)
    words = {"radius": "radius", "places": ""}
    assert verdict.status == "unknown"
    assert words.get(what, "") in verdict.reason


@pytest.mark.parametrize("what", ["radius", "scale"])
def test_scales_are_on_record(llama: Any, what: str) -> None:
    getattr(llama.model.layers[0].mlp.product, what).sub_(3)
    verdict = attnc.verify(llama)
    assert verdict.status == "unknown" and what in verdict.reason


def test_other_code_that_runs_is_refuted(opt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = pointwise.run_window
    monkeypatch.setattr(pointwise, "run_window", lambda w, s, *_: genuine(w, s) + 1e-2)
    verdict = attnc.verify(opt)
    assert verdict.status == "refuted" and verdict.error is not None
    assert 0.005 < verdict.error < 0.015


def test_a_block_is_proved_on_the_box_that_was_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
    box = attnc.Box(-1, 1, shape=(3,))
    convert_(model, approximation=1e-3, config={"inputs": box})
    assert report_of(model).blocks[0].holds_for == box
    assert verify_conversion(model).status == "proved"
    _edit(holds_for=lambda _: attnc.Box(-1000, 1000, shape=(3,)))(model)
    verdict = verify_conversion(model)
    assert verdict.status == "unknown" and "neuron" in verdict.reason


def test_a_directory(opt: Any, tmp_path: Path) -> None:
    opt.save_pretrained(tmp_path / "model")
    assert attnc.verify(tmp_path / "model").status == "proved"
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    stored = config["attnc"]["report"]
    model = attnc.Certificate.from_json(stored["certificate"])
    stored["certificate"]["children"][0]["approximation"] /= 2
    file.write_text(json.dumps(config))
    with pytest.raises(CertificateError):
        attnc.verify(tmp_path / "model")
    first, *others = model.children
    half = first.approximation / 2
    first = replace(first, approximation=half, bound=round_up(half + first.rounding))
    terms = {name: max(getattr(b, name) for b in (first, *others)) for name in ("approximation", "bound")}
    stored["certificate"] = replace(model, children=(first, *others), **terms).to_json()
    file.write_text(json.dumps(config))
    with pytest.raises(CertificateError):
        attnc.verify(tmp_path / "model")
    config["attnc"]["seal"] = seal({k: v for k, v in config["attnc"].items() if k != "seal"})
    file.write_text(json.dumps(config))
    found = attnc.verify(tmp_path / "model")
    assert (found.status, FIRST in found.reason, "approximation" in found.reason) == ("unknown", True, True)


def test_heads_are_verified_as_before(tmp_path: Path) -> None:
    head = attnc.head("relu", domain=(-4, 4), eps=1e-2)
    assert attnc.verify(head).status == "proved"
    with pytest.raises(attnc.errors.InputError):
        verify_conversion(nn.Linear(1, 1))
    with pytest.raises(attnc.errors.FileError):
        attnc.verify(tmp_path)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 14))]
)
def test_every_honest_llama_is_proved(seed: int) -> None:
    """Small float32 models of several widths, gains and weights: of 6 in 14 the checker's gate once found more than was said."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=16, hidden_size=(8, 16, 24)[seed % 3], intermediate_size=(16, 40)[seed % 2], num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=(0.02, 0.1, 0.4)[seed % 3],
    )  # fmt: skip
    model = transformers.LlamaModel(config).eval()
    with torch.no_grad():
        model.layers[0].post_attention_layernorm.weight.mul_((0.05, 0.3, 1.0, 3.0)[seed % 4])
    convert_(model, approximation=1e-2)
    assert attnc.verify(model).status == "proved", attnc.verify(model).reason
