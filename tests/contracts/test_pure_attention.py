"""Nothing in a head is nonlinear but softmax: the traced graph is walked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import attnc
from attnc.network.purity import impurities, operations


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("tanh", {}),
        ("relu", {"design": "graded"}),
        ("silu", {"design": "gated"}),
        ("sin", {"design": "nearest", "heads": 2}),
    ],
)
def test_head_and_its_literal_form_are_affine_but_for_softmax(spec: str, options: dict[str, object]) -> None:
    head = attnc.head(spec, domain=(-2, 2), anchors=5, **options)
    for module in (head, head.as_self_attention(3)):
        assert impurities(module, torch.linspace(-1, 1, 3)) == []
        assert operations(module, torch.linspace(-1, 1, 3)).count("_softmax") == 1


@pytest.mark.parametrize(
    "cheat",
    [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.LayerNorm(3), nn.Sigmoid(), nn.Hardtanh(), nn.Softplus()],
    ids=lambda m: type(m).__name__,
)
def test_the_walk_notices_another_nonlinearity(cheat: nn.Module) -> None:
    assert impurities(nn.Sequential(nn.Linear(3, 3), cheat), torch.zeros(2, 3))


def test_the_walk_notices_nonlinearity_by_operators() -> None:
    class Cheat(nn.Module):
        def forward(self, s: torch.Tensor) -> torch.Tensor:
            return torch.where(s > 0, s, 0 * s) + s.abs() / (1 + s.exp())

    assert {"gt", "where", "abs", "exp", "div"} <= set(impurities(Cheat(), torch.zeros(3)))
