"""The models of the zoo whose inputs are numbers: functions of sequences, and learning algorithms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnc.compiler import compile
from attnc.domain import Box
from attnc.incontext.learner import gradient_descent
from attnc.incontext.solver import ridge_regression

_KERNEL = (0.25, 0.5, 0.25)
_TOKENS = 8
_NUMBERS = ((0.7,), (0.2,), (0.5,))
_MATRIX = ((1.5, 0.25), (-0.25, 1.25))
_SIGNAL = ((0.5,), (-1.0,), (0.0,), (0.0,), (1.0,), (0.0,), (0.25,), (1.0,))
_X = (
    (1.0, 0.0, 0.5),
    (0.0, 1.0, -0.5),
    (-1.0, 0.5, 0.0),
    (0.5, -1.0, 1.0),
    (-0.5, -0.5, -1.0),
    (1.0, 1.0, 0.0),
)
_Y = (0.75, -0.75, -1.5, 1.0, 0.5, 0.0)  # w = (1, -1, -0.5)
_LABELS = (1.0, 0.0, 0.0, 1.0, 0.0, 1.0)


@dataclass(frozen=True)
class ContinuousModel:
    """How to build a model in a dtype, what it computes, and how; `example` are its inputs, for learners x and y of a context.

    `seconds` are those of one core to build it, roughly."""

    build: Callable[[torch.dtype], Any]
    computes: str
    mechanism: str
    example: tuple[Any, ...]
    seconds: int = 1


def sort_numbers(dtype: torch.dtype) -> Any:
    """Three numbers of [0, 1] in order: a grid of anchors, proved by the Lipschitz constant 1."""
    return compile(
        lambda x: x.sort(dim=1).values, domain=Box(0, 1, shape=(3, 1)), eps=0.1, lipschitz=1, dtype=dtype
    )


def running_maximum(dtype: torch.dtype) -> Any:
    """The largest number so far, of three."""
    return compile(
        lambda x: x.cummax(dim=1).values, domain=Box(0, 1, shape=(3, 1)), eps=0.1, lipschitz=1, dtype=dtype
    )


def matrix_inverse(dtype: torch.dtype) -> Any:
    """The inverse of a 2×2 matrix near a multiple of the identity."""
    box = Box([[1, -0.5], [-0.5, 1]], [[2, 0.5], [0.5, 2]])
    return compile(torch.linalg.inv, domain=box, eps=1e-3, dtype=dtype)


def convolution(dtype: torch.dtype) -> Any:
    """y_i = x_{i-1}/4 + x_i/2 + x_{i+1}/4 as relu(Cx + 1) - 1."""
    enter, leave = (nn.Linear(_TOKENS, _TOKENS).to(dtype) for _ in range(2))
    matrix: Tensor = sum(
        k * torch.diag(torch.ones(_TOKENS - abs(s)), s) for k, s in zip(_KERNEL, (-1, 0, 1), strict=True)
    )  # type: ignore[assignment]
    with torch.no_grad():
        enter.weight.copy_(matrix)
        enter.bias.fill_(1)
        leave.weight.copy_(torch.eye(_TOKENS))
        leave.bias.fill_(-1)
    net = nn.Sequential(nn.Flatten(), enter, nn.ReLU(), leave, nn.Unflatten(1, (_TOKENS, 1))).eval()
    return compile(net, domain=Box(-1, 1, shape=(_TOKENS, 1)), eps=1e-3, form="two-layer", dtype=dtype)


MODELS: dict[str, ContinuousModel] = {
    "sort-numbers": ContinuousModel(
        sort_numbers, "three numbers of [0, 1] in order, within 0.1",
        "One head selects the nearest point of a grid; its value is the sorted point. The Lipschitz constant 1 proves the error.",
        (_NUMBERS,), seconds=2,
    ),
    "running-maximum": ContinuousModel(
        running_maximum, "the largest number so far, of three numbers of [0, 1], within 0.1",
        "As sort-numbers: one head over a grid of anchors, proved by the Lipschitz constant 1.",
        (_NUMBERS,),
    ),
    "matrix-inverse": ContinuousModel(
        matrix_inverse, "the inverse of a 2×2 matrix near a multiple of the identity, within 1e-3",
        "One head interpolates between the points of a lattice of matrices. The error is proved from the operations of torch.",
        (_MATRIX,), seconds=10,
    ),
    "convolution": ContinuousModel(
        convolution, "the convolution of eight numbers of [-1, 1] with (1/4, 1/2, 1/4), within 1e-3",
        "The map is written as relu(Cx + 1) - 1. Each neuron is one head over anchors that interpolate relu.",
        (_SIGNAL,),
    ),
    "regression-in-context": ContinuousModel(
        lambda dtype: gradient_descent("squared", features=3, steps=20, step_size=0.4, dtype=dtype),
        "20 steps of gradient descent for least squares on the examples in the context",
        "Each step is two layers: examples read w·x by attention, and the token of w gathers the mean of residual times x.",
        (_X, _Y),
    ),
    "logistic-regression-in-context": ContinuousModel(
        lambda dtype: gradient_descent("logistic", features=3, steps=20, step_size=0.5, dtype=dtype),
        "20 steps of gradient descent for logistic regression on the examples in the context",
        "As regression-in-context, with one more head that computes the sigmoid of w·x.",
        (_X, _LABELS),
    ),
    "ridge-by-newton": ContinuousModel(
        lambda dtype: ridge_regression(0.1, features=3, iterations=16, radius=2.0, dtype=dtype),
        "ridge regression on the examples in the context, by 16 Newton iterations for the inverse",
        "P ← 2P - PAP squares the error at each iteration. Row tokens hold the rows of P; every product of matrices is a layer "
        "in which examples read, or row tokens gather.",
        (_X, _Y),
    ),
}  # fmt: skip
