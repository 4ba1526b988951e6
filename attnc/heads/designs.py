"""The designs: nearest, smooth, graded, gated, several heads; and all candidates of a given size for a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from attnc.errors import InputError
from attnc.heads import patience
from attnc.heads.chain import Chain, lattice, overhanging, softmax_weights
from attnc.heads.draft import (
    Draft,
    Finished,
    columns,
    finish,
    forward,
    one_head,
    padded,
    reweighted,
    rounding_estimate,
    solve_values,
)  # fmt: skip
from attnc.heads.lattice import RELU_GAP, STEEPEST, self_gate
from attnc.heads.target import Plan, Target, evaluate, target_of
from attnc.heads.tuned import grow, tune, tuned
from attnc.records.numbers import Array

DESIGNS = ("auto", "nearest", "smooth", "graded", "gated", "tuned")
SHARPNESS = 4.0  # of nearest
SHARPNESSES = (2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.13, 0.1, 0.07)  # of smooth
BEYOND = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0)  # anchors beyond each end
ALPHAS = (0.25, 0.35, 0.5)  # of graded
FLAT_SHARES = (1.0, 0.45, 0.2)  # breakpoints on a side where f is constant, relative to the other sides
OUTER = 2.0  # the outermost breakpoint, relative to the side's length
TUNED_LARGEST = 32


def nearest(target: Target, p: int) -> Draft:
    """The paper's head: softmax picks the nearest of p uniform anchors over the part of the interval where f is not constant."""
    first = target.kinks[0] if target.flat_below else -1.0
    last = target.kinks[-1] if target.flat_above else 1.0
    if not first < last:
        first, last = -1.0, 1.0
    step = (last - first) / (p - 1)
    anchors = np.array([first + step * k for k in range(p - 1)] + [last])
    values = evaluate(target.f, target.to_s(anchors))
    return one_head(
        "nearest", lattice(first, last, p, SHARPNESS), values, np.ones_like(target.x), refit=False
    )


def nearest_constant(sharpness: float = SHARPNESS) -> float:
    """C(c), rounded up, of |g - f| <= K Δ C(c) for nearest anchors at distance Δ with c = bΔ² >= 1/2 (proof: docs/heads.md).

    C(c) = 1/2 + Σ_{j>=1} ( j e^{-c j²} + (j + 1/2)/2 · e^{-c j(j+1)} )"""
    if not sharpness >= 0.5:
        raise ValueError("the theorem needs c >= 1/2")
    terms = [
        j * math.exp(-sharpness * j * j) + (j + 0.5) / 2 * math.exp(-sharpness * j * (j + 1))
        for j in range(1, 60)
    ]
    return (0.5 + math.fsum(terms)) * (1 + 1e-12)


def smooth(target: Target, p: int) -> Draft:
    """A lattice whose weights overlap, values by least squares: the error for smooth f decreases exponentially in p.

    The weights are a sampled Gaussian of width σ = 1/sqrt(2b); by Poisson summation their mean is x up to exp(-2π²σ²/Δ²)."""
    stride = 1 if p <= 64 else 2
    best, least = lattice(-1.0, 1.0, p, 1.0), np.inf
    for beyond in BEYOND[::stride]:
        for sharpness in SHARPNESSES[::stride] if 2 * beyond < p - 1 else ():
            chain = overhanging(p, sharpness, beyond)
            error = _error(target, chain)
            if error < least:
                best, least = chain, error
    return _lowered("smooth", best, target, rounds=12)


class Grading(NamedTuple):
    """The free choices: log10 of the inner scale h, the sharpness α, the share of flat sides."""

    inner: float
    alpha: float
    flat_share: float


def graded(target: Target, p: int) -> Draft:
    """Distances of breakpoints from a kink grow geometrically, and sharpness is inverse to the distance.

    Breakpoints kink ± h r^m, sharpness λ = α/|t - kink|: the head is self-similar, like rational approximations of |x|, and
    its error decreases like exp(-k sqrt(p)). A coarse search over the inner scale h, then a finer one around the best."""
    if not target.kinks:
        where = f"{target.f.label} has none in ({target.domain.lo:g}, {target.domain.hi:g})"
        raise InputError(f"design 'graded' needs a kink: {where}; use design='smooth' or 'auto'")
    shares = FLAT_SHARES if target.flat_below or target.flat_above else FLAT_SHARES[:1]
    tried = [
        Grading(-inner, alpha, share) for inner in range(1, 9) for alpha in ALPHAS[1:] for share in shares
    ]
    tried.sort(key=lambda grading: _error(target, _graded_chain(target, p, grading)))
    best_of_each = {grading.inner: grading for grading in reversed(tried)}  # sharp switches round in float32
    promising = tried[:1] if target.dtype == "float64" else list(best_of_each.values())
    best = min(promising, key=lambda grading: _grading_estimate(target, p, grading))
    for step in (0.5, 0.25, 0.12):
        near = [best._replace(inner=best.inner + move) for move in (-step, step)]
        near += [best._replace(alpha=alpha) for alpha in ALPHAS]
        best = min([best, *near], key=lambda grading: _grading_estimate(target, p, grading))
    return _lowered("graded", _graded_chain(target, p, best), target, rounds=20)


def around_bend(target: Target, p: int) -> list[Chain]:
    """Graded chains around the point where a smooth f bends most: where to start tuning when the bend is narrow."""
    if p < 3:
        return []
    slope = np.diff(target.y) / np.diff(target.x)
    bend = np.abs(np.diff(slope)) / (target.x[2:] - target.x[:-2])
    centre = float(np.clip(target.x[1 + int(np.argmax(bend))], -0.9, 0.9))
    bent = replace(target, kinks=(centre,), flat_below=False, flat_above=False)
    return [_graded_chain(bent, p, Grading(inner, 1.0, 1.0)) for inner in (-1.0, -2.0)]


def _grading_estimate(target: Target, p: int, grading: Grading) -> float:
    """The error that sampling suggests; in float32 with the rounding of the finished head."""
    chain = _graded_chain(target, p, grading)
    if target.dtype == "float64":
        return _error(target, chain)
    patience.check(len(target.x), p)
    values = solve_values(softmax_weights(chain.keys(), target.x), target.y, target.ridge)
    return finish(one_head("graded", chain, values, np.ones_like(target.x)), target).estimate


def _graded_chain(target: Target, p: int, grading: Grading) -> Chain:
    """p - 1 breakpoints, at least one on each side of every kink; a side extends to the end or half-way to the next kink."""
    kinks, shares = target.kinks, [1.0] * (2 * len(target.kinks))
    shares[0] = grading.flat_share if target.flat_below else 1.0
    shares[-1] = grading.flat_share if target.flat_above else 1.0
    ends = [-1.0, *((a + b) / 2 for a, b in pairwise(kinks)), 1.0]
    counts = [1] * len(shares)
    for _ in range(p - 1 - len(shares)):
        counts[max(range(len(shares)), key=lambda i: shares[i] / counts[i])] += 1
    points: list[Array] = []
    for i, count in enumerate(counts):
        kink, inside = kinks[i // 2], 0 < i < len(counts) - 1
        sign, reach = (-1.0, kink - ends[i // 2]) if i % 2 == 0 else (1.0, ends[i // 2 + 1] - kink)
        scales = np.geomspace(10.0**grading.inner, 1.0 if inside else OUTER, count + inside)[:count]
        points.append(np.stack([kink + sign * reach * scales, grading.alpha / (reach * scales)]))
    breakpoints, sharpness = np.concatenate(points, axis=1)
    order = np.argsort(breakpoints)
    return Chain(sharpness[order], breakpoints[order])


def _error(target: Target, chain: Chain) -> float:
    """The largest error of least-squares values at the sample points, and about their rounding."""
    patience.check(len(target.x), chain.size)
    matrix = softmax_weights(chain.keys(), target.x)
    values = solve_values(matrix, target.y, target.ridge)
    return float(np.abs(matrix @ values - target.y).max() + 4 * target.ridge * np.abs(values).max())


def _lowered(design: str, chain: Chain, target: Target, rounds: int) -> Draft:
    """The chain with values that lower the largest error."""
    values, emphasis = reweighted(softmax_weights(chain.keys(), target.x), target.y, target.ridge, rounds)
    return one_head(design, chain, values, emphasis)


def gated(target: Target, p: int, enough: float = 0.0) -> Draft:
    """The best tuned head in which one key belongs to the token itself, with a multiple of s as its value.

    {anchor: 0, itself: B s} gives s·sigmoid(Bs): SiLU exactly at B = 1, ReLU up to 0.28/B as B grows.
    {anchor a: -B(s - a), itself: 0, anchor b: B(s - b)} gives Range_[a,b] up to 0.28/B at each kink."""
    starts = [lattice(-1.0, 1.0, p, 1.0), lattice(-1.0, 1.0, p, 0.3)]
    if len(target.kinks) == p - 1:
        starts = [Chain(np.full(p - 1, sharp), np.array(target.kinks)) for sharp in (1e4, 1e2)] + starts
    drafts: list[tuple[float, Draft]] = []
    for place in dict.fromkeys((p // 2, p - 1, 0)):
        draft = tune(target, starts, np.arange(p) == place, "gated", enough)
        drafts.append((finish(draft, target).estimate, draft))
        if drafts[-1][0] <= enough:
            break
    return min(drafts, key=lambda pair: pair[0])[1]


def many(target: Target, p: int, heads: int, design: Callable[[Target, int], Draft]) -> Draft:
    """One head of heads·(p - 2) anchors as several heads, each with a run of p - 2 anchors between two sentinels.

    Sentinels have the value 0, the outermost two the end values: at a boundary the weights of two neighbours add up to 1. With
    soft switches the values of the sentinels are solved for too. Scores around a head's own centre are small, which makes
    float32 accurate."""
    whole = design(target, heads * (p - 2))
    assert whole.chain is not None
    keys = np.stack([run.keys() for run in split(whole.chain, heads, p)])
    own = np.zeros((heads, p), dtype=bool)
    if not whole.refit:
        values = np.zeros((heads, p))
        values[:, 1:-1] = whole.values.reshape(heads, p - 2)
        values[0, 0], values[-1, -1] = values[0, 1], values[-1, -2]
        return Draft(whole.design, keys, values, own, whole.emphasis, refit=False)
    matrix = columns(keys, own, target.x, target.to_s(target.x))
    solved, emphasis = reweighted(matrix, target.y, target.ridge, rounds=12)
    return Draft(whole.design, keys, solved.reshape(heads, p), own, emphasis)


def split(chain: Chain, heads: int, p: int) -> list[Chain]:
    """Runs of p - 2 keys with the neighbouring keys as sentinels; the chain is mirrored beyond its ends."""
    inner, lam = chain.breakpoints, np.pad(chain.sharpness, 1, mode="edge")
    before = inner[0] - (inner[1] - inner[0] if len(inner) > 1 else 1.0)
    after = inner[-1] + (inner[-1] - inner[-2] if len(inner) > 1 else 1.0)
    t: Array = np.concatenate([[before], inner, [after]])
    runs = [slice(h * (p - 2), h * (p - 2) + p - 1) for h in range(heads)]
    return [Chain(lam[run], t[run]) for run in runs]


def candidates_of(
    plan: Plan, target: Target, p: int, eps: float, smaller: Chain | None = None
) -> list[tuple[Finished, Chain | None]]:
    """The designs of p anchors that apply, with estimates of their errors; and the chains of tuned heads."""
    target = target.denser(6 * p * plan.heads)
    gate = _exact_gate(plan, target, eps) if plan.design == "gated" and p == 2 else None
    if gate is not None:
        return [(gate, None)]
    drafts = _drafts(plan, target, p, 0.9 * eps, smaller)
    return [(finish(draft, target), draft.chain if draft.design == "tuned" else None) for draft in drafts]


def _exact_gate(plan: Plan, target: Target, eps: float) -> Finished | None:
    """The gate of two keys that computes f, or relu up to eps/2, if f has one: see `lattice.self_gate`. Far from the kink it
    returns s itself in every library, because one weight is exactly 1."""
    numbers = self_gate(plan.f, max(eps / 2, RELU_GAP / STEEPEST), plan.dtype)
    if numbers is None:
        return None
    s = target.to_s(target.x)
    parts = (numbers.query[0], numbers.key[0], numbers.value[0], s, target.arithmetic)
    approximation = float(np.abs(forward(numbers, s) - target.y).max())
    return Finished("gated", numbers, approximation, float(rounding_estimate(*parts).max()))


def best_candidates(plan: Plan, p: int) -> Iterator[Finished]:
    """Designs of p anchors, and of fewer anchors that are repeated: tuning may find a worse head with more keys."""
    target = target_of(plan, 0.0)
    yield from (finished for finished, _ in candidates_of(plan, target, p, 0.0))
    if plan.heads == 1 and plan.design in ("auto", "tuned"):
        for fewer in (q for q in (2, 3, 4, 6, 8, 12) if q < p):
            draft = tuned(target, fewer, extra=around_bend(target, fewer) if not target.kinks else ())
            yield finish(padded(draft, p), target)
    if plan.heads == 1 and plan.design == "auto":
        yield finish(nearest(target, p), target)


def _drafts(plan: Plan, target: Target, p: int, enough: float, smaller: Chain | None) -> Iterator[Draft]:
    """The design that was asked for. "tuned" starts from a fixed placement too, which is another candidate of "auto"."""
    fixed = {"nearest": nearest, "smooth": smooth, "graded": graded}
    place = fixed.get(plan.design, graded if target.kinks else smooth)
    anchors = p if plan.heads == 1 else plan.heads * (p - 2)
    fits = anchors >= (1 + 2 * len(target.kinks) if place is graded else 2)
    if plan.heads == 1 and plan.design == "gated":
        yield gated(target, p, enough)
    elif plan.heads > 1 or plan.design in fixed:
        if fits:
            yield place(target, p) if plan.heads == 1 else many(target, p, plan.heads, place)
    else:
        starts = [grow(smaller, target, p)] if smaller is not None else []
        if not target.kinks:
            starts += around_bend(target, p)
        if fits:
            placed = place(target, p)
            assert placed.chain is not None
            starts.append(placed.chain)
            if plan.design == "auto":
                yield placed
        if p <= TUNED_LARGEST:
            yield tuned(target, p, enough, starts)
