"""A user's function, asked: what it returns, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnc.domain import Box
from attnc.errors import InputError
from attnc.frontends.callable_source import MOST_ROWS, CallableSource

SEQUENCE = Box(-1, 1, shape=(3, 2))


def test_answers_are_those_of_the_function() -> None:
    asked = CallableSource(lambda x: torch.cumsum(x, 1), SEQUENCE)
    x = np.random.default_rng(1).uniform(-1, 1, (7, 3, 2))
    assert asked.shape == (3, 2) and asked.size == 6 and asked.dtype_name == "float64"
    np.testing.assert_array_equal(asked(x), np.cumsum(x, 1).reshape(7, 6))
    np.testing.assert_array_equal(asked(x.reshape(7, 6)), np.cumsum(x, 1).reshape(7, 6))
    assert asked(x[:0]).shape == (0, 6)


def test_other_widths_and_announced_tokens() -> None:
    assert CallableSource(lambda x: torch.cat([x, x, x], -1), SEQUENCE).shape == (3, 6)
    assert CallableSource(lambda x: x.mean(1, keepdim=True), SEQUENCE, tokens=1).shape == (1, 2)
    assert CallableSource(lambda x: x.sum(-1, keepdim=True), Box(-1, 1, shape=(4,))).shape == (1,)


def test_large_batches_are_cut() -> None:
    seen: list[int] = []

    def f(x: Tensor) -> Tensor:
        seen.append(len(x))
        return 2 * x

    asked = CallableSource(f, Box(0, 1, shape=(2,)))
    points = asked.uniform(2 * MOST_ROWS + 5, seed=3)
    tried, before = asked.evaluations, len(seen)
    np.testing.assert_array_equal(asked(points), 2 * points)
    assert seen[before:] == [MOST_ROWS, MOST_ROWS, 5]
    assert asked.evaluations == tried + len(points)


def test_uniform_points_fill_the_box_and_repeat_by_seed() -> None:
    box = Box(np.array([0.0, -3.0, 5.0]), np.array([1.0, -1.0, 5.0]))
    asked = CallableSource(lambda x: x, box)
    x = asked.uniform(4000, seed=5)
    assert (x >= box.lo).all() and (x <= box.hi).all() and (x[:, 2] == 5).all()
    np.testing.assert_allclose(x.mean(0), [0.5, -2.0, 5.0], atol=0.05)
    np.testing.assert_array_equal(x, asked.uniform(4000, seed=5))
    assert not np.array_equal(x, asked.uniform(4000, seed=6))


def test_the_random_numbers_of_others_are_left_alone() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(0)
    np.random.seed(0)
    CallableSource(torch.sin, SEQUENCE).uniform(10, seed=0)
    assert torch.equal(torch.rand(3), expected[0]) and (np.random.rand(3) == expected[1]).all()


def test_dtypes() -> None:
    module = nn.Linear(2, 4).eval()
    asked = CallableSource(module, SEQUENCE)
    assert asked.dtype_name == "float32" and asked.shape == (3, 4)
    x = asked.uniform(5, seed=0)
    ours = module(torch.from_numpy(x.reshape(5, 3, 2)).float()).detach().double().numpy()
    np.testing.assert_allclose(asked(x), ours.reshape(5, 12), rtol=1e-6)
    assert CallableSource(nn.Linear(2, 4).double().eval(), SEQUENCE).dtype_name == "float64"
    assert CallableSource(lambda x: x.float(), SEQUENCE).dtype_name == "float32"
    whole = CallableSource(lambda x: (x > 0).to(torch.int64), SEQUENCE)
    assert whole.dtype_name == "float64" and set(np.unique(whole(whole.uniform(50, 0)))) == {0.0, 1.0}


def test_rounding_to_float32_does_not_leave_the_box() -> None:
    """0.1 rounds up in float32, and sqrt(0.1 - x) is NaN there."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.end = nn.Parameter(torch.tensor(0.1, dtype=torch.float32))
            self.lead = 0.1

        def forward(self, x: Tensor) -> Tensor:
            return torch.sqrt(self.lead - x.double())

    asked = CallableSource(Root().eval(), Box(-0.1, 0.1, shape=(1,)))
    assert np.isfinite(asked(np.array([[0.1], [-0.1]]))).all()


def stateful() -> Callable[[Tensor], Tensor]:
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return x + len(calls)

    return f


def in_place(x: Tensor) -> Tensor:
    return x.mul_(2)


def failing(x: Tensor) -> Tensor:
    raise KeyError("no such thing")


REFUSED: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "random": (lambda x: x + torch.rand_like(x), r"x = .*eval"),
    "state": (stateful(), "not deterministic"),
    "dropout": (nn.Dropout(0.5), r"model\.eval"),
    "functional dropout": (lambda x: torch.dropout(x, 0.5, True), "not deterministic"),
    "batch mean": (
        lambda x: x - x.mean(0),
        "batch of 10",
    ),
    "batch sort": (lambda x: x.sort(0).values, "batch of 10"),
    "in place": (in_place, r"clone"),
    "exception": (failing, r"\(10, 3, 2\).*torch\.float64.*KeyError"),
    "fewer tokens": (lambda x: x[:, :2], "tokens=2"),
    "no tokens": (lambda x: x.sum(1), r"\(10, 2\): \(batch, 3, any\)"),
    "no features": (lambda x: x[..., :0], r"\(10, 3, 0\)"),
    "no batch": (lambda x: x[0], r"\(3, 2\)"),
    "half the batch": (lambda x: x[:5], r"\(5, 3, 2\)"),
    "complex": (lambda x: x + 1j, "torch.complex128"),
    "half": (lambda x: x.half(), "torch.float16"),
    "none": (lambda x: None, "None"),
    "list": (lambda x: x.tolist(), "list"),
    "numpy": (lambda x: x.numpy(), "torch.from_numpy"),
    "large ints": (lambda x: torch.full_like(x, 2**60, dtype=torch.int64), "2\\^53"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    f, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        CallableSource(f, SEQUENCE)  # type: ignore[arg-type]


def test_an_exception_inside_is_chained() -> None:
    with pytest.raises(InputError) as caught:
        CallableSource(failing, SEQUENCE)
    assert isinstance(caught.value.__cause__, KeyError)


def test_announced_tokens_that_do_not_come() -> None:
    with pytest.raises(InputError, match="tokens=3"):
        CallableSource(torch.sin, SEQUENCE, tokens=2)
    with pytest.raises(InputError, match="tokens=0"):
        CallableSource(torch.sin, SEQUENCE, tokens=0)
    with pytest.raises(InputError, match="tokens=1"):
        CallableSource(torch.sin, Box(0, 1, shape=(3,)), tokens=1)


def test_a_nan_is_told_with_its_place() -> None:
    """log x on a box that reaches below zero in one coordinate, at none of the points tried first."""

    def f(x: Tensor) -> Tensor:
        return torch.where((x - 0.25).abs() < 1e-6, torch.nan, x)

    asked = CallableSource(f, SEQUENCE)
    x = np.zeros((4, 6))
    x[2, 3] = 0.25
    with pytest.raises(InputError):
        asked(x)
    with pytest.raises(InputError):
        CallableSource(lambda x: 1 / x.abs(), SEQUENCE)


def test_a_shape_that_changes_later() -> None:
    def f(x: Tensor) -> Tensor:
        return x if len(x) < 50 else torch.cat([x, x], -1)

    with pytest.raises(InputError):
        asked = CallableSource(f, SEQUENCE)
        asked(asked.uniform(60, 0))


def test_what_is_not_a_function_or_a_box() -> None:
    with pytest.raises(InputError):
        CallableSource(nn.Linear, SEQUENCE)
    with pytest.raises(InputError):
        CallableSource(3, SEQUENCE)  # type: ignore[arg-type]
    with pytest.raises(InputError):
        CallableSource(torch.sin, Box(0, 1, shape=(2, 2, 2)))
    with pytest.raises(InputError):
        CallableSource(torch.sin, SEQUENCE)(np.zeros((2, 5)))
