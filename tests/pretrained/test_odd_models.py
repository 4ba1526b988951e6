"""Models of which nothing could be proved are refused; what a converted model is used for afterwards works as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnc.errors import AttncError, InputError
from attnc.frontends.transformers import SkipCause
from attnc.pretrained import convert_, from_pretrained, report_of
from tests.frontends.tiny_models import example, hf, tiny

EPS = 1e-3


class Loud(nn.Identity):
    """Named as one that changes nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e4 * x


class LoudBlock(nn.Module):
    """With the parts of GPT-2's block, and another use of them."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.c_fc, self.act, self.c_proj = of.c_fc, of.act, of.c_proj

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = 1e4 * self.c_proj(self.act(100 * self.c_fc(x)))
        return found


class LoudNorm(nn.LayerNorm):
    """Named as one that normalises."""

    def forward(self, x: Tensor) -> Tensor:
        return 10 * super().forward(x)


def mlp(*before: nn.Module, behind: nn.Module | None = None) -> nn.Sequential:
    inner = [nn.Linear(8, 16), nn.GELU(), *([behind] if behind else []), nn.Linear(16, 8)]
    return nn.Sequential(*before, *inner).eval()


def hooked() -> nn.Module:
    made = nn.Dropout()
    made.register_forward_hook(lambda module, given, out: 1000 * out)
    return made


def loud_gpt2() -> nn.Module:
    model = tiny("gpt2")
    model.transformer.h[0].mlp = LoudBlock(model.transformer.h[0].mlp).eval()
    return model


def huge_products() -> nn.Module:
    """ρ would be 2^200 and more, which the stored exponents do not hold."""
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.mul_(1e70)
        model.model.layers[0].mlp.down_proj.weight.mul_(1e-70)
    return model


def huge_gain() -> nn.Module:
    model = mlp(nn.LayerNorm(8))
    with torch.no_grad():
        model[0].weight.fill_(3e38)
        model[1].weight.mul_(1e-38)
    return model


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mlp(nn.LayerNorm(8), behind=Loud()), "aten.mul"),
        (lambda: mlp(nn.LayerNorm(8), Loud()), "ConvertConfig"),
        (lambda: mlp(nn.LayerNorm(8), hooked()), "ConvertConfig"),
        (lambda: mlp(LoudNorm(8)), "ConvertConfig"),
        (lambda: mlp(nn.RMSNorm(8, eps=0.0)), "eps=0.0"),
        (lambda: mlp(nn.LayerNorm(8, eps=0.0)), "eps=0.0"),
        (loud_gpt2, "aten.mul"),
        (huge_products, "2\\^127"),
        (huge_gain, "overflow"),
    ],
    ids=["behind", "between", "hook", "norm", "rms eps", "layer eps", "class", "products", "gain"],
)
def test_refused(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(InputError, match=words):
        convert_(make(), approximation=EPS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neurons_that_are_pruned(dtype: torch.dtype) -> None:
    model = tiny("llama").to(dtype)
    with torch.no_grad():
        for part in (model.model.layers[0].mlp.gate_proj, model.model.layers[0].mlp.up_proj):
            part.weight[3] = 0
            part.bias[3] = 0
    before = model(**example("llama")).logits
    assert all(block.approximation <= EPS for block in convert_(model, approximation=EPS).blocks)
    assert bool(((model(**example("llama")).logits - before).abs() < 0.1).all())


def test_what_is_set_in_the_config_still_counts() -> None:
    model, inputs = tiny("bert"), example("bert")
    convert_(model, approximation=EPS)
    model.set_attn_implementation("eager")
    assert len(model(**inputs, output_attentions=True).attentions) == 2
    model.config.output_hidden_states = True
    assert len(model(**inputs).hidden_states) == 3


@pytest.mark.parametrize("whole", [False, True])
def test_parts_are_converted_and_wholes_saved_and_the_other_way_round(whole: bool, tmp_path: Path) -> None:
    model = hf.BertForMaskedLM(tiny("bert").config).eval()
    shared = model.config
    convert_(model if whole else model.bert, approximation=EPS)
    (model.bert if whole else model).save_pretrained(tmp_path / "saved")
    back = from_pretrained(tmp_path / "saved")
    assert model.config is model.bert.config is shared
    assert report_of(back).converted == report_of(model).converted == 2
    assert sum(type(part).__name__ == "AnchorActivation" for part in back.modules()) == 2


def test_two_conversions_are_both_on_record(tmp_path: Path) -> None:
    model = tiny("bert")
    for layer in ("layer.0", "layer.1"):
        report = convert_(model, approximation=EPS, filter_fn=lambda site, layer=layer: layer in site.name)
        assert report.converted == 1
    assert any(one.cause is SkipCause.CONVERTED for one in report.skipped)
    model.save_pretrained(tmp_path / "saved")
    back = from_pretrained(tmp_path / "saved")
    assert report_of(model).converted == report_of(back).converted == 2
    assert torch.equal(back(**example("bert")).last_hidden_state, model(**example("bert")).last_hidden_state)


def test_a_config_that_was_another_model_s(tmp_path: Path) -> None:
    first = tiny("bert")
    convert_(first, approximation=EPS)
    second = hf.BertModel(first.config).eval()
    convert_(second, approximation=EPS, filter_fn=lambda site: "layer.1" in site.name)
    second.save_pretrained(tmp_path / "saved")
    assert (
        sum(type(p).__name__ == "AnchorActivation" for p in from_pretrained(tmp_path / "saved").modules())
        == 1
    )


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_casts_and_autocast(name: str) -> None:
    model, inputs = tiny(name).float(), example(name)
    before = next(iter(model(**inputs).values()))
    convert_(model, approximation=EPS)
    for dtype, cast in ((torch.bfloat16, model.bfloat16), (torch.float16, model.half)):
        found = next(iter(cast()(**inputs).values()))
        assert found.dtype == dtype and bool(found.isfinite().all())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bool(next(iter(model.float()(**inputs).values())).isfinite().all())
    assert next(iter(model(**inputs).values())).shape == before.shape


def test_what_optimisers_see_stays_as_it_was() -> None:
    model = tiny("bert")
    names = [name for name, _ in model.named_parameters()]
    convert_(model, approximation=EPS)
    assert [name for name, _ in model.named_parameters()] == names


def test_a_domain_that_is_too_wide_names_the_block() -> None:
    model = mlp(nn.LayerNorm(8))
    with torch.no_grad():
        model[1].weight.mul_(1e5)
    with pytest.raises(AttncError, match="filter_fn"):
        convert_(model, approximation=EPS)
