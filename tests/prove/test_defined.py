"""Where roots of what is 0 somewhere are defined, and where nothing may be claimed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnc
from attnc.domain import Box
from attnc.frontends.trace import trace
from attnc.prove.defined import is_defined

DEFINED = {
    "abs": lambda s: (s - 0.3).abs().sqrt(),
    "relu": lambda s: torch.relu(s).sqrt(),
    "square": lambda s: (s * s).sqrt(),
    "even power": lambda s: (s**4 + torch.relu(s)) ** 1.5,
    "minimum": lambda s: torch.minimum(s.abs(), s * s) ** 2.5,
    "where": lambda s: torch.where(s > 0, s * s, s.abs()).sqrt(),
    "far": lambda s: (s + 1.5).sqrt() + (s + 2).log() + 1 / (s - 2),
}
UNDEFINED = {
    "identity": lambda s: s.sqrt(),
    "difference": lambda s: (s.abs() - 1e-9).sqrt(),
    "cube": lambda s: (s**3).sqrt(),
    "negated": lambda s: (-(s * s)).sqrt(),
    "quotient": lambda s: s.abs().sqrt() / s,
    "logarithm": lambda s: (s * s).log(),
    "power": lambda s: s.abs() ** 1.3,
    "inverse root": lambda s: s.abs() ** -0.5,
    "two signs": lambda s: (s * s.abs()).sqrt(),
    "of one": lambda s: torch.minimum(s, s.abs()).sqrt(),
}


@pytest.mark.parametrize("f", DEFINED.values(), ids=DEFINED)
def test_defined(f: Callable[[Tensor], Tensor]) -> None:
    assert is_defined(trace(f, Box(-1, 1, shape=(1,))), -1.0, 1.0)


@pytest.mark.parametrize("f", UNDEFINED.values(), ids=UNDEFINED)
def test_not_defined(f: Callable[[Tensor], Tensor]) -> None:
    assert not is_defined(trace(f, Box(0.1, 1, shape=(1,))), -1.0, 1.0)


@pytest.mark.parametrize("q", [0.5, 1.5, 2.5])
def test_half_integer_powers_are_proved_and_verified(q: float) -> None:
    f = lambda s: (s - 0.3).abs() ** q  # noqa: E731
    head = attnc.head(f, domain=(-1, 1), eps=4e-2, dtype=torch.float64)
    s = torch.cat([torch.linspace(-1, 1, 4001), 0.3 + torch.linspace(-1e-6, 1e-6, 999)]).double()
    assert head.certificate.proved and attnc.verify(head)
    assert float((head(s) - f(s)).abs().max()) <= head.certificate.bound <= 4e-2


def test_a_root_at_an_end_of_the_interval() -> None:
    head = attnc.head(torch.sqrt, domain=(0, 2), eps=5e-2)
    assert head.certificate.proved and attnc.verify(head)
