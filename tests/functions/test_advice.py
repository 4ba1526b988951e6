"""Errors about a user's function say what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnc
from attnc.errors import AttncError
from attnc.functions import function


def positive(s: Tensor) -> Tensor:
    if s < 0:
        return 0 * s
    return s


@pytest.mark.parametrize(
    ("f", "domain", "advice"),
    [
        (torch.floor, (-2, 2), "jumps near s="),
        (function(lambda s: 1 / s), (-1, 2), "grows without bound near s=0"),
        (torch.sqrt, (0, 2), r"kinks=\(0,\)\); the error is then measured"),
        (positive, (-2, 2), r"torch\.where\("),
        (lambda x, y: x * y, (-2, 2), r"attnc\.compile"),
        (nn.GELU, (-2, 2), r"GELU\(\)"),
        ("x**2", (-2, 2), r"lambda x: x\*\*2"),
    ],
)
def test_a_head_of_what_is_no_continuous_function(f: Any, domain: tuple[float, float], advice: str) -> None:
    with pytest.raises(AttncError, match=advice):
        attnc.head(f, domain=domain, eps=1e-2)


def test_what_is_advised_about_a_root_works() -> None:
    head = attnc.head(function(torch.sqrt, kinks=(0,)), domain=(0, 2), eps=5e-2)
    assert head.certificate.status == "measured"


@pytest.mark.parametrize("f", [lambda x: x[0] * x[1], lambda x: (x[0] * x[1]).unsqueeze(-1)])
def test_a_function_that_forgets_the_batch(f: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(AttncError, match="axis 0 is the batch"):
        attnc.compile(f, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2)
