"""Checks of arguments: what is accepted, and how an error names the argument and its value."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import attnc
from attnc import arguments
from attnc.domain import Box, Interval
from attnc.errors import ArgumentError, InputError


@pytest.mark.parametrize("eps", [0, -1.0, float("nan"), float("inf"), True, "1e-3", None, 10**400])
def test_eps_is_a_positive_finite_number(eps: object) -> None:
    with pytest.raises(InputError, match="eps="):
        arguments.checked_eps(eps)


def test_numbers_of_numpy_are_numbers() -> None:
    assert arguments.checked_eps(np.float32(0.5)) == 0.5
    assert arguments.checked_nonnegative("noise", np.int64(0)) == 0.0
    assert arguments.checked_count("heads", np.int64(3)) == 3


@pytest.mark.parametrize("count", [0, 5, True, 2.0, "2"])
def test_counts_have_ends(count: object) -> None:
    with pytest.raises(InputError, match=r"heads=.* 1 to 4"):
        arguments.checked_count("heads", count, most=4)


@pytest.mark.parametrize("given", [-1.0, float("inf"), float("nan"), True, "1"])
def test_nonnegative(given: object) -> None:
    with pytest.raises(InputError, match="noise="):
        arguments.checked_nonnegative("noise", given)


def test_the_dtype_is_the_sources_then_torchs_default() -> None:
    model = nn.Linear(2, 2)
    assert arguments.resolve_dtype(None, model) == "float32"
    assert arguments.resolve_dtype(None, model.double()) == "float64"
    assert arguments.resolve_dtype(torch.float32, model) == "float32"
    assert arguments.resolve_dtype(None, None) == "float32"
    torch.set_default_dtype(torch.float64)
    try:
        assert arguments.resolve_dtype(None) == "float64"
        assert arguments.resolve_dtype(None, nn.ReLU()) == "float64"
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(InputError, match="float16"):
        arguments.resolve_dtype(torch.float16)


def test_the_dtype_of_a_scikit_learn_network_is_that_of_its_weights() -> None:
    network = SimpleNamespace(coefs_=[np.zeros((2, 2))])
    pipeline = SimpleNamespace(steps=[("net", network)])
    assert arguments.resolve_dtype(None, network) == arguments.resolve_dtype(None, pipeline) == "float64"


@pytest.mark.parametrize("domain", [None, 3, (1,), (1, 2, 3), (0, 2.0**90), (0, 2.0**-90)])
def test_intervals(domain: object) -> None:
    with pytest.raises(InputError):
        arguments.checked_interval(domain, "float32")
    assert arguments.checked_interval((0, 1), "float32") == Interval(0, 1)


def test_a_box_must_hold_a_number_of_the_dtype() -> None:
    thin = Box(1 + 2.0**-40, 1 + 2.0**-39, shape=(2,))
    arguments.check_box(thin, "float64")
    with pytest.raises(InputError, match=r"float32 .*\(0,\)"):
        arguments.check_box(thin, "float32")


def test_torchs_other_names_of_dtypes() -> None:
    assert [arguments.checked_dtype(name) for name in ("double", "float")] == ["float64", "float32"]
    with pytest.raises(InputError, match="half"):
        arguments.checked_dtype("half")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: attnc.head("abs", (-1, 1), 1e-3), r"^head.*write domain=…, eps=…"),
        (lambda: attnc.compile(nn.Linear(1, 1), Box(-1, 1, shape=(1,))), r"^compile.*write domain=…\)"),
        (lambda: attnc.head("abs", eps=1e-3), r"^head.*write domain=…\)"),
        (lambda: attnc.head("abs", domain=(-1, 1), eps=0.1).as_self_attention(), r"write n=…\)"),
        (lambda: attnc.paper.two_layer(None, None, eps=1, anchors=20), r"^two_layer has no .*'anchors'.*eps"),
        (lambda: attnc.paper.attention_softmax(None, None, eps=1, metod=20), r"^attention_softmax.*'method'"),
        (
            lambda: attnc.pretrained.ConversionReport.for_input(None, input_ids=1),
            r"inputs=\{'input_ids': …\}",
        ),
    ],
)
def test_calls_that_do_not_fit_say_what_to_write(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        call()
