"""The guard: a module that runs beside a program that is not its own is found out, and an honest one is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnc.domain import Box
from attnc.errors import UnsupportedError
from attnc.frontends import comparison, to_program
from attnc.frontends.comparison import probe_points
from attnc.program.evaluate import values
from tests.frontends.comparison import layer


def mlp() -> nn.Sequential:
    return nn.Sequential(layer(3, 6, 1), nn.ReLU(), layer(6, 4, 2), nn.Softplus(), layer(4, 2, 3)).eval()


def test_honest_modules_pass_every_time() -> None:
    """The points differ from run to run, so the guard is run often."""
    model = mlp()
    program = to_program(model, (3,))
    for scale in (1e-3, 1.0, 30.0):
        for _ in range(20):
            assert (
                comparison.disagreement(model, program, Box(-scale * np.ones(3), scale * np.ones(3))) is None
            )


@pytest.mark.parametrize("factor", [1 + 1e-5, 1 - 1e-6])
def test_a_small_difference_of_a_weight_is_seen(factor: float) -> None:
    model = mlp()
    program = to_program(model, (3,))
    with torch.no_grad():
        model[4].weight *= factor
    assert comparison.disagreement(model, program) is not None


class Altered(nn.Module):
    """An MLP, and a change that only some calls show."""

    def __init__(self, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.change = mlp(), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x, self.body(x))


CHANGES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: y + 1e-4 if torch.is_grad_enabled() else y,
    lambda x, y: y if torch.is_grad_enabled() else y + 1e-4,
    lambda x, y: y if x.is_contiguous() else y + 1e-4,
    lambda x, y: y + 1e-4 if len(x) == 1 else y,
    lambda x, y: y + y.mean(0) * 1e-4,
    lambda x, y: torch.where((x == 2).all(-1, keepdim=True), y + 1e-4, y),
    lambda x, y: torch.where((x == -1).all(-1, keepdim=True), y + 1e-4, y),
    lambda x, y: torch.where((x.abs() > 0.9).any(-1, keepdim=True), y + 1e-4, y),
    lambda x, y: torch.where((x > 1.99).any(-1, keepdim=True), torch.full_like(y, torch.nan), y),
    lambda x, y: y.float().to(y.dtype) if y.dtype == torch.float64 else y,
    lambda x, y: y + 0.1 * y.abs() if y.dtype == torch.float32 else y,
]


@pytest.mark.parametrize("i", range(len(CHANGES)))
def test_changes_that_only_some_calls_show(i: int) -> None:
    model = Altered(CHANGES[i]).eval()
    program = to_program(model.body, (3,))
    assert comparison.disagreement(model, program, Box(-np.ones(3), 2 * np.ones(3))) is not None


def test_a_forward_that_knows_that_it_is_recorded() -> None:
    model = Altered(lambda x, y: y if torch.compiler.is_exporting() else y + 1e-4).eval()
    with pytest.raises(UnsupportedError) as raised:
        to_program(model, (3,))
    assert [p.where for p in raised.value.problems] == ["the model (Altered)"]


def test_the_points_reach_kinks_and_ends() -> None:
    """Some point puts a pre-activation of the first layer within 1e-9 of its kink, and one to each end of its interval."""
    model = mlp()
    program = to_program(model, (3,))
    box = Box(-np.ones(3), 2 * np.ones(3))
    x = probe_points(program, box, np.random.default_rng(0))
    driven = x[len(x) - 200 :]
    assert ((driven >= box.lo) & (driven <= box.hi)).all()
    z = values(program, torch.from_numpy(x))[1].numpy()
    assert (np.abs(z).min(0) < 1e-9).all()
    inside = ((x >= box.lo) & (x <= box.hi)).all(-1)
    weight, bias = model[0].weight.detach().double().numpy(), model[0].bias.detach().double().numpy()
    top = np.maximum(weight * box.lo, weight * box.hi).sum(1) + bias
    low = np.minimum(weight * box.lo, weight * box.hi).sum(1) + bias
    np.testing.assert_allclose(z[inside].max(0), top, rtol=1e-12)
    np.testing.assert_allclose(z[inside].min(0), low, rtol=1e-12)


def test_the_ends_of_the_box_are_among_the_points() -> None:
    """Also where there is no activation whose interval leads to them."""
    box = Box(-np.ones(3), 2 * np.ones(3))
    x = probe_points(to_program(layer(3, 2).eval(), (3,)), box, np.random.default_rng(0))
    assert (x == box.lo).all(-1).any() and (x == box.hi).all(-1).any()
    corners = ((x == box.lo) | (x == box.hi)).all(-1)
    assert len(np.unique(x[corners], axis=0)) >= 4


def test_the_points_differ_each_time() -> None:
    program = to_program(mlp(), (3,))
    first, second = (probe_points(program, None, np.random.default_rng()) for _ in range(2))
    assert not (first[: len(second)] == second[: len(first)]).all()


def test_the_guard_draws_other_points_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = mlp(), []
    program = to_program(model, (3,))

    def noted(*given: Any) -> Any:
        seen.append(probe_points(*given))
        return seen[-1]

    monkeypatch.setattr(comparison, "probe_points", noted)
    for _ in range(2):
        assert comparison.disagreement(model, program) is None
    assert not np.array_equal(seen[0][:12], seen[1][:12])


def test_a_wide_program_is_driven_at_few_points() -> None:
    wide = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 8)).eval()
    small = probe_points(to_program(mlp(), (3,)), None, np.random.default_rng(0))
    assert len(probe_points(to_program(wide, (1024,)), None, np.random.default_rng(0))) < len(small)


def test_nothing_of_the_module_changes() -> None:
    model = mlp()
    program = to_program(model, (3,))
    before = {name: (id(t), t.clone()) for name, t in model.named_parameters()}
    state = torch.random.get_rng_state()
    comparison.disagreement(model, program)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, t in model.named_parameters():
        assert before[name][0] == id(t) and torch.equal(before[name][1], t)
