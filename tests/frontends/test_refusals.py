"""What is refused, each with its place and its reason, and all of it at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from attnc.errors import InputError, Problem, UnsupportedError
from attnc.frontends import agree, to_program
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
    model = stack(layer(3, 4), nn.Softmax(-1), layer(4, 5), nn.Threshold(1, 2), nn.LayerNorm(5), layer(5, 1))
    model[5].weight.data[0, 2] = float("nan")
    model[2].register_forward_hook(lambda *args: None)
    model[1].train()
    told = [str(problem) for problem in problems(model)]
    for expected in (
        "1 (Softmax): is in training mode: call model.eval()",
        "1 (Softmax): is not supported: leave it off",
        "2 (Linear): has forward hooks (<lambda>)",
        "3 (Threshold): has threshold=1 and value=2",
        "4 (LayerNorm): is not supported",
        "5.weight: holds NaN or infinite numbers (1 of 5)",
    ):
        assert any(t.startswith(expected) for t in told), (expected, told)
    assert len(told) == 6


def test_dimensions() -> None:
    only(layer(4, 2), "the model (Linear)", "takes 4 features, and gets the shape (3,)")
    found = problems(stack(layer(3, 4), nn.Tanh(), layer(5, 2), nn.Tanh(), layer(3, 1)))
    assert [str(p) for p in found] == [
        "2 (Linear): takes 5 features, and gets the shape (4,)",
        "4 (Linear): takes 3 features, and gets the shape (2,)",
    ]
    only(
        stack(layer(3, 4), nn.BatchNorm1d(3)), "1 (BatchNorm1d)", "takes 3 features, and gets the shape (4,)"
    )
    only(
        stack(layer(3, 4), nn.Unflatten(1, (3, 2))),
        "1 (Unflatten)",
        "cuts 4 numbers into (3, 2), which hold 6",
    )
    only(stack(nn.Flatten(0), layer(3, 4)), "0 (Flatten)", "the batch")


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
    only(
        stack(layer(3, 3), layer(3, 3).double()),
        "the model",
        "mixes dtypes: 0.weight is of torch.float32, 1.weight is of torch.float64",
    )
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
    """A hook on a module that is traced through would meet what is no tensor."""
    net, ran = Net(lambda net, x: net.a(x)).eval(), []
    net.register_forward_hook(lambda *args: ran.append(1))
    only(stack(net), "0 (Net)", "has forward hooks (<lambda>)")
    assert not ran


def test_only_the_class_itself_is_trusted() -> None:
    """torch has subclasses of its own."""
    own = torch.nn.modules.linear.NonDynamicallyQuantizableLinear(3, 3)
    only(stack(own), "0 (NonDynamicallyQuantizableLinear)", "is not supported")


def test_parametrizations() -> None:
    model = stack(parametrizations.weight_norm(layer(3, 3)), nn.Tanh()).eval()
    only(model, "0 (ParametrizedLinear)", "remove_parametrizations")
    torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    to_program(model, (3,))


def test_what_replaces_the_forward() -> None:
    model = stack(layer(3, 3), nn.Tanh())
    model[1].forward = lambda x: x
    only(model, "1 (Tanh)", "a forward that was put on the object")

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
    only(nn.Sequential().eval(), "the model (Sequential)", "is empty")
    only(nn.Identity().eval(), "the model (Identity)", "has no linear layer")
    only(nn.GELU().eval(), "the model (GELU)", "attnc.head")


def test_normalisation_by_the_batch() -> None:
    only(
        stack(layer(3, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        "1 (BatchNorm1d)",
        "has no running statistics",
    )
    only(stack(layer(3, 3), nn.BatchNorm1d(2)), "1 (BatchNorm1d)", "the second axis of (batch, 2, 3)", (2, 3))
    negative = stack(layer(3, 3), nn.BatchNorm1d(3))
    negative[1].running_var.fill_(-1)
    only(negative, "1 (BatchNorm1d)", "variance + epsilon must be positive")


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


FORWARDS: list[tuple[Callable[[Net, Tensor], Any], str, str]] = [
    (lambda net, x: net.a(x) if x.sum() > 0 else x, "forward of Net", "lets the input decide"),
    (lambda net, x: next(net.a(row) for row in x), "forward of Net", "lets the input decide"),
    (lambda net, x: nn.ReLU()(net.a(x)), "forward of Net", "calls a ReLU that is no registered part"),
    (lambda net, x: net.loose[0](x), "forward of Net", "calls a Linear that is no registered part"),
    (lambda net, x: net.missing(x), "forward of Net", "cannot be traced: AttributeError"),
    (autocast, "forward of Net", "torch.autocast"),
    (lambda net, x: (net.a(x), x), "the model (Net)", "returns a tuple"),
    (lambda net, x: {"y": net.a(x)}, "the model (Net)", "returns a dict"),
    (lambda net, x: net.a.weight, "the model (Net)", "returns its own numbers"),
    (lambda net, x: 3.0, "the model (Net)", "returns a float"),
    (count, "the model (Net)", "changes calls when it runs"),
    (lambda net, x: (net.steps.append(1), net.a(x))[1], "the model (Net)", "changes steps when it runs"),
    (lambda net, x: (net.plain.add_(1), net.a(x))[1], "the model (Net)", "changes plain when it runs"),
    (lambda net, x: (net.seen.add_(1), net.a(x))[1], "add_ in the model (Net)", "changes the model's own numbers"),
    (lambda net, x: (net.a(x), x.zero_())[0], "zero_ in the model (Net)", "is not supported"),
    (change_slice, "getitem in the model (Net)", "is not supported"),
    (lambda net, x: net.a(x) + torch.randn(3), "the model (Net)", "disagrees with the traced program"),
    (lambda net, x: net.a(x) + net.count, "count", "is of torch.int64"),
    (lambda net, x: F.linear(x, net.a.weight * 2), "mul in the model (Net)", "the model's own numbers alone"),
    (lambda net, x: F.linear(x, net.a(x)), "linear in the model (Net)", "a weight or a bias that is computed"),
    (lambda net, x: net.a(x) / x.shape[0], "truediv in the model (Net)", "the batch size"),
    (lambda net, x: net.a(x) * (x.shape[0] + 1), "add in the model (Net)", "computes with the batch size"),
    (lambda net, x: net.a(x).view(-1), "view in the model (Net)", "does not keep the batch axis"),
    (lambda net, x: net.a(x).reshape(6, -1), "reshape in the model (Net)", "does not keep the batch axis"),
    (lambda net, x: net.a(x).view(-1, -1), "view in the model (Net)", "does not keep the batch axis"),
    (lambda net, x: net.a(x).view(x.shape[1:] + x.shape[:1]), "view in the model (Net)", "does not keep the batch axis"),
    (lambda net, x: net.a(x) * (x.shape == (8, 3)), "eq in the model (Net)", "computes with the batch size"),
    (lambda net, x: net.a(x).flatten(), "flatten in the model (Net)", "the batch"),
    (lambda net, x: net.a(x).unsqueeze(0), "unsqueeze in the model (Net)", "the batch stays axis 0"),
    (lambda net, x: net.a(x).squeeze(), "squeeze in the model (Net)", "name the axis"),
    (lambda net, x: net.a(x).t(), "t in the model (Net)", "swaps axes"),
    (lambda net, x: net.a(x)[:, 0], "getitem in the model (Net)", "is not supported"),
    (lambda net, x: torch.cat([x, net.a(x)], -1), "cat in the model (Net)", "is not supported"),
    (lambda net, x: net.a(x) + x.unsqueeze(1), "add in the model (Net)", "the shapes (3,) and (1, 3)"),
    (lambda net, x: net.a(x) + torch.ones(5, 3), "add in the model (Net)", "a tensor of shape (5, 3), which does not fit"),
    (lambda net, x: net.a(x) + float("inf"), "add in the model (Net)", "a finite number"),
    (lambda net, x: net.a(x) * True, "mul in the model (Net)", "the number is True"),
    (lambda net, x: net.a(x) + (2**53 + 1), "add in the model (Net)", "that a float can hold"),
    (lambda net, x: net.a(x) / 0, "truediv in the model (Net)", "divides by zero"),
    (lambda net, x: 1 / net.a(x), "truediv in the model (Net)", "divides by a value"),
    (lambda net, x: net.a(x).dtype, "getattr in the model (Net)", "reads .dtype"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "where", "reason"), FORWARDS)
def test_forwards(function: Callable[[Net, Tensor], Any], where: str, reason: str) -> None:
    net = Net(function).eval()
    before = set(vars(net))
    only(net, where, reason)
    assert (
        set(vars(net)) == before
        and net.steps == []
        and float(net.plain.sum()) == 0
        and float(net.seen.sum()) == 0
    )


def test_the_axis_of_features_must_stay() -> None:
    class Scalar(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = layer(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x).squeeze(-1)

    only(Scalar().eval(), "squeeze in the model (Scalar)", "keep one, as in (batch, 1)")


def test_several_inputs() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    only(Two().eval(), "forward of Two", "takes the inputs x, y: one input is accepted")

    class Nothing(nn.Module):
        def forward(self) -> None: ...

    only(Nothing().eval(), "forward of Nothing", "takes no input")


@pytest.fixture
def changed_class() -> Iterator[None]:
    original = nn.Tanh.forward
    nn.Tanh.forward = lambda self, x: torch.sinh(x)  # type: ignore[method-assign]
    yield
    nn.Tanh.forward = original  # type: ignore[method-assign]


@pytest.mark.usefixtures("changed_class")
def test_a_patched_class_is_found_out() -> None:
    only(stack(layer(3, 3), nn.Tanh()), "the model (Sequential)", "disagrees with the traced program by")


def test_a_flag_that_tracing_does_not_see() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        return net.a(x) if isinstance(x, Tensor) else torch.tanh(net.a(x))

    only(Net(forward).eval(), "the model (Net)", "disagrees with the traced program by")


def test_the_last_guard_is_not_too_lax() -> None:
    """It tells a relative difference of 1e-5, and lets rounding pass."""
    model = stack(layer(3, 3))
    program = to_program(model, (3,))
    assert agree.disagreement(model, program) is None
    with torch.no_grad():
        model[0].weight *= 1 + 1e-5
    assert agree.disagreement(model, program) is not None


def test_what_is_no_model() -> None:
    for model, told in (
        (nn.Linear, "the class Linear; make an object of it"),
        ({"weight": torch.ones(1, 1)}, "attnc.frontends.mlp"),
        ("model.pt", "read_state_dict"),
        (3, "got int"),
        (None, "got NoneType"),
    ):
        with pytest.raises(
            InputError, match=r"a torch\.nn\.Module, a scikit-learn network, a Program, or a function"
        ) as raised:
            to_program(model, (3,))
        assert told in str(raised.value)


@pytest.mark.parametrize("shape", [(), (0,), (-1,), (3.0,), 3, None, (True,), "3"])
def test_what_is_no_shape(shape: Any) -> None:
    with pytest.raises(InputError, match="give the shape of one input"):
        to_program(layer(3, 3), shape)


def test_a_program_is_itself() -> None:
    program = to_program(layer(3, 2), (3,))
    assert to_program(program, (3,)) is program and isinstance(program, Program)
    with pytest.raises(InputError, match=r"takes inputs of shape \(3,\): got shape=\(4,\)"):
        to_program(program, (4,))
