"""Evaluate a program: in ball arithmetic, which encloses the exact value, or in float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnc.domain import Array
from attnc.errors import InputError
from attnc.functions.balls import working
from attnc.program.program import Program
from attnc.program.step import Balls, balls


def exact(program: Program, x: Array, precision: int = 192) -> Balls:
    """The program at inputs (…, *shape) as an array of balls, each of which contains the exact value.

    >>> from attnc import functions
    >>> from attnc.program import Pointwise
    >>> exact(Program((2,), (Pointwise(0, functions.square()),)), np.array([3.0, 0.5]))[0] == 9
    True
    """
    given = np.asarray(x, dtype=np.float64)
    lead = _lead(program, given.shape)
    with working(precision):
        values: list[Balls] = [balls(given.reshape(-1, *program.shape))]
        for step in program.steps:
            values.append(step.exact(*(values[i] for i in step.inputs)))
        return values[-1].reshape(*lead, *program.shapes[-1])


def _lead(program: Program, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The batch axes."""
    cut = len(shape) - len(program.shape)
    if cut < 0 or shape[cut:] != program.shape:
        raise InputError(f"the program takes inputs of shape (…, *{program.shape}): got {shape}")
    return shape[:cut]


def approximate(program: Program, x: Array) -> Array:
    """The program in float64 for a batch (…, *shape): fast, without a proof."""
    found: Array = differentiable(program, torch.from_numpy(np.array(x, dtype=np.float64))).numpy()
    return found


def differentiable(program: Program, x: Tensor) -> Tensor:
    """The program in float64 by torch for a batch (…, *shape)."""
    lead = _lead(program, tuple(x.shape))
    return values(program, x.reshape(-1, *program.shape))[-1].reshape(*lead, *program.shapes[-1])


def values(program: Program, x: Tensor) -> list[Tensor]:
    """Every value of the program in float64 by torch for a batch (n, *shape): the input first, the output last."""
    found = [x]
    for step in program.steps:
        found.append(step.approximate(*(found[i] for i in step.inputs)))
    return found
