"""Whole transformers as programs: every family, attention as one operation and written out, altered models, refusals."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnc.domain import Box, Tokens
from attnc.errors import UnsupportedError
from attnc.frontends import to_program
from attnc.program import Norm, Program
from attnc.program.evaluate import approximate, exact
from tests.frontends.tiny_models import hf
from tests.sampled import only

IDS = Tokens(vocabulary=30, length=5)
SEQUENCE = Box(-2, 2, shape=(5, 8))
TEXT = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
}
GROUPED = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
T5 = {"d_model": 8, "d_kv": 4, "num_heads": 2, "d_ff": 12, "num_layers": 1, "vocab_size": 30}
GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 30}
OPT = {**TEXT, "ffn_dim": 12, "word_embed_proj_dim": 8}
DISTIL = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 12, "vocab_size": 30}
EAGER = {"attn_implementation": "eager"}
# name → (model, config, its arguments, how many norms, whether norms or softmax run in float32)
FAMILIES: dict[str, tuple[str, str, dict[str, Any], int, bool]] = {
    "bert": ("BertModel", "BertConfig", TEXT, 3, False),
    "gpt2 eager": ("GPT2LMHeadModel", "GPT2Config", {**GPT2, **EAGER}, 3, False),
    "t5 gated": ("T5EncoderModel", "T5Config", {**T5, "feed_forward_proj": "gated-gelu"}, 3, True),
    "llama eager": ("LlamaForCausalLM", "LlamaConfig", {**GROUPED, **EAGER}, 3, True),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", GROUPED, 3, True),
    "mistral": ("MistralModel", "MistralConfig", {**GROUPED, "sliding_window": 2}, 3, True),
    "qwen3": ("Qwen3Model", "Qwen3Config", GROUPED, 5, True),
    "phi": ("PhiForCausalLM", "PhiConfig", TEXT, 2, False),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT, 3, False),
    "distilbert": ("DistilBertModel", "DistilBertConfig", DISTIL, 3, False),
}
USUAL = (
    "bert",
    "gpt2 eager",
    "t5 gated",
    "llama eager",
    "mistral",
    "phi",
)  # each has something that the others lack


def family(name: str, **more: Any) -> nn.Module:
    model, config, arguments, *_ = FAMILIES[name]
    torch.manual_seed(0)
    made: nn.Module = getattr(hf, model)(getattr(hf, config)(**arguments, **more)).eval().double()
    for parameter in made.parameters():  # gains, shifts and biases are 1 and 0 in a new model
        if parameter.ndim == 1:
            nn.init.normal_(parameter.data, std=0.5)
    return made


def read(model: nn.Module, domain: Box, output: str | None = None) -> Program:
    return to_program(model, domain.shape, domain, output)


def kinds(program: Program) -> Counter[str]:
    return Counter(step.kind for step in program.steps)


def gap(model: nn.Module, program: Program, x: Tensor, output: Any = 0) -> float:
    """The largest difference, relative to the largest output."""
    with torch.no_grad():
        result = model(x)
    wanted = (result if isinstance(result, Tensor) else result[output]).numpy()
    found = approximate(program, x.numpy())
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def ids(rows: int = 4) -> Tensor:
    return torch.randint(0, IDS.vocabulary, (rows, IDS.length), generator=torch.Generator().manual_seed(3))


def problems(model: nn.Module, domain: Box) -> list[str]:
    with pytest.raises(UnsupportedError) as caught:
        read(model, domain)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("name", only(USUAL, FAMILIES))
def test_a_family_is_read_as_it_runs(name: str) -> None:
    model, (*_, norms, narrow) = family(name), FAMILIES[name]
    program = read(model, IDS)
    assert gap(model, program, ids()) <= (1e-6 if narrow else 1e-12)
    assert kinds(program)["attend"] == 1
    assert kinds(program)["norm"] == norms


def test_a_window_grouped_keys_and_a_bias_are_read() -> None:
    (attend,) = [s for s in read(family("mistral"), IDS).steps if s.kind == "attend"]
    reach = np.subtract.outer(np.arange(5), np.arange(5))
    assert (attend.heads, attend.kv_heads) == (4, 2)
    assert np.array_equal(attend.mask, (reach >= 0) & (reach < 2))
    (attend,) = [s for s in read(family("t5 gated"), IDS).steps if s.kind == "attend"]
    assert attend.mask is None
    assert attend.bias.shape == (2, 5, 5)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}], ids=["post", "pre"])
def test_torch_encoders(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, **options)
    model = nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(8), enable_nested_tensor=False).eval().double()
    program = read(model, SEQUENCE)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    assert gap(model, program, x) <= 1e-12
    assert kinds(program) == {"affine": 6, "attend": 1, "combine": 2, "norm": 3, "pointwise": 1}


class Attention(nn.Module):
    """Attention written out, with options that are wrong."""

    def __init__(self, twist: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.norm, self.twist = nn.Linear(8, 24), nn.LayerNorm(8), twist

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (2, 4)).transpose(1, 2)
            for t in self.norm(x).chunk(1, -1)[0].matmul(self.qkv.weight.T).chunk(3, -1)
        )
        if self.twist == "flipped":
            k = k.flip(2)
        scores = q @ k.mT / 2
        if self.twist == "capped":
            scores = scores.tanh()
        if self.twist == "masked":
            scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
        weights = scores.softmax(1 if self.twist == "over heads" else -1)
        if self.twist == "batch":
            weights = weights.flip(0)
        found = (weights @ v).transpose(1, 2).flatten(2)
        if self.twist == "batch mean":
            return found - found.mean(0, keepdim=True)
        if self.twist == "batch size":
            return found * (1 / x.shape[0])
        if self.twist == "pooled":
            return found.mean(1)
        return x + found


@pytest.mark.parametrize("twist", ["", "masked", "pooled"])
def test_attention_written_out(twist: str) -> None:
    model = Attention(twist).eval().double()
    program = read(model, SEQUENCE)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    assert gap(model, program, x) <= 1e-12
    assert kinds(program)["attend"] == 1


def test_balls_contain_what_runs() -> None:
    model = Attention("masked").eval().double()
    x = torch.randn(5, 8, dtype=torch.float64)
    balls = exact(read(model, SEQUENCE), x.numpy())
    with torch.no_grad():
        wanted = model(x[None])[0].numpy()
    middles = np.array([float(ball.mid()) for ball in balls.flat]).reshape(wanted.shape)
    assert max(float(ball.rad()) for ball in balls.flat) <= 1e-40
    assert np.abs(middles - wanted).max() <= 1e-13


@pytest.mark.parametrize(
    ("twist", "operation"),
    [
        ("capped", "aten.tanh"),
        ("over heads", "aten.softmax"),
        ("flipped", "aten.matmul"),
        ("batch", "aten.flip"),
        ("batch mean", "aten.mean"),
        ("batch size", "the model"),
    ],
)
def test_what_is_not_attention_is_refused_by_name(twist: str, operation: str) -> None:
    found = problems(Attention(twist).eval(), SEQUENCE)
    assert found[0].startswith(operation), found


def test_another_axis_order_is_refused() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12).eval()  # (tokens, batch, features)
    assert "self_attn" in problems(layer, SEQUENCE)[0]


def test_position_ids_from_padding_are_refused() -> None:
    model = hf.RobertaModel(hf.RobertaConfig(**TEXT)).eval()
    assert problems(model, IDS)[0].startswith("aten.ne in embeddings")


class WrittenOut(nn.Module):
    """A LayerNorm by mean, square and root; `how` says in which way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.gain, self.shift = how, nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "half inside":
            x = x.bfloat16().to(self.gain.dtype)
        z = x - x.mean(-1, keepdim=True)
        u = z.pow(2).mean(-1, keepdim=True) + 1e-5
        y = self.gain * (z * torch.rsqrt(u) if self.how == "a product" else z / torch.sqrt(u))
        return y if self.how == "a product" else y + self.shift


@pytest.mark.parametrize("how", ["a product", "a sum", "half inside"])
def test_a_layer_norm_that_is_written_out(how: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), WrittenOut(how)).eval().double()
    if how == "half inside":
        assert "half precision" in problems(model, SEQUENCE)[0]
        return
    program = read(model, SEQUENCE)
    (norm,) = (step for step in program.steps if isinstance(step, Norm))
    assert norm.centred and bool(norm.shift.any()) == (how == "a sum")
    assert gap(model, program, torch.randn(4, 5, 8, dtype=torch.float64)) <= 1e-12


class Narrow(nn.Module):
    """A norm of float32 inside of a model of float64."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.float()).double()


@pytest.mark.parametrize("inner", [nn.LayerNorm(8), WrittenOut("a sum")], ids=["fused", "written out"])
def test_a_mean_that_is_subtracted_in_float32_is_refused(inner: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(8, 8).double(), Narrow(inner.float()), nn.Linear(8, 8).double()).eval()
    assert problems(model, SEQUENCE)


def test_an_output_by_name() -> None:
    model = family("bert")
    program = read(model, IDS, "pooler_output")
    assert program.shapes[-1] == (8,)
    assert gap(model, program, ids(), "pooler_output") <= 1e-12


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)


def test_an_altered_model_has_the_altered_meaning() -> None:
    model: Any = family("bert")
    before = read(model, IDS)
    model.encoder.layer[0].output.LayerNorm = Doubled(model.encoder.layer[0].output.LayerNorm)
    model.encoder.layer[0].intermediate.intermediate_act_fn = nn.Tanh()
    program = read(model.eval(), IDS)
    assert gap(model, program, ids()) <= 1e-12
    assert gap(model, before, ids()) > 1e-2


def test_hooks_and_assigned_forwards_are_refused() -> None:
    model: Any = family("bert")
    norm = model.encoder.layer[0].output.LayerNorm
    handle = norm.register_forward_hook(lambda module, given, found: 2 * found)
    assert any("forward hooks" in problem for problem in problems(model, IDS))
    handle.remove()
    forward = norm.forward
    norm.forward = lambda x: 2 * forward(x)
    assert any("assigned" in problem for problem in problems(model, IDS))


class Secret(nn.Module):
    """Returns something else when no recording is under way."""

    def __init__(self, inner: nn.Module, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if torch.compiler.is_exporting() else self.factor * self.inner(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_guard_notices_what_a_recording_hides(dtype: torch.dtype) -> None:
    model: Any = family("gemma").to(dtype)
    model.model.norm = Secret(model.model.norm, 1 + 1e-3)
    (problem,) = problems(model.eval(), IDS)
    assert "differs from the recorded operations" in problem
