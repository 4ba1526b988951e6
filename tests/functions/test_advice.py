"""Errors about a user's function say what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flint import arb, arb_series, ctx
from torch import Tensor, nn

import attnc
from attnc.errors import AttncError
from attnc.functions import function


def opaque_root(s: Tensor) -> Tensor:
    return torch.from_numpy(s.numpy() ** 0.5)


def positive(s: Tensor) -> Tensor:
    if s < 0:
        return 0 * s
    return s


@pytest.mark.parametrize(
    ("f", "domain", "advice"),
    [
        (torch.floor, (-2, 2), "jumps near s="),
        (function(lambda s: 1 / s), (-1, 2), "grows without bound near s=0"),
        (opaque_root, (0, 2), r"kinks=\(0,\)\); the error is then measured"),
        (positive, (-2, 2), r"torch\.where\("),
        (lambda x, y: x * y, (-2, 2), r"attnc\.compile"),
        (nn.GELU, (-2, 2), r"GELU\(\)"),
        ("x**2", (-2, 2), r"lambda x: x\*\*2"),
    ],
)
def test_a_head_of_what_is_no_continuous_function(f: Any, domain: tuple[float, float], advice: str) -> None:
    with pytest.raises(AttncError, match=advice):
        attnc.head(f, domain=domain, eps=1e-2)


@pytest.mark.parametrize(
    ("f", "domain", "advice"),
    [
        (lambda s: torch.where(s > 0.5, 1.0, 0.0), (-1, 1), r"ones_like"),
        (
            lambda s: torch.where(s > 0.5, torch.ones_like(s), torch.zeros_like(s)),
            (-1, 1),
            "jumps near s=0.5",
        ),
        (lambda s: max(s, 0.2), (-1, 1), r"torch\.clamp\(.*torch\.maximum"),
        (lambda s: s if s > 0 else 0 * s, (-1, 1), r"torch\.where"),
    ],
)
def test_jumps_and_python_conditions(f: Any, domain: tuple[float, float], advice: str) -> None:
    with pytest.raises(AttncError, match=advice):
        attnc.head(f, domain=domain, eps=1e-2)


def power(x: Any, left: bool) -> Any:
    """|s - 0.3|^1.3 on one side of 0.3, as a range on cells that contain 0.3."""
    u = 0.3 - x if left else x - 0.3
    if u[0] > 0:
        return (u.log() * arb(1.3)).exp()
    top = u[0].upper()
    whole = arb(0).union((top.log() * arb(1.3)).exp()) if top > 0 else arb(0)
    return arb_series([whole] + [arb.nan()] * (ctx.cap - 1))


def test_an_enclosure_that_is_not_finite_at_a_kink_is_refused_at_once() -> None:
    f, sides = lambda s: abs(s - 0.3) ** 1.3, (lambda x: (0.3 - x) ** 1.3, lambda x: (x - 0.3) ** 1.3)
    with pytest.raises(AttncError, match=r"s=0\.3.*NaN.*lipschitz=K"):
        attnc.head(function(f, enclosure=sides, kinks=(0.3,)), domain=(-1, 1), eps=1e-3)
    ranges = (lambda x: power(x, True), lambda x: power(x, False))
    head = attnc.head(function(f, enclosure=ranges, kinks=(0.3,)), domain=(-1, 1), eps=1e-3)
    assert head.certificate.proved and head.certificate.bound <= 1e-3


def test_a_power_that_is_not_proved_names_what_proves_it() -> None:
    f = lambda s: abs(s - 0.3) ** 1.3  # noqa: E731
    details = str(attnc.head(f, domain=(-1, 1), eps=1e-2).certificate)
    assert "lipschitz=K" in details and "enclosure" not in details
    net = attnc.compile(f, domain=attnc.Box(-1, 1, shape=(1, 1)), eps=5e-2, lipschitz=1.5)
    assert net.certificate.proved


def test_what_is_advised_about_a_root_works() -> None:
    head = attnc.head(function(opaque_root, kinks=(0,)), domain=(0, 2), eps=5e-2)
    assert head.certificate.status == "measured"


@pytest.mark.parametrize("f", [lambda x: x[0] * x[1], lambda x: (x[0] * x[1]).unsqueeze(-1)])
def test_a_function_that_forgets_the_batch(f: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(AttncError, match="axis 0 is the batch"):
        attnc.compile(f, domain=attnc.Box(-1, 1, shape=(2,)), eps=1e-2)


def refused(f: Any, domain: tuple[float, float], eps: float, **given: Any) -> str:
    with pytest.raises(AttncError) as found:
        attnc.head(f, domain=domain, eps=eps, **given)
    return str(found.value)


def test_a_function_that_varies_too_fast_is_sent_to_a_grid() -> None:
    said = refused(lambda s: torch.sin(1 / s), (0.01, 1), 1e-2)
    assert "method='grid'" in said and "eps >=" not in said


def test_rounding_is_met_by_float64_and_not_by_more_heads() -> None:
    said = refused(lambda s: s**3 - 2 * s, (-1, 1), 1e-6)
    assert "Use dtype=torch.float64" in said and "more heads" not in said
    head = attnc.head(lambda s: s**3 - 2 * s, domain=(-1, 1), eps=1e-6, dtype=torch.float64)
    assert head.certificate.proved


def test_a_narrow_spike_is_not_said_to_need_one_anchor() -> None:
    with pytest.raises(AttncError, match=r"largest slope found is (\d.*e\+03|1e\+04)"):
        attnc.compile(
            lambda x: torch.exp(-(((x - 0.3) / 1e-4) ** 2)), domain=attnc.Box(-1, 1, shape=(1, 1)), eps=1e-2
        )


def test_a_function_that_underflows_is_its_operations() -> None:
    head = attnc.head(lambda s: torch.exp(-((s / 1e-4) ** 2)), domain=(-1, 1), eps=1e-2)
    assert head.certificate.proved and attnc.verify(head)


@pytest.mark.parametrize("given", [{}, {"method": "lattice"}])
def test_a_singular_function_with_a_slope_is_sent_to_a_grid(given: dict[str, Any]) -> None:
    f, box = lambda x: abs(x) ** 1.5, attnc.Box(-1, 1, shape=(1, 1))
    with pytest.raises(AttncError, match=r"method='grid' with lipschitz=K"):
        attnc.compile(f, domain=box, eps=1e-2, **given)
    net = attnc.compile(f, domain=box, eps=1e-2, method="grid", lipschitz=1.5)
    assert net.certificate.proved and attnc.verify(net)
