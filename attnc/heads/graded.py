"""Graded heads: distances of breakpoints from a kink grow geometrically, and sharpness is inverse to the distance.

Breakpoints kink ± h r^m, sharpness λ = α/|t - kink|: the head is self-similar, like rational approximations of |x|,
and its error decreases like exp(-k sqrt(p))."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from attnc.errors import InputError
from attnc.heads import patience
from attnc.heads.chain import Chain, softmax_weights
from attnc.heads.draft import Draft, one_head, reweighted, solve_values
from attnc.heads.finish import finish
from attnc.heads.target import Target
from attnc.records.numbers import Array

ALPHAS = (0.25, 0.35, 0.5)
FLAT_SHARES = (1.0, 0.45, 0.2)  # breakpoints on a side where f is constant, relative to the other sides
OUTER = 2.0  # the outermost breakpoint, relative to the side's length


@dataclass(frozen=True)
class Grading:
    """The free choices: log10 of the inner scale h, the sharpness α, the share of flat sides."""

    inner: float
    alpha: float
    flat_share: float


def graded(target: Target, p: int) -> Draft:
    """The best graded chain of p anchors: a coarse search over the inner scale, then a finer one around the best."""
    if not target.kinks:
        raise InputError(
            f"design 'graded' needs a kink inside the interval: {target.f.label} has none in "
            f"({target.domain.lo:g}, {target.domain.hi:g}); use design='smooth' or 'auto'"
        )
    sides = 2 * len(target.kinks)
    if p < 1 + sides:
        raise InputError(
            f"design 'graded' needs at least {1 + sides} anchors for {len(target.kinks)} kinks: got {p}"
        )
    shares = FLAT_SHARES if target.flat_below or target.flat_above else FLAT_SHARES[:1]
    tried = [
        Grading(-inner, alpha, share) for inner in range(1, 9) for alpha in ALPHAS[1:] for share in shares
    ]
    best = min(_promising(target, p, tried), key=lambda grading: _estimate(target, p, grading))
    for step in (0.5, 0.25, 0.12):
        near = [replace(best, inner=best.inner + move) for move in (-step, step)] + [
            replace(best, alpha=alpha) for alpha in ALPHAS
        ]
        best = min([best, *near], key=lambda grading: _estimate(target, p, grading))
    chain = _chain(target, p, best)
    values, emphasis, _ = reweighted(
        softmax_weights(chain.keys(), target.x), target.y, target.ridge, rounds=20
    )
    return one_head("graded", chain, values, target, emphasis)


def around_bend(target: Target, p: int) -> list[Chain]:
    """Graded chains around the point where a smooth f bends most: where to start tuning when the bend is
    narrow."""
    slope = np.diff(target.y) / np.diff(target.x)
    bend = np.abs(np.diff(slope)) / (target.x[2:] - target.x[:-2])
    centre = float(np.clip(target.x[1 + int(np.argmax(bend))], -0.9, 0.9))
    bent = replace(target, kinks=(centre,), flat_below=False, flat_above=False)
    return [_chain(bent, p, Grading(inner, 1.0, 1.0)) for inner in (-1.0, -2.0)] if p >= 3 else []


def _promising(target: Target, p: int, tried: list[Grading]) -> list[Grading]:
    """In float64 the one of least error; in float32, where sharp switches round, the best of each inner scale."""
    by_error = sorted(tried, key=lambda grading: _error(target, p, grading))
    return (
        by_error[:1] if target.dtype == "float64" else list({g.inner: g for g in reversed(by_error)}.values())
    )


def _estimate(target: Target, p: int, grading: Grading) -> float:
    """The error that sampling suggests; in float32 with the rounding of the finished head."""
    if target.dtype == "float64":
        return _error(target, p, grading)
    patience.check()
    chain = _chain(target, p, grading)
    values = solve_values(softmax_weights(chain.keys(), target.x), target.y, target.ridge)
    return finish(one_head("graded", chain, values, target), target).estimate


def _error(target: Target, p: int, grading: Grading) -> float:
    patience.check()
    matrix = softmax_weights(_chain(target, p, grading).keys(), target.x)
    values = solve_values(matrix, target.y, target.ridge)
    return float(np.abs(matrix @ values - target.y).max() + 4 * target.ridge * np.abs(values).max())


def _chain(target: Target, p: int, grading: Grading) -> Chain:
    """p - 1 breakpoints divided among both sides of every kink; a side extends to the end or half-way to the next kink."""
    kinks = target.kinks
    ends = [-1.0, *((a + b) / 2 for a, b in pairwise(kinks)), 1.0]
    flat = [target.flat_below] + [False] * (2 * len(kinks) - 2) + [target.flat_above]
    counts = _counts(p - 1, [grading.flat_share if f else 1.0 for f in flat])
    points: list[Array] = []
    for i, count in enumerate(counts):
        kink, inside = kinks[i // 2], 0 < i < len(counts) - 1
        sign, reach = (-1.0, kink - ends[i // 2]) if i % 2 == 0 else (1.0, ends[i // 2 + 1] - kink)
        scales = np.geomspace(10.0**grading.inner, 1.0 if inside else OUTER, count + inside)[:count]
        points.append(np.stack([kink + sign * reach * scales, grading.alpha / (reach * scales)]))
    breakpoints, sharpness = np.concatenate(points, axis=1)
    order = np.argsort(breakpoints)
    return Chain(sharpness[order], breakpoints[order])


def _counts(total: int, shares: list[float]) -> list[int]:
    """`total` split in proportion to the shares, at least one each."""
    counts = [1] * len(shares)
    for _ in range(total - len(shares)):
        counts[max(range(len(shares)), key=lambda i: shares[i] / counts[i])] += 1
    return counts
