"""n tokens, n different truncated linear functions, by one head or by H heads over the n tokens alone.

The theorems hold in exact arithmetic for every real s, with c = βΔ² >= 1/2; docs/theorems.md has them and the proofs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from attnc.arguments import check_arithmetic, check_box, checked_count, checked_dtype, checked_nonnegative
from attnc.domain import Box, Interval, real_numbers
from attnc.errors import ConvergenceError, InputError
from attnc.functions import Function, clip
from attnc.heads.chain import lattice
from attnc.heads.designs import SHARPNESS, many, nearest_constant
from attnc.heads.draft import Draft, finish
from attnc.heads.draft import one_head as one_head_draft
from attnc.heads.plan import HeadCandidate, conclude, measure
from attnc.heads.target import Plan, Target, target_of
from attnc.lower.function_to_head import finished_head
from attnc.lower.layers import lower_steps
from attnc.lower.pointwise import HeadGroup, head_errors
from attnc.lower.program_to_network import certified, with_room
from attnc.lower.request import Lowered, Request
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.program import Affine, Pointwise, Program, Reshape
from attnc.progress import Progress, resolve_progress, silent, watched
from attnc.prove.compose import compose
from attnc.prove.supnorm import by_stretches
from attnc.records.presentation import Theorem

MOST_ANCHORS, MOST_HEADS, MOST_OUTPUTS = 8192, 4096, 4096
LEAST_SHARPNESS, LARGEST_SHARPNESS = 0.5, 2.0**20
MANY_SHARPNESS, LEAK = 6.0, 1 / 50  # the least default c of many heads; the default leak in units of Δ


@watched("one head")
def one_head(
    W: Any,
    t: Any,
    a: float,
    b: float,
    *,
    anchors: int,
    domain: Box | tuple[float, float] = (-5.0, 5.0),
    coordinates: Sequence[int] | None = None,
    outputs: int | None = None,
    sharpness: float = SHARPNESS,
    dtype: torch.dtype | str = torch.float64,
    progress: Progress | bool | None = None,
) -> Network:
    """One head over p = `anchors` anchors: token i gets Range_[a,b](<w_i, x_i> + t_i), within C (b - a)/(p - 1).

    W is (n, d), t is (n,); the network maps X of shape (…, n, d) to (…, n, outputs). Token i writes to coordinate
    `coordinates[i]` of its output, the others are 0; the default is one coordinate. `domain` is where the proof holds: a box of
    shape (n, d), or (lo, hi) for every coordinate of X. `sharpness` is c = βΔ²: the larger, the harder softmax picks the nearest
    anchor. `net.theorem.bound` is the theorem's, `net.certificate.bound` is proved for the executed numbers.

    >>> import attnc.paper, torch
    >>> W, t = torch.tensor([[1.0, -1.0], [0.5, 2.0]]), torch.tensor([0.0, 1.0])
    >>> net = attnc.paper.one_head(W, t, -2, 2, anchors=9, domain=(-1, 1))
    >>> x = torch.tensor([[0.75, -0.25], [1.0, 1.0]], dtype=torch.float64)
    >>> net(x).shape, (net(x)[:, 0] - torch.tensor([1.0, 2.0])).abs().max().item() <= net.certificate.bound
    (torch.Size([2, 1]), True)
    >>> net.certificate.bound <= net.theorem.bound <= 0.52 * 4 / (9 - 1)
    True
    """
    given = truncated(W, t, a, b, domain, dtype, coordinates, outputs)
    p, c = checked_count("anchors", anchors, 2, MOST_ANCHORS), _checked_sharpness(sharpness)
    plan = given.plan(1, progress)
    target = target_of(plan, 0.0).denser(6 * p)
    plan.progress(f"proving {p} anchors")
    found = conclude(plan, finish(given.uniform(plan, target, p, c), target), math.inf)
    net = assembled(given, _proved(plan, found), plan.progress)
    net.form, net.theorem = "one-head", one_head_theorem(given.a, given.b, p, c)
    return net


@watched("many heads")
def many_heads(
    W: Any,
    t: Any,
    a: float,
    b: float,
    *,
    heads: int,
    domain: Box | tuple[float, float] = (-5.0, 5.0),
    sharpness: float | None = None,
    dtype: torch.dtype | str = torch.float64,
    progress: Progress | bool | None = None,
) -> Network:
    """H = `heads` heads over n tokens and no others: token i gets Range_[a,b](<w_i, x_i> + t_i), within O((b - a)/(nH)).

    The arguments are those of `one_head`, with n >= 3, and the network maps X of shape (…, n, d) to (…, n, 1). Every head has n
    keys, one for each token: n - 2 anchors and two sentinels. The default `sharpness` is c = 6, or larger where the leak
    max(|a|, |b|) ε(c) would exceed Δ/50.

    >>> import attnc.paper, torch
    >>> W, t = torch.eye(4, 2), torch.zeros(4)
    >>> net = attnc.paper.many_heads(W, t, -1, 1, heads=3, domain=(-2, 2))
    >>> net.layers[0].groups[0][1].key.shape
    torch.Size([3, 4, 2])
    >>> net.certificate.bound <= net.theorem.bound <= 0.53 * 2 / (2 * 3 - 1)
    True
    """
    given = truncated(W, t, a, b, domain, dtype)
    a, b, n, count = given.a, given.b, given.program.shape[0], checked_count("heads", heads, 1, MOST_HEADS)
    anchors = (n - 2) * count
    if n < 3 or anchors < 2:
        what = f"{n} tokens and heads={count} have {max(anchors, 0)} anchors, as two keys of a head are sentinels"
        raise InputError(f"{what}: give at least 3 tokens and 2 anchors, or use attnc.paper.one_head")
    if sharpness is None:  # from c = 6 on, ε(c) < 5.001 e^{-2c}
        leak = LEAK * ((b - a) / (anchors - 1))
        sharpness = max(MANY_SHARPNESS, math.log(5.001 * max(abs(a), abs(b)) / leak) / 2)
    c = _checked_sharpness(sharpness)
    plan = given.plan(count, progress)
    target = target_of(plan, 0.0).denser(6 * n * count)
    finished = finish(many(target, n, count, lambda _, size: given.uniform(plan, target, size, c)), target)
    measured, at = measure(plan, finished.numbers)
    plan.progress(f"proving {count} heads of {n} keys")
    ends = [a + (b - a) * ((h * (n - 2) - 0.5) / (anchors - 1)) for h in range(1, count)]
    seen = min(measured, finished.approximation)
    proof = by_stretches(finished.numbers, plan.f, plan.domain, ends, seen=seen)
    found = HeadCandidate("nearest", finished.numbers, proof, measured, at, finished.rounding)
    net = assembled(given, _proved(plan, found), plan.progress)
    net.form, net.theorem = "many-heads", many_heads_theorem(a, b, n, count, c)
    return net


def one_head_theorem(a: float, b: float, p: int, sharpness: float = SHARPNESS) -> Theorem:
    """C(c) (b - a)/(p - 1), rounded up."""
    constant = nearest_constant(sharpness)
    bound = math.nextafter(constant * ((b - a) / (p - 1)) * (1 + 2.0**-50), math.inf)
    return Theorem(
        "one head, n truncated linear functions",
        f"in exact arithmetic |Attn(X)_i - Range_[{a:g},{b:g}](<w_i, x_i> + t_i)| <= C (b - a)/(p - 1) for every X, with p = {p} "
        f"anchors, c = {sharpness:g} and C = 1/2 + Σ_{{j>=1}} (j exp(-c j²) + (j + 1/2)/2 exp(-c j(j+1))) = {constant:.4g}",
        bound,
    )


def many_heads_theorem(a: float, b: float, n: int, heads: int, sharpness: float) -> Theorem:
    """C(c) (b - a)/((n - 2)H - 1) + max(|a|, |b|) ε(c), rounded up, with

    C(c) = 1/2 + Σ_{q>=0} Σ_{j>=1} ( (j + q) e^{-c(j² + 2jq)} + (j + q + 1/2) e^{-c(j² + 2jq + j)} )."""
    c, step, most = sharpness, (b - a) / ((n - 2) * heads - 1), max(abs(a), abs(b))
    terms = [
        (j + q) * math.exp(-c * (j * j + 2 * j * q)) + (j + q + 0.5) * math.exp(-c * (j * j + 2 * j * q + j))
        for q, j in itertools.product(range(80), range(1, 40))
    ]
    constant, leak = (0.5 + math.fsum(terms)) * (1 + 1e-12), leaking(c)
    bound = math.nextafter((constant * step + most * leak) * (1 + 2.0**-48), math.inf)
    return Theorem(
        "many heads, no extra tokens",
        f"in exact arithmetic |Attn(X)_i - Range_[{a:g},{b:g}](<w_i, x_i> + t_i)| <= C (b - a)/((n - 2)H - 1) + max(|a|, |b|) ε "
        f"for every X, with n = {n} tokens, H = {heads} heads, c = {sharpness:.4g}, C = {constant:.4g} and ε = {leak:.3g}, "
        "5 exp(-2c) to first order",
        bound,
    )


def leaking(c: float) -> float:
    """ε(c) = Σ_{j>=1} ( 2 e^{-c(j² - j + 2)} + (1 + 2/(1 - e^{-2c})) e^{-c(j² + j)} ), rounded up."""
    factor = 1 + 2 / (1 - math.exp(-2 * c))
    terms = [2 * math.exp(-c * (j * j - j + 2)) + factor * math.exp(-c * (j * j + j)) for j in range(1, 60)]
    return math.fsum(terms) * (1 + 1e-12)


@dataclass(frozen=True, eq=False)
class Truncated:
    """X ↦ Y of shape (n, outputs), Y[i, coordinates[i]] = Range_[a,b](<w_i, x_i> + t_i) and 0 elsewhere, for every X in a box."""

    a: float
    b: float
    function: Function
    program: Program
    box: Box
    dtype: str

    @cached_property
    def interval(self) -> Interval:
        """An interval that contains [a, b] and every executed s_i = <w_i, x_i> + t_i of the box."""
        stages = lower_steps(self.program, self.dtype)
        lo, hi = compose(self.program, stages[:2], self.box, {}, self.dtype)[2].reach
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            advice = "give a smaller domain or smaller W and t"
            raise InputError(f"<w, x> + t may overflow in {self.dtype} on {self.box}: {advice}")
        return with_room(min(float(lo.min()), self.a), max(float(hi.max()), self.b))

    def plan(self, heads: int, progress: Progress | bool | None) -> Plan:
        return Plan(self.function, self.interval, self.dtype, "nearest", heads, resolve_progress(progress))

    def uniform(self, plan: Plan, target: Target, count: int, c: float) -> Draft:
        """A draft of `count` uniform anchors L_k on [a, b] with values L_k."""
        a, b = self.a, self.b
        first, last = ((end - plan.domain.middle) / target.half for end in (a, b))
        values = np.array([a + (b - a) * (k / (count - 1)) for k in range(count - 1)] + [b])
        even = np.ones_like(target.x)
        return one_head_draft("nearest", lattice(first, last, count, c), values, even, refit=False)


def truncated(
    W: Any, t: Any, a: Any, b: Any, domain: Any, dtype: object, coordinates: Any = None, outputs: Any = None
) -> Truncated:
    """The arguments of both theorems, checked. On vec(X) the n linear functions are one matrix with w_i along its diagonal."""
    name = checked_dtype(dtype)
    w, shift, *ends = (real_numbers(x, what) for x, what in ((W, "W"), (t, "t"), (a, "a"), (b, "b")))
    if w.ndim != 2 or 0 in w.shape or shift.shape != w.shape[:1]:
        raise InputError(f"W has the shape {w.shape} and t {shift.shape}: give the shapes (n, d) and (n,)")
    if any(end.ndim for end in ends) or not float(ends[0]) < float(ends[1]):
        raise InputError(f"a={a!r}, b={b!r}: give two numbers a < b")
    box = box_of(domain, w.shape)
    check_box(box, name)
    check_arithmetic(name, network=True)
    low, high, (n, d), each = float(ends[0]), float(ends[1]), w.shape, np.arange(len(w))
    places, wide = _placement(n, coordinates, outputs)
    every, function = np.zeros((n, n, d)), clip(low, high)
    every[each, each] = w
    steps = [Reshape(0, (n * d,)), Affine(1, every.reshape(n, n * d), shift), Pointwise(2, function)]
    if wide > 1:
        place = np.zeros((n, wide, n))
        place[each, places, each] = 1.0
        steps.append(Affine(3, place.reshape(n * wide, n)))
    program = Program((n, d), (*steps, Reshape(len(steps), (n, wide))))
    return Truncated(low, high, function, program, box, name)


def box_of(domain: Any, shape: tuple[int, ...]) -> Box:
    """A box of the shape; two numbers (lo, hi) stand for all coordinates."""
    if isinstance(domain, (tuple, list)) and len(domain) == 2:
        return Box(domain[0], domain[1], shape=shape)
    if not isinstance(domain, Box) or domain.shape != shape:
        raise InputError(f"domain={domain!r}: give (lo, hi), or an attnc.Box of the shape {shape}")
    return domain


def assembled(given: Truncated, head: Head, progress: Callable[[str], None] = silent) -> Network:
    """The network of the program with one head for all tokens, certified."""
    assert head.certificate.proved
    program, box, dtype, groups = given.program, given.box, given.dtype, [HeadGroup(None, head)]
    stages = lower_steps(program, dtype)
    (layer,) = (stage for stage in stages if stage.kind == "pointwise")
    entering = compose(program, stages[: stages.index(layer)], box, {}, dtype)[layer.input]
    known = compose(program, stages, box, {layer.value: head_errors(groups, given.function, entering)}, dtype)
    lowered = Lowered(stages, {layer.value: groups}, known)
    return certified(Request(program, box, math.inf, dtype, progress), lowered, strict=False)


def _proved(plan: Plan, found: HeadCandidate) -> Head:
    """The head with its certificate. Raises ConvergenceError if no finite bound is proved."""
    if not math.isfinite(found.bound):
        other = "" if plan.dtype == "float64" else " or dtype=torch.float64"
        what = f"no error bound could be proved for {plan.where}: rounding error in {plan.dtype} is too large"
        raise ConvergenceError(f"{what}. Use fewer anchors, a lower sharpness{other}.")
    return finished_head(plan, found, math.inf)


def _checked_sharpness(given: object) -> float:
    """c = βΔ², for which the theorems hold from 1/2 on."""
    c = checked_nonnegative("sharpness", given)
    if not LEAST_SHARPNESS <= c <= LARGEST_SHARPNESS:
        raise InputError(f"sharpness={given!r}: give c = βΔ² from {LEAST_SHARPNESS} to {LARGEST_SHARPNESS:g}")
    return c


def _placement(n: int, coordinates: Any, outputs: Any) -> tuple[list[int], int]:
    """The output coordinate of each token, and the number of output coordinates."""
    wide = None if outputs is None else checked_count("outputs", outputs, 1, MOST_OUTPUTS)
    if coordinates is None:
        return [0] * n, wide or 1
    given = coordinates.tolist() if hasattr(coordinates, "tolist") else coordinates
    if not isinstance(given, (list, tuple)) or len(given) != n:
        raise InputError(f"coordinates={coordinates!r}: give one output coordinate for each of {n} tokens")
    found = [checked_count("coordinates", k, 0, (wide or MOST_OUTPUTS) - 1) for k in given]
    return found, wide or 1 + max(found)
