"""attnc.verify of a model that computes something else when it runs than when torch.export traces it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import attnc
from attnc.pretrained import convert_
from attnc.pretrained.verify import why_not_applicable


def runs() -> bool:
    return not torch.compiler.is_compiling()


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if runs() else 1)


class WithGradients(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if runs() and torch.is_grad_enabled() else 1)


class Feed(nn.Module):
    """A norm, a block, and a norm behind it; in each place something else may run."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.gated = gated
        self.norm, self.after = nn.LayerNorm(4), nn.LayerNorm(4)
        self.block = Gated() if gated else Plain()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(self.block(self.norm(x)))
        return out


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.second = nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.act(self.first(x)))
        return out


class Gated(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.act(self.first(x)) * self.up(x))
        return out


def converted(gated: bool) -> Any:
    return copy.deepcopy(_converted(gated))


@cache
def _converted(gated: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Feed(gated).eval()
    convert_(model, approximation=1e-2, parts=("feed-forward", "norm"), samples=torch.zeros(2, 4))
    return model


class Bypass(Plain):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second((torch.relu if runs() else self.act)(self.first(x)))
        return out


class Scaled(Plain):
    def forward(self, x: Tensor) -> Tensor:
        s = self.first(x)
        out: Tensor = self.second(self.act(s + 1 if runs() else s))
        return out


class Behind(Feed):
    def forward(self, x: Tensor) -> Tensor:
        y = self.block(self.norm(x))
        out: Tensor = functional.layer_norm(y, (4,)) if runs() else self.after(y)
        return out


def of_class(kind: type[nn.Module], *path: str) -> Callable[[Any], None]:
    def change(model: nn.Module) -> None:
        model.get_submodule(".".join(path)).__class__ = kind

    return change


CHANGES: dict[str, tuple[bool, Callable[[Any], None]]] = {
    "first": (False, of_class(Doubled, "block", "first")),
    "second": (False, of_class(Doubled, "block", "second")),
    "with gradients": (False, of_class(WithGradients, "block", "first")),
    "gate": (True, of_class(Doubled, "block", "first")),
    "up": (True, of_class(Doubled, "block", "up")),
    "second of a gated block": (True, of_class(Doubled, "block", "second")),
    "another activation": (False, of_class(Bypass, "block")),
    "before the activation": (False, of_class(Scaled, "block")),
    "norm": (False, of_class(Behind)),
}


@pytest.mark.parametrize("gated", [False, True])
def test_an_honest_model_is_proved(gated: bool) -> None:
    model = converted(gated)
    verdict = attnc.verify(model)
    assert verdict.status == "proved", verdict.reason
    assert why_not_applicable(model) is None


@pytest.mark.parametrize("case", CHANGES)
def test_what_runs_is_compared(case: str) -> None:
    gated, change = CHANGES[case]
    model = converted(gated)
    change(model)
    assert attnc.verify(model).status == "unknown"
    assert why_not_applicable(model) is not None
