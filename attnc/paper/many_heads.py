"""No extra tokens: H heads over n tokens, n - 2 anchors each between two sentinels.

Let m = n - 2, N = mH >= 2, L_0 … L_{N-1} uniform on [a, b], Δ = (b - a)/(N - 1), L_{-1} = a - Δ, L_N = b + Δ, c = βΔ² >= 1/2.
Head h has the keys L_{hm-1} … L_{hm+m}; it owns those from L_{hm} to L_{hm+m-1}, with values v_k = L_k. The outer two are
sentinels with value 0, but for L_{-1} and L_N, which are owned, with values a and b. G is the sum of the heads.

Theorem. In exact arithmetic, for every real s,

    |G(s) - Range_[a,b](s)| <= C(c) Δ + max(|a|, |b|) ε(c),
    C(c) = 1/2 + Σ_{q>=0} Σ_{j>=1} ( (j + q) e^{-c(j² + 2jq)} + (j + q + 1/2) e^{-c(j² + 2jq + j)} ),
    ε(c) = Σ_{j>=1} ( 2 e^{-c(j² - j + 2)} + (1 + 2/(1 - e^{-2c})) e^{-c(j² + j)} )         = 5 e^{-2c} + …

Proof. Let e_k = exp(-β (s - L_k)²), Z_h the sum of e over the keys of head h, ω_k = e_k/Z_h for k owned by h, T = Σ ω_k. Then
|G - f| <= Σ ω_k |v_k - f| + |T - 1||f|, f = Range, |f| <= max(|a|, |b|), and |v_k - f(s)| <= |L_k - s|. Lengths in units of Δ.

*Σ ω_k |L_k - s|.* Let s lie between two neighbours, the nearest anchor at distance d <= 1/2. A head that owns one of them has
both as keys, so they have ω <= their weights in the softmax over the two alone, and give at most 1/2, as in
`anchors/nearest.py`. Another key at j behind the nearest has ω <= e^{-c(j² + 2jd)} if its head has the pair. If not, its head
has a sentinel at q + d, q >= 0, between it and s; j' behind that sentinel ω <= e^{-c(j'² + 2j'(q + d))}, at distance j' + q +
d. This times the distance falls in d and in q; the q of two heads differ by m >= 1. So all keys behind the nearest give at
most the first sum at d = 0 (if the first sentinel is at q >= 1, the keys before it give no more than the terms of q = 0).
Behind the next the same holds with 1 - d >= 1/2 for d: the second sum. If s lies beyond L_{-1} or L_N, f is the value there,
and only the first sum remains.

*|T - 1|.* Let h own the nearest anchor, r its first anchor and l the one before, owned by h - 1 (if h > 0), s = r + ρ, ρ >=
-1/2. Then T - 1 = -(e_l + …)/Z_h + Σ_{h' != h} ω, and the part on the left is O/Z_{h-1} - e_l/Z_h and the heads before h - 1.
With ε_1 = Σ_j e^{-c(j² + j)}, the keys of h - 1 behind l weigh at most ε_1 e_l, and e_l <= e_r: O/Z_{h-1} is within ε_1/2 of
e_l/(e_l + e_r). From this e_l/Z_h differs by e_l R/((e_l + e_r) Z_h), R the keys of h beyond r. If ρ >= 1/2, this is at most
e_l/e_r <= e^{-2c}; otherwise at most e_l R/e_r² <= Σ_j e^{-c(1 + 2ρ) - c(j² - 2jρ)} <= Σ_j e^{-c(j² - j + 2)}. The right
sentinel of head h - 1 - g is at a distance of at least gm - 1/2 from s: these heads give at most Σ_g Σ_j e^{-c(j² + j + 2j(g -
1))} <= ε_1/(1 - e^{-2c}). On the right the same again. ∎

Without a sharpness of the user's, c is 6, or as much as makes the leak max(|a|, |b|) ε(c) at most Δ/50."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from attnc.domain import Box
from attnc.errors import InputError
from attnc.heads.chain import lattice
from attnc.heads.designs import many
from attnc.heads.draft import finish
from attnc.heads.draft import one_head as one_head_draft
from attnc.heads.plan import HeadCandidate, measure
from attnc.heads.target import Plan, Progress, Target, target_of
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.paper.assemble import assembled, checked_sharpness, proved_head, truncated, whole_number
from attnc.prove.stretches import by_stretches
from attnc.records.presentation import Theorem

SHARPNESS = 6.0
LEAK = 1 / 50  # of Δ
MOST_HEADS = 4096


def many_heads(
    W: Any,
    t: Any,
    a: float,
    b: float,
    *,
    heads: int,
    domain: Box | tuple[float, float] = (-5.0, 5.0),
    sharpness: float | None = None,
    dtype: torch.dtype = torch.float64,
    progress: Progress | None = None,
) -> Network:
    """H = `heads` heads over n tokens and no others: token i gets Range_[a,b](<w_i, x_i> + t_i), within O((b - a)/(nH)).

    W is (n, d), t is (n,), n >= 3; the network maps X of shape (…, n, d) to (…, n, 1). Every head has n keys, one for each token:
    n - 2 anchors and two sentinels. `domain` is where the proof holds: a box of shape (n, d), or (lo, hi) for every coordinate of
    X. `sharpness` is c = βΔ². `net.theorem.bound` is the theorem's, `net.certificate.bound` the one proved of the numbers as
    they run.

    >>> import attnc.paper, torch
    >>> W, t = torch.eye(4, 2), torch.zeros(4)
    >>> net = attnc.paper.many_heads(W, t, -1, 1, heads=3, domain=(-2, 2))
    >>> net.layers[0].groups[0][1].key.shape
    torch.Size([3, 4, 2])
    >>> net.certificate.bound <= net.theorem.bound <= 0.53 * 2 / (2 * 3 - 1)
    True
    """
    given = truncated(W, t, a, b, domain, dtype)
    n = given.tokens
    if n < 3:
        raise InputError(
            f"W has {n} rows, so each head has {n} keys: two of them are sentinels, so at least 3 tokens are needed; use "
            "attnc.paper.one_head, whose anchors are extra tokens"
        )
    count = whole_number("heads", heads, 1, MOST_HEADS, "n - 2 anchors each")
    anchors = (n - 2) * count
    if anchors < 2:
        raise InputError("3 tokens and heads=1 have a single anchor: give heads=2 or more, or more tokens")
    c = _sharpness(given.a, given.b, anchors) if sharpness is None else checked_sharpness(sharpness)
    program = given.program([0] * n, 1)
    plan = given.plan(given.interval(program), count, progress)
    net = assembled(given, program, _head(plan, given.a, given.b, n, c), progress)
    net.form, net.theorem = "many-heads", theorem(given.a, given.b, n, count, c)
    return net


def theorem(a: float, b: float, n: int, heads: int, sharpness: float) -> Theorem:
    """C(c) (b - a)/((n - 2)H - 1) + max(|a|, |b|) ε(c), rounded up.

    >>> round(theorem(-25, 25, 10, 64, 6.0).bound / (50 / 511), 3)
    0.51
    """
    step, most = (b - a) / ((n - 2) * heads - 1), max(abs(a), abs(b))
    constant, leak = spread(sharpness), leaking(sharpness)
    bound = math.nextafter((constant * step + most * leak) * (1 + 2.0**-48), math.inf)
    return Theorem(
        "many heads, no extra tokens",
        f"in exact arithmetic |Attn(X)_i - Range_[{a:g},{b:g}](<w_i, x_i> + t_i)| <= C (b - a)/((n - 2)H - 1) + max(|a|, |b|) ε "
        f"for every X, with n = {n} tokens, H = {heads} heads, c = {sharpness:.4g}, C = {constant:.4g} and ε = {leak:.3g}, "
        "5 exp(-2c) to first order",
        bound,
    )


def spread(c: float) -> float:
    """C(c) of the theorem, rounded up.

    >>> 0.5 < spread(6.0) < 0.503
    True
    """
    terms = [
        (j + q) * math.exp(-c * (j * j + 2 * j * q)) + (j + q + 0.5) * math.exp(-c * (j * j + 2 * j * q + j))
        for q in range(80)
        for j in range(1, 40)
    ]
    return (0.5 + math.fsum(terms)) * (1 + 1e-12)


def leaking(c: float) -> float:
    """ε(c) of the theorem, rounded up.

    >>> leaking(6.0) < 5.001 * math.exp(-12.0)
    True
    """
    factor = 1 + 2 / (1 - math.exp(-2 * c))
    terms = [2 * math.exp(-c * (j * j - j + 2)) + factor * math.exp(-c * (j * j + j)) for j in range(1, 60)]
    return math.fsum(terms) * (1 + 1e-12)


def _sharpness(a: float, b: float, anchors: int) -> float:
    """6, or what makes max(|a|, |b|) ε(c) <= Δ/50; from c = 6 on, ε(c) < 5.001 e^{-2c}."""
    step, most = (b - a) / (anchors - 1), max(abs(a), abs(b))
    return max(SHARPNESS, math.log(5.001 * most / (LEAK * step)) / 2)


def _head(plan: Plan, a: float, b: float, n: int, c: float) -> Head:
    """H(n - 2) uniform anchors on [a, b] with values L_k, split over the heads, proved."""
    anchors = plan.heads * (n - 2)
    target = target_of(plan, 0.0).denser(6 * n * plan.heads)
    first, last = ((end - plan.domain.middle) / target.half for end in (a, b))

    def whole(_: Target, count: int) -> Any:
        values = np.array([a + (b - a) * (k / (count - 1)) for k in range(count - 1)] + [b])
        return one_head_draft("nearest", lattice(first, last, count, c), values, target, refit=False)

    finished = finish(many(target, n, plan.heads, whole), target)
    measured, at = measure(plan, finished.numbers)
    plan.progress(f"proving {plan.heads} heads of {n} keys")
    ends = [a + (b - a) * ((h * (n - 2) - 0.5) / (anchors - 1)) for h in range(1, plan.heads)]
    proof = by_stretches(
        finished.numbers, plan.f, plan.domain, ends, seen=min(measured, finished.approximation)
    )
    return proved_head(
        plan, HeadCandidate("nearest", finished.numbers, proof, measured, at, finished.rounding)
    )
