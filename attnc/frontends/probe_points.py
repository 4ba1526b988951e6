"""probe_points: inputs at which a wrong program would differ from its module: corners of the box, kinks of activations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attnc.domain import Array, Box
from attnc.program import Affine, Pointwise, Program
from attnc.program.evaluate import values

SPREADS, NEAR, BOXED = (1.0, 8.0, 64.0), 4, 12
NEURONS, ROUNDS, WORK = 64, 16, 2**30  # chosen neurons, rounds of root finding, multiplications for all of it


def probe_points(program: Program, box: Box | None, draw: np.random.Generator) -> Array:
    """Points (n, *shape): near zero, of the box, and those at which chosen pre-activations are at their kinks and ends."""
    parts = [draw.uniform(-s, s, (NEAR, *program.shape)) for s in SPREADS]
    lo, hi = (np.full(program.shape, -8.0), np.full(program.shape, 8.0)) if box is None else (box.lo, box.hi)
    if box is not None:
        corners = np.where(draw.random((BOXED, *box.shape)) < 0.5, lo, hi)
        inside = _inside(lo, hi, draw, BOXED)
        mixed = np.where(draw.random((BOXED, *box.shape)) < 0.5, corners, inside)
        parts += [corners, inside, mixed, lo[None], hi[None]]
    driven = _driven(program, lo, hi, draw)
    return np.concatenate([*parts, np.clip(driven, lo, hi)])


def _inside(lo: Array, hi: Array, draw: np.random.Generator, n: int) -> Array:
    return lo + draw.random((n, *lo.shape)) * (hi - lo)


@dataclass(frozen=True)
class _Chosen:
    """A neuron: an entry of the value that a pointwise step reads, flattened."""

    value: int
    entry: int
    targets: tuple[float, ...]  # where its function changes
    apart: float  # how near to a target a point may come, as a share of the way


def _driven(program: Program, lo: Array, hi: Array, draw: np.random.Generator) -> Array:
    """For each chosen neuron two ends of a segment of the box along which it grows; on the segment random points, and
    points at and beside each kink that it crosses."""
    chosen = _choose(program, draw)
    if not chosen:
        return np.empty((0, *program.shape))
    start, end = _ends(program, chosen, lo, hi, draw)
    at_start, at_end = (_read(program, chosen, x) for x in (start, end))
    found = [start, end]
    for _ in range(3):
        t = draw.random(len(chosen))
        found.append(_between(start, end, t))
    rows, targets = [], []
    for i, neuron in enumerate(chosen):
        for target in neuron.targets:
            if min(at_start[i], at_end[i]) < target < max(at_start[i], at_end[i]):
                rows.append(i)
                targets.append(target)
    if rows:
        crossing = [chosen[i] for i in rows]
        t = _root(program, crossing, start[rows], end[rows], np.array(targets))
        apart = np.array([neuron.apart for neuron in crossing])
        if not apart.any():
            found.append(_between(start[rows], end[rows], t))
        for sign in (-1.0, 1.0):
            beside = sign * np.maximum(apart, 10.0 ** draw.uniform(-7, -2, len(rows)))
            found.append(_between(start[rows], end[rows], np.clip(t + beside, 0, 1)))
    return np.concatenate(found)


def _choose(program: Program, draw: np.random.Generator) -> list[_Chosen]:
    """Neurons of every pointwise step, more of them the cheaper the program is."""
    steps = [step for step in program.steps if isinstance(step, Pointwise)]
    cost = sum(step.weight.size for step in program.steps if isinstance(step, Affine))
    cost = max(1, cost * math.prod(program.shape[:-1]))
    most = int(np.clip(WORK // (ROUNDS * 8 * cost), len(steps), NEURONS))
    chosen = []
    for step in steps:
        size = math.prod(program.shapes[step.input])
        for entry in draw.choice(size, min(size, max(1, most // len(steps))), replace=False):
            bends = step.deviation > 0
            targets = (*step.function.kinks, *((step.beyond,) if bends else ()))
            chosen.append(_Chosen(step.input, int(entry), targets, 1e-4 if bends else 0.0))
    return chosen


def _ends(
    program: Program, chosen: list[_Chosen], lo: Array, hi: Array, draw: np.random.Generator
) -> tuple[Array, Array]:
    """The corners of the box to which each neuron's gradient at a random point leads: its interval's ends, if it is affine."""
    x = torch.from_numpy(_inside(lo, hi, draw, len(chosen))).requires_grad_()
    with torch.enable_grad():
        total = _entries(values(program, x), chosen).nan_to_num().sum()
        slopes = torch.autograd.grad(total, x, allow_unused=True)[0] if total.requires_grad else None
    slope = np.zeros(x.shape) if slopes is None else slopes.nan_to_num().numpy()
    tie = draw.random(slope.shape) < 0.5
    up = np.where(slope == 0, tie, slope > 0)
    return np.where(up, lo, hi), np.where(up, hi, lo)


def _entries(found: list[Tensor], chosen: list[_Chosen]) -> Tensor:
    return torch.stack([found[c.value][i].reshape(-1)[c.entry] for i, c in enumerate(chosen)])


def _read(program: Program, chosen: list[_Chosen], x: Array) -> Array:
    """The i-th neuron at the i-th point."""
    with torch.no_grad():
        found: Array = _entries(values(program, torch.from_numpy(x)), chosen).numpy()
    return found


def _between(start: Array, end: Array, t: Array) -> Array:
    share = t.reshape(-1, *([1] * (start.ndim - 1)))
    return start * (1 - share) + end * share


def _root(program: Program, chosen: list[_Chosen], start: Array, end: Array, targets: Array) -> Array:
    """Where on its segment each neuron equals its target, by bisection and false position in turn."""
    a, b = np.zeros(len(chosen)), np.ones(len(chosen))
    below = _read(program, chosen, start) - targets
    above = _read(program, chosen, end) - targets
    t = (a + b) / 2
    for k in range(ROUNDS):
        with np.errstate(all="ignore"):
            false_position = a - below * (b - a) / (above - below)
        usable = np.isfinite(false_position) & (a <= false_position) & (false_position <= b)
        t = np.where(usable & (k % 2 == 0), false_position, (a + b) / 2)
        gap = _read(program, chosen, _between(start, end, t)) - targets
        left = np.sign(gap) == np.sign(below)
        a, below = np.where(left, t, a), np.where(left, gap, below)
        b, above = np.where(left, b, t), np.where(left, above, gap)
    with np.errstate(all="ignore"):
        last = a - below * (b - a) / (above - below)
    return np.where(np.isfinite(last), np.clip(last, a, b), t)
