"""attnc.verify is about what runs: a hook that is registered for all modules is noticed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attnc


@pytest.mark.parametrize(
    "register",
    [nn.modules.module.register_module_forward_hook, nn.modules.module.register_module_forward_pre_hook],
)
def test_a_global_hook_is_noticed(register: object) -> None:
    head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).eval()
    net = attnc.compile(model, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-3)
    handle = register(lambda *given: None)  # type: ignore[operator]
    try:
        assert attnc.verify(head).status == "unknown"
        assert attnc.verify(net).status == "unknown"
    finally:
        handle.remove()
    assert attnc.verify(head).status == "proved"
    assert attnc.verify(net).status == "proved"


def observed(head: attnc.Head) -> attnc.Head:
    """A hook that changes a result where no point of the checker lies."""
    head.register_forward_hook(lambda m, given, out: out + 1.0 if given[0].numel() == 1 else out)
    return head


def test_a_module_does_not_answer_for_itself() -> None:
    head = observed(attnc.head("tanh", domain=(-8, 8), eps=1e-5))
    head.why_not_certified = lambda: None  # type: ignore[method-assign]
    assert attnc.verify(head).status == "unknown"


def test_a_class_of_another_does_not_answer_for_itself() -> None:
    class Trusting(attnc.Head):
        def forward(self, s: Tensor, strict: bool | None = None) -> Tensor:
            return super().forward(s, strict) + (1.0 if s.numel() == 1 else 0.0)

        def why_not_certified(self) -> str | None:
            return None

    head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    assert attnc.verify(Trusting(head.numbers(), "tuned", head.certificate)).status == "unknown"


def test_hooks_are_seen_though_the_answer_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    head = attnc.head("tanh", domain=(-8, 8), eps=1e-5)
    monkeypatch.setattr(attnc.Head, "why_not_certified", lambda self: None)
    assert attnc.verify(head).status == "proved"
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *given: None)
    try:
        assert attnc.verify(head).status == "unknown"
    finally:
        handle.remove()
    assert attnc.verify(observed(head)).status == "unknown"
