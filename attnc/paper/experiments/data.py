"""The data sets of the paper, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnc.paper.experiments.settings import Setting

REACH = 5.0  # x is uniform in [-5, 5] in experiments 1 and 2
HIDDEN = 10  # neurons of the target network of experiment 3
TEST = 5  # one sample in five is a test sample


@dataclass(frozen=True)
class Task:
    """A target function and its samples in float64: X of shape (samples, n, d), Y of shape (samples, n, outputs)."""

    target: tuple[Tensor, ...]  # the parameters of the function
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor


def generator(setting: Setting) -> torch.Generator:
    """The random numbers of a run: the data first, then the initial weights, then the order of the batches. One generator draws
    all of them, because initial weights drawn with the seed of the data would be correlated with the data."""
    return torch.Generator().manual_seed(setting.seed)


def make_task(setting: Setting, draw: torch.Generator) -> Task:
    """Experiments 1 and 2: Y_i = clip(<w_i, x_i> + t_i, a, b), X uniform in [-5, 5]^{n×d}, target (W, t).
    Experiment 3: Y = W2 relu(W1 vec X + b1) + b2, X uniform in [0, 1]^{n×d}, target (W1, b1, W2, b2).
    All numbers of a target are N(0, 1).

    >>> from attnc.paper.experiments.settings import QUICK
    >>> make_task(QUICK.truncated, generator(QUICK.truncated)).x_train.shape
    torch.Size([160, 12, 4])
    """
    n, d = setting.n, setting.d
    if setting.experiment == "seq2seq":
        shapes: tuple[tuple[int, ...], ...] = ((HIDDEN, n * d), (HIDDEN,), (n * d, HIDDEN), (n * d,))
    else:
        shapes = ((n, d), (n,))
    target = tuple(torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in shapes)
    x = torch.rand(setting.samples, n, d, generator=draw, dtype=torch.float64)
    if setting.experiment == "seq2seq":
        W1, b1, W2, b2 = target
        y = (torch.relu(x.flatten(1) @ W1.T + b1) @ W2.T + b2).reshape(x.shape)
    else:
        W, t = target
        x = (2 * x - 1) * REACH
        y = ((x * W).sum(-1) + t).clamp(setting.a, setting.b).unsqueeze(-1)
    order = torch.randperm(len(x), generator=draw)
    test, train = order[: len(x) // TEST], order[len(x) // TEST :]
    return Task(target, x[train], y[train], x[test], y[test])
