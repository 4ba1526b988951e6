"""Names of built-ins belong to the built-ins: what a certificate names is what was proved."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb_series

import attnc
from attnc import functions
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.frontends.state_dict import mlp
from attnc.functions import Function, function
from attnc.functions.function import is_builtin, label_of
from attnc.heads.target import Plan
from attnc.lower.function_to_head import head_approximating, head_within
from attnc.lower.product import square_head
from attnc.prove import slopes
from attnc.records.record import Record, write

SPELLINGS = (
    "relu", " relu ", "relu()", "leaky_relu", "leaky_relu(0.2)", "clip(0,6)", "clip ( 0 , 6 )", "clip(", "gelu\n", "softplus(1)",
    "ReLU", "ＲＥＬＵ", "ｒelu", "relu(\n)",
)  # fmt: skip
RESERVED = tuple(name for name in SPELLINGS if name != "clip(")
BRANCHES = (lambda x: -x, lambda x: x)


def an_abs(name: str) -> Function:
    return Function(name, torch.abs, BRANCHES, (0.0,))


@pytest.mark.parametrize("name", [*RESERVED, *functions.names()])
def test_a_users_function_cannot_be_called_like_a_built_in(name: str) -> None:
    for make in (
        lambda: an_abs(name),
        lambda: Function(name, torch.abs),
        lambda: function(torch.abs, name=name),
        lambda: function(torch.abs, name=name, enclosure=BRANCHES, kinks=(0.0,)),
        lambda: replace(an_abs("mine"), name=name),
    ):
        with pytest.raises(InputError):
            make()


@pytest.mark.parametrize(
    "changed", [{"torch_form": torch.abs}, {"branches": BRANCHES}, {"kinks": (0.0,)}, {}]
)
def test_a_built_in_cannot_be_rebuilt_with_other_parts(changed: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(functions.relu(), **changed)


def test_every_reading_of_a_name_as_a_built_in_is_reserved() -> None:
    for spec in SPELLINGS:
        try:
            found = functions.get(spec)
        except InputError:
            continue
        assert is_builtin(found) and spec in RESERVED


def test_a_name_that_only_begins_alike_is_free() -> None:
    for name in ("my_relu", "relu_5", "relu 5", "relu(1)x", "crelu", "clip("):
        assert an_abs(name).label == name


def renamed() -> Function:
    f = an_abs("mine")
    object.__setattr__(f, "name", "relu")
    return f


def unpickled() -> Function:
    f = object.__new__(Function)
    vars(f).update(name="relu", torch_form=torch.abs, branches=BRANCHES, kinks=(0.0,), parameters={})
    return f


class Borrowed(Function):
    """A subclass that says of itself what it likes."""

    @property
    def label(self) -> str:
        return "relu"


def subclassed() -> Function:
    f = object.__new__(Borrowed)
    vars(f).update(name="relu", torch_form=torch.abs, branches=BRANCHES, kinks=(0.0,), parameters={})
    return f


def with_parameters() -> Function:
    f = an_abs("mine")
    object.__setattr__(f, "name", "leaky_relu")
    object.__setattr__(f, "parameters", {"slope": 0.2})
    return f


@pytest.fixture(scope="module")
def relu_head() -> attnc.Head:
    return attnc.head("relu", domain=(-1, 1), eps=0.1)


@pytest.mark.parametrize("make", [renamed, unpickled, subclassed, with_parameters])
def test_no_certificate_names_a_built_in_for_what_is_none(make: Any, relu_head: attnc.Head) -> None:
    fake = make()
    assert not is_builtin(fake)
    for use in (
        lambda: label_of(fake),
        lambda: attnc.head(fake, domain=(-1, 1), eps=0.1),
        lambda: attnc.head(fake, domain=(-1, 1), anchors=2),
        lambda: functions.register(fake),
    ):
        with pytest.raises(InputError):
            use()
    assert attnc.verify(relu_head, function=fake).status == "unknown"


def test_a_subclass_that_hides_its_name_keeps_its_own_in_certificates() -> None:
    f = Borrowed("hidden", torch.abs, BRANCHES, (0.0,))
    head = attnc.head(f, domain=(-1, 1), eps=0.1)
    assert head.certificate.proved and head.certificate.facts["function"] == "hidden"


@pytest.fixture
def pristine() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


@pytest.mark.usefixtures("pristine")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("torch_form", torch.abs),
        ("branches", BRANCHES),
        ("kinks", (0.0, 1.0)),
        ("parameters", {"x": 1.0}),
        ("value", lambda s: s),
    ],
)
def test_a_built_in_that_was_changed_is_none_any_more(name: str, value: object) -> None:
    f = functions.mish() if name != "parameters" else functions.softsign()
    assert is_builtin(f)
    object.__setattr__(f, name, value)
    assert not is_builtin(f)
    with pytest.raises(InputError):
        label_of(f)
    fresh = functions.get(f.name)
    assert fresh is not f and is_builtin(fresh) and fresh.label == f.name


def test_parameters_that_were_changed_in_place() -> None:
    f = functions.leaky_relu(0.375)
    f.parameters["slope"] = 0.01  # type: ignore[index]
    with pytest.raises(InputError):
        label_of(f)
    assert functions.leaky_relu(0.375).label == "leaky_relu(0.375)"


@pytest.mark.parametrize("name", functions.names())
def test_a_built_in_is_one_object(name: str) -> None:
    spec = "clip(-1,2)" if name == "clip" else name
    f = functions.get(spec)
    assert is_builtin(f) and f is functions.get(f.label) and label_of(f) == f.label
    assert copy.copy(f) is f and copy.deepcopy(f) is f and copy.deepcopy([f])[0] is f
    assert pickle.loads(pickle.dumps(f)) is f


def test_zero_has_one_spelling() -> None:
    assert (
        functions.get("clip(-0,1)") is functions.clip(0, 1) and functions.clip(-0.0, 1).label == "clip(0,1)"
    )


def twice(x: arb_series) -> arb_series:
    return 2 * x


def doubled(s: torch.Tensor) -> torch.Tensor:
    return 2 * s


def test_a_users_function_is_copied_and_pickled_with_its_parts() -> None:
    f = function(doubled, enclosure=twice)
    for other in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f)):
        assert other is not f and other.label == "doubled" and other.branches == f.branches


def test_a_pickle_that_claims_a_built_in_is_refused() -> None:
    data = pickle.dumps(function(doubled, name="rexu", enclosure=twice)).replace(b"rexu", b"relu")
    with pytest.raises(InputError):
        pickle.loads(data)


def test_a_callable_has_another_name() -> None:
    def sin(s: torch.Tensor) -> torch.Tensor:
        return torch.sin(s)

    head = attnc.head(sin, domain=(-1, 1), anchors=4)
    assert head.certificate.proved and head.certificate.facts["function"] == "my_sin"


def test_a_network_of_a_function_that_took_a_name() -> None:
    net = attnc.compile(
        mlp({"0.weight": torch.eye(2), "1.weight": torch.eye(2)}, functions.relu()),
        domain=attnc.Box(-1, 1, shape=(2,)),
        eps=1e-2,
    )
    assert net.certificate.proved and attnc.verify(net).status == "proved"
    step = next(s for s in net.program.steps if hasattr(s, "function"))
    object.__setattr__(step, "function", renamed())
    assert attnc.verify(net).status == "unknown"


def test_the_file_of_a_users_head_that_says_relu_is_not_proved(tmp_path: Path) -> None:
    head = attnc.head(an_abs("mine"), domain=(-1, 1), eps=1e-2)
    assert head.certificate.proved
    facts = {**head.certificate.facts, "function": "relu"}
    for name, status in (("mine", "unknown"), ("relu", "refuted")):
        forged = replace(head.certificate, name=name, facts=facts)
        write(tmp_path / "x.safetensors", Record(head.numbers(), forged))
        assert attnc.verify(tmp_path / "x.safetensors").status == status


def test_caches_are_not_asked_by_name() -> None:
    """Two functions of one name have their own slopes, heads and windows, whichever comes first."""
    for slope in (3, 5):
        f = function(lambda s, k=slope: k * s, name="mine", enclosure=lambda x, k=slope: k * x)
        steepest = slopes.slopes(f, -1, 1).lipschitz(np.array([-0.5]), np.array([0.5]))
        head = head_within(Plan(f, Interval(-1.0, 1.0), "float64"), 0.5)
        assert slope <= float(steepest[0]) < slope + 1e-6
        assert abs(float(head(torch.tensor([1.0], dtype=torch.float64))) - slope) <= 0.5


def test_what_a_cache_hands_out_can_be_changed_without_harm() -> None:
    on = Interval(-4.0, 4.0)
    for make in (
        lambda: head_within(Plan(functions.tanh(), on, "float32"), 1e-3),
        lambda: head_approximating(Plan(functions.gelu(), on, "float32"), 1e-3),
        lambda: square_head("float32"),
    ):
        first = make()
        assert first.certificate.proved
        with torch.no_grad():
            first.value.zero_()
        object.__setattr__(first.certificate, "bound", 0.0)
        second = make()
        assert second.certificate.proved and second.certificate.bound > 0
        assert second.why_not_certified() is None and attnc.verify(second).status == "proved"
