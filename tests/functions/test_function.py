"""Functions of one's own, and what is refused of them."""

from __future__ import annotations

import functools
import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from flint import arb
from torch import Tensor

from attnc.errors import AttncError, FunctionError, InputError
from attnc.functions import Function, elu, function, leaky_relu, relu, soft_threshold, softplus
from attnc.functions.balls import variable, working

S = torch.linspace(-1, 1, 6, dtype=torch.float64)


def runge(s: Tensor) -> Tensor:
    return 1 / (1 + s * s)


@pytest.mark.parametrize(
    ("torch_form", "message"),
    [
        (lambda s: s.sum(), r"'f'.* \(\).*\(6,\)"),
        (lambda s: s.reshape(2, 3), r"'f'.*\(2, 3\).*\(6,\)"),
        (lambda s: s[:-1], r"'f'.*\(5,\).*\(6,\)"),
        (lambda s: s.float(), r"'f'.*torch\.float32.*torch\.float64"),
        (lambda s: s > 0, r"'f'.*torch\.bool.*torch\.float64"),
        (lambda s: s.tolist(), r"'f' returned list"),
        (lambda s: None, r"'f' returned NoneType"),
        (lambda s: s.numpy(), r"'f' returned ndarray"),
        (lambda s: s.sqrt(), r"'f' returned nan at s=-1"),
        (lambda s: torch.where(s > 0.5, math.inf, s), r"'f' returned inf at s=0.5999\d+"),
        (lambda s: torch.where(s > 0.5, -math.inf, s), r"'f' returned -inf at s=0.5999\d+"),
    ],
)
def test_a_call_refuses_what_is_not_elementwise(torch_form: object, message: str) -> None:
    f = function(torch_form, name="f")  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match=message):
        f(S)


def test_a_call_passes_non_finite_inputs_through() -> None:
    out = relu()(torch.tensor([math.inf, -math.inf, math.nan, 2.0]))
    assert out[:2].tolist() == [math.inf, 0.0] and math.isnan(out[2]) and out[3] == 2.0


def test_an_overflow_names_the_input_that_caused_it() -> None:
    f = function(torch.exp, name="mine")
    with pytest.raises(FunctionError, match="'mine'"):
        f(torch.tensor([1.0, 100.0]))


def test_without_enclosure_a_function_is_measured_only() -> None:
    f = function(torch.tanh)
    assert f.name == "my_tanh" and not f.provable
    assert torch.equal(f(S), S.tanh())
    for use in (lambda: f.pieces(-1, 1), lambda: f.value(0.5), lambda: f.lipschitz(-1, 1)):
        with pytest.raises(FunctionError, match="'my_tanh'"):
            use()


def test_with_enclosure_a_function_is_provable() -> None:
    f = function(runge, enclosure=lambda x: 1 / (1 + x * x))
    assert f.name == "runge" and f.label == "runge" and f.provable and f.kinks == ()
    with working(128):
        assert f.value(2.0).contains(arb(1) / 5)
    assert len(f.pieces(-1, 1)) == 1


def test_a_callable_without_a_name_is_called_function() -> None:
    assert function(functools.partial(torch.clamp, min=0.0)).name == "function"
    assert function(torch.nn.GELU()).name == "function"
    assert function(functools.partial(torch.clamp, min=0.0), name="mine").name == "mine"


def test_one_enclosure_for_each_stretch() -> None:
    f = function(torch.relu, enclosure=(lambda x: x * 0, lambda x: x), kinks=[0])
    assert f.kinks == (0.0,) and isinstance(f.kinks[0], float)
    with working(64):
        assert [float(p.branch(variable(arb(3)))[0].mid()) for p in f.pieces(-1, 1)] == [0, 3]
    assert f.name == "my_relu"


@pytest.mark.parametrize(
    ("count", "kinks"), [(1, (0.0,)), (2, ()), (3, (0.0,)), (2, (0.0, 1.0))], ids=["1-1", "2-0", "3-1", "2-2"]
)
def test_a_wrong_number_of_enclosures_is_refused(count: int, kinks: tuple[float, ...]) -> None:
    n = len(kinks)
    wanted = f"{n} kinks? and {count} enclosures?: .*{n + 1}.*enclosure="
    with pytest.raises(InputError, match=wanted):
        function(lambda s: s, name="f", enclosure=[lambda x: x] * count, kinks=kinks)


@pytest.mark.parametrize(
    "enclosure", [5, "x", [], [None], [lambda x: x, 3]], ids=["number", "text", "none", "None", "mixed"]
)
def test_an_enclosure_that_is_not_a_map_is_refused(enclosure: object) -> None:
    with pytest.raises(InputError):
        function(torch.relu, enclosure=enclosure, kinks=(0.0,))  # type: ignore[arg-type]


@pytest.mark.parametrize("kinks", [0.0, "0", ["0"], [None], None], ids=repr)
def test_kinks_that_are_not_numbers_are_refused(kinks: object) -> None:
    with pytest.raises(InputError):
        function(torch.relu, kinks=kinks)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, "gelu", 3.0, torch.zeros(2)], ids=["None", "str", "float", "tensor"])
def test_what_cannot_be_called_is_refused(given: object) -> None:
    with pytest.raises(InputError):
        function(given)  # type: ignore[arg-type]


def test_an_enclosure_of_another_function_is_refused() -> None:
    message = r"'f'.* s=-2\.0.* -0\.9092"
    with pytest.raises(FunctionError, match=message):
        function(torch.sin, name="f", enclosure=lambda x: x.cos())


@pytest.mark.parametrize("gap", [2e-6, -1e-5, 1.0])
def test_an_enclosure_that_is_off_by_a_constant_is_refused(gap: float) -> None:
    with pytest.raises(FunctionError):
        function(lambda s: s * 0, name="f", enclosure=lambda x: x * 0 + arb(gap))


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_slip_in_any_stretch_is_found_however_far_its_kink(wrong: int) -> None:
    branches = [lambda x: x * 0 - 25, lambda x: x, lambda x: x * 0 + 25]
    function(lambda s: s.clamp(-25, 25), enclosure=branches, kinks=(-25, 25))
    branches[wrong] = lambda x: x * 2 + 1
    with pytest.raises(FunctionError):
        function(lambda s: s.clamp(-25, 25), enclosure=branches, kinks=(-25, 25))


def test_an_enclosure_that_fails_is_refused_with_its_reason() -> None:
    with pytest.raises(FunctionError, match="no_such"):
        function(torch.sin, name="f", enclosure=lambda x: x.no_such())


@pytest.mark.parametrize("returned", [[1.0, 2.0], "ab"], ids=repr)
def test_an_enclosure_that_returns_no_series_is_refused(returned: object) -> None:
    with pytest.raises(FunctionError, match=r"flint\.arb_series"):
        function(torch.sin, name="f", enclosure=lambda x: returned)


def test_a_torch_form_that_fails_is_refused_with_its_reason() -> None:
    def fails(s: Tensor) -> Tensor:
        raise RuntimeError("only on Sundays")

    with pytest.raises(FunctionError, match="'fails'"):
        function(fails, enclosure=lambda x: x)


@pytest.mark.parametrize(
    ("torch_form", "enclosure"),
    [(torch.log, lambda x: x.log()), (lambda s: 1 / s, lambda x: 1 / x), (torch.sqrt, lambda x: x.sqrt())],
    ids=["log", "reciprocal", "sqrt"],
)
def test_a_function_may_be_undefined_at_some_points(torch_form: object, enclosure: object) -> None:
    f = function(torch_form, name="f", enclosure=enclosure)  # type: ignore[arg-type]
    with working(128):
        assert f.value(1.5).is_finite()
    with pytest.raises(FunctionError, match="'f'"):
        f(torch.tensor([-0.0 if f.torch_form is not torch.sqrt else -1.0]))


@pytest.mark.parametrize("bad", [Tensor.tolist, Tensor.sum, lambda s: s + 1j], ids=["list", "sum", "complex"])
def test_a_misshapen_torch_form_with_enclosure_is_refused_when_called(bad: object) -> None:
    f = function(bad, name="f", enclosure=lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match="'f'"):
        f(S)


@pytest.mark.parametrize("parameter", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("factory", [leaky_relu, elu, softplus, soft_threshold])
def test_parameters_that_are_not_finite_are_refused(factory: object, parameter: float) -> None:
    with pytest.raises(InputError):
        factory(parameter)  # type: ignore[operator]


def test_a_function_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        relu().name = "other"  # type: ignore[misc]


def test_errors_have_one_root_and_are_value_errors() -> None:
    assert issubclass(FunctionError, InputError) and issubclass(InputError, AttncError)
    with pytest.raises(ValueError, match="callable"):
        function(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parameters", "label"),
    [
        ({}, "f"),
        ({"a": 0.1}, "f(0.1)"),
        ({"a": -25, "b": 1e-7}, "f(-25,1e-07)"),
        ({"a": 1 / 3}, "f(0.3333333333333333)"),
    ],
)
def test_the_label_gives_every_digit_that_matters(parameters: dict[str, float], label: str) -> None:
    assert Function("f", torch.relu, parameters=parameters).label == label
