"""No function with the stored values and the Lipschitz constant is further from a lookup than its bound: zero slack, 192 bits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flint import arb
from torch import Tensor

import attnc
from attnc.domain import Array, Box
from attnc.functions.balls import lower, working
from attnc.lower.witness import within
from attnc.network.network import Network
from attnc.program import Lookup

SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))]
ANCHORS = 400


def cones(draw: np.random.Generator, box: Box, lipschitz: float) -> Callable[[Tensor], Tensor]:
    """min_i (h_i + K|x - p_i|): changes as fast as it may, with kinks."""
    peaks = torch.from_numpy(box.lo + draw.random((4, *box.shape)) * (box.hi - box.lo))
    heights = torch.from_numpy(draw.normal(size=4)) * lipschitz * float((box.hi - box.lo).max())

    def f(x: Tensor) -> Tensor:
        apart = (x.unsqueeze(1) - peaks).flatten(2).square().sum(-1).sqrt()
        low = (heights + lipschitz * apart).amin(1)
        return torch.stack([low, -low / 3], -1).reshape(len(x), 1, 2)

    return f


def problem(seed: int) -> tuple[Box, float, float, torch.dtype]:
    """A box near and far from zero, narrow and wide, a flat side now and then; constants from tiny to huge."""
    draw = np.random.default_rng(seed)
    m = int(draw.integers(1, 4))
    middle = draw.normal(size=(1, m)) * 10.0 ** float(draw.choice([-300 if m == 1 else 0, -2, 0, 2]))
    half = np.exp(draw.normal(size=(1, m))) * 10.0 ** float(draw.choice([-3, 0, 3]))
    box = Box(middle - half, middle + half)
    lipschitz = 10.0 ** float(draw.choice([-6, 0, 0, 3]))
    dtype = torch.float64 if seed % 2 else torch.float32
    sides = (2 * half).ravel()
    cell = (np.prod(sides) / draw.integers(20, ANCHORS)) ** (1 / m)
    return box, lipschitz, lipschitz * cell * math.sqrt(m) * 0.55, dtype


def attack_points(net: Network, step: Lookup, draw: np.random.Generator) -> Tensor:
    """Corners of cells, where four anchors tie, a step beside them, anchors, ends of the box, random inputs."""
    box = net.domain
    axes = [np.unique(column) for column in step.points.T]
    ties = [
        np.concatenate([[lo], (a[1:] + a[:-1]) / 2, [hi]]) for a, lo, hi in zip(axes, *ends(box), strict=True)
    ]
    corners = np.stack([draw.choice(t, 200) for t in ties], -1)
    beside = corners + draw.normal(size=corners.shape) * 1e-6 * (box.hi - box.lo).ravel()
    points = step.points[draw.integers(0, len(step.points), 40)]
    ends_of_box = np.array(list(itertools.product(*zip(*ends(box), strict=True))))
    inside = box.lo.ravel() + draw.random((100, box.size)) * (box.hi - box.lo).ravel()
    found = np.concatenate([corners, beside, points, ends_of_box, inside]).reshape(-1, *box.shape)
    held = within(torch.from_numpy(np.clip(found, box.lo, box.hi)), box, next(net.parameters()).dtype)
    return held


def ends(box: Box) -> tuple[Array, Array]:
    return box.lo.ravel(), box.hi.ravel()


def largest_excess(net: Network, step: Lookup, x: Tensor) -> tuple[int, float]:
    """How many inputs are above the bound for one of the two envelopes, all points asked; and the largest error."""
    from attnc.program.lookup import envelopes

    assert net.certificate.proved
    with torch.no_grad():
        executed = net(x).double().reshape(len(x), -1)
    low, high = envelopes(step, x.double().reshape(len(x), -1))
    rough = torch.maximum((executed - low).abs(), (executed - high).abs()).amax(1)
    above, worst = 0, 0.0
    for i in rough.argsort(descending=True)[:12].tolist():
        point = x[i].double().ravel().tolist()
        with working(192):
            reach = [
                arb(step.noise)
                + arb(step.lipschitz)
                * sum(((arb(p) - arb(q)) ** 2 for p, q in zip(point, row, strict=True)), arb(0)).sqrt()
                for row in step.points.tolist()
            ]
            for j, y in enumerate(executed[i].tolist()):
                tops = [arb(v) + r for v, r in zip(step.values[:, j].tolist(), reach, strict=True)]
                bottoms = [arb(v) - r for v, r in zip(step.values[:, j].tolist(), reach, strict=True)]
                top, bottom = tops[0], bottoms[0]
                for t, b in zip(tops, bottoms, strict=True):
                    top, bottom = top.min(t), bottom.max(b)
                assert not top < bottom, "no function has these values and this constant"
                error = abs(arb(y) - top).max(abs(arb(y) - bottom))
                worst = max(worst, lower(error))
                above += not error <= arb(net.certificate.bound)
    return above, worst


@pytest.mark.parametrize("seed", SEEDS)
def test_no_function_of_the_class_is_above_the_bound(seed: int) -> None:
    draw = np.random.default_rng(1000 + seed)
    box, lipschitz, eps, dtype = problem(seed)
    f = cones(draw, box, lipschitz)
    try:
        net = attnc.compile(f, domain=box, eps=eps, lipschitz=lipschitz, dtype=dtype, method="grid")
    except attnc.errors.PrecisionError as refused:  # float32 far from zero
        assert refused.reachable is not None and dtype == torch.float32
        net = attnc.compile(
            f, domain=box, eps=refused.reachable, lipschitz=lipschitz, dtype=dtype, method="grid"
        )
    assert net.certificate.proved and net.certificate.bound <= max(eps, net.certificate.bound)
    (step,) = (s for s in net.program.steps if isinstance(s, Lookup))
    above, worst = largest_excess(net, step, attack_points(net, step, draw))
    assert above == 0
    assert worst <= net.certificate.bound
    if dtype == torch.float64:
        assert worst > 0.6 * net.certificate.bound  # the attack is no formality
    assert attnc.verify(net).status == "proved"
