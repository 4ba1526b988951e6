"""What is traced is what torch computes: truth values and float32 numbers in a function of float64 numbers, and memory.

Each function below is 1 on an interval that sampling does not find, and was once proved to be 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnc
from attnc.frontends.trace import TraceError, trace

BOX = attnc.Box(-1, 1, shape=(1, 1))
AT, WIDTH = 0.5003, 1e-9


def near(x: Tensor) -> Tensor:
    return (x - AT).abs() < WIDTH


def peak(x: Tensor) -> Tensor:
    return torch.relu(WIDTH - (x - AT).abs()) / WIDTH


def copied(x: Tensor) -> Tensor:
    mask = x > 0
    mask.copy_(torch.tensor(-1.0))
    return torch.where(mask, peak(x), 0 * x)


def undefined(x: Tensor) -> Tensor:
    return torch.sqrt((x - AT) ** 2 - WIDTH**2)


HIDDEN: dict[str, Callable[[Tensor], Tensor]] = {
    "and with a negative constant": lambda x: torch.where(
        torch.logical_and(near(x), torch.tensor(-1.0)), peak(x), 0 * x
    ),
    "or with a negative constant": lambda x: torch.where(
        torch.logical_or(near(x), torch.tensor(-1.0)), peak(x), 0 * x
    ),
    "a number copied to a mask": copied,
    "NaN of a root": lambda x: torch.where(torch.isnan(undefined(x)), torch.ones_like(x), 0 * x),
    "an infinite quotient": lambda x: torch.where(
        torch.isinf(1 / torch.relu((x - AT) ** 2 - WIDTH**2)), torch.ones_like(x), 0 * x
    ),
    "a truth value and nearly 1": lambda x: torch.where((x > -5) > 0.99999999999, 0 * x, peak(x)),
    "a truth value and nearly 0": lambda x: torch.where((x > 5) >= 1e-60, peak(x), 0 * x),
    "a parameter made from the input": lambda x: torch.where(
        near(torch.nn.Parameter(x.detach())), peak(x), 0 * x
    ),
    "a mask as another kind of tensor": lambda x: torch.where(near(x).as_subclass(Tensor), peak(x), 0 * x),
    "a tenth in float32": lambda x: torch.where(torch.where(x > -5, 0.1, 0.2) > 0.1, 0 * x, peak(x)),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_torch_computes_is_within_the_bound(name: str) -> None:
    f = HIDDEN[name]
    x = torch.full((1, 1, 1), AT, dtype=torch.float64)
    assert float(f(x)) > 0.99
    net = attnc.compile(f, domain=BOX, eps=0.05, dtype=torch.float64, time_limit=5)
    assert not net.certificate.proved or abs(float(net(x) - f(x))) <= net.certificate.bound


def test_a_constant_beside_a_mask_is_the_float32_number() -> None:
    def f(x: Tensor) -> Tensor:
        return 4 * x + (x > -2) * 0.1 * x

    net = attnc.compile(f, domain=BOX, eps=1e-10, dtype=torch.float64)
    x = torch.ones(1, 1, 1, dtype=torch.float64)
    assert net.certificate.proved and abs(float(net(x) - f(x))) <= net.certificate.bound


def test_float32_arithmetic_of_masks_is_refused() -> None:
    with pytest.raises(TraceError, match="computes in float32"):
        trace(lambda x: 4 * x + (x > -2).float() / 3 * x, BOX)
    assert trace(lambda x: 4 * x + (x > -2).to(x.dtype) / 3 * x, BOX).operations


def test_memory_that_is_laid_out_otherwise_is_not_read() -> None:
    """Sums of transposed tensors keep their layout, which `as_strided` sees."""

    def f(x: Tensor) -> Tensor:
        moved = x.transpose(-1, -2) + 0.25
        read = torch.as_strided(moved, (len(x), 2, 2), (4, 2, 1)) - 0.25
        return torch.where(read[:, :1, 1:] - x[:, 1:, :1] > 0.5, peak(x[:, :1, :1]), 0 * x[:, :1, :1])

    box = attnc.Box(-1, 1, shape=(2, 2))
    net = attnc.compile(f, domain=box, eps=0.05, tokens=1, dtype=torch.float64, time_limit=5)
    x = torch.tensor([[[AT, 0.9], [-0.5, 0.1]]], dtype=torch.float64)
    assert not net.certificate.proved or abs(float(net(x) - f(x))) <= net.certificate.bound
    with pytest.raises(TraceError, match="memory"):
        trace(f, box)
    assert trace(lambda x: torch.as_strided(x + 1, (len(x), 2), (4, 3)), box).returned
    with pytest.raises(TraceError, match="bits"):
        trace(
            lambda x: x.view(torch.float64) + (x > 0).view(torch.float32)[..., :1],
            attnc.Box(-1, 1, shape=(1, 4)),
        )


@pytest.mark.parametrize("invert", [torch.linalg.inv, lambda m: torch.linalg.solve(m, torch.ones_like(m))])
def test_an_error_that_f_catches_is_not_overlooked(invert: Callable[[Tensor], Tensor]) -> None:
    def f(x: Tensor) -> Tensor:
        matrix = torch.diag_embed(
            torch.cat([torch.relu((x - AT).abs() - WIDTH), torch.ones_like(x)], -1)[:, 0]
        )
        try:
            invert(matrix)
        except RuntimeError:
            return peak(x)
        return 0 * x

    x = torch.full((1, 1, 1), AT, dtype=torch.float64)
    net = attnc.compile(f, domain=BOX, eps=0.05, dtype=torch.float64, time_limit=5)
    assert not net.certificate.proved or abs(float(net(x) - f(x))) <= net.certificate.bound


def test_parameters_are_made_as_before_after_a_recording() -> None:
    with pytest.raises(TraceError, match="Parameter"):
        trace(lambda x: torch.nn.Parameter(x.detach()) * x, BOX)
    assert "as_subclass" not in vars(Tensor) and "_make_subclass" not in vars(Tensor)
    assert type(torch.nn.Parameter(torch.ones(1))) is torch.nn.Parameter
