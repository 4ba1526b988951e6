"""Every built-in function once more, in mpmath.

`whole` is its definition, `stretches` are the analytic parts between its kinks.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from flint import arb
from mpmath import mp, mpf

from attnc import functions
from attnc.functions import Function

Formula = Callable[[mpf], mpf]

DIGITS = 800  # decimal digits of the reference: e^s at s = 5e-324 needs 650 to be told from 1
GUARD = 40  # bits of the reference that its own rounding may spoil


@dataclass(frozen=True)
class Case:
    label: str
    whole: Formula
    stretches: tuple[Formula, ...]
    kinks: tuple[float, ...] = ()

    @property
    def function(self) -> Function:
        return functions.get(self.label)

    def stretch_at(self, s: float) -> Formula:
        return self.stretches[bisect_right(self.kinks, s)]


def _smooth(label: str, formula: Formula) -> Case:
    return Case(label, formula, (formula,))


def _leaky(label: str, slope: float) -> Case:
    parts = (lambda s: mpf(slope) * s, lambda s: s)
    return Case(label, lambda s: s if s > 0 else mpf(slope) * s, parts, (0.0,))


def _clip(label: str, a: float, b: float) -> Case:
    flat = (lambda s: mpf(a) + 0 * s, lambda s: s, lambda s: mpf(b) + 0 * s)
    return Case(label, lambda s: min(max(s, mpf(a)), mpf(b)), flat, (a, b))


def _soft_threshold(lam: float) -> Case:
    parts = (lambda s: s + mpf(lam), lambda s: 0 * s, lambda s: s - mpf(lam))
    label = f"soft_threshold({lam:g})"
    return Case(label, lambda s: mp.sign(s) * max(abs(s) - mpf(lam), mpf(0)), parts, (-lam, lam))


def _elu(label: str, alpha: float) -> Case:
    parts = (lambda s: mpf(alpha) * mp.expm1(s), lambda s: s)
    return Case(label, lambda s: max(s, mpf(0)) + mpf(alpha) * mp.expm1(min(s, mpf(0))), parts, (0.0,))


def _celu(label: str, alpha: float) -> Case:
    parts = (lambda s: mpf(alpha) * mp.expm1(s / mpf(alpha)), lambda s: s)
    return Case(
        label, lambda s: max(s, mpf(0)) + mpf(alpha) * mp.expm1(min(s, mpf(0)) / mpf(alpha)), parts, (0.0,)
    )


def _selu() -> Case:
    scale, alpha = mpf(1.0507009873554805), mpf(1.6732632423543772)
    parts = (lambda s: scale * alpha * mp.expm1(s), lambda s: scale * s)
    return Case("selu", lambda s: scale * (s if s > 0 else alpha * mp.expm1(s)), parts, (0.0,))


def _hard(label: str, whole: Formula, middle: Formula, right: Formula) -> Case:
    return Case(label, whole, (lambda s: 0 * s, middle, right), (-3.0, 3.0))


def _cut_gelu() -> Case:
    parts = (lambda s: s * mp.ncdf(s), lambda s: 0 * s + 10 * mp.ncdf(10))
    return Case("gelu_10", lambda s: min(s, mpf(10)) * mp.ncdf(min(s, mpf(10))), parts, (10.0,))


def _hardsigmoid(s: mpf) -> mpf:
    return min(max(s / 6 + mpf(1) / 2, mpf(0)), mpf(1))


def _fast_gelu(s: mpf) -> mpf:
    return s / (1 + mp.exp(-2 * mpf("0.7978845608") * s * (1 + mpf("0.044715") * s**2)))


def _bloom_gelu(s: mpf) -> mpf:
    return s / (1 + mp.exp(-2 * mpf("0.79788456") * s * (1 + mpf("0.044715") * s**2)))


def _softplus(label: str, beta: float) -> Case:
    return _smooth(label, lambda s: mp.log1p(mp.exp(mpf(beta) * s)) / mpf(beta))


def _gelu_tanh(s: mpf) -> mpf:
    """(1 + tanh u)/2 = 1/(1 + e^(-2u)), which does not cancel for u far below zero."""
    return s / (1 + mp.exp(-2 * mp.sqrt(2 / mp.pi) * (s + mpf("0.044715") * s**3)))


CASES: tuple[Case, ...] = (
    _smooth("identity", lambda s: s),
    Case("relu", lambda s: max(s, mpf(0)), (lambda s: 0 * s, lambda s: s), (0.0,)),
    _leaky("leaky_relu", 0.01),
    _leaky("leaky_relu(0.2)", 0.2),
    _leaky("leaky_relu(-0.5)", -0.5),
    _leaky("leaky_relu(3)", 3.0),
    Case("abs", lambda s: abs(s), (lambda s: -s, lambda s: s), (0.0,)),
    _clip("clip(-25,25)", -25.0, 25.0),
    _clip("clip(0.1,0.3)", 0.1, 0.3),
    _clip("clip(-7,-2.5)", -7.0, -2.5),
    _clip("hardtanh", -1.0, 1.0),
    _clip("hardtanh(-2,0.5)", -2.0, 0.5),
    _soft_threshold(0.5),
    _soft_threshold(0.1),
    _soft_threshold(3.0),
    _smooth("gelu", lambda s: s * mp.ncdf(s)),
    _smooth("gelu_tanh", _gelu_tanh),
    _smooth("gelu_fast", _fast_gelu),
    _smooth("gelu_bloom", _bloom_gelu),
    _cut_gelu(),
    _smooth("quick_gelu", lambda s: s / (1 + mp.exp(-mpf("1.702") * s))),
    Case("relu2", lambda s: max(s, mpf(0)) ** 2, (lambda s: 0 * s, lambda s: s * s), (0.0,)),
    _hard("hardsigmoid", _hardsigmoid, lambda s: s / 6 + mpf(1) / 2, lambda s: 0 * s + 1),
    _hard("hardswish", lambda s: s * _hardsigmoid(s), lambda s: s * (s + 3) / 6, lambda s: s),
    _selu(),
    _celu("celu", 1.0),
    _celu("celu(0.3)", 0.3),
    _smooth("silu", lambda s: s / (1 + mp.exp(-s))),
    _smooth("sigmoid", lambda s: 1 / (1 + mp.exp(-s))),
    _smooth("pinball", lambda s: 1 / (1 + mp.exp(-s / mp.mpf(0.1))) - mp.mpf(0.5)),
    _smooth("tanh", mp.tanh),
    _softplus("softplus", 1.0),
    _softplus("softplus(0.3)", 0.3),
    _softplus("softplus(5)", 5.0),
    _elu("elu", 1.0),
    _elu("elu(0.5)", 0.5),
    _elu("elu(1.7)", 1.7),
    _smooth("mish", lambda s: s * mp.tanh(mp.log1p(mp.exp(s)))),
    _smooth("exp", mp.exp),
    _smooth("square", lambda s: s * s),
    _smooth("sin", mp.sin),
    _smooth("cos", mp.cos),
    Case("softsign", lambda s: s / (1 + abs(s)), (lambda s: s / (1 - s), lambda s: s / (1 + s)), (0.0,)),
)
LABELS = [case.label for case in CASES]


def encloses(ball: arb, value: mpf) -> bool:
    """Whether the ball contains the number that `value` approximates, as far as mp.prec bits can tell.

    There is no slack: mantissa and exponent are taken over exactly, and the ball must contain them. Only a
    ball that is sharper than the reference (gelu(1e4) differs from 1e4 by e^-5e7) may lie inside the
    reference's own error instead.
    """
    if ball.contains(arb(value)):
        return True
    return bool(arb(value, arb(abs(value)) * arb(2) ** (GUARD - mp.prec)).contains(ball))


def random_points(case: Case, count: int, lo: float = -30.0, hi: float = 30.0) -> list[float]:
    """Points of [lo, hi], the same in every run and others for every function."""
    source = random.Random(case.label)
    return [source.uniform(lo, hi) for _ in range(count)]
