"""Φ, the normal distribution function, by polynomials on cells: what the proofs for gelu need.

Φ(0) = 1/2. On each cell [a, b] the derivative φ is compared with that of a polynomial P: by the mean value theorem Φ - P grows
by at most sup|φ - P'|·(b - a) from a on, and the errors of the cells add up. Φ(-s) = 1 - Φ(s)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from flint import arb, fmpq

from attnc.exporters.coq.formulas import rational
from attnc.exporters.coq.stretches import Stretch
from attnc.functions import Function
from attnc.functions.balls import upper, variable, working

_SHARE = 0.002  # of eps: what Φ may err by, times |s|
_EDGES = (0.0, 0.75, 1.5, 2.25, 3.0, 3.75, 4.5, 5.5, 7.0, 10.0)
_POINTS = 96  # of a cell, at which the error of a polynomial is sampled
_LARGEST = 30  # degree
_COARSE = 1e-13  # an error that machine floats resolve


@dataclass(frozen=True)
class Cell:
    """|Φ(s) - P(s - m)| <= error on [lo, hi], P by its coefficients."""

    lo: float
    hi: float
    middle: float
    coefficients: tuple[Fraction, ...]
    jump: float  # at most the distance from the polynomial before it, at lo
    slope: float  # at most |φ - P'|
    error: float

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1


@dataclass(frozen=True)
class Gauss:
    """Polynomials for Φ on [0, reach], reach = max(|lo|, |hi|) of the domain."""

    cells: tuple[Cell, ...]
    bits: int

    @classmethod
    def on(cls, lo: float, hi: float, eps: float, f: Function) -> Gauss:
        """Φ to an error that is small beside eps, wherever f needs it on [lo, hi]."""
        last = f.kinks[-1] if f.kinks else math.inf  # gelu_10 is constant beyond
        reach = max(abs(lo), min(abs(hi), last))
        inner = [edge for edge in _EDGES if edge < reach]
        edges = [*inner, *([reach] if inner[-1] < reach else [])]
        wanted = _SHARE * eps / reach / (2 * len(edges))
        bits = max(60, math.ceil(-math.log2(wanted)) + 16)
        cells: list[Cell] = []
        with working(bits + 64, 4):
            for a, b in pairwise(edges):
                cells.append(_cell(a, b, wanted, cells[-1] if cells else None, bits))
        return cls(tuple(cells), bits)

    @property
    def cuts(self) -> tuple[float, ...]:
        """The ends of the cells, on both sides of 0."""
        return tuple(sign * cell.lo for cell in self.cells for sign in (1.0, -1.0))

    def text(self, native: bool) -> str:
        """The lemmas: for each cell a polynomial that is near Φ."""
        blocks = [
            "(* Polynomials near Phi s = 1/2 + RInt (fun t => exp (- (t * t) / 2) / sqrt (2 * PI)) 0 s. *)"
        ]
        for i, cell in enumerate(self.cells):
            before = (
                f"[1 / 2] 0 p_{i} {_r(cell.middle)} 0 0 {_r(cell.hi)} 0"
                if i == 0
                else f"p_{i - 1} {_r(self.cells[i - 1].middle)} p_{i} {_r(cell.middle)} {_r(self.cells[i - 1].lo)} "
                f"{_r(cell.lo)} {_r(cell.hi)} {_r(self.cells[i - 1].error)}"
            )
            known = "Phi_start" if i == 0 else f"Phi_{i - 1}"
            options = f"i_bisect t, i_taylor t, i_degree {cell.degree + 2}, i_depth 12"
            precise = f"i_prec {self.bits + 10}"
            attempts = [f"interval with ({options}, {precise})"]
            if native and cell.slope > _COARSE:
                attempts.insert(0, f"interval with ({options})")
            blocks.append(
                f"Definition p_{i} : list R := [{'; '.join(map(rational, cell.coefficients))}].\n"
                f"Lemma Phi_{i} : forall s : R, {_r(cell.lo)} <= s <= {_r(cell.hi)} -> "
                f"Rabs (Phi s - poly p_{i} (s - {_r(cell.middle)})) <= {_r(cell.error)}.\n"
                f"Proof.\n  apply (Phi_next {before} {_r(cell.jump)} {_r(cell.slope)}); [lra|exact {known}| | |lra].\n"
                f"  - cbv [p_{i}{f' p_{i - 1}' if i else ''} poly]; interval with ({precise}).\n"
                f"  - intros t T; unfold phi; cbv [p_{i} poly dpoly].\n"
                f"    first [{' | '.join(attempts)}].\nQed."
            )
        return "\n\n".join(blocks)

    def steps(self, stretch: Stretch, rewriting: str) -> list[str]:
        """The proof of a stretch: Φ is replaced by the polynomial of the cell in which the stretch lies."""
        left = stretch.middle < 0
        at = abs(stretch.middle)
        i = max(k for k, cell in enumerate(self.cells) if cell.lo <= at)
        cell = self.cells[i]
        beyond = at > cell.hi  # where f is constant
        s = _r(cell.hi) if beyond else "s"
        reach = cell.hi if beyond else max(abs(stretch.lo), abs(stretch.hi))
        near = f"poly p_{i} ({'- s' if left else s} - {_r(cell.middle)})"
        exact = Fraction(stretch.allowed) - Fraction(reach) * Fraction(cell.error)
        allowed = math.nextafter(float(exact), 0.0)
        poly = f"(1 - {near})" if left else f"({near})"
        opening = f"intros s H; numeric H; unfold f{'; ' + rewriting if rewriting else ''}."
        phi = f"apply Phi_left, Phi_{i}; lra" if left else f"apply Phi_{i}; lra"
        return [
            opening,
            f"apply (gelu_near _ {s} {poly} {_r(reach)} (Q2R {allowed.hex()}) {_r(cell.error)}); "
            f"[{phi}|apply Rabs_le; lra| |constants; lra].",
            f"explicit; cbv [p_{i} poly].",
        ]


def _r(x: float) -> str:
    return rational(x)


def _cell(a: float, b: float, wanted: float, before: Cell | None, bits: int) -> Cell:
    """The polynomial of least degree whose derivative is near φ."""
    middle = a / 2 + b / 2
    for degree in range(0 if a >= _EDGES[-1] else 2, _LARGEST):
        coefficients = _taylor(middle, degree, bits)
        slope = _slope(coefficients, middle, a, b)
        if slope * (b - a) <= wanted:
            break
    jump = upper(
        abs(
            _value(coefficients, middle, a)
            - (_value(before.coefficients, before.middle, a) if before else arb(0.5))
        )
    )
    slope, jump = _up(slope), _up(jump + 2.0**-bits)
    error = _up((0.0 if before is None else before.error) + jump + slope * (b - a))
    return Cell(a, b, middle, coefficients, jump, slope, error)


def _up(x: float) -> float:
    """A number of few bits that is somewhat larger."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(math.ceil(mantissa * 1024 + 1), exponent - 10)


def _exact(x: arb, bits: int) -> Fraction:
    whole = (x * arb(2) ** bits).mid().floor().unique_fmpz()
    assert whole is not None  # a midpoint is exact
    return Fraction(int(whole), 2**bits)


def _taylor(middle: float, degree: int, bits: int) -> tuple[Fraction, ...]:
    """Of Φ at the middle, rounded to multiples of 2^-bits."""
    with working(bits + 64, max(degree, 1) + 1):
        x = variable(arb(middle))
        density = (-x * x / 2).exp() / (2 * arb.pi()).sqrt()
        first = (-arb(middle) / arb(2).sqrt()).erfc() / 2
        raw = [first, *(density[j] / (j + 1) for j in range(degree))]
        return tuple(_exact(c, bits) for c in raw)


def _value(coefficients: tuple[Fraction, ...], middle: float, s: float) -> arb:
    x, total = arb(s) - arb(middle), arb(0)
    for c in reversed(coefficients):
        total = total * x + arb(fmpq(c.numerator, c.denominator))
    return total


def _slope(coefficients: tuple[Fraction, ...], middle: float, a: float, b: float) -> float:
    """About sup |φ - P'| over [a, b], and somewhat more: coqc proves it."""
    derivative = [arb(fmpq(c.numerator, c.denominator)) * j for j, c in enumerate(coefficients)][1:]
    worst = 0.0
    for i in range(_POINTS + 1):
        s = a + (b - a) * i / _POINTS
        x, total = arb(s) - arb(middle), arb(0)
        for c in reversed(derivative):
            total = total * x + c
        density = (-arb(s) * arb(s) / 2).exp() / (2 * arb.pi()).sqrt()
        worst = max(worst, upper(abs(density - total)))
    return 1.25 * worst
