"""Random networks to attack: every activation, both dtypes, depth 1 to 6, width 1 to 256, tiny and huge weights."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from attnc import functions
from attnc.domain import Box
from attnc.program import Affine, BatchNorm, Combine, Pointwise, Program, Step
from attnc.program.evaluate import approximate

ACTIVATIONS = (
    "relu", "leaky_relu(0.2)", "abs", "clip(-0.5,0.75)", "hardtanh", "soft_threshold(0.25)", "gelu", "gelu_tanh", "silu",
    "sigmoid", "tanh", "softplus", "softplus(3)", "elu(0.7)", "mish", "sin", "cos", "softsign", "square", "exp", "identity",
)  # fmt: skip
SCALES = (1e-3, 0.3, 1.0, 1.0, 4.0, 30.0)


@dataclass(frozen=True)
class Case:
    program: Program
    box: Box
    dtype: torch.dtype
    eps: float
    text: str


def case(seed: int) -> Case:
    """The network of a seed."""
    draw = np.random.default_rng(seed)
    name = ACTIVATIONS[seed % len(ACTIVATIONS)]
    dtype = torch.float64 if (seed // len(ACTIVATIONS) + seed) % 2 else torch.float32
    depth = int(draw.integers(1, 7))
    scale = SCALES[int(draw.integers(len(SCALES)))] if name not in ("exp", "square") else 0.5
    if name in ("exp", "square") or scale > 1:  # what deep networks of large weights do is chaos
        depth = min(depth, 2)
    tokens = (int(draw.integers(2, 4)),) if draw.random() < 0.2 else ()
    widths = [int(2 ** draw.uniform(0, 8)) for _ in range(depth + 1)] + [int(draw.integers(1, 4))]
    if tokens:
        widths = [min(w, 24) for w in widths]
    program = _program(draw, tokens, widths, name, scale)
    lo = draw.uniform(-2, 0.5, size=(*tokens, widths[0]))
    box = Box(lo, lo + draw.exponential(1.0, size=lo.shape))
    text = f"{name}, widths {widths}, weights × {scale:g}, tokens {tokens}, {dtype}"
    return Case(program, box, dtype, _eps(program, box, 10 ** draw.uniform(-4, -1.5)), text)


def _eps(program: Program, box: Box, part: float) -> float:
    """A part of how far the output swings over the box, roughly."""
    draw = np.random.default_rng(0)
    x = box.lo + draw.random((64, *box.shape)) * (box.hi - box.lo)
    y = approximate(program, x)
    return float(part * (np.abs(y).max() + 1e-12))


def _program(
    draw: np.random.Generator, tokens: tuple[int, ...], widths: list[int], name: str, scale: float
) -> Program:
    """Affine maps with the activation between; some are normalised, some have a residual connection around them."""
    steps: list[Step] = []
    source = np.float32 if draw.random() < 0.5 else np.float64
    for i, (n, m) in enumerate(pairwise(widths)):
        bound = scale / np.sqrt(n)
        bias = draw.uniform(-bound, bound, m).astype(source) if draw.random() < 0.8 else None
        steps.append(Affine(len(steps), draw.uniform(-bound, bound, (m, n)).astype(source), bias))
        if draw.random() < 0.2:
            mean, shift = draw.normal(size=(2, m)).astype(source) * 0.1
            variance = draw.uniform(0.5, 2, m).astype(source)
            gain = draw.uniform(0.5, 1.5, m).astype(source)
            steps.append(BatchNorm(len(steps), mean, variance, gain, shift, 1e-5))
        if i < len(widths) - 2:
            before = len(steps)
            steps.append(Pointwise(before, functions.get(name)))
            if draw.random() < 0.2:
                steps.append(Combine((before, len(steps)), (1.0, float(draw.choice([1.0, -0.3])))))
    return Program((*tokens, widths[0]), tuple(steps))
