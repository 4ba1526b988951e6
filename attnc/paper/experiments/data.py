"""The paper's data sets, drawn anew from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnc.paper.experiments.settings import Setting

REACH = 5.0  # of x in experiments 1 and 2: uniform in [-5, 5]
HIDDEN = 10  # neurons of the network that experiment 3 imitates
TEST = 5  # one sample in so many tests


@dataclass(frozen=True)
class Data:
    """Samples with their targets, in float64: X of shape (samples, n, d), Y of shape (samples, n, outputs)."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


@dataclass(frozen=True)
class Truncated:
    """Y_i = Range_[a,b](<w_i, x_i> + t_i), one coordinate; w, t ~ N(0, 1)."""

    W: Tensor  # (n, d)
    t: Tensor  # (n,)
    data: Data


@dataclass(frozen=True)
class Hidden:
    """Y = W2 relu(W1 vec X + b1) + b2, n × d coordinates; all numbers ~ N(0, 1)."""

    W1: Tensor  # (10, nd)
    b1: Tensor
    W2: Tensor  # (nd, 10)
    b2: Tensor
    data: Data


def stream(setting: Setting) -> torch.Generator:
    """The random numbers of a run: first the data, then the model's start, then the order of the batches. One stream, for a
    start drawn from the same numbers as the data is no random start."""
    return torch.Generator().manual_seed(setting.seed)


def truncated(setting: Setting, draw: torch.Generator) -> Truncated:
    """Experiments 1 and 2: X uniform in [-5, 5]^{n×d}.

    >>> from attnc.paper.experiments.settings import QUICK
    >>> truncated(QUICK.truncated, stream(QUICK.truncated)).data.x_train.shape
    torch.Size([160, 12, 4])
    """
    W, t = _normal(draw, setting.n, setting.d), _normal(draw, setting.n)
    x = (2 * _uniform(draw, setting.samples, setting.n, setting.d) - 1) * REACH
    y = ((x * W).sum(-1) + t).clamp(setting.a, setting.b)
    return Truncated(W, t, _split(draw, x, y.unsqueeze(-1)))


def hidden(setting: Setting, draw: torch.Generator) -> Hidden:
    """Experiment 3: X uniform in [0, 1]^{n×d}.

    >>> from attnc.paper.experiments.settings import QUICK
    >>> hidden(QUICK.few, stream(QUICK.few)).data.y_test.shape
    torch.Size([100, 4, 2])
    """
    size = setting.n * setting.d
    W1, b1 = _normal(draw, HIDDEN, size), _normal(draw, HIDDEN)
    W2, b2 = _normal(draw, size, HIDDEN), _normal(draw, size)
    x = _uniform(draw, setting.samples, setting.n, setting.d)
    y = torch.relu(x.flatten(1) @ W1.T + b1) @ W2.T + b2
    return Hidden(W1, b1, W2, b2, _split(draw, x, y.reshape(x.shape)))


def _split(draw: torch.Generator, x: Tensor, y: Tensor) -> Data:
    """Four fifths and one fifth, at random."""
    order = torch.randperm(len(x), generator=draw)
    test, train = order[: len(x) // TEST], order[len(x) // TEST :]
    return Data(x[train], y[train], x[test], y[test])


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def _uniform(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=draw, dtype=torch.float64)
