"""What is refused, each with its place and its reason, and all of it at once."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from attnc.domain import Box
from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends import to_program
from attnc.program import Program
from tests.frontends.comparison import layer


def problems(model: nn.Module, shape: tuple[int, ...] = (3,)) -> list[Problem]:
    with pytest.raises(UnsupportedError) as raised:
        to_program(model, shape)
    for problem in raised.value.problems:
        assert str(problem) in str(raised.value)
    return list(raised.value.problems)


def only(model: nn.Module, where: str, reason: str, shape: tuple[int, ...] = (3,)) -> None:
    found = problems(model, shape)
    assert len(found) == 1, found
    assert found[0].where == where and reason in found[0].reason, found


def stack(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(*parts).eval()


def test_four_problems_are_told_at_once() -> None:
    model = stack(
        layer(3, 4), nn.Softmax(-1), layer(4, 5), nn.Threshold(1, 2), nn.GroupNorm(1, 5), layer(5, 1)
    )
    model[5].weight.data[0, 2] = float("nan")
    model[2].register_forward_hook(lambda *args: None)
    model[1].train()
    told = [str(problem) for problem in problems(model)]
    for expected in (
        "1 (Softmax): is in training mode",
        "aten.softmax in 1 (Softmax): is not supported: leave it off",
        "2 (Linear): has forward hooks (<lambda>)",
        "aten.threshold in 3 (Threshold): has threshold=1.0 and value=2.0",
        "aten.group_norm in 4 (GroupNorm): is not supported",
        "5.weight: holds NaN or infinite numbers (1 of 5)",
    ):
        assert any(t.startswith(expected) for t in told), (expected, told)
    assert len(told) == 6


def test_dimensions() -> None:
    only(layer(4, 2), "the model (Linear)", "takes 4 features")
    only(
        stack(layer(3, 4), nn.Tanh(), layer(5, 2), nn.Tanh(), layer(3, 1)),
        "2 (Linear)",
        "takes 5 features",
    )
    only(stack(layer(3, 4), nn.BatchNorm1d(3)), "1 (BatchNorm1d)", "4 elements not 3")
    only(stack(layer(3, 4), nn.Unflatten(1, (3, 2))), "1 (Unflatten)", "[3, 2]")
    only(stack(layer(3, 4), nn.Flatten(0)), "aten.flatten in 1 (Flatten)", "the batch")


def test_training_mode_names_the_outermost_part() -> None:
    only(nn.Sequential(layer(3, 3), nn.Dropout()), "the model (Sequential)", "call model.eval()")
    model = stack(layer(3, 3), nn.Sequential(nn.Dropout(), nn.Tanh()))
    model[1].train()
    only(model, "1 (Sequential)", "is in training mode")


def test_numbers_that_cannot_be_taken() -> None:
    broken = layer(3, 3)
    broken.bias.data[1] = float("inf")
    only(stack(broken), "0.bias", "holds NaN or infinite numbers (1 of 3)")
    for dtype in (torch.float16, torch.bfloat16):
        found = problems(layer(3, 3).to(dtype))
        assert [p.where for p in found] == ["weight", "bias"] and f"is of {dtype}" in found[0].reason
        assert "model.float()" in found[0].reason
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "complex64" in problems(nn.Linear(3, 3).eval().to(torch.complex64))[0].reason
    assert "meta device" in problems(nn.Linear(3, 3, device="meta").eval())[0].reason
    assert "not initialised" in problems(stack(nn.LazyLinear(3)))[0].reason
    mixed = problems(stack(layer(3, 3), layer(3, 3).double()))
    assert mixed[0].where == "the model" and "mixes dtypes: 0.weight is of torch.float32" in mixed[0].reason
    sparse = nn.Linear(3, 3, bias=False).eval()
    sparse.weight = nn.Parameter(torch.eye(3).to_sparse())
    only(sparse, "weight", "torch.sparse_coo")


class Wrapped(Tensor):
    """A subclass, which may compute whatever it likes."""


def test_tensor_subclasses() -> None:
    linear = nn.Linear(3, 3, bias=False).eval()
    del linear.weight
    linear.weight = torch.ones(3, 3).as_subclass(Wrapped)
    only(linear, "weight", "is a Wrapped: plain tensors are accepted")


def test_hooks_of_all_kinds() -> None:
    model = stack(layer(3, 3), nn.Tanh())
    handle = model.register_forward_pre_hook(lambda module, args: None)
    only(model, "the model (Sequential)", "has forward hooks (<lambda>)")
    handle.remove()
    to_program(model, (3,))
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        only(model, "torch", "global forward hooks")
    finally:
        handle.remove()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    only(model, "0 (Linear)", "prune.remove(module, name)")
    prune.remove(model[0], "weight")
    to_program(model, (3,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.utils.weight_norm(model[0])
    only(model, "0 (Linear)", "torch.nn.utils.remove_weight_norm(module)")


def test_hooks_are_not_run() -> None:
    """They are refused, and the rest is read without them."""
    net, ran = Net(lambda net, x: net.a(x)).eval(), []
    net.register_forward_hook(lambda *args: ran.append(1))
    only(stack(net), "0 (Net)", "has forward hooks (<lambda>)")
    assert not ran


def test_a_hook_on_an_activation() -> None:
    model = stack(layer(3, 3), nn.Tanh())
    model[1].register_forward_hook(lambda module, args, out: out.index_fill(-1, torch.tensor([0]), 0.0))
    only(model, "1 (Tanh)", "forward hooks")


def test_subclasses_are_read() -> None:
    class Cut(nn.ReLU):
        def forward(self, x: Tensor) -> Tensor:
            return x * (x > 0.02)

    found = problems(stack(layer(3, 3), Cut()))
    assert found[0] == Problem("aten.gt in 1 (Cut)", "is not supported")
    own = torch.nn.modules.linear.NonDynamicallyQuantizableLinear(
        3, 3
    )  # torch's own, with the forward of Linear
    assert [step.kind for step in to_program(stack(own), (3,)).steps] == ["affine"]


def test_parametrizations() -> None:
    model = stack(parametrizations.weight_norm(layer(3, 3)), nn.Tanh()).eval()
    only(model, "0 (ParametrizedLinear)", "remove_parametrizations")
    torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    to_program(model, (3,))


def test_what_replaces_the_forward() -> None:
    model = stack(layer(3, 3), nn.Tanh())
    model[1].forward = lambda x: x
    only(model, "1 (Tanh)", "forward")

    class Calls(nn.Linear):
        def __call__(self, x: Tensor) -> Any:
            return 2 * super().__call__(x)

    only(stack(Calls(3, 3)), "0 (Calls)", "has a __call__ of its own")
    compiled = stack(layer(3, 3))
    compiled._compiled_call_impl = compiled._call_impl  # what compile() sets, after seconds of import
    only(compiled, "the model (Sequential)", "compiled in place")


def test_wrappers() -> None:
    only(nn.DataParallel(layer(3, 3)).eval(), "the model (DataParallel)", "give model.module")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(layer(3, 3))
    only(scripted, "the model (RecursiveScriptModule)", "is compiled by torch.jit")
    only(stack(scripted), "0 (RecursiveScriptModule)", "is compiled by torch.jit")


def test_models_without_a_linear_layer() -> None:
    only(nn.Sequential().eval(), "the model (Sequential)", "no linear layer")
    only(nn.Identity().eval(), "the model (Identity)", "no linear layer")
    only(nn.GELU().eval(), "the model (GELU)", "attnc.head")


def test_normalisation_by_the_batch() -> None:
    only(
        stack(layer(3, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        "aten.batch_norm in 1 (BatchNorm1d)",
        "by the batch",
    )
    only(
        stack(layer(3, 3), nn.BatchNorm1d(2)),
        "aten.batch_norm in 1 (BatchNorm1d)",
        "the second axis of (batch, 2, 3)",
        (2, 3),
    )
    negative = stack(layer(3, 3), nn.BatchNorm1d(3))
    negative[1].running_var.fill_(-1)
    only(negative, "aten.batch_norm in 1 (BatchNorm1d)", "variance + epsilon must be positive")


@pytest.mark.parametrize("norm", [nn.LayerNorm(3, eps=0.0), nn.RMSNorm(3, eps=1e-40)])
def test_a_norm_of_no_eps(norm: nn.Module) -> None:
    """At equal inputs LayerNorm without eps is 0/0: the model would differ from its program there."""
    kind = type(norm).__name__
    only(stack(norm, layer(3, 3)), f"aten.{kind[:-4].lower()}_norm in 0 ({kind})", "1e-24")


@pytest.mark.parametrize("norm", [nn.LayerNorm(3), nn.RMSNorm(3)])
def test_inputs_that_overflow_in_a_norm(norm: nn.Module) -> None:
    model = stack(layer(3, 3), norm, layer(3, 3)).float()
    with pytest.raises(UnsupportedError) as raised:
        to_program(model, (3,), box=Box(-1e20, 1e20, shape=(3,)))
    (found,) = raised.value.problems
    assert "torch.float32" in found.reason and "part 1" in found.reason and "1e+20" in found.reason
    to_program(model, (3,), box=Box(-1e15, 1e15, shape=(3,)))


class Net(nn.Module):
    def __init__(self, function: Callable[[Net, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.function = layer(3, 3), function
        self.steps: list[int] = []
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))
        self.plain = torch.zeros(3)
        self.loose = [layer(3, 3)]

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def count(net: Net, x: Tensor) -> Tensor:
    net.calls = getattr(net, "calls", 0) + 1
    return net.a(x)


def change_slice(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    h[:, :2].relu_()
    return h


def autocast(net: Net, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.a(x)


def inplace_copy(net: Net, x: Tensor) -> Tensor:
    x.contiguous().mul_(2)
    return net.a(x)


def maybe_shared(net: Net, x: Tensor) -> Tensor:
    h = torch.relu(x)
    h.contiguous().mul_(2)
    return net.a(h)


def maybe_flat(net: Net, x: Tensor) -> Tensor:
    h = net.a(x)
    F.relu_(h.flatten(1))
    return h


def bumped(when: Callable[[Tensor], bool]) -> Callable[[Net, Tensor], Tensor]:
    """Adds, in some calls, 1 in one place and 0 farther than 1e-6 from it: no sample shows it."""

    def forward(net: Net, x: Tensor) -> Tensor:
        t = (x - 0.3141) * 1e6
        return net.a(x) + (torch.relu(t + 1) - 2 * torch.relu(t) + torch.relu(t - 1)) if when(x) else net.a(x)

    return forward


FORWARDS: list[tuple[Callable[[Net, Tensor], Any], str, str]] = [
    (lambda net, x: net.a(x) if x.sum() > 0 else x, "the model (Net)", "branch"),
    (lambda net, x: next(net.a(row) for row in x), "the model (Net)", "batch size"),
    (lambda net, x: net.missing(x), "the model (Net)", "AttributeError"),
    (lambda net, x: (net.a(x), x), "the model (Net)", "returns a tuple"),
    (lambda net, x: {"y": net.a(x)}, "the model (Net)", "returns a dict"),
    (lambda net, x: net.a.weight, "the model (Net)", "returns its own numbers"),
    (lambda net, x: 3.0, "the model (Net)", "returns a float"),
    (lambda net, x: net.a(x).dtype, "the model (Net)", "torch.dtype"),
    (count, "the model (Net)", "changes calls when it runs"),
    (lambda net, x: (net.steps.append(1), net.a(x))[1], "the model (Net)", "changes steps when it runs"),
    (lambda net, x: torch.relu(net.a(x)) if x.shape[0] == 8 else net.a(x), "the model (Net)", "the batch size"),
    (lambda net, x: torch.relu(net.a(x)) if x.shape[0] == 1 else net.a(x), "the model (Net)", "the batch size"),
    (lambda net, x: torch.relu(net.a(x)) if len(x) > 100 else net.a(x), "the model (Net)", "batch size"),
    (lambda net, x: net.a(x) * random.random(), "the model (Net)", "gradients"),
    (lambda net, x: net.a(x) if torch.is_grad_enabled() else net.a(x) + 1e-3, "the model (Net)", "gradients"),
    (lambda net, x: net.a(x) if x.is_contiguous() else x, "the model (Net)", "strided"),
    (lambda net, x: net.a(x) if torch.compiler.is_exporting() else x, "the model (Net)", "differs"),
    (bumped(lambda x: not torch.is_grad_enabled() and x.is_contiguous()), "the model (Net)", "gradients"),
    (bumped(lambda x: torch.is_grad_enabled() and not x.is_contiguous()), "the model (Net)", "strided"),
    (bumped(lambda x: x.requires_grad), "the model (Net)", "gradients"),
    (maybe_shared, "the model (Net)", "strides"),
    (autocast, "wrap_with_autocast in the model (Net)", "narrower"),
    (inplace_copy, "the model (Net)", "changes x"),
    (lambda net, x: net.a(x.mul_(2)), "the model (Net)", "changes x"),
    (lambda net, x: net.a(x.view(x.shape).relu_()), "the model (Net)", "changes x"),
    (lambda net, x: net.a(x.type_as(net.plain).relu_()), "the model (Net)", "changes "),
    (lambda net, x: (net.a(x), x.zero_())[0], "the model (Net)", "changes x"),
    (lambda net, x: (net.seen.add_(1), net.a(x))[1], "the model (Net)", "seen"),
    (lambda net, x: (net.a.bias.detach().add_(1), net.a(x))[1], "the model (Net)", "bias"),
    (lambda net, x: net.a(x) + torch.randn(3), "aten.randn in the model (Net)", "random"),
    (lambda net, x: net.a(x) + torch.rand_like(x), "aten.rand_like in the model (Net)", "is not supported"),
    (lambda net, x: net.a(x) + torch.empty(3), "aten.empty in the model (Net)", "undefined"),
    (lambda net, x: net.a(x) + net.count, "count", "is of torch.int64"),
    (lambda net, x: net.a(x) + net.plain.double(), "aten.to in the model (Net)", "own numbers"),
    (lambda net, x: net.a(x) + torch.ones(3, dtype=torch.float64), "aten.add in the model (Net)", "float64"),
    (lambda net, x: F.linear(x, net.a.weight * 2), "aten.mul in the model (Net)", "own numbers"),
    (lambda net, x: F.linear(x, net.a(x)), "aten.linear in the model (Net)", "parameters or buffers"),
    (lambda net, x: net.a(x) / x.shape[0], "aten.div in the model (Net)", "the batch size"),
    (lambda net, x: net.a(x) * (x.shape[0] + 1), "add in the model (Net)", "the batch size"),
    (lambda net, x: net.a(x) + torch.ones(x.shape[0], 3), "aten.ones in the model (Net)", "the batch size"),
    (lambda net, x: net.a(x).view(-1), "aten.view in the model (Net)", "does not keep the batch axis"),
    (lambda net, x: net.a(x).reshape(6, -1), "the model (Net)", "[6, -1]"),
    (lambda net, x: net.a(x).view(x.shape[1:] + x.shape[:1]), "aten.view in the model (Net)", "keep the batch axis"),
    (lambda net, x: net.a(x).flatten(), "aten.flatten in the model (Net)", "the batch"),
    (lambda net, x: net.a(x).unsqueeze(0), "aten.unsqueeze in the model (Net)", "keep the batch axis"),
    (lambda net, x: net.a(x).squeeze(), "aten.squeeze in the model (Net)", "the batch axis"),
    (lambda net, x: net.a(x).t(), "aten.t in the model (Net)", "is not supported"),
    (lambda net, x: torch.cat([x, net.a(x)], -1), "aten.cat in the model (Net)", "is not supported"),
    (lambda net, x: net.a(x) + x.unsqueeze(1), "aten.add in the model (Net)", "(3,), (1, 3)"),
    (lambda net, x: net.a(x) + torch.ones(5, 3), "the model (Net)", "tensor a (batch)"),
    (lambda net, x: net.a(x) + torch.ones(5, 1, 3), "aten.add in the model (Net)", "(5, 1, 3)"),
    (lambda net, x: net.a(x) + float("inf"), "aten.add in the model (Net)", "inf"),
    (lambda net, x: net.a(x) * True, "aten.mul in the model (Net)", "True"),
    (lambda net, x: net.a(x) + (2**53 + 1), "aten.add in the model (Net)", "that a float can hold"),
    (lambda net, x: net.a(x) / 0, "aten.div in the model (Net)", "divides by zero"),
    (lambda net, x: 1 / net.a(x), "aten.reciprocal in the model (Net)", "is not supported"),
    (lambda net, x: x / (1 + torch.abs(net.a(x))), "aten.div in the model (Net)", "divides by a value"),
    (lambda net, x: x / (2 + torch.abs(x)), "aten.div in the model (Net)", "divides by a value"),
    (lambda net, x: net.a(x).index_fill(1, torch.tensor([0]), 0.0), "aten.index_fill in the model (Net)", "supported"),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(FORWARDS)))
def test_forwards(i: int) -> None:
    function, where, reason = FORWARDS[i]
    net = Net(function).eval()
    before = set(vars(net))
    only(net, where, reason)
    assert set(vars(net)) == before and net.steps == []
    assert float(net.plain.sum()) == 0 and float(net.seen.sum()) == 0


def test_a_constant_that_forward_changes() -> None:
    net = Net(lambda net, x: (net.plain.add_(1), net.a(x))[1]).eval()
    assert "plain" in problems(net)[0].reason
    assert float(net.plain.sum()) == 0


def test_memory_that_may_be_shared() -> None:
    """flatten() copies or does not, depending on strides."""
    only(Net(maybe_flat).eval(), "the model (Net)", "strides", (2, 3))


@pytest.mark.parametrize("forward", [change_slice, lambda net, x: net.a(x)[:, 0]])
def test_a_slice(forward: Callable[[Net, Tensor], Any]) -> None:
    found = {p.where for p in problems(Net(forward).eval())}
    assert found <= {f"aten.{op} in the model (Net)" for op in ("slice", "select", "slice_scatter")}


def test_the_axis_of_features_must_stay() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = layer(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x).squeeze(-1)

    only(Scalar().eval(), "aten.squeeze in the model (Scalar)", "keep one, as in (batch, 1)")


def test_several_inputs() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    only(Two().eval(), "the model (Two)", "takes the inputs x, y: one input is accepted")

    class Nothing(nn.Module):
        def forward(self) -> None: ...

    only(Nothing().eval(), "the model (Nothing)", "takes no input")


@pytest.fixture
def changed_class() -> Iterator[None]:
    original = nn.Tanh.forward
    nn.Tanh.forward = lambda self, x: torch.sinh(x)  # type: ignore[method-assign]
    yield
    nn.Tanh.forward = original  # type: ignore[method-assign]


@pytest.mark.usefixtures("changed_class")
def test_a_patched_class_is_read() -> None:
    only(stack(layer(3, 3), nn.Tanh()), "aten.sinh in 1 (Tanh)", "is not supported")


def test_what_is_no_model() -> None:
    for model, told in (
        (nn.Linear, "class Linear"),
        ({"weight": torch.ones(1, 1)}, "attnc.frontends.mlp"),
        ("model.pt", "read_state_dict"),
        (3, "got int"),
        (None, "got NoneType"),
    ):
        with pytest.raises(InputError) as raised:
            to_program(model, (3,))
        assert told in str(raised.value)


@pytest.mark.parametrize("shape", [(), (0,), (-1,), (3.0,), 3, None, (True,), "3"])
def test_what_is_no_shape(shape: Any) -> None:
    with pytest.raises(InputError):
        to_program(layer(3, 3), shape)


def test_a_program_is_itself() -> None:
    program = to_program(layer(3, 2), (3,))
    assert to_program(program, (3,)) is program and isinstance(program, Program)
    with pytest.raises(InputError, match=r"shape=\(4,\)"):
        to_program(program, (4,))
