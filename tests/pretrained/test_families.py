"""Families of transformers: what is read of them is what runs; experts, fused gates, written-out norms; half precision."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.cli.output import status_of
from attnc.errors import AttncError, CertificateError
from attnc.pretrained import convert_, from_pretrained
from attnc.pretrained.report import ASSUMED, ASSUMED_HALF, ConversionReport, holds_for
from attnc.records.certificate import Certificate, Status

pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT / "benchmarks"),) if path not in sys.path]
from attacks.families import attack_family  # noqa: E402
from family_models import FAMILIES, example, tiny  # noqa: E402

SHOWN = ("bloom", "mixtral")
REFUSED = {
    "esm",
    "mobilebert",
    "squeezebert",
    "xlnet",
    "bitnet",
    "gpt_oss",
    "led",
    "switch_transformers",
    "olmo2",
    "olmo3",
}
OTHERS = sorted(FAMILIES.keys() - {*SHOWN, "xglm"})  # which does not run in float64: nothing to compare with


@pytest.mark.filterwarnings("ignore")  # of domains that the attack leaves, and of transformers
@pytest.mark.parametrize("name", [*SHOWN, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_no_claim_of_a_family_is_false(name: str) -> None:
    found = attack_family(name, torch.float32, 1, 96)
    assert found.verdict == ("refused" if name in REFUSED else "converted"), found.note
    assert found.ratio < 1


@pytest.mark.parametrize("name", ["bert", "phi3"])
def test_half_precision_claims_the_approximation_alone(name: str) -> None:
    model, inputs = tiny(name, torch.bfloat16), example(name)
    report = convert_(model, approximation=1e-2, samples=inputs)
    for part in (report.certificate, *report.blocks):
        assert (part.status, part.rounding, part.bound, part.dtype) == (
            "unknown",
            math.inf,
            math.inf,
            "bfloat16",
        )
        assert part.approximation <= 1e-2
    assert not report.proved and Certificate.from_json(report.certificate.to_json()) == report.certificate
    assert ASSUMED_HALF in report.notes() and ASSUMED not in report.notes()
    status, reason = status_of(report)
    assert status is Status.UNKNOWN and "bfloat16" in str(reason)
    verdict = attnc.verify(model)
    assert verdict and verdict.exact and verdict.bound == report.certificate.approximation
    assert all(part.exact for part in verdict.children)
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "gate_up" in name or "intermediate" in name)[0] *= 2
    assert not attnc.verify(model)


def test_half_precision_of_a_given_input_is_bounded() -> None:
    """Each executed number is as far from the original in float64 as the certificate says, but for what float64 rounds."""
    model, inputs = tiny("bert", torch.bfloat16), example("bert")
    with torch.no_grad():
        meant = tiny("bert", torch.bfloat16).double()(**inputs).last_hidden_state
    found = convert_(model, 1e-3, parts=("feed-forward", "norm")).for_input(inputs)["last_hidden_state"]
    gap = (found.value.double() - meant).abs()
    assert 1e-4 < found.largest < 1 and bool(((gap - found.bound).abs() < 1e-13).all())


def test_calibration_in_half_precision_is_measured() -> None:
    """Nothing is proved of inputs that the samples did not bring: the report says so, and `verify` does not prove it."""
    model, inputs = tiny("olmo2", torch.bfloat16), example("olmo2")
    report = convert_(model, 1e-2, {"calibration": [inputs]})
    assert {holds_for(block) for block in report.blocks} == {"inputs as in calibration"}
    for part in (report.certificate, *report.blocks):
        assert part.status is Status.MEASURED and part.bound == part.rounding == math.inf
    assert ConversionReport.from_json(report.to_json()) == report
    assert status_of(report)[0] is Status.MEASURED
    assert attnc.verify(model).status is Status.UNKNOWN


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "dtype"), [("deberta", torch.float16), ("gemma", torch.bfloat16)])
@pytest.mark.slow
def test_half_precision_of_all_parts_under_attack(name: str, dtype: torch.dtype) -> None:
    found = attack_family(name, dtype, 1, 96)
    assert found.verdict == "converted" and found.ratio < 1


def test_a_certificate_in_half_precision_cannot_claim_a_bound() -> None:
    terms: dict[str, Any] = {"subject": "model", "dtype": "bfloat16", "approximation": 1e-3}
    for status in (Status.UNKNOWN, Status.MEASURED):
        Certificate(status=status, rounding=math.inf, bound=math.inf, **terms)
    for status, bound in ((Status.PROVED, math.inf), (Status.UNKNOWN, 1.0), (Status.MEASURED, 1.0)):
        with pytest.raises(CertificateError):
            Certificate(status=status, rounding=math.inf, bound=bound, **terms)
    for status in (Status.PROVED, Status.MEASURED, Status.UNKNOWN):
        with pytest.raises(CertificateError):
            Certificate(status=status, rounding=1e-3, bound=2e-3, **terms)


def test_saved_and_read_back(tmp_path: Path) -> None:
    model, inputs = tiny("phi3"), example("phi3")
    convert_(model, approximation=1e-2, samples=inputs)
    model.save_pretrained(tmp_path / "saved")
    again = from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(again(**inputs)[0], model(**inputs)[0])
    assert attnc.verify(tmp_path / "saved")


@pytest.mark.slow
def test_experts_that_transformers_stores_one_by_one_are_read_back(tmp_path: Path) -> None:
    """A converted model is saved with the tensors that the model has."""
    model, inputs = tiny("mixtral"), example("mixtral")
    convert_(model, approximation=1e-2, samples=inputs)
    assert attnc.verify(model)
    model.save_pretrained(tmp_path / "saved")
    again = from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(again(**inputs)[0], model(**inputs)[0])
    assert attnc.verify(tmp_path / "saved")


@pytest.mark.slow
def test_every_expert_is_in_the_bound() -> None:
    """An expert that gets no token counts as the others do: larger weights, a larger bound."""
    bounds = []
    for factor in (1.0, 30.0):
        model, inputs = tiny("mixtral"), example("mixtral")
        with torch.no_grad():
            for layer in model.layers:
                layer.mlp.gate.weight[3] = 0
                layer.mlp.gate.weight[:3] *= 100  # expert 3 is never among the two largest for all tokens
                layer.mlp.experts.down_proj[3] *= factor
        report = convert_(model, approximation=1e-1, samples=inputs)
        bounds.append(max(block.rounding for block in report.blocks))
        assert "experts" in report.blocks[0].facts["remarks"][0] and "router" in str(report)
    assert bounds[1] > 5 * bounds[0]


class Fused(nn.Module):
    """A gated block with one map for gate and factor; `wrong` computes something else than it seems to."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.norm, self.both, self.act, self.down = (
            nn.LayerNorm(6),
            nn.Linear(6, 20),
            nn.SiLU(),
            nn.Linear(10, 6),
        )
        self.other, self.wrong = nn.Linear(6, 20), wrong

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        gate, up = self.both(y).chunk(2, dim=-1)
        if self.wrong == "tokens":
            up = up.flip(0)
        if self.wrong == "same":
            up = gate
        if self.wrong == "interleaved":
            gate, up = self.both(y)[..., ::2], self.both(y)[..., 1::2]
        if self.wrong == "another map":
            up = self.other(y)[..., :10]
        if self.wrong == "dropout":
            gate = nn.functional.dropout(gate, 0.5, True)
        if self.wrong == "added":
            up = up + 1
        out: Tensor = self.down(self.act(gate) * up)
        return x + out


class Model(nn.Module):
    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.block = Fused(wrong)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return out


def test_a_block_that_holds_its_norm_is_refused() -> None:
    """The module of the block would take the place of the norm as well."""
    with pytest.raises(AttncError):
        convert_(Model().eval(), approximation=1e-2)


@pytest.mark.parametrize("wrong", ["tokens", "same", "interleaved", "another map", "dropout", "added"])
def test_gates_that_are_not_what_they_seem(wrong: str) -> None:
    model = Model(wrong).eval()
    before = [name for name, _ in model.named_modules()]
    with pytest.raises(AttncError):
        convert_(model, approximation=1e-2, samples=torch.randn(3, 4, 6))
    assert [name for name, _ in model.named_modules()] == before


@pytest.mark.parametrize("change", ["hook", "eager", "meta", "quantised"])
def test_experts_that_are_refused(change: str) -> None:
    """Hooks would be lost, a loop over the experts that were hit depends on the numbers of the input."""
    model: Any = tiny("mixtral")
    if change == "hook":
        model.layers[0].mlp.experts.act_fn.register_forward_hook(lambda part, given, out: out * 1.0)
    if change == "eager":
        model.set_experts_implementation("eager")
    if change == "meta":
        model = model.to("meta")
    if change == "quantised":
        model.layers[0].mlp.experts.down_proj = nn.Parameter(
            torch.zeros(4, 16, 24).to(torch.float8_e4m3fn), False
        )
    before = [type(part).__name__ for part in model.modules()]
    with pytest.raises(AttncError):
        convert_(model, approximation=1e-2, samples=None if change == "meta" else example("mixtral"))
    assert [type(part).__name__ for part in model.modules()] == before
