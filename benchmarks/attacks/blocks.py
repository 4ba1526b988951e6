"""Converted blocks under attack: honest models, every family, both dtypes and engines, against the block in balls."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from flint import arb, arb_mat
from torch import Tensor

import attnc
from attacks.claims import Rivals
from attacks.drive import Way, attacks, entering, gaps, leaving
from attacks.layouts import LAYOUTS, Model
from attacks.registry import NAMES
from attacks.tally import Outcome
from attnc import functions
from attnc.errors import AttncError, PrecisionError
from attnc.functions.balls import upper, working

BITS = 160
ENGINES = ("closed-form", "softmax")


def balls(model: Model, x: Tensor) -> list[list[arb]]:
    """The block of a model in ball arithmetic, from its own weights: rows of outputs."""
    layout, given = model.layout, arb_mat([[arb(float(t)) for t in row] for row in x])
    f = functions.get(NAMES[layout.family])
    s = _affine(model.first, given)
    inner = [[f.over(s[i, j]) for j in range(s.ncols())] for i in range(s.nrows())]
    if layout.up is not None:
        t = _affine(model.part(layout.up), given)
        inner = [[h * t[i, j] for j, h in enumerate(row)] for i, row in enumerate(inner)]
    y = _affine(model.second, arb_mat(inner))
    return [[y[i, j] for j in range(y.ncols())] for i in range(y.nrows())]


def _affine(module: Any, x: arb_mat) -> arb_mat:
    weight = module.weight.detach().double()
    weight = weight.T if type(module).__name__ == "Conv1D" else weight
    bias = getattr(module, "bias", None)
    shift = [0.0] * len(weight) if bias is None else bias.detach().double().tolist()
    W = arb_mat([[arb(v) for v in row] for row in weight.tolist()])
    return x * W.transpose() + arb_mat([[arb(v) for v in shift]] * x.nrows())


def attack(seed: int, count: int = 3000) -> Outcome:
    """The model of a seed: a family, a dtype, an engine, a gain of the norm, an eps."""
    began, rng = time.perf_counter(), np.random.default_rng([3, seed])
    layout = list(LAYOUTS.values())[seed % len(LAYOUTS)]
    dtype = (torch.float64, torch.float32)[(seed // len(LAYOUTS)) % 2]
    engine, gain = ENGINES[int(rng.integers(2))], float(rng.choice([0.3, 1.0, 1.0, 5.0]))
    eps = float(10.0 ** rng.uniform(-4, -2)) * gain
    outcome = Outcome("blocks", f"{seed}: {layout.family}, {dtype}, {engine}, gain {gain:g}", "refused")
    original, wide, converted = (scaled(layout.build(dtype, gain), seed) for _ in range(3))
    wide.module.double()
    try:
        report = _converted(converted.module, eps, engine)
    except AttncError as problem:
        outcome.note = str(problem)[:200]
    else:
        named = [b for b in report.blocks if not layout.layer or b.name.startswith(layout.layer)]
        _judge(Rivals(original, wide, converted), named[0], rng, count, outcome)
    outcome.seconds = time.perf_counter() - began
    return outcome


def scaled(model: Model, seed: int) -> Model:
    """The weights of the block, drawn anew by the seed."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in (model.first, model.second, *([model.part(model.layout.up)] if model.layout.up else [])):
            part.weight.copy_(0.4 * torch.randn(part.weight.shape, generator=draw, dtype=torch.float64))
    return model


def _converted(module: Any, eps: float, engine: str) -> Any:
    try:
        return attnc.convert_(module, approximation=eps, config={"engine": engine})
    except PrecisionError as problem:
        if problem.reachable is None:
            raise
        return attnc.convert_(module, approximation=1.1 * problem.reachable, config={"engine": engine})


def _judge(rivals: Rivals, block: Any, rng: np.random.Generator, count: int, outcome: Outcome) -> None:
    """All inputs in float64; the worst, and all near the bound, in balls."""
    original, tokens = rivals.original, rivals.original.layout.tokens
    way = Way("plain", tokens)
    outcome.verdict, outcome.claimed, outcome.ratio = "converted", block.bound, 0.0
    z = attacks(original, rng, count)
    for _ in range(3):
        x = entering(original, z, original.layout.norm, way)
        x = x[x.isfinite().all(-1)]
        x = x[: len(x) // tokens * tokens]
        found, meant = (
            leaving(rivals.converted, x, way)[0],
            leaving(rivals.wide or original, x.double(), way)[0],
        )
        rough = (found.double() - meant).abs().amax(1).nan_to_num(math.inf)
        outcome.inputs += len(x)
        near = torch.nonzero(rough >= 0.9 * block.bound).flatten()[:200]
        chosen = torch.cat([rough.argsort(descending=True)[:6], near]).unique()
        _exactly(rivals, block, x[chosen], found[chosen], outcome)
        best = z[rough.argsort(descending=True)[:64] % len(z)]  # around the worst of them
        z = best[torch.randint(len(best), (count,))] * (
            1 + 0.03 * torch.randn(count, z.shape[-1], dtype=z.dtype)
        )
    if original.dtype == torch.float64:  # rounding is far below: the exact term alone
        error, size = gaps([found], [meant])
        over = error - block.rounding - 1e-13 * (1 + size)
        if over > block.approximation:
            outcome.verdict, outcome.note = "false", f"exact={block.approximation:.4g} exceeded: {over:.4g}"


def _exactly(rivals: Rivals, block: Any, x: Tensor, found: Tensor, outcome: Outcome) -> None:
    with working(BITS):
        limit = arb(block.approximation) + arb(block.rounding)
        for row, meant in zip(found.double().tolist(), balls(rivals.original, x.double()), strict=True):
            for y, ball in zip(row, meant, strict=True):
                gap = abs(arb(y) - ball) if math.isfinite(y) else arb("inf")
                if upper(gap / limit) > outcome.ratio:
                    outcome.ratio, outcome.measured = upper(gap / limit), upper(gap)
                if not gap <= limit:
                    outcome.verdict = "false"
