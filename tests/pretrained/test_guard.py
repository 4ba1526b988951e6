"""The guard of conversions: each of its comparisons finds what only it can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnc.errors import UnsupportedError
from attnc.frontends.transformers import Call, find_blocks
from attnc.pretrained import convert_
from attnc.pretrained.blocks import PlannedBlock, plan_block
from attnc.pretrained.config import ConvertConfig
from attnc.pretrained.guard import check_reached, check_runs
from attnc.pretrained.inputs import entering

EPS = 1e-2


class Tokens(nn.Module):
    """A norm, a map, an activation and a map, called on (batch, tokens, features)."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 8), nn.Linear(8, 4)
        self.act = activation or nn.ReLU()
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(self.norm(x))))  # type: ignore[no-any-return]


def planned(model: nn.Module) -> tuple[Call, Sequence[PlannedBlock]]:
    found, config = find_blocks(model), ConvertConfig()
    known = entering(model, found.blocks, config)
    plans = [
        plan_block(site, what, EPS, config, lambda text: None)
        for site, what in zip(found.blocks, known, strict=True)
    ]
    return found.call, plans


class Flat(nn.Module):
    """relu on tokens; on anything flatter, something else."""

    changed = False

    def forward(self, s: Tensor) -> Tensor:
        return F.relu(s) if s.ndim == 3 or not self.changed else F.relu(s - 0.1)


class Inference(nn.Module):
    changed = False

    def forward(self, s: Tensor) -> Tensor:
        return F.relu(s - 0.1) if self.changed and torch.is_inference_mode_enabled() else F.relu(s)


def doubled(value: Any) -> Any:
    return 2 * value


# what is changed after the model was read, so that only one comparison sees it
CHANGES: dict[str, tuple[nn.Module | None, Callable[[Any], object], str]] = {
    "first map": (None, lambda m: m.up.register_forward_hook(lambda p, given, out: 2 * out), "its map up"),
    "activation": (
        None,
        lambda m: m.down.register_forward_pre_hook(lambda p, given: (2 * given[0],)),
        "relu",
    ),
    "second map": (None, lambda m: m.down.register_forward_hook(lambda p, given, out: 2 * out), "its map down"),
    "norm": (
        None,
        lambda m: m.up.register_forward_pre_hook(lambda p, given: (2 * given[0],)),
        "norm",
    ),
    "another shape": (Flat(), lambda m: setattr(m.act, "changed", True), "on an input of shape"),
    "inference mode": (Inference(), lambda m: setattr(m.act, "changed", True), "relu"),
    "a map is not called": (
        None,
        lambda m: setattr(m, "forward", lambda x: m.down(torch.relu(F.linear(m.norm(x), m.up.weight, m.up.bias)))),
        "its maps",
    ),
    "weights": (
        None,
        lambda m: m.norm.register_forward_hook(lambda p, given, out: m.down.bias.data.add_(1.0) * 0 + out),
        "own numbers",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_each_comparison_decides(case: str) -> None:
    activation, change, said = CHANGES[case]
    model = Tokens(activation)
    call, plans = planned(model)
    check_runs(model, call, plans)
    change(model)
    with pytest.raises(UnsupportedError, match=said):
        check_runs(model, call, plans)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4)
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.down(
            self.factor * (F.silu(self.gate(x)) * self.up(x)) if self.factor != 1 else self._inner(x)
        )  # type: ignore[no-any-return]

    def _inner(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_product_is_compared(factor: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), Gated()).double().eval()
    call, plans = planned(model)
    model[1].factor = factor
    if factor == 1:
        check_runs(model, call, plans)
    else:
        with pytest.raises(UnsupportedError):
            check_runs(model, call, plans)


def test_the_fused_operation_is_compared() -> None:
    """It runs by a flag, whatever stands at `activation`."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, activation="relu", batch_first=True).double().eval()
    with torch.no_grad():
        model.linear2.weight.mul_(10)
    call, plans = planned(model)
    check_runs(model, call, plans)
    model.activation_relu_or_gelu = 2
    with pytest.raises(UnsupportedError, match="fused"):
        check_runs(model, call, plans)


def test_a_module_that_is_put_in_is_executed() -> None:
    model = Tokens()
    call, plans = planned(model)
    undo = plans[0].site.replace(plans[0].module)
    check_reached(model, call, plans)
    undo()
    with pytest.raises(UnsupportedError):
        check_reached(model, call, plans)
    assert plans[0].module.strict is None and not plans[0].module._forward_hooks


class Hidden(Tokens):
    """Runs what is registered only while it is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [self.act]

    def forward(self, x: Tensor) -> Tensor:
        act = self.act if torch.compiler.is_exporting() else self.kept[0]
        return self.down(act(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Counting(nn.Module):
    """Another function after its first calls."""

    calls = 0

    def forward(self, s: Tensor) -> Tensor:
        self.calls += 1
        return F.gelu(s) if self.calls < 5 else F.relu(s)


class Drifting(Tokens):
    """Its weights grow with every call."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        with torch.no_grad():
            self.up.weight.mul_(1.1)
        return out


@pytest.mark.parametrize(
    "make", [Hidden, lambda: Tokens(Counting()), Drifting], ids=["hidden", "counting", "drifting"]
)
def test_a_conversion_is_guarded(make: Callable[[], nn.Module]) -> None:
    model = make()
    kinds = [type(part) for part in model.modules()]
    with pytest.raises(UnsupportedError):
        convert_(model, approximation=EPS)
    assert [type(part) for part in model.modules()] == kinds
