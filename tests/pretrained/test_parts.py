"""convert_(parts="all"): nothing but softmax is nonlinear, and each part is proved."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor, nn

import attnc
from attnc.errors import InputError, PrecisionError, UnsupportedError
from attnc.functions.balls import working
from attnc.network.norm import Norm
from attnc.pretrained import report_of
from attnc.records.certificate import Certificate

transformers = pytest.importorskip("transformers")
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 40,
}


def family(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    t = transformers
    made = {
        "bert": lambda: t.BertModel(t.BertConfig(**SIZES)),
        "gpt2": lambda: t.GPT2LMHeadModel(
            t.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=40, bos_token_id=1, eos_token_id=1)
        ),
        "t5": lambda: t.T5EncoderModel(
            t.T5Config(d_model=16, d_ff=24, d_kv=8, num_layers=1, num_heads=2, vocab_size=40)
        ),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=1)),
        "gemma": lambda: t.GemmaForCausalLM(t.GemmaConfig(**SIZES, num_key_value_heads=1, head_dim=8)),
        "vit": lambda: t.ViTModel(t.ViTConfig(**SIZES, image_size=16, patch_size=8)),
    }
    torch.manual_seed(0)
    model = made[name]().eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    pixels = name == "vit"
    return model, {"pixel_values": torch.randn(2, 3, 16, 16)} if pixels else {
        "input_ids": torch.arange(12).reshape(2, 6)
    }


def whole(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A model all of whose nonlinear operations are softmax, and the arguments of a call."""
    model, call = family(name)
    config = {"engine": "softmax"}
    return attnc.convert(model, approximation=1e-4, parts="all", config=config, samples=call), call


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("t5", "gemma", "gpt2", "vit")]


@pytest.mark.parametrize("name", ["bert", "llama", *SLOW])
def test_softmax_is_the_only_nonlinear_operation(name: str) -> None:
    converted, call = whole(name)
    report = report_of(converted)
    assert attnc.purity(converted, **call) == ()
    assert report.proved and report.converted == 1 and len(report.norms) >= 3
    assert max(d.largest for d in report.measured) < 1e-2


def test_the_original_has_other_nonlinear_operations() -> None:
    model, call = family("bert")
    assert {"gelu", "tanh"} <= set(attnc.purity(model, **call))


@pytest.mark.parametrize("name", ["llama", *SLOW])
def test_a_whole_model_is_verified_saved_and_read(name: str, tmp_path: Path) -> None:
    converted, call = whole(name)
    verdict = attnc.verify(converted)
    assert verdict.status == "proved", verdict.reason
    converted.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    read = attnc.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(read(**call)[0], converted(**call)[0])
    assert attnc.verify(tmp_path / "model").status == "proved"


@pytest.fixture(scope="module", params=["layer", "rms", "gemma"])
def norm(request: pytest.FixtureRequest) -> tuple[Norm, Certificate]:
    torch.manual_seed(1)
    original: nn.Module = nn.LayerNorm(12, eps=1e-5) if request.param == "layer" else nn.RMSNorm(12, eps=1e-6)
    if request.param == "gemma":
        from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

        original = GemmaRMSNorm(12, eps=1e-6)
    for parameter in original.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model = nn.Sequential(nn.Linear(12, 12), original).eval()
    report = attnc.convert_(model, approximation=1e-4, parts="norm", config={"engine": "softmax"})
    (certificate,) = report.norms
    assert isinstance(model[1], Norm)
    return model[1], certificate


def exact_norm(norm: Norm, x: Tensor) -> list[arb]:
    """The norm of a token whose mean was subtracted as torch does it."""
    z = x - x.mean(-1, keepdim=True) if norm.centred else x
    gain = norm.gain()
    gains = [1.0] * len(z) if gain is None else gain.tolist()
    shifts = [0.0] * len(z) if norm.bias is None else norm.bias.tolist()
    balls = [arb(t) for t in z.tolist()]
    root = (sum((t * t for t in balls), arb(0)) / len(z) + arb(norm.heads.offset)).sqrt()
    return [arb(g) * t / root + arb(b) for g, t, b in zip(gains, balls, shifts, strict=True)]


@pytest.mark.parametrize("engine", ["softmax", "closed-form"])
def test_executed_norms_stay_within_their_bounds(norm: tuple[Norm, Certificate], engine: str) -> None:
    module, certificate = norm
    module.engine = engine
    rng = np.random.default_rng(2)
    x = rng.standard_normal((300, 12)) * 10.0 ** rng.uniform(-7, 8, (300, 1))
    x[::5] = np.eye(12)[rng.integers(0, 12, 60)] * 10.0 ** rng.uniform(-7, 8, (60, 1))
    tokens = torch.from_numpy(x).float()
    bound = certificate.facts["roundings"][engine] + certificate.approximation
    with torch.no_grad():
        chunks = module(tokens)
    with working(128):  # with gradients every result is a new tensor
        for token, found in zip(
            torch.cat([tokens, tokens]), torch.cat([chunks, module(tokens)]), strict=True
        ):
            for y, value in zip(exact_norm(module, token), found.tolist(), strict=True):
                assert abs(arb(value) - y) <= bound


@pytest.mark.slow
def test_a_changed_norm_is_not_verified() -> None:
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)).eval()
    attnc.convert_(model, approximation=1e-3, parts="all", config={"engine": "softmax"})
    assert attnc.verify(model).status == "proved"
    part = model[0]
    assert isinstance(part, Norm)
    for change in (lambda: part.heads.value.mul_(1.01), lambda: setattr(part, "centred", False)):
        before = {name: t.clone() for name, t in part.state_dict().items()}, part.centred
        with torch.no_grad():
            change()
        assert attnc.verify(model).status != "proved"
        part.load_state_dict(before[0])
        part.centred = before[1]
    part.most = 2.0**80
    assert attnc.verify(model).status != "proved"


def test_tokens_beyond_the_limit_warn() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()
    attnc.convert_(model, approximation=1e-3, parts="norm")
    with pytest.warns(attnc.DomainWarning, match="mean square"):
        model[1](torch.tensor([1e12, -1e12, 0.0, 0.0]))
    constant = torch.full((4,), 1e12)  # its mean is subtracted first
    assert torch.equal(model[1](constant), model[1](torch.zeros(4)))


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (nn.LayerNorm(4, eps=0.0), UnsupportedError),
        (nn.LayerNorm(4, eps=1e30), UnsupportedError),
        (nn.LayerNorm(4, eps=math.inf), UnsupportedError),
        (nn.RMSNorm(4, eps=1e-30), UnsupportedError),
    ],
    ids=["eps 0", "huge eps", "infinite eps", "tiny eps"],
)
def test_norms_that_cannot_be_converted(part: nn.Module, error: type[Exception]) -> None:
    model = nn.Sequential(nn.Linear(4, 4, dtype=next(part.parameters()).dtype), part).eval()
    with pytest.raises(error):
        attnc.convert_(model, approximation=1e-3, parts="norm")
    assert model[1] is part


@pytest.mark.parametrize("parts", ["norms", (), ("norm", "gate"), None, 3])
def test_unknown_parts(parts: object) -> None:
    with pytest.raises(InputError, match="parts"):
        attnc.convert_(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)).eval(), 1e-3, parts=parts)  # type: ignore[arg-type]


def test_a_norm_inside_a_forward_is_refused() -> None:
    class Inline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.layer_norm(self.linear(x), (4,)) + x

    with pytest.raises(UnsupportedError):
        attnc.convert_(Inline().eval(), 1e-3, parts="norm")


def test_a_norm_whose_gain_the_model_changes_is_refused() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)
            self.norm.weight.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x)
            self.norm.weight.mul_(1.5)
            return y

    model = Grows().eval()
    with pytest.raises(UnsupportedError, match="changes its own numbers"):
        attnc.convert_(model, 1e-3, parts="norm")
    assert isinstance(model.norm, nn.LayerNorm)


def test_a_norm_that_may_overflow_is_refused() -> None:
    model = nn.Sequential(nn.RMSNorm(64, eps=1e-5), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    with torch.no_grad():
        model[0].weight.fill_(1e38)
    with pytest.raises(PrecisionError):
        attnc.convert_(model, approximation=1e33, parts="norm")
    assert type(model[0]) is nn.RMSNorm
