"""Heads of bare callables against mpmath: no input is farther from the function than the bound. No slack."""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
import torch
from torch import Tensor

import attnc
from tests.sampled import every

F = torch.nn.functional
THIRD = 0.3  # the double


def m(x: float) -> mp.mpf:
    return mp.mpf(x)


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[mp.mpf], mp.mpf], tuple[float, float]]] = {
    "bell": (lambda s: torch.sin(3 * s) * torch.exp(-s * s / 2), lambda s: mp.sin(3 * s) * mp.exp(-s * s / 2), (-2, 3)),
    "relu": (lambda s: F.relu(s - THIRD), lambda s: max(s - m(THIRD), mp.mpf(0)), (-1, 1)),
    "abs of sin": (lambda s: torch.sin(3 * s).abs(), lambda s: abs(mp.sin(3 * s)), (-1, 2)),
    "leaky": (
        lambda s: torch.where(s > 0.25, s, 0.1 * s + 0.225),
        lambda s: s if s > 0.25 else m(0.1) * s + m(0.225),
        (-1, 1),
    ),  # its pieces differ by 1e-17 at 0.25
    "two kinks": (lambda s: s.clamp(-0.7, 0.4) * s, lambda s: min(max(s, m(-0.7)), m(0.4)) * s, (-2, 2)),
    "gated": (lambda s: F.gelu(s) * torch.cos(s), lambda s: s * mp.ncdf(s) * mp.cos(s), (-3, 3)),
    "real power": (lambda s: (s + 1.5) ** 1.7, lambda s: mp.exp(m(1.7) * mp.log(s + 1.5)), (-1, 1)),
    "half power": (lambda s: (s - THIRD).abs() ** 1.5, lambda s: mp.power(abs(s - m(THIRD)), 1.5), (-1, 1)),
    "root": (lambda s: F.relu(s - THIRD) ** 2.5, lambda s: mp.power(max(s - m(THIRD), mp.mpf(0)), 2.5), (-1, 1)),
    "rational": (lambda s: (1 + s) / (1 + 25 * s * s), lambda s: (1 + s) / (1 + 25 * s * s), (-1, 1)),
    "atan, erf": (lambda s: torch.atan(2 * s) + torch.erf(s), lambda s: mp.atan(2 * s) + mp.erf(s), (-3, 3)),
    "flat": (lambda s: torch.zeros_like(s) + 0.1, lambda s: m(0.1), (-1, 1)),
}  # fmt: skip


def special(domain: tuple[float, float], kinks: list[float]) -> list[float]:
    near = [k + sign * 2.0**-j for k in (*domain, *kinks) for j in range(1, 60) for sign in (-1, 0, 1)]
    ulps = [float(np.nextafter(k, side)) for k in kinks for side in (-np.inf, np.inf)]
    return [*domain, *near, *ulps, *np.random.default_rng(0).uniform(*domain, 300).tolist()]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", every(2, [torch.float64, torch.float32]))
def test_no_output_is_farther_than_the_bound(name: str, dtype: torch.dtype) -> None:
    f, exact, domain = CASES[name]
    head = attnc.head(f, domain=domain, eps=1e-2 if dtype is torch.float32 else 1e-4, dtype=dtype)
    certificate = head.certificate
    assert certificate.proved
    assert attnc.verify(head)
    s = torch.tensor(special(domain, certificate.facts["operations"]["kinks"]), dtype=torch.float64).to(dtype)
    s = s[(s.double() >= domain[0]) & (s.double() <= domain[1])]
    with torch.no_grad():
        made = head(s).double().tolist()
    with mp.workprec(250):
        for at, y in zip(s.double().tolist(), made, strict=True):
            assert abs(m(y) - exact(m(at))) <= m(certificate.bound), at
    assert certificate.quality < 4  # and it is not much larger than an error that was seen


UNCERTAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "reads numpy": lambda s: torch.from_numpy(np.square(s.numpy())),
    "random": lambda s: s + 0 * torch.rand(()).double(),
    "branches": lambda s: s if float(s.max()) > 3 else 2 * s,
    "length of the vector": lambda s: s * (1 + 1e-9 * (len(s) > 400)) + 1e-6 * (len(s) > 400),
    "unknown operation": lambda s: torch.lgamma(s + 3),
    "undefined": lambda s: s + 0 * torch.log(s + 1),
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_what_is_in_doubt_is_measured_and_says_why(name: str) -> None:
    try:
        head = attnc.head(UNCERTAIN[name], domain=(-1, 1), eps=1e-2, dtype=torch.float64)
    except attnc.errors.FunctionError:
        assert name == "undefined"
        return
    assert str(head.certificate.status) == "measured"
    assert head.certificate.facts["reason"]
    assert "enclosure" in str(head.certificate)
    assert not attnc.verify(head)


def test_a_function_of_its_neighbours_is_no_function_of_a_number() -> None:
    try:
        head = attnc.head(lambda s: torch.sin(s - s[..., :1]), domain=(-1, 1), eps=1e-1, dtype=torch.float64)
    except attnc.errors.AttncError:
        return
    assert not head.certificate.proved


@pytest.mark.parametrize("f", [torch.sign, lambda s: torch.where(s > 0.1, s + 1e-3, s)])
def test_a_jump_is_refused(f: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(attnc.errors.ConvergenceError):
        attnc.head(f, domain=(-1, 1), eps=1e-4, dtype=torch.float64)


class Calls:
    """A function with state: a little more at every call."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, s: torch.Tensor) -> torch.Tensor:
        self.made += 1
        return torch.tanh(s) + 1e-10 * self.made


@pytest.mark.parametrize(
    "f",
    [
        lambda s: torch.tanh(2 * s) * (0.5 if s.dim() == 1 else 0.6),
        lambda s: torch.tanh(2 * s) * (0.5 + 1e-12 * s.numel()),
        lambda s: torch.tanh(2 * s) * (0.5 + 1e-9 * (s.numel() > 10)),
        lambda s: torch.tanh(2 * s) * (0.5 + 1e-9 * (s.numel() > 1000)),
        lambda s: torch.tanh(2 * s) * (0.5 if s.dim() < 4 else 0.6),
        lambda s: torch.tanh(2 * s) * (0.5 + 1e-9 * np.random.rand()),
        Calls(),
    ],
)
def test_what_depends_on_more_than_its_number_is_not_proved(
    f: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    head = attnc.head(f, domain=(-1, 1), anchors=3, dtype=torch.float64)
    assert head.certificate.status is attnc.Status.MEASURED


@pytest.mark.parametrize(
    ("f", "inner", "outer"),
    [
        (lambda s: torch.tanh(s * (1 + 1e4 * torch.finfo(s.dtype).eps)), 1 + 1e4 * 2.0**-23, 1.0),
        (lambda s: torch.tanh(2 * s) * (0.5 if s.dtype == torch.float64 else 0.6), 2.0, 0.6),
    ],
)
def test_a_function_is_read_in_the_dtype_that_runs(
    f: Callable[[torch.Tensor], torch.Tensor], inner: float, outer: float
) -> None:
    head, s = attnc.head(f, domain=(-1, 1), anchors=3), torch.linspace(-1, 1, 199)
    inner, outer = (float(np.float32(factor)) for factor in (inner, outer))  # as torch converts them
    for x, y in zip(s.tolist(), head(s).tolist(), strict=True):
        assert abs(m(y) - outer * mp.tanh(m(x) * inner)) <= head.certificate.bound


def test_a_function_that_works_in_place_changes_no_point_of_its_record() -> None:
    head = attnc.head(lambda s: torch.special.i0(s.mul_(2)), domain=(-1, 1), anchors=6, dtype=torch.float64)
    (at,) = head.certificate.witness.input
    assert -1 <= at <= 1
    error = abs(m(float(head(torch.tensor(at, dtype=torch.float64)))) - mp.besseli(0, 2 * m(at)))
    assert abs(error - head.certificate.witness.error) < 1e-14
