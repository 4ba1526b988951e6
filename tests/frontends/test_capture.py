"""What a module executes, as torch.export records it, and the module left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnc.frontends.aten import written
from attnc.frontends.capture import Captured, CaptureError, capture
from tests.frontends.comparison import layer


def operations(found: Captured) -> list[tuple[str, str]]:
    nodes = [node for node in found.graph.nodes if node.op == "call_function"]
    return [(str(node.target), found.where(node)) for node in nodes]


def test_the_tensors_are_the_modules_own() -> None:
    model = nn.Sequential(layer(3, 4), nn.BatchNorm1d(4)).eval()
    found = capture(model, (torch.zeros(2, 3),))
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    assert {found.names[name] for name in found.tensors} == set(named)
    for name, tensor in found.tensors.items():
        assert tensor.data_ptr() == named[found.names[name]].data_ptr()


def test_places() -> None:
    shared = layer(3, 3)
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(inplace=True)), shared).eval()
    assert operations(capture(model, (torch.zeros(2, 3),))) == [
        ("aten.linear.default", "0 (Linear)"),
        ("aten.relu_.default", "1.0 (ReLU)"),
        ("aten.linear.default", "2 (Linear)"),
    ]


def test_hooks_and_patched_forwards_are_recorded() -> None:
    model = nn.Sequential(layer(3, 3), nn.Tanh(), nn.Dropout()).eval()
    model[1].register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor([0]), 0.0))
    model[2].forward = torch.sinh
    names = [name for name, _ in operations(capture(model, (torch.zeros(2, 3),)))]
    assert "aten.index_fill.int_Scalar" in names and names[-1] == "aten.sinh.default"


def test_regions_without_gradients_are_inlined() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = layer(3, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                h, g = self.a(x), torch.tanh(x)
                with torch.enable_grad():
                    g = torch.exp(g)
            return h + g, g

    found = capture(Frozen().eval(), (torch.zeros(2, 3),))
    assert sorted(operations(found)) == sorted(
        operations(capture(Frozen().eval(), (torch.zeros(2, 3),), grad=False))
    )
    assert len(found.outputs) == 2 and not found.structure.is_leaf()


def test_what_is_assumed_about_a_dynamic_size() -> None:
    class Branch(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.shape[0] == self.size else x

    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    for size in (1, 8):
        assert capture(Branch(size), (torch.zeros(7, 3),), dynamic_shapes=dynamic).assumptions
    assert not capture(nn.Linear(3, 3), (torch.zeros(7, 3),), dynamic_shapes=dynamic).assumptions


def test_the_fused_encoder_is_recorded_in_parts() -> None:
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    before = torch.backends.mha.get_fastpath_enabled()
    names = [name for name, _ in operations(capture(block, (torch.zeros(2, 5, 8),), grad=False))]
    assert "aten.relu.default" in names and names.count("aten.layer_norm.default") == 2
    assert torch.backends.mha.get_fastpath_enabled() is before


def test_failures_name_the_part_and_are_silent(capfd: pytest.CaptureFixture[str]) -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    cases: list[tuple[nn.Module, str]] = [
        (nn.Sequential(layer(3, 4), nn.Tanh(), layer(5, 2)), "2"),
        (nn.Sequential(layer(3, 3), Branch()), "1"),
    ]
    for model, path in cases:
        with pytest.raises(CaptureError) as raised:
            capture(model.eval(), (torch.zeros(2, 3),))
        assert raised.value.path == path
    assert capfd.readouterr() == ("", "")


def test_the_generator_and_the_grad_mode_stay() -> None:
    model = nn.Sequential(layer(3, 3), nn.Dropout())
    state = torch.random.get_rng_state()
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            enabled = torch.is_grad_enabled()
            capture(model, (torch.zeros(2, 3),))
            assert torch.is_grad_enabled() is enabled
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_operations_write_to() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Any:
            h = x + 1
            torch.tanh(x, out=h)
            return h.mul_(2)

    found = capture(Writes(), (torch.zeros(3),))
    targets = {
        str(n.target): [w.name for w in written(n)] for n in found.graph.nodes if n.op == "call_function"
    }
    assert (
        targets["aten.add.Tensor"] == []
        and len(targets["aten.tanh.out"]) == len(targets["aten.mul_.Tensor"]) == 1
    )


def test_the_grad_mode_is_the_one_that_was_asked_for() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x) if torch.is_grad_enabled() else torch.exp(x)

    for grad, name in ((True, "aten.tanh.default"), (False, "aten.exp.default")):
        for mode in (torch.no_grad, torch.enable_grad):
            with mode():
                assert [op for op, _ in operations(capture(Branch(), (torch.zeros(2),), grad=grad))] == [name]


class Inference(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if torch.is_inference_mode_enabled() else x


def test_a_forward_that_asks_for_inference_mode_is_refused() -> None:
    """torch.export cannot show what it does there, and a guard could miss it."""
    with pytest.raises(CaptureError, match="is_inference_mode_enabled"):
        capture(Inference().eval(), (torch.zeros(2),))
    with torch.inference_mode():
        assert torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + 1


def test_tensors_that_a_forward_changes_are_named() -> None:
    found = capture(Counter().eval(), (torch.zeros(2),))
    assert [found.names[name] for name in found.changed] == ["count"]
