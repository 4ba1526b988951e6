"""Tracing: what the operations mean, against torch; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnc.domain import Box
from attnc.frontends.trace import TraceError, disagreement, trace

BOX = Box(-1, 1, shape=(2, 2))
EYE = torch.eye(2, dtype=torch.float64)
STEPS = torch.arange(2.0, dtype=torch.float64)


def _assigned(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 0] = x[:, 1] ** 2
    y[:, 1] += 3 * x[:, 0]
    return y


UNDERSTOOD: dict[str, Callable[[Tensor], Tensor]] = {
    "arithmetic": lambda x: (2 * x - x / 3 + 1) * x - 0.1,
    "division": lambda x: 1 / (x + 3) + x / (x * x + 1),
    "roots": lambda x: (x + 2).sqrt() + (x + 2).rsqrt() + (x + 2).reciprocal(),
    "exp and log": lambda x: x.exp() + (x + 2).log() + x.expm1() + (x + 2).log1p() + (x + 2).log2() + x.exp2(),
    "circular": lambda x: x.sin() + x.cos() * x.tan(),
    "hyperbolic": lambda x: x.tanh() + x.sinh() * x.cosh(),
    "erf": lambda x: x.erf() - torch.special.erfc(x),
    "inverse circular": lambda x: (x / 2).asin() * (x / 3).acos() + x.atan() + torch.atan2(x, x.flip(1) + 2),
    "atan2": lambda x: torch.atan2(x + 2, x) - torch.atan2(x - 2, x),
    "inverse hyperbolic": lambda x: x.asinh() + (x + 3).acosh() + (x / 2).atanh(),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x) + torch.where((x >= 0.2) & (x.flip(1) < 0.1), x, 2 * x) + (x > 0) * x,
    "masks": lambda x: x.masked_fill(~(x <= 0.3), 0.3) + x.sign() * x + (x < 0).to(x.dtype) + F.prelu(x, STEPS[1:]),
    "constant mask": lambda x: torch.where((x > 0) & (STEPS > 0), x, 0 * x),
    "lerp": lambda x: torch.lerp(x, x.flip(1), x) + F.hardshrink(x) + F.huber_loss(x, x.flip(2), reduction="none"),
    "powers": lambda x: x**3 - 2.0**x + (x + 2) ** 1.5 + (x + 2) ** -2 + (x + 2) ** x,
    "abs": lambda x: x.abs() + torch.maximum(x, x.flip(1)) - torch.minimum(x, STEPS),
    "clamp": lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0.1) + F.hardtanh(x),
    "activations": lambda x: F.relu(x) + F.gelu(x) + F.silu(x) + F.elu(x) + F.leaky_relu(x) + F.softplus(x) + F.logsigmoid(x),
    "gelu with tanh": lambda x: F.gelu(x, approximate="tanh"),
    "more activations": lambda x: F.selu(x) + F.hardswish(x) + F.relu6(x) + F.softsign(x) + F.mish(x),
    "sort": lambda x: x.sort(1).values + x.sort(2, descending=True).values,
    "extremes": lambda x: x.max(1, keepdim=True).values + x.amin((1, 2), keepdim=True) + x.topk(1, 1).values,
    "matmul": lambda x: x @ x.mT + torch.einsum("bij,bkj->bik", x, x) + x @ EYE,
    "sums": lambda x: x.sum(1, keepdim=True) + x.mean(2, keepdim=True) + x.cumsum(1) + x.prod(1, keepdim=True),
    "softmax": lambda x: torch.softmax(3 * x, 1) + torch.log_softmax(x, 2) + x.logsumexp(1, keepdim=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "norms": lambda x: torch.linalg.norm(x + 3, dim=-1, keepdim=True) + F.normalize(x + 3, dim=-1),
    "deviation": lambda x: (x + STEPS).std(2, keepdim=True) + x.var(1, keepdim=True),
    "running maximum": lambda x: x.cummax(1).values - x.cummin(2).values,
    "layer norm": lambda x: F.layer_norm(x + STEPS, (2,)),
    "indexing": lambda x: torch.stack([x[:, 0, 0], x[:, 1, 1]], 1)[..., None].expand(-1, 2, 2) + x.roll(1, 1) + x[:, [1, 0]],
    "reshape": lambda x: x.reshape(-1, 4).view(-1, 2, 2).transpose(1, 2) + F.pad(x, (1, 0))[..., :2] + x.tril(),
    "cat": lambda x: torch.cat([x, torch.ones_like(x)], 1)[:, 1:3],
    "inverse": lambda x: torch.linalg.inv(x + 3 * EYE),
    "solve": lambda x: torch.linalg.solve(x + 3 * EYE, x),
    "determinant": lambda x: torch.linalg.det(x)[:, None, None],
    "assignment": _assigned,
    "linear layer": torch.nn.Linear(2, 2).double(),
    "constant": lambda x: 0 * x + STEPS.exp(),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UNDERSTOOD))
def test_traced_operations_return_what_torch_returns(name: str) -> None:
    f = UNDERSTOOD[name]
    traced = trace(f, BOX)
    x = np.random.default_rng(1).uniform(-1, 1, (9, 2, 2))
    values = f(torch.from_numpy(x.copy())).detach().numpy().reshape(9, -1)
    assert disagreement(traced, x.reshape(9, -1), values) is None
    found = traced.approximate(torch.from_numpy(x.reshape(9, -1))).numpy()
    assert np.abs(found - values).max() <= 1e-12 * max(1.0, np.abs(values).max())


def test_three_by_three() -> None:
    box, eye = Box(-1, 1, shape=(3, 3)), 4 * torch.eye(3, dtype=torch.float64)
    x = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (5, 3, 3)))
    for f in (
        lambda x: torch.linalg.inv(x + eye),
        lambda x: torch.linalg.det(x)[:, None, None],
        lambda x: x.cross(x.roll(1, 1), 2),
    ):
        traced = trace(f, box)
        assert torch.allclose(
            traced.approximate(x.reshape(5, 9)), f(x).reshape(5, -1), rtol=1e-12, atol=1e-13
        )


REFUSED: dict[str, tuple[Callable[[Tensor], Any], bool]] = {
    "cast": (lambda x: x.tanh().float(), False),
    "cast back": (lambda x: x.float().sin().double(), False),
    "half": (lambda x: x.half().double(), False),
    "whole numbers": (lambda x: x.long().double(), False),
    "condition": (lambda x: torch.where(x == 0, x, 0 * x), False),
    "argmax": (lambda x: x.argmax(1, keepdim=True).double(), False),
    "positions": (lambda x: x.sort(1).indices.double(), False),
    "unknown": (lambda x: x.lgamma() + x.floor(), False),
    "random": (lambda x: x + torch.rand_like(x), True),
    "random constant": (lambda x: x + torch.rand(2, dtype=torch.float64), True),
    "dropout": (lambda x: F.dropout(x), True),
    "branch": (lambda x: x if x.sum() > 0 else -x, True),
    "item": (lambda x: x * float(x[0, 0, 0]), True),
    "batch": (lambda x: x - x.mean(0), True),
    "batch position": (lambda x: x + torch.arange(len(x), dtype=x.dtype)[:, None, None], False),
    "numpy": (lambda x: torch.from_numpy(np.sin(x.numpy())), False),
    "its input": (lambda x: x.add_(1), False),
    "list": (lambda x: [x], False),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_other_functions_are_refused(name: str) -> None:
    f, dependent = REFUSED[name]
    if name == "list":
        assert trace(f, BOX).operations == ()
        return
    with pytest.raises(TraceError) as caught:
        trace(f, BOX)
    assert caught.value.dependent == dependent and caught.value.problems


def test_every_unknown_operation_is_listed() -> None:
    with pytest.raises(TraceError) as caught:
        trace(lambda x: x.lgamma() + x.floor() + x.sin(), BOX)
    assert {p.where for p in caught.value.problems} == {"operation lgamma", "operation floor"}


def test_softplus_beyond_its_threshold_is_refused() -> None:
    with pytest.raises(TraceError):
        trace(lambda x: F.softplus(30 * x), BOX)
    assert trace(lambda x: F.softplus(19 * x), BOX).operations


def test_other_state_shows_as_disagreement() -> None:
    state = [1.0]
    traced = trace(lambda x: x * state[0], BOX)
    x = np.random.default_rng(0).uniform(-1, 1, (4, 4))
    assert disagreement(traced, x, x) is None and disagreement(traced, x, 2 * x) is not None


def test_equal_operations_are_written_once() -> None:
    traced = trace(lambda x: x.sin() + x.sin() * 1.0 + 0 * x, Box(0, 1, shape=(1,)))
    assert traced.operations == (("sin", 0), ("add", 1, 1))


def test_zero_times_a_singularity_is_not_dropped() -> None:
    traced = trace(lambda x: x + 0 * (1 / x), Box(1, 2, shape=(1,)))
    assert any(operation[0] == "divide" for operation in traced.operations)


def _caught(x: Tensor) -> Tensor:
    try:
        if x.sum() > 5:
            return x + 1
    except RuntimeError:
        pass
    return x.sin()


READERS: dict[str, Callable[[Tensor], Tensor]] = {
    "numpy": lambda x: x.sin() + float(np.abs(x.detach().numpy() - 0.3).max() < 1e-3),
    "array": lambda x: x * float(np.asarray(x).max()),
    "function of numpy": lambda x: torch.from_numpy(np.sin(x.numpy())),
    "dlpack": lambda x: x * float(np.from_dlpack(x.detach()).max()),
    "text": lambda x: x * len(str(x)),
    "address": lambda x: x * (x.data_ptr() % 2),
    "map": lambda x: x.clone().apply_(lambda v: 2 * v),
    "inside vmap": lambda x: torch.vmap(lambda row: row * float(row.numpy().sum()))(x),
    "caught": _caught,
    "sparse": lambda x: x + x.relu().to_sparse().values().shape[0],
    "branch": lambda x: torch.cond((x > 5).any(), lambda x: x + 1, lambda x: x.sin(), (x,)),
    "unsorted": lambda x: x.topk(2, 1, sorted=False).values,
    "positions that add": lambda x: x.index_put((torch.tensor([0, 0]),), x[:1], accumulate=True),
}


@pytest.mark.parametrize("f", READERS.values(), ids=READERS.keys())
def test_numbers_that_are_read_outside_torch_are_refused(f: Callable[[Tensor], Tensor]) -> None:
    """The recording has no numbers to show: what numpy would see is memory that was never written."""
    with pytest.raises(TraceError):
        trace(f, BOX)


def test_a_tensor_of_the_closure_may_be_read() -> None:
    weight = torch.ones(2)
    assert trace(lambda x: x * float(weight.numpy().sum()), Box(-1, 1, shape=(1,))).operations == (
        ("constant", 2.0),
        ("multiply", 0, 1),
    )


def _replaced(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, torch.tensor([1])] = x[:, :1].sin()
    y[:, :, torch.tensor([False, True])] = 3.0
    return y


def test_assignment_at_positions() -> None:
    found = trace(_replaced, BOX)
    x = torch.rand(5, 2, 2, dtype=torch.float64)
    assert torch.equal(found.approximate(x.reshape(5, 4)).reshape(5, 2, 2), _replaced(x))
