"""The protocol's optimiser: Adam with 1e-3 on the mean square error, batches drawn anew in every epoch."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from attnc.paper.experiments.data import Data
from attnc.paper.experiments.settings import Setting

RATE = 1e-3
_ROWS = 256  # test samples at once


def train(
    model: nn.Module, data: Data, setting: Setting, draw: torch.Generator
) -> tuple[tuple[float, ...], float]:
    """Train in place, in the model's dtype; the test MSE after each epoch, and the seconds of training without the tests."""
    dtype, seconds = next(model.parameters()).dtype, 0.0
    x, y = data.x_train.to(dtype), data.y_train.to(dtype)
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    curve = []
    for _ in range(setting.epochs):
        began = time.process_time()
        for rows in torch.split(torch.randperm(len(x), generator=draw), setting.batch):
            optimiser.zero_grad()
            torch.autograd.backward(square_error(model(x[rows]), y[rows]))
            optimiser.step()
        seconds += time.process_time() - began
        curve.append(test(model, data, dtype)[0])
    return tuple(curve), seconds


def square_error(found: Tensor, wanted: Tensor) -> Tensor:
    """The mean over all coordinates of the output: those that the target lacks ought to be 0.

    >>> square_error(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0]])).item()
    2.0
    """
    inside = found[..., : wanted.shape[-1]] - wanted
    outside = found[..., wanted.shape[-1] :]
    return (inside.square().sum() + outside.square().sum()) / found.numel()


def test(model: nn.Module, data: Data, dtype: torch.dtype) -> tuple[float, float]:
    """The MSE on the test samples, and the largest |error| in the target's coordinates; sums in float64."""
    with torch.no_grad():
        found = torch.cat([model(x.to(dtype)).double() for x in torch.split(data.x_test, _ROWS)])
    inside = found[..., : data.y_test.shape[-1]] - data.y_test
    return float(square_error(found, data.y_test)), float(inside.abs().max())
