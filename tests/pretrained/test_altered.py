"""Models that were altered: what is read is what runs, so each is refused, or converted within its bound."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnc
from attnc.domain import Box, Normed
from attnc.errors import AttncError, InputError, UnsupportedError
from attnc.pretrained import convert_
from attnc.pretrained.verify import verify_conversion
from tests.frontends.tiny_models import example, tiny

EPS = 1e-3


def encoder(activation: Any = "gelu", **more: Any) -> nn.Module:
    torch.manual_seed(0)
    arguments = {"activation": activation, "norm_first": True, "batch_first": True, **more}
    return nn.TransformerEncoderLayer(4, 1, 8, **arguments).double().eval()


def mlp(activation: nn.Module, gain: float = 1.0, shift: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), activation, nn.Linear(8, 4)).double().eval()
    with torch.no_grad():
        model[0].weight.fill_(gain)
        model[0].bias.fill_(shift)
    return model


def clamped_gelu(s: Tensor) -> Tensor:
    return F.gelu(s).clamp(max=40.0)


clamped_gelu.__name__ = "gelu"


class relu(nn.Module):  # noqa: N801
    def forward(self, s: Tensor) -> Tensor:
        return s * (s > 0.02)


def softplus() -> nn.Module:
    model = encoder(F.softplus)
    with torch.no_grad():
        model.norm2.weight.fill_(20.0)
        model.norm2.bias.fill_(20.001)
    return model


def hooked(family: str, kind: str) -> nn.Module:
    """Three neurons are zeroed by a hook on the activation."""
    model = tiny(family)
    part = model.transformer.h[0].mlp.act if family == "gpt2" else model.model.layers[0].mlp.act_fn
    fill: Any = {
        "forward": lambda m, given, out: out.index_fill(-1, torch.tensor([1, 2, 3]), 0.0),
        "before": lambda m, given: (given[0].index_fill(-1, torch.tensor([1, 2, 3]), 0.0),),
        "scale": lambda m, given, out: 2 * out,
    }[kind]
    part.register_forward_pre_hook(fill) if kind == "before" else part.register_forward_hook(fill)
    return model


def patched() -> nn.Module:
    model = tiny("gpt2")
    act = model.transformer.h[0].mlp.act
    act.forward = types.MethodType(lambda self, s: torch.cos(s) * torch.sinh(s), act)
    return model


def t5_with(dropout: nn.Module) -> nn.Module:
    model = tiny("t5 gated")
    model.encoder.block[0].layer[1].DenseReluDense.dropout = dropout.eval()
    return model


def encoder_with(dropout: nn.Module) -> nn.Module:
    model = encoder()
    model.dropout = dropout.double().eval()
    return model


class Bypass(nn.Module):
    """Calls the block of a Llama layer without the norm in front of it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.layer = model.model.layers[0]
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.layer.mlp(x)
        return out


class Elsewhere(nn.Module):
    """Uses a block of GPT-2 a second time, on something else than a norm's output."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.again = model, model.transformer.h[0].mlp
        self.eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.model.transformer(input_ids, use_cache=False)[0]
        out: Tensor = self.again(5 * hidden)
        return out


class GradDependent(nn.Module):
    def forward(self, s: Tensor) -> Tensor:
        return F.gelu(s) if torch.is_grad_enabled() else F.silu(s)


class NormedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.act(self.up(100 * self.norm(x))))
        return out


class Counting(nn.Module):
    """Another function after its first calls."""

    calls = 0

    def forward(self, s: Tensor) -> Tensor:
        self.calls += 1
        return F.gelu(s) if self.calls < 4 else F.relu(s)


class Flow(nn.Module):
    """A norm and a block, and something on the way between them."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor], activation: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.drop, self.between = nn.LayerNorm(4), nn.Dropout(), between
        self.up, self.act, self.down = nn.Linear(4, 8), activation or nn.Mish(), nn.Linear(8, 4)
        self.register_buffer("peak", torch.ones(4))
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.act(self.up(self.between(self, x))))
        return out


def by_dropout(model: Any, x: Tensor) -> Tensor:
    """Outside of training, dropout returns its input itself: the norm's output is changed too."""
    h: Tensor = model.norm(x)
    y = model.drop(h)
    y *= 100
    return h


def by_einsum(model: Any, x: Tensor) -> Tensor:
    h: Tensor = model.norm(x)
    y = torch.einsum("...i->...i", h)
    y *= 100
    return h


def by_rank(model: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[1:])


def by_axis(model: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5)


def when_executed(model: Any, x: Tensor) -> Tensor:
    h = F.layer_norm(x, (4,), model.norm.weight, model.norm.bias)
    return h if torch.compiler.is_compiling() else 100 * h


def in_inference_mode(model: Any, x: Tensor) -> Tensor:
    h: Tensor = model.norm(x)
    return 100 * h if torch.is_inference_mode_enabled() else h


def with_gradients(model: Any, x: Tensor) -> Tensor:
    h: Tensor = model.norm(x)
    return 100 * h if x.requires_grad else h


def peak_gain(model: Any, x: Tensor) -> Tensor:
    model.peak.copy_(torch.maximum(model.peak, x.detach().abs().amax()))
    return F.layer_norm(x, (4,), model.peak, None)


REFUSED: dict[str, Callable[[], Any]] = {
    **{
        f"between norm and block: {between.__name__}": lambda between=between: Flow(between)
        for between in (
            by_dropout,
            by_einsum,
            by_axis,
            when_executed,
            in_inference_mode,
            with_gradients,
            peak_gain,
        )
    },
    "softplus with a threshold": softplus,
    "gelu by name, clamped at 40": lambda: encoder(clamped_gelu),
    "relu by name, with a threshold": lambda: mlp(relu()),
    "hook behind, gpt2": lambda: hooked("gpt2", "forward"),
    "hook before, gpt2": lambda: hooked("gpt2", "before"),
    "hook behind, llama": lambda: hooked("llama", "forward"),
    "hook before, llama": lambda: hooked("llama", "before"),
    "patched forward": patched,
    "t5 dropout is a clamp": lambda: t5_with(nn.Hardtanh(-0.1, 0.1)),
    "encoder dropout is a norm": lambda: encoder_with(nn.LayerNorm(8)),
    "no norm in front of a llama block": lambda: Bypass(tiny("llama")),
    "a gpt2 block that is used elsewhere": lambda: Elsewhere(tiny("gpt2")),
    "a forward that depends on the grad mode": lambda: mlp(GradDependent()),
    "a scale behind the norm": NormedTwice,
    "a forward that counts": lambda: mlp(Counting()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_alterations_are_refused(case: str) -> None:
    model = REFUSED[case]()
    parts = [type(part) for part in model.modules()]
    with pytest.raises(InputError):
        convert_(model, approximation=EPS)
    assert [type(part) for part in model.modules()] == parts


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(x)
    return found


READ: dict[str, tuple[Callable[[], Any], str]] = {
    "relu6 with another end": (lambda: mlp(_changed(nn.ReLU6(), max_val=8.0), 12.0), "clip(0,8)"),
    "hardtanh with other ends": (lambda: mlp(_changed(nn.Hardtanh(), min_val=-3.0), 12.0), "hardtanh(-3,1)"),
    "leaky relu with another slope": (
        lambda: mlp(_changed(nn.LeakyReLU(), negative_slope=0.3)),
        "leaky_relu(0.3)",
    ),
    "gelu in its other form": (lambda: mlp(_changed(nn.GELU(), approximate="tanh")), "gelu_tanh"),
    "a class called gelu that is a silu": (lambda: mlp(_named("GELU", F.silu)), "silu"),
    "a patched forward that is known": (lambda: mlp(_patched(nn.GELU(), F.relu)), "relu"),
    "a function with its argument": (
        lambda: mlp(_named("Odd", functools.partial(F.gelu, approximate="tanh"))),
        "gelu_tanh",
    ),
}


def _changed(part: nn.Module, **attributes: object) -> nn.Module:
    for name, value in attributes.items():
        setattr(part, name, value)
    return part


def _named(name: str, form: Callable[[Tensor], Tensor]) -> nn.Module:
    made: nn.Module = type(name, (nn.Module,), {"forward": lambda self, s: form(s)})()
    return made


def _patched(part: nn.Module, form: Callable[[Tensor], Tensor]) -> nn.Module:
    part.forward = form  # type: ignore[method-assign]
    return part


@pytest.mark.parametrize("case", READ)
def test_what_is_read_is_what_runs(case: str) -> None:
    """Names and attributes do not matter: the operations do."""
    make, activation = READ[case]
    model = make()
    original = copy.deepcopy(model)
    (block,) = convert_(model, approximation=EPS).blocks
    assert block.facts["activation"] == activation and isinstance(block.holds_for, Normed)
    x = torch.randn(512, 4, dtype=torch.float64) * torch.logspace(-3, 6, 512, dtype=torch.float64)[:, None]
    assert float((outputs(model, x) - outputs(original, x)).abs().max()) <= block.bound
    assert verify_conversion(model).status == "proved"


def twice(model: Any, x: Tensor) -> Tensor:
    return model.norm(x.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("between", [lambda model, x: model.norm(x), twice], ids=["plain", "rows moved"])
@pytest.mark.parametrize("activation", [nn.Mish(), nn.ReLU(inplace=True), nn.SiLU(inplace=True)], ids=repr)
def test_honest_models_are_converted(between: Any, activation: nn.Module) -> None:
    """Also with operations in place, and rows in another order."""
    model = Flow(between, activation)
    (block,) = convert_(model, approximation=EPS, samples=torch.randn(3, 2, 4, dtype=torch.float64)).blocks
    assert isinstance(block.holds_for, Normed) and verify_conversion(model).status == "proved"


def test_a_norm_that_depends_on_the_rank_is_read_only_where_it_is_certain() -> None:
    with pytest.raises(InputError):
        convert_(Flow(by_rank), approximation=EPS, samples=torch.randn(3, 4, dtype=torch.float64))


class SharedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (Flow(lambda model, x: model.norm(x)) for _ in range(2))
        self.two.norm = self.one.norm

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(self.one(x))
        return out


def test_a_norm_in_two_places() -> None:
    model = SharedNorm().eval()
    assert convert_(model, approximation=EPS).converted == 2 and verify_conversion(model).status == "proved"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padding_and_nested_tensors() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 2).double().eval()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    sample = {"src": torch.randn(2, 5, 8, dtype=torch.float64), "src_key_padding_mask": padding}
    assert convert_(model, approximation=EPS, samples=sample).converted == 2


def test_a_box_is_enough_where_no_norm_is_in_front() -> None:
    model = Bypass(tiny("llama"))
    box = attnc.Box(-1, 1, shape=(16,))
    (block,) = convert_(model, approximation=EPS, config={"inputs": box}).blocks
    assert isinstance(block.holds_for, Box) and block.proved and block.facts["norm"] is None


@functools.cache
def proved_model() -> Any:
    model = tiny("gpt2")
    convert_(model, approximation=EPS)
    assert attnc.verify(model).status == "proved"
    return model


def after(change: Callable[[Any], object]) -> str:
    """The verdict on a converted model that was changed afterwards."""
    model = copy.deepcopy(proved_model())
    change(model)
    return attnc.verify(model).status


def _ninefold(part: nn.Module, given: tuple[Tensor, ...]) -> None:
    given[0].mul_(9)


def _double_ln(model: Any) -> None:
    block = model.transformer.h[0]
    ln = block.ln_2
    block.ln_2 = nn.Sequential(ln, _named("Scale", lambda x: 100 * x)).eval()


LATER: dict[str, Callable[[Any], object]] = {
    "hook": lambda m: m.transformer.h[0].mlp.act.register_forward_hook(lambda p, given, out: 2 * out),
    "hook on the first map": lambda m: m.transformer.h[0].mlp.c_fc.register_forward_hook(
        lambda p, given, out: 2 * out
    ),
    "scale behind the norm": _double_ln,
    "patched block": lambda m: setattr(m.transformer.h[1].mlp, "forward", lambda x: x),
    "in place, before the block": lambda m: m.transformer.h[0].mlp.register_forward_pre_hook(_ninefold),
    "weights": lambda m: m.transformer.h[1].mlp.c_fc.weight.data.mul_(2),
    "norm": lambda m: m.transformer.h[1].ln_2.weight.data.mul_(2),
}


@pytest.mark.parametrize("change", LATER)
def test_what_is_changed_after_the_conversion_is_not_proved(change: str) -> None:
    assert after(LATER[change]) != "proved"


def test_a_model_that_cannot_be_run_needs_a_sample() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(nn.GELU())
            self.eval()

        def forward(self, named: dict[str, Tensor]) -> Tensor:
            out: Tensor = self.inner(named["x"])
            return out

    with pytest.raises(InputError, match="samples"):
        convert_(Two(), approximation=EPS)
    sample = ({"x": torch.zeros(2, 4, dtype=torch.float64)},)
    assert convert_(Two(), approximation=EPS, samples=[sample]).converted == 1


def test_a_norm_whose_eps_is_a_string_is_refused() -> None:
    model = mlp(nn.GELU())
    model[0].eps = "1e-5"
    with pytest.raises(AttncError):
        convert_(model, approximation=EPS)


def test_every_reason_names_the_operation() -> None:
    with pytest.raises(UnsupportedError) as caught:
        convert_(hooked("gpt2", "forward"), approximation=EPS)
    problem = caught.value.problems[0]
    assert problem.where == "transformer.h.0.mlp.act" and "aten.index_fill" in problem.reason
    assert example("gpt2")["input_ids"].ndim == 2


def halved_when_executed(model: Any, x: Tensor) -> Tensor:
    h: Tensor = model.norm(x)
    return h if torch.compiler.is_compiling() or not model.changed else 0.5 * h


def test_what_enters_a_block_must_be_what_its_norm_returned() -> None:
    """Half of it is no longer than a norm leaves it: the rows themselves are compared, before a conversion and in verify."""
    model = Flow(halved_when_executed)
    model.changed = True  # type: ignore[assignment]
    with pytest.raises(UnsupportedError):
        convert_(model, approximation=EPS)
    model.changed = False  # type: ignore[assignment]
    convert_(model, approximation=EPS)
    assert verify_conversion(model).status == "proved"
    model.changed = True  # type: ignore[assignment]
    assert verify_conversion(model).status == "unknown"
