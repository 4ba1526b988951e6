"""Modules of every make, against themselves."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flint import arb, fmpq
from torch import Tensor, fx, nn

from attnc.frontends import to_program
from attnc.functions.balls import working
from attnc.program import Affine, BatchNorm, Combine, Pointwise
from attnc.program.evaluate import approximate, exact
from tests.frontends.comparison import agrees, layer
from tests.sampled import every


class Net(nn.Module):
    """Two layers and a few numbers, put together by the test."""

    def __init__(self, function: Callable[[Net, Tensor], Tensor], n: int = 3) -> None:
        super().__init__()
        self.a, self.b = layer(n, n, 1), layer(n, n, 2)
        self.vector = nn.Parameter(torch.linspace(-1, 2, n))
        self.register_buffer("table", torch.linspace(-2, 1, 2 * n).reshape(2, n))
        self.one = nn.Parameter(torch.tensor(0.3))
        self.plain = torch.linspace(1, 2, n, dtype=torch.float64)
        self.loose = [layer(n, n, 3).double()]  # no registered part
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def kinds(model: nn.Module, shape: tuple[int, ...]) -> list[str]:
    return [step.kind for step in agrees(model, shape).steps]


def test_a_bare_layer_and_its_numbers() -> None:
    linear = layer(3, 2)
    program = to_program(linear, (3,))
    step = program.steps[0]
    assert isinstance(step, Affine) and len(program.steps) == 1
    assert step.weight.dtype == np.float32 and step.bias is not None
    np.testing.assert_array_equal(step.weight, linear.weight.detach())
    np.testing.assert_array_equal(step.bias, linear.bias.detach())
    with torch.no_grad():
        linear.weight.zero_()
    assert np.abs(step.weight).min() > 0, "the program keeps its own copy"
    assert isinstance(to_program(linear.double(), (3,)).steps[0], Affine)
    assert to_program(linear.double(), (3,)).steps[0].tensors()["weight"].dtype == np.float64


def test_sequential_nested_and_named() -> None:
    model = nn.Sequential(
        layer(3, 5),
        nn.Sequential(nn.GELU(), nn.Dropout(0.3), layer(5, 4)),
        nn.Identity(),
        nn.Tanh(),
        layer(4, 2),
    ).eval()
    program = agrees(model, (3,))
    assert [(s.kind, s.name) for s in program.steps] == [
        ("affine", "0"), ("pointwise", "1.0"), ("affine", "1.2"), ("pointwise", "3"), ("affine", "4"),
    ]  # fmt: skip


def test_tokens_share_the_layers() -> None:
    model = nn.Sequential(layer(3, 4), nn.SiLU(), layer(4, 2), nn.Flatten(), layer(10, 3)).eval()
    assert agrees(model, (5, 3)).shapes == ((5, 3), (5, 4), (5, 4), (5, 2), (10,), (3,))


def test_residuals() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        h = x + net.b(F.gelu(net.a(x)))
        return h - 0.5 * net.a(torch.tanh(h))

    program = agrees(Net(forward).eval(), (3,))
    sums = [s for s in program.steps if isinstance(s, Combine)]
    assert [s.coefficients for s in sums] == [(1.0, 1.0), (0.5,), (1.0, -1.0)]


def test_shared_and_tied_weights() -> None:
    shared = layer(3, 3)
    assert kinds(nn.Sequential(shared, nn.Tanh(), shared).eval(), (3,)) == ["affine", "pointwise", "affine"]
    tied = nn.Sequential(layer(3, 3), nn.Tanh(), layer(3, 3, 1)).eval()
    tied[2].weight = tied[0].weight
    program = agrees(tied, (3,))
    np.testing.assert_array_equal(program.steps[0].tensors()["weight"], program.steps[2].tensors()["weight"])


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(affine: bool) -> None:
    norm = nn.BatchNorm1d(4, affine=affine, eps=0.01)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for tensor in (norm.running_mean, norm.running_var, *norm.parameters()):
            assert tensor is not None
            tensor.copy_(torch.rand(4, generator=draw) + 0.1)
    model = nn.Sequential(layer(3, 4), norm, nn.ReLU(), layer(4, 1)).eval()
    program = agrees(model, (3,))
    step = program.steps[1]
    assert isinstance(step, BatchNorm) and step.epsilon == 0.01
    np.testing.assert_array_equal(step.variance, norm.running_var)
    np.testing.assert_array_equal(step.gain, norm.weight.detach() if affine else np.ones(4))


FORWARDS: list[Callable[[Net, Tensor], Tensor]] = [
    lambda net, x: net.a(x) + 3.0 - 0.25,
    lambda net, x: 3.0 - net.a(x),
    lambda net, x: -net.a(x) * 0.1,
    lambda net, x: 2 * net.a(x) / 3 - x / -7.5,
    lambda net, x: net.a(x) / 4,
    lambda net, x: net.a(x) + net.vector,
    lambda net, x: net.vector - net.a(x),
    lambda net, x: net.vector * net.a(x),
    lambda net, x: net.a(x) / (net.plain),
    lambda net, x: net.a(x) * net.one + net.one,
    lambda net, x: torch.add(net.a(x), x, alpha=0.3),
    lambda net, x: torch.sub(net.a(x), x, alpha=2),
    lambda net, x: net.a(x).add(x).sub(x, alpha=0.5).mul(2).div(3).neg(),
    lambda net, x: torch.rsub(net.a(x), x) + torch.neg(x),
    lambda net, x: net.a(x) * net.a(x),
    lambda net, x: F.silu(net.a(x)) * net.b(x),
    lambda net, x: F.linear(x, net.a.weight, net.b.bias) + F.linear(x, net.b.weight),
    lambda net, x: F.linear(x, net.a.weight.t()) - F.linear(x, net.a.weight.T),
    lambda net, x: x @ net.a.weight + torch.matmul(x, net.b.weight.transpose(0, 1)),
    lambda net, x: x.matmul(net.b.weight) + torch.mm(x, net.a.weight) - x.mm(net.b.weight),
    lambda net, x: F.batch_norm(net.a(x), net.vector, net.plain, net.vector, net.vector, False, 0.1, 0.5),
    lambda net, x: F.batch_norm(net.a(x), net.vector, net.plain),
    lambda net, x: net.a(x) / x.shape[1] ** 0.5 * (x.size(-1) - 1) + x.dim(),
    lambda net, x: net.a(x).view(x.size(0), -1) + net.a(x).reshape(-1, 3) + x.view(x.shape[0], 3),
    lambda net, x: net.a(x).unsqueeze(1).squeeze(1).unsqueeze(-1).flatten(1).flatten(1, -1),
    lambda net, x: net.a(x).unflatten(1, (1, 3)).flatten(-2, -1) + torch.flatten(x, start_dim=1),
    lambda net, x: net.b(net.a(x).view(x.shape[0], 1, 3)).view(x.shape),
    lambda net, x: torch.addmm(net.vector, x, net.a.weight) + net.a(x).view_as(x),
    lambda net, x: net.a(x) + torch.ones(3) * torch.arange(3) + torch.tensor([0.1, 0.2, 0.3]),
    lambda net, x: net.a(x) * net.table[1] + net.a.weight[0] - net.table[0, None],
    lambda net, x: nn.Softplus(2)(net.a(x)) + net.loose[0](x),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(FORWARDS)))
def test_what_a_forward_may_say(i: int) -> None:
    agrees(Net(FORWARDS[i]).double().eval(), (3,))


def test_regions_without_gradients() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = net.a(x)
        with torch.inference_mode():
            g = torch.tanh(net.b(x))
        return h + g

    assert kinds(Net(forward).eval(), (3,)) == ["affine", "affine", "pointwise", "combine"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_grad_mode_around_it_does_not_matter(mode: Callable[[], Any]) -> None:
    outside = nn.Sequential(layer(3, 4), nn.GELU(), layer(4, 2)).eval()
    digest = to_program(outside, (3,)).digest()
    with mode():
        assert to_program(outside, (3,)).digest() == digest
        inside = nn.Sequential(layer(3, 4), nn.GELU(), layer(4, 2)).eval()
        assert to_program(inside, (3,)).digest() == digest
    assert to_program(inside, (3,)).digest() == digest


def test_autocast_around_it_does_not_matter() -> None:
    model = nn.Sequential(layer(3, 4), nn.GELU(), layer(4, 2)).eval()
    digest = to_program(model, (3,)).digest()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert to_program(model, (3,)).digest() == digest


def test_a_view_of_the_input_needs_no_strided_input() -> None:
    """`view` raises on strided input: that is no other function."""

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = layer(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x.view(x.shape[0], -1))

    assert agrees(Viewed().eval(), (2, 3)).shapes == ((2, 3), (6,), (2,))


def test_tables_over_tokens() -> None:
    """A position table is added, multiplied and divided by, with and without an axis for the batch."""

    def forward(net: Net, x: Tensor) -> Tensor:
        return (net.a(x) + net.table) * net.table - net.table * x + x / (net.one)

    program = agrees(Net(forward).eval(), (2, 3))
    assert program.shapes[-1] == (2, 3)


def test_a_table_with_a_batch_axis_of_one() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.table = layer(3, 3), nn.Parameter(torch.linspace(-1, 1, 6).reshape(1, 2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x + self.table)

    agrees(Positions().eval(), (2, 3))


def test_unpacked_shapes() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        batch, tokens, features = x.shape
        h = net.a(x).reshape(batch, tokens * features).view(-1, tokens, features)
        return h.view(x.size()[:-1] + (1, features)).view(x.shape)  # noqa: RUF005 (the star would iterate over the shape)

    assert agrees(Net(forward).eval(), (2, 3)).shapes[-1] == (2, 3)


IN_PLACE: list[Callable[[Net, Tensor], Tensor]] = [
    lambda net, x: (lambda h: h + F.relu(h, inplace=True))(net.a(x)),
    lambda net, x: (lambda h: torch.relu_(h) + h)(net.a(x)),
    lambda net, x: net.b(F.relu_(x.clone())) + x,
    lambda net, x: (lambda h: F.relu_(h.flatten(1)))(net.a(x)),
    lambda net, x: (lambda h: (h.unflatten(1, (1, 3)).mul_(2), h)[1])(net.a(x)),
    lambda net, x: (lambda h: (h.view(x.shape[0], 3, 1).tanh_(), h)[1])(net.a(x)),
    lambda net, x: (lambda h: (h.detach().mul_(2), F.dropout(h, training=False))[1])(net.a(x)),
    lambda net, x: (lambda h: (h.clone().mul_(2), h)[1])(net.a(x)),
    lambda net, x: (lambda h: (h.add_(x).div_(3).sub_(1), h)[1])(net.a(x)),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(IN_PLACE)))
def test_changes_in_place_reach_every_reader(i: int) -> None:
    agrees(Net(IN_PLACE[i]).eval(), (3,))


def test_augmented_assignment_changes_its_aliases() -> None:
    """An alias means what the last change in place left there."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.a(x)
        alias = h
        h += x
        h *= 2
        h -= 0.5
        h /= 3
        h **= 2
        return alias

    agrees(Net(forward).eval(), (3,))
    modules = nn.Sequential(layer(3, 3), nn.ReLU(inplace=True), layer(3, 2), nn.ELU(inplace=True)).eval()
    agrees(modules, (3,))


def test_subclasses_are_read_and_not_trusted() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Same(nn.Linear):
        pass

    assert kinds(nn.Sequential(Doubled(3, 3), nn.Tanh(), Same(3, 2)).eval(), (3,)) == [
        "affine",
        "combine",
        "pointwise",
        "affine",
    ]


def test_defaults_lists_and_containers() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([layer(3, 3, i) for i in range(3)])
            self.acts = nn.ModuleDict({"a": nn.Tanh()})

        def forward(self, *inputs: Tensor, scale: float = 0.5, skip: bool = True) -> Tensor:
            x = inputs[0]
            for part in self.layers:
                x = scale * self.acts["a"](part(x)) + (x if skip else 0)
            return x

    agrees(Stack().eval(), (3,))


def test_a_traced_graph_and_a_copy() -> None:
    model = nn.Sequential(layer(3, 4), nn.Tanh(), layer(4, 2)).eval()
    program = agrees(fx.symbolic_trace(model), (3,))
    assert program.digest() == to_program(copy.deepcopy(model), (3,)).digest()


def test_dead_code_is_left_out() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.a(x)
        torch.sort(h)
        net.b(h).softmax(-1)
        return torch.tanh(h)

    assert kinds(Net(forward).eval(), (3,)) == ["affine", "pointwise"]


def test_lazy_layers_once_initialised() -> None:
    model = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(1)).eval()
    model(torch.zeros(1, 3))
    agrees(model, (3,))


def test_division_is_exact() -> None:
    """x/c for a c without a float reciprocal: the ball holds the rational number, and nothing else near it."""

    class Divided(nn.Module):
        def __init__(self, c: float) -> None:
            super().__init__()
            self.a, self.c = nn.Linear(1, 1, bias=False), c

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) / self.c

    for c in (3.0, -0.1, 7e300, 4.0, 2.0**-900, 1e-300):
        model = Divided(c).double().eval()
        weight = Fraction(model.a.weight.item())
        truth = Fraction(0.7) * weight / Fraction(c)
        with working(300):
            ball = exact(to_program(model, (1,)), np.array([0.7]), 300)[0]
            assert ball.contains(arb(fmpq(truth.numerator, truth.denominator)))
            assert ball.rad() < abs(ball) * 1e-60


def random_model(draw: random.Random, width: int, depth: int) -> tuple[nn.Module, int]:
    """A nested Sequential on `width` features, and its output's width."""
    parts: list[nn.Module] = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(["linear", "linear", "activation", "norm", "nested", "residual", "shape"])
        if kind == "linear":
            out = draw.randint(1, 5)
            parts.append(nn.Linear(width, out, bias=draw.random() < 0.7))
            width = out
        elif kind == "norm":
            parts.append(nn.BatchNorm1d(width))
        elif kind == "nested" and depth:
            inner, width = random_model(draw, width, depth - 1)
            parts.append(inner)
        elif kind == "residual":
            parts.append(Residual(nn.Linear(width, width), draw.choice([nn.ReLU(inplace=True), nn.Tanh()])))
        elif kind == "shape":
            parts += [nn.Unflatten(1, (1, width)), nn.Flatten()]
        else:
            parts.append(
                draw.choice(
                    [nn.ReLU, nn.GELU, nn.Mish, nn.SELU, nn.Softsign, nn.LogSigmoid, nn.Hardswish, nn.Dropout]
                )()
            )
    return nn.Sequential(*parts), width


class Residual(nn.Module):
    def __init__(self, inner: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.inner, self.activation = inner, activation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.activation(self.inner(x))


@pytest.mark.parametrize("seed", every(4, range(40)))
def test_random_networks(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    body, width = random_model(draw, 3, 2)
    model = nn.Sequential(nn.Linear(3, 3), body, nn.Linear(width, 2))
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            assert part.running_mean is not None and part.running_var is not None
            part.running_mean.uniform_(-1, 1)
            part.running_var.uniform_(0.2, 2)
    agrees(model.eval(), (3,), seed)


def test_nothing_of_the_model_changes() -> None:
    model = nn.Sequential(
        layer(3, 3), nn.BatchNorm1d(3), nn.ReLU(inplace=True), Net(lambda net, x: net.a(x) + torch.ones(3))
    ).eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    attributes = [dict(vars(part)) for part in model.modules()]
    state = torch.random.get_rng_state()
    to_program(model, (3,))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (
        all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        and before.keys() == model.state_dict().keys()
    )
    for part, old in zip(model.modules(), attributes, strict=True):
        assert vars(part).keys() == old.keys() and all(vars(part)[k] is v for k, v in old.items())


def test_float32_numbers_are_taken_as_they_are() -> None:
    """A number of the code keeps python's digits; one that float32 holds stays in float32."""
    program = to_program(Net(lambda net, x: net.a(x) + 0.1 + 0.5).eval(), (3,))
    first, second = program.steps[1:]
    assert isinstance(first, BatchNorm) and first.shift.dtype == np.float64 and first.shift[0] == 0.1
    assert isinstance(second, BatchNorm) and second.shift.dtype == np.float32
    assert approximate(program, np.zeros((1, 3))).dtype == np.float64
    assert not [s for s in program.steps if isinstance(s, Pointwise)]
