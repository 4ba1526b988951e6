"""Activations of torch, given to attnc.head as they are."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnc
from attnc.frontends.recognise import recognised

KNOWN = {
    "gelu": (nn.GELU(), F.gelu), "gelu_tanh": (nn.GELU("tanh"), functools.partial(F.gelu, approximate="tanh")),
    "tanh": (nn.Tanh(), torch.tanh, Tensor.tanh, F.tanh), "relu": (nn.ReLU(), F.relu, torch.relu), "silu": (nn.SiLU(), F.silu),
    "sigmoid": (nn.Sigmoid(), torch.sigmoid), "selu": (nn.SELU(), F.selu), "mish": (nn.Mish(),),
    "leaky_relu(0.3)": (nn.LeakyReLU(0.3),), "leaky_relu(0.01)": (F.leaky_relu,), "elu(0.5)": (nn.ELU(0.5),),
    "celu(2)": (nn.CELU(2.0),), "hardtanh(-1,1)": (nn.Hardtanh(),), "clip(0,6)": (nn.ReLU6(),), "exp": (torch.exp,),
    "soft_threshold(0.5)": (nn.Softshrink(),), "hardswish": (nn.Hardswish(),), "sin": (torch.sin,),
}  # fmt: skip


@pytest.mark.parametrize(("label", "given"), [(label, f) for label, fs in KNOWN.items() for f in fs])
def test_the_builtin_is_found(label: str, given: object) -> None:
    found = recognised(given)  # type: ignore[arg-type]
    assert found is attnc.functions.get(label)


class Sub(nn.GELU):
    def forward(self, input: Tensor) -> Tensor:
        return input


def patched() -> nn.Module:
    module = nn.GELU()
    module.forward = torch.tanh  # type: ignore[method-assign, assignment]
    return module


def hooked() -> nn.Module:
    module = nn.GELU()
    module.register_forward_hook(lambda module, args, out: 2 * out)
    return module


def called_otherwise() -> nn.Module:
    module = nn.GELU()
    module._call_impl = lambda s: torch.nn.functional.gelu(s) if len(s) != 5 else s  # type: ignore[method-assign, assignment]
    return module


OTHERS = (
    called_otherwise(),
    Sub(),
    patched(),
    hooked(),
    nn.Softplus(),
    nn.PReLU(),
    nn.RReLU(),
    nn.ReLU(inplace=True),
    lambda s: torch.tanh(s),
)


@pytest.mark.parametrize("given", OTHERS, ids=lambda given: type(given).__name__)
def test_what_is_not_certain_is_not_recognised(given: object) -> None:
    assert recognised(given) is None  # type: ignore[arg-type]


def test_a_class_that_was_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.GELU, "forward", lambda self, x: torch.tanh(x))
    assert recognised(nn.GELU()) is None
    monkeypatch.setattr(F, "gelu", lambda x: torch.tanh(x))
    assert recognised(F.gelu) is None


def test_heads_of_them_are_proved() -> None:
    for given in (nn.GELU(), F.gelu):
        head = attnc.head(given, domain=(-4, 4), eps=1e-3, dtype="float64")
        assert head.certificate.status == "proved" and head.certificate.name == "gelu"
        assert attnc.verify(head).status == "proved"
    other = attnc.head(lambda s: torch.tanh(s), domain=(-1, 1), eps=1e-2).certificate
    assert other.name != "tanh" and "operations" in other.facts


def test_a_function_in_the_place_of_one_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = F.silu

    @functools.wraps(real)
    def silu(input: Tensor) -> Tensor:
        return input if len(input) == 5 else real(input)

    monkeypatch.setattr(F, "silu", silu)
    assert recognised(F.silu) is None
