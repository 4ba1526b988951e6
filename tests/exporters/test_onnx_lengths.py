"""A file holds one branch of a model's code: a model that takes another one for other lengths is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.errors import ExportError
from attnc.exporters.export import Export
from tests.sampled import every

pytest.importorskip("onnxruntime")

BRANCHES: dict[str, Callable[[Tensor], Tensor]] = {
    "longer sequences": lambda x: 3 * x if x.shape[1] > 8 else x,
    "larger batches": lambda x: 3 * x if x.shape[0] > 100 else x,
    "the first tokens": lambda x: torch.cat([2 * x[:, :8], x[:, 8:]], 1),
    "multiples of 8": lambda x: 3 * x if x.shape[1] % 8 == 0 else x,
}


class Branching(nn.Module):
    def __init__(self, branch: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.branch = branch
        self.block = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.branch(x)
        return x + self.block(x)


def exported(branch: Callable[[Tensor], Tensor], path: Path) -> Export:
    torch.manual_seed(0)
    model, x = Branching(branch).eval(), torch.randn(2, 5, 8)
    attnc.convert_(model, 1e-3, samples=x)
    return attnc.export(model, path, engine="closed-form", inputs=x)


@pytest.mark.parametrize("name", every(2, BRANCHES))
def test_a_branch_that_was_not_traced(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ExportError, match=r"something else for (tokens|batch) of length"):
        exported(BRANCHES[name], path)
    assert not list(tmp_path.iterdir())


def test_one_branch_for_all_lengths(tmp_path: Path) -> None:
    found = exported(lambda x: x, tmp_path / "model.onnx")
    assert found.axes == {"input": {0: "batch", 1: "tokens"}}
