"""What a call executes is recorded on real tensors, whatever it does when torch.export traces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

import attnc
from attnc.errors import UnsupportedError
from attnc.network.purity import _name, _nonlinear
from attnc.network.recording import executed

MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode)


class Call(nn.Module):
    """A function as a module that returns a list of one tensor."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> list[Tensor]:
        self.seen.add_(1)
        return [self.function(x)]


def unless_traced(traced: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    return lambda x: x if traced(x) else torch.relu(x)


def reading(read: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        try:
            read(x)
        except Exception:
            return x
        return torch.relu(x)

    return call


def by_numpy(x: Tensor) -> Tensor:
    try:
        return torch.from_numpy(np.maximum(x.numpy(), 0))
    except Exception:
        return x


def by_lists(x: Tensor) -> Tensor:
    return (
        x if torch.compiler.is_compiling() else torch.tensor([[max(s, 0.0) for s in r] for r in x.tolist()])
    )


def scores_as_values(x: Tensor) -> Tensor:
    """Traced, the product is a score. As many products run without tracing."""
    scores = x * x
    return torch.softmax(scores, -1) @ x.T if torch.compiler.is_compiling() else scores


def through_a_view(x: Tensor) -> Tensor:
    y = 2 * x
    if not torch.compiler.is_compiling():
        y[:, :2].relu_()
    return y


CHEATS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "with gradients": (lambda x: torch.relu(x) if torch.is_grad_enabled() else x, "relu"),
    "without gradients": (lambda x: x if torch.is_grad_enabled() else torch.relu(x), "relu"),
    "of the input": (lambda x: torch.relu(x) if x.requires_grad else x, "relu"),
    "in inference mode": (lambda x: torch.relu(x) if torch.is_inference_mode_enabled() else x, "relu"),
    "is_compiling": (unless_traced(lambda x: torch.compiler.is_compiling()), "relu"),
    "is_exporting": (unless_traced(lambda x: torch.compiler.is_exporting()), "relu"),
    "FakeTensor": (unless_traced(lambda x: isinstance(x, FakeTensor)), "relu"),
    "type": (unless_traced(lambda x: type(x) is not Tensor), "relu"),
    "item": (reading(lambda x: x.sum().item()), "relu"),
    "numpy": (reading(lambda x: x.numpy()), "relu"),
    "data_ptr": (reading(lambda x: x.data_ptr()), "relu"),
    "computed by numpy": (by_numpy, "numpy"),
    "computed by python": (by_lists, "tolist"),
    "scores": (scores_as_values, "mul"),
    "in place": (through_a_view, "relu"),
}


@pytest.mark.parametrize("case", CHEATS)
def test_what_runs_without_tracing_is_listed(case: str) -> None:
    function, name = CHEATS[case]
    assert name in attnc.purity(Call(function), torch.ones(2, 3))


def in_place(x: Tensor) -> Tensor:
    out = torch.zeros(2, 4)
    out[:, :3] = x
    out[:, 3] += 2 * x[:, 0]
    return out


def attention(x: Tensor) -> Tensor:
    scores = x @ x.T
    scores.mul_(0.5)
    scores.masked_fill_(torch.eye(2, dtype=torch.bool), -1.0)
    torch.relu(x)  # nothing uses it
    return torch.einsum("ij,jk->ik", torch.softmax(scores, -1), x).to(torch.float64).flatten()


def branches_on_a_mask(x: Tensor) -> Tensor:
    mask = torch.ones(2, 3, dtype=torch.bool)
    return x if not torch.compiler.is_compiling() and mask.all() else x.masked_fill(~mask, 0.0)


@pytest.mark.parametrize("function", [in_place, attention, branches_on_a_mask])
def test_nothing_is_listed_without_a_reason(function: Callable[[Tensor], Tensor]) -> None:
    module, x = Call(function), torch.randn(2, 3)
    assert attnc.purity(module, x) == ()
    for mode in MODES:
        assert list(_nonlinear(*executed(module, (x,), {}, mode))) == []


@pytest.mark.parametrize("mode", MODES)
def test_values_are_followed_through_views(mode: Callable[[], Any]) -> None:
    """A value that is written to a view is a value of the whole tensor, and of its other views."""

    def call(x: Tensor) -> Tensor:
        out = torch.zeros(2, 4)
        part = out[:, 1:]
        out[:, :3] = x
        return part * part

    given, operations = executed(Call(call), (torch.ones(2, 3),), {}, mode)
    assert len(given) == 1 and "mul" in map(_name, operations)
    assert list(_nonlinear(given, operations)) == ["mul"]


def test_a_call_changes_nothing() -> None:
    x = torch.randn(2, 3)
    module, before, state = Call(lambda x: x.mul_(2) + torch.rand(3)), x.clone(), torch.get_rng_state()
    assert attnc.purity(module, x) == ()
    assert torch.equal(x, before) and x.grad_fn is None and not x.requires_grad
    assert float(module.seen) == 0 and torch.equal(torch.get_rng_state(), state)


def test_a_call_that_fails() -> None:
    def fails(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            raise ValueError("no")
        return x

    def fails_with_gradients(x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise ValueError("no")
        return 2 * x

    with pytest.raises(UnsupportedError, match="ValueError"):
        attnc.purity(Call(fails), torch.ones(2, 3))
    assert attnc.purity(Call(fails_with_gradients), torch.ones(2, 3)) == ()


def test_names_of_exported_operations_are_not_repeated() -> None:
    """relu6 runs hardtanh, and layer_norm native_layer_norm."""
    module = Call(lambda x: nn.functional.relu6(nn.functional.layer_norm(x, (3,))))
    assert attnc.purity(module, torch.ones(2, 3)) == ("layer_norm", "relu6")
