"""A program against the module that it was read from."""

from __future__ import annotations

import copy

import numpy as np
import torch
from flint import arb
from numpy.typing import NDArray
from torch import nn

from attnc.frontends import to_program
from attnc.functions.balls import working
from attnc.program import Pointwise, Program
from attnc.program.evaluate import approximate, exact


def run(model: nn.Module, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The module in float64, on a copy."""
    with torch.no_grad():
        result: NDArray[np.float64] = copy.deepcopy(model).double()(torch.from_numpy(x.copy())).numpy()
    return result


def agrees(model: nn.Module, shape: tuple[int, ...], seed: int = 0, size: float = 3.0) -> Program:
    """The program of the module, which computes what the module does: in float64 and in balls."""
    program = to_program(model, shape)
    x = np.random.default_rng(seed).uniform(-size, size, (5, *shape))
    theirs = run(model, x)
    slack = 1e-10 * (1 + np.abs(theirs).max())
    if not any(isinstance(step, Pointwise) and step.deviation for step in program.steps):
        np.testing.assert_allclose(approximate(program, x), theirs, rtol=0, atol=slack)
    with working(192):
        for ball, number in zip(exact(program, x[0]).flat, theirs[0].flat, strict=True):
            assert ball.rad() < 1 and abs(ball - arb(float(number))) <= slack
    return program


def layer(n: int, m: int, seed: int = 0) -> nn.Linear:
    """A linear layer of known numbers."""
    made = nn.Linear(n, m)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.weight.copy_(torch.randn(m, n, generator=draw))
        made.bias.copy_(torch.randn(m, generator=draw))
    return made.eval()
