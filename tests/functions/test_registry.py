"""Functions by name: what is read, what is refused and what is suggested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from flint import arb
from hypothesis import given, settings
from hypothesis import strategies as st

from attnc import functions
from attnc.errors import InputError, UnknownFunctionError
from attnc.functions import library, registry
from attnc.functions.balls import working

from .reference import CASES, LABELS, Case

each_case = pytest.mark.parametrize("case", CASES, ids=LABELS)
BUILT_IN = sorted({case.function.name for case in CASES})
S = torch.linspace(-3, 3, 41, dtype=torch.float64)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))
    yield


@each_case
def test_the_label_is_read_back_as_the_same_function(case: Case) -> None:
    f = case.function
    again = functions.get(f.label)
    assert (again.label, again.kinks, dict(again.parameters)) == (f.label, f.kinks, dict(f.parameters))
    assert torch.equal(again(S), f(S))
    with working(128):
        assert all(again.value(s).overlaps(f.value(s)) for s in (-2.0, 0.05, 2.0))


@settings(max_examples=100, deadline=None, database=None)
@given(a=st.floats(-1e6, 1e6), width=st.floats(1e-3, 1e6))
def test_every_digit_of_a_parameter_survives_the_label(a: float, width: float) -> None:
    f = functions.clip(a, a + width)
    assert functions.get(f.label).kinks == f.kinks == (a, a + width)


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_factory_is_public_and_known_by_its_name(name: str) -> None:
    assert name in functions.names() and name in functions.__all__
    assert getattr(functions, name) is getattr(library, name)
    assert list(functions.names()) == sorted(functions.names())


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_has_a_signature_and_a_meaning(name: str) -> None:
    assert functions.signature(name).startswith(name)
    assert functions.meaning(name).endswith((".", ")")) and len(functions.meaning(name)) >= 2
    assert "\n" not in functions.meaning(name)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("gelu", "gelu"),
        ("clip", "clip(a, b)"),
        ("hardtanh", "hardtanh(a=-1, b=1)"),
        ("leaky_relu", "leaky_relu(slope=0.01)"),
        ("soft_threshold", "soft_threshold(lam=0.5)"),
        ("softplus", "softplus(beta=1)"),
        ("elu", "elu(alpha=1)"),
    ],
)
def test_signature_shows_parameters_with_their_defaults(name: str, written: str) -> None:
    assert functions.signature(name) == written


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        ("clip(-25,25)", "clip(-25,25)"),
        ("  clip ( -25 , 2.5e1 )  ", "clip(-25,25)"),
        ("gelu()", "gelu"),
        (" gelu ", "gelu"),
        ("hardtanh", "hardtanh(-1,1)"),
        ("hardtanh(-2)", "hardtanh(-2,1)"),
        ("leaky_relu(0.2)", "leaky_relu(0.2)"),
        ("softplus(1)", "softplus"),
        ("elu(1)", "elu"),
        ("elu(0.5)", "elu(0.5)"),
    ],
)
def test_specs_are_read(spec: str, label: str) -> None:
    assert functions.get(spec).label == label


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("gellu", "gelu"), ("GELU", "gelu"), ("Relu", "relu"), ("rleu", "relu"), ("sigmod", "sigmoid"),
        ("swilu", "silu"), ("soft_plus", "softplus"), ("tahn", "tanh"), ("clamp(0,1)", "clip"),
        ("leakyrelu", "leaky_relu"), ("geluu(3)", "gelu"),
    ],
)  # fmt: skip
def test_an_unknown_name_suggests_the_nearest(given: str, meant: str) -> None:
    message = rf"'{meant}'.*attnc\.function\("
    with pytest.raises(UnknownFunctionError, match=message):
        functions.get(given)


def test_a_name_like_no_other_lists_all() -> None:
    with pytest.raises(UnknownFunctionError, match=f"'zzzz'.*{', '.join(functions.names())}"):
        functions.get("zzzz")


@pytest.mark.parametrize("ask", [functions.signature, functions.meaning])
def test_signature_and_meaning_of_an_unknown_name_suggest_too(ask: object) -> None:
    with pytest.raises(UnknownFunctionError, match="'gelu'"):
        ask("gellu")  # type: ignore[operator]


@pytest.mark.parametrize("spec", ["", "  ", "(1)", "clip(1,2", "clip 1,2", "clip(1,2)x", "a-b", None, 3])
def test_what_is_not_a_name_is_refused(spec: object) -> None:
    with pytest.raises(InputError, match=r"'clip\(-25,25\)'"):
        functions.get(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gelu(1)", "'gelu'.* 1 arguments.*gelu"),
        ("clip", r"'clip'.* 0 arguments.*clip\(a, b\)"),
        ("clip(1)", r"'clip'.* 1 arguments.*clip\(a, b\)"),
        ("clip(1,2,3)", r"'clip'.* 3 arguments.*clip\(a, b\)"),
        ("elu(1,2)", r"'elu'.* 2 arguments.*elu\(alpha=1\)"),
    ],
)
def test_a_wrong_number_of_arguments_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        functions.get(spec)


@pytest.mark.parametrize("inside", ["a,b", "1;2", ",", "1,", "1,,2", "(1),2", "1 2"])
def test_arguments_that_are_not_numbers_are_refused(inside: str) -> None:
    with pytest.raises(InputError, match=r"'clip\(-25,25\)'"):
        functions.get(f"clip({inside})")


@pytest.mark.parametrize("inside", ["nan,1", "0,inf", "-inf,0", "0,1e999"])
def test_arguments_that_are_not_finite_are_refused(inside: str) -> None:
    with pytest.raises(InputError):
        functions.get(f"clip({inside})")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("clip(1,1)", "a=1.0, b=1.0"),
        ("hardtanh(2,1)", "hardtanh.*a=2.0, b=1.0"),
        ("soft_threshold(0)", "lam=0.0"),
        ("soft_threshold(-1)", "lam=-1.0"),
        ("softplus(0)", "beta=0.0"),
        ("softplus(-2)", "beta=-2.0"),
    ],
)
def test_parameters_out_of_range_are_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        functions.get(spec)


@pytest.mark.usefixtures("own_registry")
def test_a_registered_function_is_found_by_its_name() -> None:
    f = functions.function(lambda s: s / 3, name="third", enclosure=lambda x: x / 3)
    assert functions.register(f) is f
    assert functions.get("third") is f and functions.get(f.label) is f and "third" in functions.names()
    assert functions.signature("third") == "third" and functions.meaning("third") == "A registered function."
    with pytest.raises(InputError, match="'third'"):
        functions.get("third(2)")
    with working(128):
        assert functions.get("third").value(1.0).contains(arb(1) / 3)


@pytest.mark.usefixtures("own_registry")
def test_a_registered_function_can_be_registered_anew() -> None:
    functions.register(functions.function(torch.sin, name="mine"))
    newer = functions.register(functions.function(torch.cos, name="mine"))
    assert functions.get("mine") is newer


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_name_cannot_be_taken(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}'"):
        functions.register(functions.function(torch.sin, name=name))
    assert functions.get("clip(0,1)" if name == "clip" else name).provable


@pytest.mark.parametrize("name", ["<lambda>", "my f", "3rd", "f(1)", "a-b"])
def test_a_name_that_cannot_be_read_back_is_refused(name: str) -> None:
    with pytest.raises(InputError):
        functions.register(functions.function(torch.sin, name=name))
    assert name not in functions.names()


@pytest.mark.parametrize("given", [torch.sin, "gelu", None], ids=["callable", "str", "None"])
def test_only_a_function_is_registered(given: object) -> None:
    with pytest.raises(InputError):
        functions.register(given)  # type: ignore[arg-type]
