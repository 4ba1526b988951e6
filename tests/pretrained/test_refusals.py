"""What convert_ refuses, in words that help; and whatever stops it, the model is as it was, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.errors import InputError, PrecisionError, UnsupportedError
from attnc.network.pointwise import Pointwise
from attnc.network.product import GatedBlock
from attnc.pretrained import convert, convert_, report_of
from tests.frontends.tiny_models import Odd, example, tiny
from tests.pretrained import test_convert

EPS = 1e-5
few_heads = test_convert.few_heads
IDS = example("bert")["input_ids"]


class Unchanged:
    """That a model is the same before and after: its parts, what they hold, its tensors, its config and its outputs."""

    def __init__(self, model: Any, given: Any) -> None:
        self.model, self.given = model, given
        self.parts = dict(model.named_modules())
        self.held = {name: dict(vars(part)) for name, part in self.parts.items()}
        self.inside = {name: list(part._modules.items()) for name, part in self.parts.items()}
        self.tensors = {key: (t, t.detach().clone()) for key, t in model.state_dict(keep_vars=True).items()}
        self.config = model.config.to_dict() if hasattr(model, "config") else None
        self.out = self.run()

    def run(self) -> Tensor:
        with torch.no_grad():
            made = self.model(**self.given) if isinstance(self.given, dict) else self.model(self.given)
        found: Tensor = made if isinstance(made, Tensor) else made[0]
        return found

    def check(self) -> None:
        assert [*self.model.named_modules()] == [*self.parts.items()]
        for name, part in self.parts.items():
            assert list(part._modules.items()) == self.inside[name]
            held = vars(part)
            assert held.keys() == self.held[name].keys()
            assert all(held[key] is value for key, value in self.held[name].items())
        now = self.model.state_dict(keep_vars=True)
        assert now.keys() == self.tensors.keys()
        assert all(now[key] is t and torch.equal(t, kept) for key, (t, kept) in self.tensors.items())
        assert self.config is None or self.model.config.to_dict() == self.config
        assert not hasattr(self.model, "_attnc_report")
        assert torch.equal(self.run(), self.out)


def small(activation: nn.Module | None = None, norm: bool = True, width: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    front = [nn.LayerNorm(4)] if norm else []
    parts = [*front, nn.Linear(4, width), activation or nn.GELU(), nn.Linear(width, 3)]
    return nn.Sequential(*parts).double().eval()


def interrupted(message: str, done: int, total: int) -> None:
    if done == total:
        raise KeyboardInterrupt


def bad_last_layer(model: Any) -> None:
    model.encoder.layer[1].intermediate.intermediate_act_fn = Odd().eval()


def steep_last_layer(model: Any) -> None:
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight.mul_(1e12)


STOPS: dict[str, tuple[Callable[[Any], None], dict[str, Any], type[BaseException], str]] = {
    "activation of the last block": (bad_last_layer, {}, UnsupportedError, r"encoder\.layer\.1.*aten\.sin"),
    "eps of the last block": (steep_last_layer, {}, PrecisionError, r"approximation=1e-05 .*encoder\.layer\.1"),
    "samples": (lambda m: None, {"samples": {"input_ids": torch.tensor([[77]])}}, InputError, "sample.*Ind"),
    "samples of no kind": (lambda m: None, {"samples": "words"}, InputError, "sample.*str"),
    "no samples": (lambda m: None, {"samples": []}, InputError, "samples"),
    "an interrupt": (lambda m: None, {"progress": interrupted}, KeyboardInterrupt, "^$"),
}  # fmt: skip


@pytest.mark.usefixtures("few_heads")
@pytest.mark.parametrize("stop", STOPS)
def test_whatever_stops_it_nothing_is_changed(stop: str) -> None:
    prepare, given, error, match = STOPS[stop]
    model = tiny("bert")
    prepare(model)
    kept = Unchanged(model, {"input_ids": IDS})
    with pytest.raises(error, match=match):
        convert_(model, **{"approximation": EPS, **given})
    kept.check()


class Late(nn.Module):
    """Fails once it holds a converted part."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, *given: Any, **named: Any) -> Any:
        if any(isinstance(part, (Pointwise, GatedBlock)) for part in self.modules()):
            raise KeyboardInterrupt
        return self.model(*given, **named)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2).double().eval()


@pytest.mark.usefixtures("few_heads")
@pytest.mark.parametrize("kind", ["bert", "llama", "encoder"])
def test_what_was_put_in_is_taken_out_where_the_converted_model_fails(kind: str) -> None:
    """Modules, functions, gated blocks, and the settings beside them."""
    x: Any = torch.randn(2, 3, 8, dtype=torch.float64) if kind == "encoder" else {"input_ids": IDS}
    model = Late(encoder() if kind == "encoder" else tiny(kind))
    kept = Unchanged(model, x)
    with pytest.raises(KeyboardInterrupt):
        convert_(model, approximation=EPS, samples=x)
    kept.check()


@pytest.mark.usefixtures("few_heads")
def test_nothing_is_changed_where_the_record_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    kept = Unchanged(model, {"input_ids": IDS})
    monkeypatch.setattr("attnc.pretrained.store.part_record", interrupted_record)
    with pytest.raises(MemoryError):
        convert_(model, approximation=EPS)
    kept.check()


def interrupted_record(*given: object) -> dict[str, Any]:
    raise MemoryError


def test_every_reason_is_listed() -> None:
    model = tiny("bert")
    model.encoder.layer[0].intermediate.intermediate_act_fn = nn.Threshold(0.1, 20).eval()
    bad_last_layer(model)
    with pytest.raises(UnsupportedError) as caught:
        convert_(model, approximation=EPS)
    assert len(caught.value.problems) == 2
    assert "aten.threshold" in str(caught.value) and "aten.sin" in str(caught.value)


@pytest.mark.parametrize("given", [0, -1e-3, math.nan, math.inf, True, "1e-3", None, 1j])
def test_approximation_is_a_positive_number(given: Any) -> None:
    with pytest.raises(InputError, match="approximation"):
        convert_(small(), approximation=given)


@pytest.mark.parametrize(
    ("model", "given", "match"),
    [
        (lambda: small().train(), {}, r"model\.eval"),
        (lambda: small().to("meta"), {}, "meta"),
        (lambda: small(Odd()), {}, r"aten\.sin.*attnc\.functions\.register"),
        (lambda: small().to(torch.float8_e4m3fn), {}, "samples=|float8"),
        (lambda: nn.Sequential(nn.Linear(2, 2)).eval(), {}, "Sequential"),
        (lambda: "a model", {}, "str"),
        (small, {"filter_fn": lambda site: False}, "filter_fn .*1 blocks"),
        (small, {"filter_fn": "layer.0"}, "filter_fn"),
        (small, {"config": {"speed": 1}}, "speed"),
        (small, {"config": {"engine": "sparse"}}, "engine='sparse'"),
        (small, {"config": {"design": "best"}}, "design='best'"),
        (small, {"config": {"design": "gated"}}, "design='gated'.*gelu"),
        (small, {"config": {"version": 0}}, "version=0"),
        (small, {"config": "softmax"}, "ConvertConfig.*str"),
        (lambda: small(norm=False), {}, r"ConvertConfig\(inputs=Box"),
        (lambda: small(norm=False), {"config": {"inputs": attnc.Box(0, 1, shape=(3,))}}, r"shape \(3,\).*4 features"),
        (lambda: small(norm=False), {"config": {"inputs": {"2": attnc.Box(0, 1, shape=(4,))}}}, "'2'"),
        (small, {"config": {"inputs": {"no": attnc.Box(0, 1, shape=(4,))}}}, "'no'"),
        (small, {"config": {"inputs": [0, 1]}}, r"inputs=\[0, 1\]"),
        (
            lambda: small(norm=False), {"config": {"calibration": torch.full((1, 4), math.inf, dtype=torch.float64)}},
            "finite",
        ),
        (lambda: small(norm=False), {"config": {"calibration": torch.zeros(0, 4, dtype=torch.float64)}}, "calibration"),
        (lambda: small(norm=False), {"config": {"calibration": torch.zeros(1, 9)}}, "sample"),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_refused(
    model: Callable[[], Any], given: dict[str, Any], match: str
) -> None:
    with pytest.raises(InputError, match=match):
        convert_(model(), **{"approximation": EPS, **given})


@pytest.mark.usefixtures("few_heads")
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_what_is_converted_is_not_converted_again(name: str) -> None:
    model = tiny(name)
    report = convert_(model, approximation=EPS)
    with pytest.raises(UnsupportedError):
        convert_(model, approximation=EPS)
    assert report_of(model) is report


@pytest.mark.parametrize("activation", [nn.GELU(), nn.GELU("tanh")])
def test_eps_below_the_dtype_names_one_that_is_reached(activation: nn.Module) -> None:
    model = small(activation).float()
    kept = Unchanged(model, torch.randn(2, 4))
    with pytest.raises(PrecisionError, match="approximation=1e-11") as caught:
        convert_(model, approximation=1e-11)
    kept.check()
    least = caught.value.reachable
    assert least is not None and 1e-11 < least < 1e-2 and f"approximation >= {least:.1e}" in str(caught.value)
    (block,) = convert_(model, approximation=least).blocks
    assert block.approximation <= least


@pytest.mark.parametrize("eps", [1.2e-4, 1e-11])
def test_relu_is_met_whatever_eps_is(eps: float) -> None:
    """Its heads are as near as eps asks for, in a wide block too: an output is the sum of all its neurons' errors."""
    (block,) = convert_(small(nn.ReLU(), width=64).float(), approximation=eps).blocks
    assert eps / 8 <= block.approximation <= eps


def test_a_gate_of_relu_is_met_whatever_eps_is() -> None:
    model = tiny("t5", feed_forward_proj="gated-relu", d_ff=64)
    for block in convert_(model, approximation=1e-6).blocks:
        assert block.facts["heads"] == 3 * 64 and 1e-6 / 16 <= block.approximation <= 1e-6


def test_eps_below_the_dtype_of_a_gated_block() -> None:
    model = tiny("llama").float()
    with pytest.raises(PrecisionError) as caught:
        convert_(model, approximation=1e-16)
    least = caught.value.reachable
    assert least is not None and convert_(model, approximation=least).blocks[0].approximation <= least


def test_a_copy_of_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError):
        convert(3, approximation=EPS)  # type: ignore[type-var]
