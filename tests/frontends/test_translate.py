"""Arguments of operations count: what a program computes is compared with the module at every number, without the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnc.errors import UnsupportedError
from attnc.frontends import module, to_program
from attnc.program.evaluate import values
from tests.frontends.comparison import layer


class Formula(nn.Module):
    def __init__(self, form: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.form = layer(3, 3, 1), layer(3, 3, 2), form
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.form(self, x)


@pytest.fixture(autouse=True)
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard would find most errors of the translation: here it must be right by itself."""
    monkeypatch.setattr(module, "disagreement", lambda *given: None)


READ: list[Callable[[Any, Tensor], Tensor]] = [
    lambda m, x: torch.add(m.a(x), m.b(x), alpha=2),
    lambda m, x: torch.sub(m.a(x), m.b(x), alpha=3),
    lambda m, x: 1 - m.a(x),
    lambda m, x: torch.rsub(m.a(x), m.b(x)),
    lambda m, x: m.a(x) - torch.tensor([1.0, 2.0, 3.0]),
    lambda m, x: m.norm(m.a(x)),
    lambda m, x: F.dropout(m.a(x), 0.5, False),
    lambda m, x: m.a(x).to(torch.float32),
]


@pytest.mark.parametrize("i", range(len(READ)))
def test_programs_compute_what_modules_do(i: int) -> None:
    model = Formula(READ[i]).eval()
    x = torch.randn(50, 3)
    with torch.no_grad():
        found = values(to_program(model, (3,)), x.double())[-1]
        torch.testing.assert_close(found.float(), model(x), rtol=1e-5, atol=1e-5)


REFUSED: list[Callable[[Any, Tensor], Tensor]] = [
    lambda m, x: F.dropout(m.a(x), 0.5, True),
    lambda m, x: F.batch_norm(m.a(x), m.norm.running_mean, m.norm.running_var, training=True),
    lambda m, x: m.a(x).clamp(min=1.0),
    lambda m, x: m.a(x).clamp(max=0.0),
    lambda m, x: m.a(x).half().float(),
    lambda m, x: m.a(x).double().float(),
    lambda m, x: torch.addmm(m.a.bias, x, m.a.weight, alpha=2.0),
    lambda m, x: torch.addmm(m.a.bias, x, m.a.weight, beta=2.0),
    lambda m, x: torch.ops.aten.elu(m.a(x), 1.0, 2.0),
    lambda m, x: torch.ops.aten.elu(m.a(x), 1.0, 1.0, 2.0),
    lambda m, x: torch.div(m.a(x), 2.0, rounding_mode="floor"),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_arguments_that_are_not_known_are_refused(i: int) -> None:
    with pytest.raises(UnsupportedError):
        to_program(Formula(REFUSED[i]).eval(), (3,))
