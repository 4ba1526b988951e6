"""Certificates for a given input of converted models: never below the difference to the original, and hardly above it."""

from __future__ import annotations

import copy
import gc
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flint import arb
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attnc.errors import InputError, PrecisionError, UnsupportedError
from attnc.frontends.exact import exact_outputs
from attnc.frontends.transformers import Call
from attnc.frontends.transformers.find import record
from attnc.functions.balls import working
from attnc.network.certified import Certified
from attnc.network.pointwise import Pointwise
from attnc.pretrained import ConversionReport, convert_, for_input, from_pretrained, report_of
from attnc.pretrained.for_input import InputCertificate
from tests.frontends.tiny_models import example, tiny

WIDE = 512


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


SOURCE = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def built(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, Tensor]]:
    if name == "encoder":
        hidden = torch.tensor([[False] * 5, [False, False, True, False, True]])
        return encoder(), {"src": SOURCE, "src_key_padding_mask": hidden}
    given = {key: x.to(dtype) if x.is_floating_point() else x for key, x in example(name).items()}
    if "input_ids" in given:
        given["attention_mask"] = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    return tiny(name).to(dtype), given


def assert_tight(
    found: InputCertificate, original: nn.Module, given: dict[str, Tensor], off: float = 0.0
) -> None:
    """Against the original model itself, at another precision, with zero slack: difference <= bound <= 1.01·difference. `off`
    is how far activations that the model writes out are from the functions that they stand for."""
    reference = exact_outputs(record(original, Call((), given), grad=False), tree_leaves(given), WIDE)
    balls = [one for one in reference if one is not None]
    with working(WIDE):
        for (value, bound), truth in zip(found.outputs.values(), balls, strict=True):
            gaps = [
                abs(arb(y) - z) for y, z in zip(value.double().flatten().tolist(), truth.flat, strict=True)
            ]
            assert all(gap <= b + off for gap, b in zip(gaps, bound.flatten().tolist(), strict=True))
            assert float(bound.max()) <= 1.01 * max(float(gap.upper()) for gap in gaps) + off


CASES = [
    ("bert", "feed-forward", torch.float32), ("gpt2", "feed-forward", torch.float64), ("llama", "all", torch.float32),
    ("encoder", "feed-forward", torch.float32),
]  # fmt: skip
CASES += [
    pytest.param(name, "all", dtype, marks=pytest.mark.slow)
    for name in ("t5", "vit", "t5 gated", "gemma", "qwen3", "opt", "distilbert")
    for dtype in (torch.float32, torch.float64)
    if (name, dtype) != ("gemma", torch.float64)  # its norms cast to float32, and are not converted
]  # type: ignore[misc]


@pytest.mark.parametrize(("name", "parts", "dtype"), CASES)
def test_bounds_hold_and_are_tight(name: str, parts: str, dtype: torch.dtype) -> None:
    model, given = built(name, dtype)
    original = copy.deepcopy(model)
    report = convert_(model, approximation=1e-4, parts=parts, samples=given)
    found = report.for_input(given)
    written_out = 1e-12 if "gelu_tanh" in {block.facts["activation"] for block in report.blocks} else 0.0
    assert_tight(found, original, given, written_out)
    assert found.radius <= 1e-3 * max(one.largest for one in found.outputs.values())
    again = dict(model(**given)) if name != "encoder" else {"output": model(**given)}
    for output, certified in found.outputs.items():
        assert torch.equal(certified.value, again[output].detach()) and certified.bound.dtype == torch.float64


@pytest.fixture(scope="module")
def llama() -> tuple[Any, dict[str, Tensor], ConversionReport]:
    model, given = built("llama")
    return model, given, convert_(model, approximation=1e-4, parts="all")


def test_the_predicted_token(llama: tuple[Any, dict[str, Tensor], ConversionReport]) -> None:
    _, given, report = llama
    found = report.for_input(given)
    same = found.argmax_same()
    assert same.shape == found["logits"].value.shape[:-1] and bool(same.all())
    lines = str(found).splitlines()
    assert (
        len(lines) == 4
        and "logits" in lines[1]
        and "14 of 14" in lines[2]
        and str(found.precision) in lines[3]
    )
    with pytest.raises(InputError):
        found["hidden"]


def test_a_margin_that_is_too_small_proves_nothing() -> None:
    value = torch.tensor([[1.0, 3.0, 2.0], [0.0, 3.0, 3.0], [0.0, 5.0, 3.0], [7.0, 7.0, 7.0]])
    bound = torch.tensor(
        [[9.0, 0.25, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.1, 0.1, 0.1]], dtype=torch.float64
    )
    found = InputCertificate("a model", {"logits": Certified(value, bound)}, 192, 0.0, 0.0)
    assert found.argmax_same().tolist() == [False, False, False, False]
    bound = torch.tensor(
        [[1.0, 0.25, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.99], [0.1, 0.1, 0.1]], dtype=torch.float64
    )
    found = InputCertificate(
        "BertForSequenceClassification", {"logits": Certified(value, bound)}, 192, 0.0, 0.0
    )
    assert found.argmax_same().tolist() == [True, False, True, False]
    assert "class" in str(found) and "token" not in str(found) and "2 of 4" in str(found)
    assert len(repr(found)) < 120 and "tensor" not in repr(found)


def test_altered_weights_are_refused(llama: tuple[Any, dict[str, Tensor], ConversionReport]) -> None:
    model, given, _ = llama
    for name in ("model.layers.0.mlp.gate_proj.weight", "model.layers.1.post_attention_layernorm.weight"):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            changed.get_parameter(name).flatten()[0] += 1e-3
        with pytest.raises(UnsupportedError):
            report_of(changed).for_input(given)
    plain = encoder()
    report = convert_(plain, approximation=1e-4)
    with torch.no_grad():
        plain.get_parameter("layers.1.linear1.bias")[0] += 1e-3
    with pytest.raises(UnsupportedError):
        report.for_input(SOURCE)


def test_parts_that_no_report_covers_are_refused(
    llama: tuple[Any, dict[str, Tensor], ConversionReport],
) -> None:
    model, given, _ = llama
    other = copy.deepcopy(model)
    other.model.layers[0].mlp = copy.deepcopy(other.model.layers[1].mlp)
    with pytest.raises(UnsupportedError):
        report_of(other).for_input(given)


class Skipping(Pointwise):
    def forward(self, x: Tensor, engine: str | None = None, strict: bool | None = None) -> Tensor:
        return x


ALTERATIONS: dict[str, Callable[[Any], object]] = {
    "replaced": lambda m: m.__setitem__(2, nn.Identity()),
    "an activation outside of blocks": lambda m: m.__setitem__(4, nn.Identity()),
    "forward": lambda m: setattr(m[2], "forward", lambda x: x * 0),
    "subclass": lambda m: setattr(m[2], "__class__", Skipping),
    "call": lambda m: setattr(m[2], "_call_impl", lambda x: x),
    "hook": lambda m: m[2].register_forward_hook(lambda module, given, out: 2 * out),
    "hook before": lambda m: m[2].register_forward_pre_hook(lambda module, given: (given[0] / 2,)),
    "hook before the norm": lambda m: m[0].register_forward_pre_hook(lambda module, given: (given[0] + 1,)),
    "skipped by the model": lambda m: setattr(m, "forward", lambda x: m[3](m[1](x))),
}


@pytest.mark.parametrize("alter", ALTERATIONS.values(), ids=ALTERATIONS)
def test_a_converted_part_that_runs_as_something_else_is_refused(alter: Callable[[Any], object]) -> None:
    torch.manual_seed(0)
    layers = nn.LayerNorm(4), nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4), nn.Tanh()
    model, x = nn.Sequential(*layers).eval(), torch.randn(3, 4)
    report = convert_(model, approximation=1e-3, parts="all")
    assert report.for_input(x)["output"].largest < 1e-5
    alter(model)
    with pytest.raises(UnsupportedError):
        report.for_input(x)


def test_the_model_that_a_report_is_about(
    llama: tuple[Any, dict[str, Tensor], ConversionReport], tmp_path: Path
) -> None:
    model, given, report = llama
    assert report_of(model) == report and "_model" not in report.to_json()
    read = ConversionReport.from_json(json.loads(json.dumps(report.to_json())))
    for without in (read, pickle.loads(pickle.dumps(report)), copy.deepcopy(report)):
        assert without == report
        with pytest.raises(InputError):
            without.for_input(given)
    model.save_pretrained(tmp_path)
    again = from_pretrained(tmp_path)
    found = report_of(again).for_input(given)
    assert torch.equal(found["logits"].bound, report.for_input(given)["logits"].bound)
    copied = copy.deepcopy(model)
    assert report_of(copied)._model() is copied and report._model() is model  # type: ignore[misc]
    gone = report_of(again)
    del again
    gc.collect()
    with pytest.raises(InputError):
        gone.for_input(given)


def test_a_model_that_was_converted_twice() -> None:
    model = encoder()
    first = convert_(model, 1e-4, filter_fn=lambda site: "layers.0" in site.name)
    second = convert_(model, 1e-4, filter_fn=lambda site: "layers.1" in site.name)
    bounds = [one.for_input(SOURCE)["output"].bound for one in (first, second, report_of(model))]
    assert torch.equal(bounds[0], bounds[1]) and torch.equal(bounds[0], bounds[2])


@pytest.mark.parametrize(
    "inputs", [SOURCE * torch.nan, [SOURCE, SOURCE], SOURCE[..., :3], "text"], ids=range(4)
)
def test_inputs_that_are_refused(inputs: object) -> None:
    report = convert_(model := encoder(), 1e-4)
    assert model is not None
    with pytest.raises(InputError):
        report.for_input(inputs)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_numbers_are_those_of_the_call_in_the_same_mode(mode: Callable[[], Any]) -> None:
    """torch has other kernels with gradients than without."""
    model, inputs = built("bert")
    report = convert_(model, approximation=1e-4)
    with mode():
        found, again = report.for_input(inputs), model(**inputs)
    assert torch.equal(found["last_hidden_state"].value, again.last_hidden_state.detach())
    assert found.grad == (mode is torch.enable_grad)


def test_the_precision_grows_until_the_radius_is_negligible(monkeypatch: pytest.MonkeyPatch) -> None:
    report = convert_(model := encoder(), 1e-4)
    assert model is not None
    expected = report.for_input(SOURCE)
    monkeypatch.setattr(for_input, "_FIRST", 24)
    found = report.for_input(SOURCE)
    assert found.precision == 96 and 0.99 < found["output"].largest / expected["output"].largest < 1.01
    monkeypatch.setattr(for_input, "_LAST", 48)
    with pytest.raises(PrecisionError):
        report.for_input(SOURCE)


class Altered(nn.Module):
    """A feed-forward block, whose input is changed by a function first."""

    def __init__(self, change: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.a, self.act, self.b = nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)
        self.change, self.calls, self.seen = change, 0, [0]

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        x = self.change(self, x, *others)
        return x + self.b(self.act(self.a(self.norm(x))))


def _count(model: Any, x: Tensor) -> Tensor:
    model.calls += 1
    return x


def _alternate(model: Any, x: Tensor) -> Tensor:
    model.seen[0] += 1
    return x * float(1 + model.seen[0] % 2)


def _append(model: Any, x: Tensor, past: list[Tensor]) -> Tensor:
    past.append(x)
    return past[-2] + 0 * x


CHANGES: dict[str, Callable[..., Tensor]] = {
    "counts its calls": _count,
    "alternates": _alternate,
    "changes its input": lambda model, x: x.data.add_(1.0),
    "changes a view of its input": lambda model, x: x.detach().reshape(-1).add_(1.0).view(x.shape),
}


@pytest.mark.parametrize("change", CHANGES)
def test_models_with_a_state_are_refused(change: str) -> None:
    model = Altered(lambda model, x: x).eval()
    report = convert_(model, approximation=1e-3)
    x = SOURCE[0, :, :4].clone()
    expected = report.for_input(x)["output"]
    model.change = CHANGES[change]
    with pytest.raises(UnsupportedError):
        report.for_input(x.clone())
    model.change = lambda model, x: x
    assert torch.equal(report.for_input(x)["output"].bound, expected.bound)


def test_a_list_that_grows_is_refused() -> None:
    x = SOURCE[0, :, :4].clone()
    model = Altered(lambda model, x, past: past[-1] + 0 * x).eval()
    report = convert_(model, approximation=1e-3, samples=(x, [x]))
    model.change = _append
    with pytest.raises(UnsupportedError):
        report.for_input((x, [x.clone()]))


def test_the_numbers_of_a_certificate_are_its_own() -> None:
    """A model that returns its input: a later change of the input changes no certificate."""

    class Both(Altered):
        def forward(self, x: Tensor, *others: Any) -> Any:
            return super().forward(x), x

    report = convert_(model := Both(lambda model, x: x).eval(), approximation=1e-3)
    assert model is not None
    x = SOURCE[0, :, :4].clone()
    found = report.for_input(x)["output[1]"]
    assert found.largest == 0.0 and torch.equal(found.value, x)
    x.add_(1.0)
    assert torch.equal(found.value, SOURCE[0, :, :4])


def test_torch_that_flushes_subnormal_numbers_is_refused() -> None:
    report = convert_(model := encoder(), 1e-4)
    assert model is not None
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        with pytest.raises(InputError):
            report.for_input(SOURCE)
    finally:
        torch.set_flush_denormal(False)


_asks_alone = torch.is_inference_mode_enabled  # under a name that a recording cannot replace


@pytest.mark.parametrize(
    "asks",
    [lambda y: y.is_inference(), lambda y: torch.is_inference(y), lambda y: _asks_alone()],
    ids=["Tensor.is_inference", "torch.is_inference", "imported"],
)
def test_a_model_that_notices_inference_mode_is_refused(asks: Callable[[Tensor], bool]) -> None:
    """In inference mode it rounds to sixteenths, which its recording, made without that mode, does not show: the bound was 0."""

    class Noticing(Altered):
        written_out: Tensor | None = None

        def forward(self, x: Tensor, *others: Any) -> Tensor:
            y = super().forward(x)
            rounded = (y + 1e6) - 1e6
            if self.written_out is None:
                return y
            return rounded if asks(y) else 0 * y + self.written_out

    model = Noticing(lambda model, x: x).eval()
    report, x = convert_(model, approximation=1e-3), SOURCE[0, :, :4].clone()
    with torch.no_grad():
        model.written_out = (model(x) + 1e6) - 1e6
    with torch.inference_mode(), pytest.raises(UnsupportedError):
        report.for_input(x)
