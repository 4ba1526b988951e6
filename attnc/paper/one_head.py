"""One head, n tokens, n different truncated linear functions.

Theorem. Let L_0 … L_{p-1} be uniform on [a, b], Δ = (b - a)/(p - 1), weights ∝ exp(-β (s - L_k)²), c = βΔ² >= 1/2, v_k = L_k.
In exact arithmetic, for every real s,

    |g(s) - Range_[a,b](s)| <= C(c) Δ,     C(c) = 1/2 + Σ_{j>=1} ( j e^{-c j²} + (j + 1/2)/2 · e^{-c j(j+1)} ).

Proof. For a <= s <= b this is the theorem of `anchors/nearest.py` with f(s) = s. Below a, Range is a, and g - a = Σ w_k (L_k -
a) is not negative; g grows with s, since its derivative is 2β times the variance of L under the weights; so g(s) - a <= g(a) -
a <= C(c) Δ. Above b likewise. ∎

In the limit of a hard switch, c → ∞, C is 1/2: half of the distance of two anchors, which is then attained. The paper's bound
has the same form, of order (b - a)/p, and max(|a|, |b|) ε_0 for what leaks to other anchors; here the leak is in C, in units
of Δ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attnc.domain import Box
from attnc.errors import InputError
from attnc.heads.chain import lattice
from attnc.heads.designs import SHARPNESS, nearest_constant
from attnc.heads.draft import finish
from attnc.heads.draft import one_head as one_head_draft
from attnc.heads.plan import conclude
from attnc.heads.target import Plan, Progress, target_of
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.paper.assemble import (
    assembled,
    checked_sharpness,
    proved_head,
    truncated,
    whole_number,
)
from attnc.records.presentation import Theorem

MOST_ANCHORS = 8192


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
    dtype: torch.dtype = torch.float64,
    progress: Progress | None = None,
) -> Network:
    """One head over p = `anchors` anchors: token i gets Range_[a,b](<w_i, x_i> + t_i), within C (b - a)/(p - 1).

    W is (n, d), t is (n,); the network maps X of shape (…, n, d) to (…, n, outputs). Token i writes to coordinate
    `coordinates[i]` of its output, the others are 0; without them there is one coordinate. `domain` is where the proof holds: a
    box of shape (n, d), or (lo, hi) for every coordinate of X. `sharpness` is c = βΔ²: the larger, the harder softmax picks
    the nearest anchor. `net.theorem.bound` is the theorem's, `net.certificate.bound` the one proved of the numbers as they run.

    >>> import attnc.paper, torch
    >>> W, t = torch.tensor([[1.0, -1.0], [0.5, 2.0]]), torch.tensor([0.0, 1.0])
    >>> net = attnc.paper.one_head(W, t, -2, 2, anchors=9, domain=(-1, 1))
    >>> x = torch.tensor([[0.75, -0.25], [1.0, 1.0]], dtype=torch.float64)
    >>> net(x).shape, (net(x)[:, 0] - torch.tensor([1.0, 2.0])).abs().max().item() <= net.certificate.bound
    (torch.Size([2, 1]), True)
    >>> net.certificate.bound <= net.theorem.bound <= 0.52 * 4 / (9 - 1)
    True
    """
    given = truncated(W, t, a, b, domain, dtype)
    p = whole_number("anchors", anchors, 2, MOST_ANCHORS, "the two ends of [a, b] among them")
    c = checked_sharpness(sharpness)
    program = given.program(*_placement(given.tokens, coordinates, outputs))
    plan = given.plan(given.interval(program), 1, progress)
    net = assembled(given, program, _head(plan, given.a, given.b, p, c), progress)
    net.form, net.theorem = "one-head", theorem(given.a, given.b, p, c)
    return net


def theorem(a: float, b: float, p: int, sharpness: float = SHARPNESS) -> Theorem:
    """C(c) (b - a)/(p - 1), rounded up.

    >>> round(theorem(-25, 25, 51).bound, 4)
    0.5186
    """
    constant = nearest_constant(sharpness)
    bound = math.nextafter(constant * ((b - a) / (p - 1)) * (1 + 2.0**-50), math.inf)
    return Theorem(
        "one head, n truncated linear functions",
        f"in exact arithmetic |Attn(X)_i - Range_[{a:g},{b:g}](<w_i, x_i> + t_i)| <= C (b - a)/(p - 1) for every X, with p = {p} "
        f"anchors, c = {sharpness:g} and C = 1/2 + Σ_j (j exp(-c j²) + (j + 1/2)/2 exp(-c j(j+1))) = {constant:.4g}",
        bound,
    )


def _head(plan: Plan, a: float, b: float, p: int, c: float) -> Head:
    """p uniform anchors on [a, b] with values L_k, proved."""
    target = target_of(plan, 0.0).denser(6 * p)
    first, last = ((end - plan.domain.middle) / target.half for end in (a, b))
    values = np.array([a + (b - a) * (k / (p - 1)) for k in range(p - 1)] + [b])
    draft = one_head_draft("nearest", lattice(first, last, p, c), values, target, refit=False)
    plan.progress(f"proving {p} anchors")
    return proved_head(plan, conclude(plan, finish(draft, target), math.inf))


def _placement(n: int, coordinates: Any, outputs: Any) -> tuple[list[int], int]:
    """Which output coordinate each token writes to, and how many there are."""
    if coordinates is None:
        wide = (
            1
            if outputs is None
            else whole_number("outputs", outputs, 1, 4096, "the width of an output token")
        )
        return [0] * n, wide
    given = coordinates.tolist() if hasattr(coordinates, "tolist") else coordinates
    if not isinstance(given, (list, tuple)) or len(given) != n:
        raise InputError(
            f"coordinates={coordinates!r}: give one output coordinate for each of the {n} tokens"
        )
    if not all(isinstance(k, (int, np.integer)) and not isinstance(k, bool) and k >= 0 for k in given):
        raise InputError(f"coordinates={coordinates!r}: whole numbers from 0 on are accepted")
    found = [int(k) for k in given]
    wide = 1 + max(found) if outputs is None else outputs
    wide = whole_number("outputs", wide, 1, 4096, "the width of an output token")
    if max(found) >= wide:
        raise InputError(
            f"coordinates={coordinates!r} with outputs={wide}: numbers from 0 to {wide - 1} are accepted"
        )
    return found, wide
