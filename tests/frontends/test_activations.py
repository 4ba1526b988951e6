"""Every activation, with torch's parameters, against the module and against its formula in many digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flint import arb
from torch import Tensor, nn

from attnc.errors import UnsupportedError
from attnc.frontends import to_program
from attnc.frontends.activations import ACTIVATIONS as UNDERSTOOD
from attnc.frontends.capture import capture
from attnc.functions.balls import working
from attnc.program import Pointwise, Program
from attnc.program.evaluate import approximate, exact

SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
POINTS = [
    -25.0, -6.0, -3.0, -1.5, -1.0, -0.5, -0.3, -1e-9, 0.0, 1e-9, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 19.75, 20.0, 20.5, 30.0,
]  # fmt: skip
ACTIVATIONS = [
    nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.LeakyReLU(), nn.LeakyReLU(0.3), nn.LeakyReLU(-0.1),
    nn.PReLU(init=0.125), nn.RReLU(), nn.RReLU(0.1, 0.7), nn.Hardtanh(), nn.Hardtanh(-0.5, 3), nn.Softshrink(),
    nn.Softshrink(1.5), nn.Softshrink(0), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(),
    nn.Softplus(), nn.Softplus(2.0), nn.Softplus(3, 1), nn.Softplus(0.5, -1.0), nn.Softplus(1.0, math.inf), nn.ELU(),
    nn.ELU(0.3), nn.ELU(-2.0), nn.CELU(), nn.CELU(0.5), nn.CELU(0.3), nn.CELU(7.0), nn.SELU(), nn.LogSigmoid(),
    nn.Mish(), nn.Softsign(), nn.Tanhshrink(), nn.Hardsigmoid(), nn.Hardswish(), nn.Threshold(0, 0), nn.Identity(),
    nn.Dropout(), nn.AlphaDropout(),
]  # fmt: skip


def after_identity(activation: nn.Module) -> nn.Module:
    first = nn.Linear(1, 1)
    with torch.no_grad():
        first.weight.fill_(1)
        first.bias.fill_(0)
    return nn.Sequential(first, activation).double().eval()


def at(program: Program, x: float) -> arb:
    return exact(program, np.array([x]))[0]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_the_module_and_the_program_agree_everywhere(activation: nn.Module) -> None:
    model = after_identity(activation)
    program = to_program(model, (1,))
    with torch.no_grad():
        theirs = model(torch.tensor(POINTS, dtype=torch.float64)[:, None])[:, 0].tolist()
    with working(192):
        for x, y in zip(POINTS, theirs, strict=True):
            gap = abs(at(program, x) - arb(y))
            assert not gap > 4e-15 * (1 + abs(y)), f"at {x}: {at(program, x)} against {y}"
    if not any(isinstance(s, Pointwise) and s.deviation for s in program.steps):
        np.testing.assert_allclose(
            approximate(program, np.array(POINTS)[:, None])[:, 0], theirs, rtol=1e-14, atol=1e-14
        )


def test_every_operation_that_is_understood_is_tried() -> None:
    class All(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(ACTIVATIONS)

        def forward(self, x: Tensor) -> list[Tensor]:
            return [f(x + 0) for f in (*self.parts, *FUNCTIONAL)]

    graph = capture(All().double().eval(), (torch.zeros(2, 1, dtype=torch.float64),)).graph
    names = {n.target._schema.name for n in graph.nodes if n.op == "call_function"}
    tried = {name.removeprefix("aten::").removesuffix("_") for name in names}
    assert set(UNDERSTOOD) - tried == set()


def negative(x: Any, y: Any) -> Any:
    return x if x > 0 else y


FORMULAS: list[tuple[nn.Module, Callable[[Any], Any]]] = [
    (nn.CELU(0.3), lambda x: negative(x, mpmath.mpf(0.3) * mpmath.expm1(x / mpmath.mpf(0.3)))),
    (nn.CELU(0.5), lambda x: negative(x, mpmath.expm1(2 * x) / 2)),
    (nn.SELU(), lambda x: mpmath.mpf(SELU_SCALE) * negative(x, mpmath.mpf(SELU_ALPHA) * mpmath.expm1(x))),
    (nn.LogSigmoid(), lambda x: -mpmath.log1p(mpmath.exp(-x))),
    (nn.Tanhshrink(), lambda x: x - mpmath.tanh(x)),
    (nn.Hardsigmoid(), lambda x: min(max(x + 3, 0), 6) / mpmath.mpf(6)),
    (nn.Hardswish(), lambda x: x * min(max(x + 3, 0), 6) / mpmath.mpf(6)),
    (nn.RReLU(0.1, 0.7), lambda x: negative(x, x * mpmath.mpf((0.1 + 0.7) / 2))),
    (nn.Softplus(3, math.inf), lambda x: mpmath.log1p(mpmath.exp(3 * x)) / 3),
]


@pytest.mark.parametrize(
    ("activation", "formula"), FORMULAS, ids=lambda v: repr(v) if isinstance(v, nn.Module) else ""
)
def test_what_is_put_together_is_exact(activation: nn.Module, formula: Callable[[Any], Any]) -> None:
    """Not close to the formula: equal to it, to the last of 50 digits."""
    program = to_program(after_identity(activation), (1,))
    with working(256), mpmath.workdps(70):
        for x in POINTS:
            ball = exact(program, np.array([x]), 256)[0]
            truth = arb(mpmath.nstr(formula(mpmath.mpf(x)), 65))
            assert abs(ball - truth) <= arb(10) ** -50 * (1 + abs(truth)), f"at {x}"


@pytest.mark.parametrize(
    ("beta", "threshold"), [(1.0, 20.0), (2.0, 20.0), (0.3, 7.0), (3.0, 1.0), (1 / 3, -2.0), (0.7, 800.0)]
)
def test_softplus_says_how_far_torch_is_from_it(beta: float, threshold: float) -> None:
    program = to_program(after_identity(nn.Softplus(beta, threshold)), (1,))
    step = program.steps[-1]
    assert isinstance(step, Pointwise)
    assert Fraction(step.beyond) * Fraction(beta) <= Fraction(threshold), "torch turns linear only beyond"
    assert Fraction(math.nextafter(step.beyond, math.inf)) * Fraction(beta) > Fraction(threshold), (
        "and right there"
    )
    with mpmath.workdps(420):
        worst = mpmath.log1p(mpmath.exp(-mpmath.mpf(threshold))) / mpmath.mpf(beta)
        assert worst <= mpmath.mpf(step.deviation) <= worst * (1 + mpmath.mpf(10) ** -12) + 5e-324
    x = math.nextafter(step.beyond, math.inf)
    assert exact(program, np.array([x]))[0].contains(arb(x)), "the identity, which torch computes there"


@pytest.mark.parametrize(
    ("activation", "operation", "reason"),
    [
        (nn.PReLU(4), "prelu", "(4,)"),
        (nn.Softplus(-1.0), "softplus", "-1"),
        (nn.Softplus(0.0), "softplus", "beta=0.0"),
        (nn.Softplus(1.0, -math.inf), "softplus", "-inf"),
        (nn.Softplus(1.0, math.nan), "softplus", "nan"),
        (nn.CELU(-0.5), "celu", "-0.5"),
        (nn.ELU(math.inf), "elu", "inf"),
        (nn.LeakyReLU(math.nan), "leaky_relu", "nan"),
        (nn.Softshrink(-1.0), "softshrink", "-1"),
        (nn.Threshold(0.5, 0.0), "threshold", "0.5"),
        (nn.Hardshrink(), "hardshrink", "not supported"),
        (nn.GLU(), "glu", "not supported"),
        (nn.Softmax(-1), "softmax", "logits"),
    ],
    ids=lambda v: repr(v) if isinstance(v, nn.Module) else "",
)
def test_refused(activation: nn.Module, operation: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as raised:
        to_program(nn.Sequential(nn.Linear(4, 4), activation).eval(), (4,))
    places = [p.where for p in raised.value.problems]
    if not (
        operation == "softshrink" and "1 (Softshrink)" in places
    ):  # torch refuses a negative lambda itself
        assert places == [f"aten.{operation} in 1 ({type(activation).__name__})"]


def test_an_unknown_approximation_of_gelu() -> None:
    with pytest.raises(UnsupportedError, match="approximate") as raised:
        to_program(nn.Sequential(nn.Linear(1, 1), nn.GELU("fast")).eval(), (1,))
    assert [p.where for p in raised.value.problems] == ["1 (GELU)"]


@pytest.mark.parametrize(
    ("activation", "changes", "label"),
    [
        (nn.ReLU6(), {"max_val": 8.0}, "clip(0,8)"),
        (nn.ReLU6(), {"min_val": -1.0}, "hardtanh(-1,6)"),
        (nn.LeakyReLU(), {"negative_slope": 0.25}, "leaky_relu(0.25)"),
        (nn.GELU(), {"approximate": "tanh"}, "gelu_tanh"),
        (nn.ELU(), {"alpha": 0.5}, "elu(0.5)"),
        (nn.Softshrink(), {"lambd": 2.0}, "soft_threshold(2)"),
    ],
    ids=repr,
)
def test_attributes_that_were_changed_are_read(
    activation: nn.Module, changes: dict[str, Any], label: str
) -> None:
    for attribute, value in changes.items():
        setattr(activation, attribute, value)
    step = to_program(after_identity(activation), (1,)).steps[-1]
    assert isinstance(step, Pointwise) and step.function.label == label


FUNCTIONAL: list[Callable[[Tensor], Tensor]] = [
    torch.relu, F.relu, lambda x: x.relu(), lambda x: F.relu(x, True), lambda x: F.relu_(x), torch.tanh, F.tanh,
    lambda x: x.tanh(), torch.sigmoid, F.sigmoid, torch.special.expit, lambda x: x.sigmoid_(), torch.sin, torch.cos,
    torch.exp, torch.abs, torch.square, lambda x: x.sin(), lambda x: x.cos_(), lambda x: x.exp(), lambda x: x.abs(),
    abs, lambda x: x.absolute(), lambda x: x.square(), F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu,
    lambda x: F.silu(x, inplace=True), F.mish, F.softsign, F.logsigmoid, F.leaky_relu, lambda x: F.leaky_relu(x, 0.3),
    lambda x: F.leaky_relu(x, negative_slope=0.3), lambda x: F.leaky_relu(input=x), F.elu, lambda x: F.elu(x, 0.5),
    lambda x: F.elu_(x, alpha=0.5), F.celu, lambda x: F.celu(x, alpha=0.3), torch.celu, F.selu, torch.selu, F.relu6,
    F.hardtanh, lambda x: F.hardtanh(x, -2, max_val=0.5), lambda x: F.hardtanh_(x), F.softshrink,
    lambda x: F.softshrink(x, 0.2), F.softplus, lambda x: F.softplus(x, 2, 30), lambda x: F.softplus(x, beta=0.7),
    F.hardsigmoid, F.hardswish, F.tanhshrink, F.rrelu, lambda x: F.rrelu(x, 0.2, 0.4, False),
    lambda x: torch.rrelu(x, 0.2, 0.4), lambda x: F.threshold(x, 0, 0), lambda x: x.clamp(-1, 2),
    lambda x: x.clamp(min=0), lambda x: x.clamp_min(0),
    lambda x: torch.clip(x, -0.5, 0.5), lambda x: x.clamp_(min=-1, max=1), lambda x: x**2,
    lambda x: x**1, lambda x: x.pow(2), lambda x: torch.pow(x, 2), lambda x: F.dropout(x, 0.5, False),
    lambda x: F.dropout(x, training=False), lambda x: F.dropout(x, p=0.0), F.alpha_dropout, lambda x: x.clone(),
    lambda x: x.contiguous(), lambda x: x.detach(), lambda x: x.double(), lambda x: x.to(torch.float64),
    lambda x: x.to("cpu"),
]  # fmt: skip


class Applied(nn.Module):
    """A linear layer, and a function of what it returns."""

    def __init__(self, function: Callable[[Tensor], Tensor], size: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(size))
            self.layer.bias.fill_(0)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize(
    "i", [i if i % 3 == 0 else pytest.param(i, marks=pytest.mark.slow) for i in range(len(FUNCTIONAL))]
)
def test_functions_and_methods(i: int) -> None:
    x = torch.tensor([s for s in POINTS if abs(s) < 7], dtype=torch.float64)[:, None]
    program = to_program(Applied(FUNCTIONAL[i]).double().eval(), (1,))
    np.testing.assert_allclose(
        approximate(program, x.numpy()), FUNCTIONAL[i](x.clone()).numpy(), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize(
    ("function", "operation", "reason"),
    [
        (lambda x: F.dropout(x), "aten.dropout", "random"),
        (lambda x: F.dropout(x, 0.1, True), "aten.dropout", "random"),
        (lambda x: F.alpha_dropout(x, training=True), "aten.alpha_dropout", "random"),
        (lambda x: F.rrelu(x, training=True), "aten.rrelu", "random"),
        (lambda x: F.softmax(x, -1), "aten.softmax", "not supported"),
        (lambda x: x.sum(1, keepdim=True), "aten.sum", "not supported"),
        (lambda x: x**3, "aten.pow", "3"),
        (lambda x: x**-1, "aten.pow", "-1"),
        (lambda x: 2**x, "aten.pow", "the model's own numbers"),
        (lambda x: x.clamp(max=1), "aten.clamp", "one end"),
        (lambda x: x.clamp(2, 1), "aten.clamp", "a < b"),
        (lambda x: x.half(), "aten.to", "float16"),
        (lambda x: x.float(), "aten.to", "float32"),
        (lambda x: x.to(torch.float16).double(), "aten.to", "float16"),
        (lambda x: x + torch.ones(1, dtype=torch.complex128), "aten.add", "complex128"),
        (lambda x: torch._C._nn.gelu(x, approximate="none").round(), "aten.round", "not supported"),
        (lambda x: F.leaky_relu(x, torch.ones(2)), "the model (Applied)", ""),
        (lambda x: torch.where(x > 0, x, -x), "aten.where", "not supported"),
        (lambda x: x.tanh(out=x), "the model (Applied)", "TypeError"),
        (lambda x: torch.tanh(x, out=x.clone()), "aten.tanh", "out="),
        (lambda x: x.relu(1), "the model (Applied)", "TypeError"),
        (lambda x: torch.ops.aten.elu(x, 1, 2), "aten.elu", "scale"),
    ],
)
def test_refused_functions(function: Callable[[Tensor], Tensor], operation: str, reason: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        to_program(Applied(function).double().eval(), (1,))
    found = [p for p in raised.value.problems if p.where.startswith(operation)]
    assert found and reason in found[0].reason, raised.value.problems
