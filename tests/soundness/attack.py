"""Random heads, and points that like to break bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from attnc import functions
from attnc.domain import Interval
from attnc.functions import Function
from attnc.heads.chain import anchor_positions
from attnc.heads.designs import gated, graded, many, nearest, smooth
from attnc.heads.draft import Draft, Finished, finish
from attnc.heads.target import Target, make_target
from attnc.heads.tuned import tuned
from attnc.records.numbers import HeadNumbers

SPECS = (
    "identity", "relu", "leaky_relu(0.2)", "abs", "clip(-0.7,1.3)", "hardtanh", "gelu", "gelu_tanh", "silu", "sigmoid",
    "tanh", "softplus", "elu", "mish", "exp", "square", "sin", "cos", "softsign", "soft_threshold(0.5)",
)  # fmt: skip
DESIGNS = ("nearest", "smooth", "graded", "gated", "tuned", "many nearest", "many smooth")


@dataclass(frozen=True)
class Attacked:
    f: Function
    domain: Interval
    finished: Finished


def random_interval(rng: np.random.Generator, spec: str) -> Interval:
    """Of any scale and place, kinks inside, outside and on the edge."""
    scale = float(10.0 ** rng.uniform(-2, 1 if spec == "exp" else 2))
    kind = rng.integers(4)
    if kind == 0:
        return Interval(-scale, scale)
    if kind == 1:
        return Interval(0.0, scale)
    centre = float(rng.uniform(-2, 2)) * min(scale, 3.0)
    return Interval(centre - scale * float(rng.uniform(0.1, 1)), centre + scale * float(rng.uniform(0.1, 1)))


def random_draft(rng: np.random.Generator, target: Target, design: str) -> Draft:
    p = int(rng.integers(3, 13))
    if design == "nearest":
        return nearest(target, int(rng.integers(2, 48)))
    if design == "smooth":
        return smooth(target, int(rng.integers(2, 40)))
    if design == "graded" and target.kinks:
        return graded(target, 1 + 2 * len(target.kinks) + int(rng.integers(0, 24)))
    if design == "gated":
        return gated(target, int(rng.integers(2, 5)))
    if design.startswith("many"):
        return many(target, p, int(rng.integers(2, 5)), nearest if design.endswith("nearest") else smooth)
    return tuned(target, p if p < 8 else 4)


def random_head(rng: np.random.Generator, spec: str, design: str, dtype: str) -> Attacked:
    f, domain = functions.get(spec), random_interval(rng, spec)
    target = make_target(f, domain, dtype)
    return Attacked(f, domain, finish(random_draft(rng, target, design), target))


def attack_points(rng: np.random.Generator, case: Attacked, edges: list[float], count: int) -> torch.Tensor:
    """Anchors, midpoints, kinks, cell edges, the ends, zero and subnormals, each with neighbours in the dtype; random ones."""
    numbers, domain = case.finished.numbers, case.domain
    anchors = np.concatenate(
        [
            (anchor_positions(key) - query[1]) / query[0]
            for key, query in zip(numbers.key, numbers.query, strict=True)
        ]
    )
    anchors = np.sort(anchors[np.isfinite(anchors)])
    special = [*anchors, *(anchors[1:] + anchors[:-1]) / 2, *case.f.kinks, *edges, domain.lo, domain.hi]
    special += [0.0, 5e-324, -5e-324, 1e-310, 1e-45, -1e-45, 1e-40, 2.0**-126, 2.0**-1022]
    around = [
        k + sign * domain.width * 2.0**-j for k in case.f.kinks for j in range(2, 60, 2) for sign in (-1, 1)
    ]
    known = torch.tensor([*special, *around], dtype=torch.float64).to(getattr(torch, numbers.dtype))
    up, down = known.new_tensor(math.inf), known.new_tensor(-math.inf)
    neighbours = torch.cat([known, torch.nextafter(known, up), torch.nextafter(known, down)])
    spread = torch.from_numpy(rng.uniform(domain.lo, domain.hi, count)).to(known.dtype)
    s = torch.cat([neighbours[: count // 2], spread])
    wide = s.double()
    return s[(wide >= domain.lo) & (wide <= domain.hi)][:count]


def wild_numbers(rng: np.random.Generator, dtype: str) -> HeadNumbers:
    """Numbers that no design would choose: huge and tiny slopes, saturated softmax, large values that cancel, several heads."""
    heads, p = int(rng.integers(1, 4)), int(rng.integers(1, 20))
    slopes = rng.normal(size=(heads, p)) * 10.0 ** rng.uniform(-3, 5)
    ties = rng.normal(size=(heads, p)) * 10.0 ** rng.uniform(-2, 1)
    key = np.stack([slopes, -slopes * ties], axis=-1)
    value = np.stack(
        [
            rng.normal(size=(heads, p)) * (rng.random() < 0.3),
            rng.normal(size=(heads, p)) * 10.0 ** rng.uniform(-3, 4),
        ],
        -1,
    )
    query = np.stack(
        [rng.choice([1.0, 0.3, -2.0], size=heads), rng.choice([0.0, 0.1, -3.0], size=heads)], axis=-1
    )
    output = rng.choice([1.0, -1.0, 0.7], size=heads) if heads > 1 else np.ones(1)
    rounded = [np.asarray(array).astype(dtype).astype(np.float64) for array in (query, key, value, output)]
    return HeadNumbers(*rounded, dtype)
