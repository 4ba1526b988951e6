"""The heads of a norm in Coq: the relative error of a sum of two-key heads against a function of a quadratic form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from attnc.exporters.coq.formulas import rational
from attnc.exporters.coq.text import literal
from attnc.records.numbers import Array, QuadraticNumbers

DEGREE = 8
_POINTS = 200  # of a stretch, at which the error is sampled
_INVERSE = {0.5: "sqrt ({u})", 1.0: "({u})", math.inf: "exp ({u})"}  # 1/f(u), by power


@dataclass(frozen=True)
class NormClaim:
    """What a file states: |R(q)/f(u) - 1| <= eps for u = q/dim + offset and every q = |z|² up to radius², in exact arithmetic."""

    numbers: QuadraticNumbers
    radius: float
    eps: float
    native: bool = True

    @property
    def most(self) -> float:
        """About radius²."""
        return self.radius * self.radius

    @property
    def inverse(self) -> str:
        """1/f as a function of q."""
        n = self.numbers
        return _INVERSE[n.power].format(u=f"q / {n.dim} + {rational(n.offset)}")


@dataclass(frozen=True)
class Octave:
    """A stretch of q on which u doubles at most, the heads that are kept, and what they may err by."""

    lo: float
    hi: float
    kept: tuple[int, ...]
    gap: int
    largest: float  # at least 1/f
    allowed: float


def octaves(claim: NormClaim) -> list[Octave]:
    """[0, most], cut where u doubles."""
    n = claim.numbers
    edges, u = [0.0], 2 * n.offset
    while (q := (u - n.offset) * n.dim) < 0.9 * claim.most:
        edges.append(float(np.float32(q)))
        u *= 2
    return [_octave(claim, a, b) for a, b in pairwise([*edges, claim.most])]


def _octave(claim: NormClaim, a: float, b: float) -> Octave:
    n = claim.numbers
    largest = float(_inverse(n, np.array([b]))[0]) * 1.001
    error = float(np.abs(_inverse(n, q := np.linspace(a, b, _POINTS)) * _sum(n, q) - 1).max())
    margin = max(claim.eps - error, 1e-3 * claim.eps)
    gap = math.ceil(math.log(max(1.0, largest * float(n.value.sum()) * 16 / margin))) + 1
    above = n.slope * a - n.intercept >= gap * (1 + 1e-9)
    kept = tuple(np.flatnonzero(~above).tolist())
    return Octave(a, b, kept, gap, largest, claim.eps - margin / 8 if len(kept) < len(n) else claim.eps)


def _inverse(n: QuadraticNumbers, q: Array) -> Array:
    u = q / n.dim + n.offset
    return np.exp(u) if n.power == math.inf else np.asarray(u**n.power)


def _sum(n: QuadraticNumbers, q: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray((1 / (1 + np.exp(np.multiply.outer(q, n.slope) - n.intercept))) @ n.value)


def norm_text(claim: NormClaim, header: Sequence[str]) -> str:
    """The whole file."""
    n, found = claim.numbers, octaves(claim)
    rows = zip(n.slope.tolist(), n.intercept.tolist(), n.value.tolist(), strict=True)
    pairs = ";\n   ".join(f"Pair {' '.join(map(literal, row))}" for row in rows)
    sections = [
        "(* " + "\n   ".join(header) + " *)\n"
        "From Coq Require Import QArith Qreals Reals List Lra.\nFrom Interval Require Import Tactic.\n"
        "Require Import Attnc.\nImport ListNotations.\nOpen Scope R_scope.",
        "(* The stored numbers: Pair slope intercept value, for each head of two keys. *)\n"
        f"Definition model : list pair :=\n  [{pairs}].",
        "(* 1/f(u) for u = |z|^2 / features + offset, as a function of q = |z|^2. *)\n"
        f"Definition inverse (q : R) : R := {claim.inverse}.",
        "(* The largest q, and the approximation term of the certificate. *)\n"
        f"Definition most : Q := {literal(claim.radius)} * {literal(claim.radius)}.\nDefinition eps : Q := {literal(claim.eps)}.",
        *(_lemma(i, octave, claim) for i, octave in enumerate(found)),
        _theorem(len(found)),
    ]
    return "\n\n".join(sections) + "\n"


def _lemma(i: int, octave: Octave, claim: NormClaim) -> str:
    lo, count = literal(octave.lo), len(octave.kept)
    hi = "most" if octave.hi == claim.most else literal(octave.hi)
    mask = f"(those 0 {count})"
    if octave.kept != tuple(range(count)):
        mask = (
            "[" + "; ".join("true" if k in octave.kept else "false" for k in range(len(claim.numbers))) + "]"
        )
    allowed = "(Q2R eps)" if octave.allowed == claim.eps else f"(Q2R {literal(octave.allowed)})"
    options = f"i_bisect q, i_taylor q, i_depth 20, i_degree {DEGREE}"
    attempts = [f"interval with ({options}, i_prec 70)"]
    if claim.native:
        attempts.insert(0, f"interval with ({options})")
    return (
        f"Lemma on_{i} : forall q : R, Q2R {lo} <= q <= Q2R {hi} -> Rabs (inverse q * quadratic model q - 1) <= Q2R eps.\n"
        f"Proof.\n  apply (norm_stretch model {mask} {lo} {hi} {octave.gap} inverse {rational(octave.largest)} _ {allowed}).\n"
        f"  - vm_compute; reflexivity.\n  - intros q H; numeric H; unfold inverse; interval.\n  - small_pairs.\n"
        f"  - intros q H; numeric H; unfold inverse; explicit_pairs.\n    first [{' | '.join(attempts)}].\nQed."
    )


def _theorem(count: int) -> str:
    joined = "on_0"
    for i in range(1, count):
        joined = f"(join _ _ _ _ {joined} on_{i})"
    return (
        "Theorem relative : forall q : R, Q2R 0 <= q <= Q2R most -> Rabs (inverse q * quadratic model q - 1) <= Q2R eps.\n"
        f"Proof. exact {joined}. Qed.\n\n"
        "(* For every token z: q is the sum of its squares. *)\n"
        "Theorem approximation : forall z : list R, let q := sum (fun x => x * x) z in\n"
        "  q <= Q2R most -> Rabs (inverse q * quadratic model q - 1) <= Q2R eps.\n"
        "Proof.\n  intros z q H; apply relative; split; [|exact H].\n"
        "  rewrite constant; apply sum_nonneg; intros x; apply Rle_0_sqr.\nQed."
    )
