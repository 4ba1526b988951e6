"""attnc.verify is about what runs: a hook that is registered for all modules is noticed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import attnc


@pytest.mark.parametrize(
    "register",
    [nn.modules.module.register_module_forward_hook, nn.modules.module.register_module_forward_pre_hook],
)
def test_a_global_hook_is_noticed(register: object) -> None:
    head = attnc.head("tanh", on=(-8, 8), eps=1e-5)
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
