"""What each selector can and cannot do, as bounds; docs/selectors.md has the statements and the proofs.

Upper bounds hold for the values that a theorem names; lower bounds hold for every choice of affine scores and values."""

from __future__ import annotations

import heapq
import math
from fractions import Fraction
from itertools import pairwise

from flint import arb

from attnc.arguments import checked_choice, checked_count, checked_nonnegative, checked_positive
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.functions import Function
from attnc.functions.balls import ball, lower, upper, variable, working
from attnc.functions.function import Branch
from attnc.heads.designs import nearest_constant
from attnc.records.presentation import Theorem

LEAST = {
    "hard": 0.0,
    "sparsemax": 1.0,
    "entmax15": 2.0,
}  # from this c on, only the two neighbours of s have weight
_CELLS, _HALVED = 32, 1000
_UP = 1 + 2.0**-48


def selector_theorem(selector: str, f: Function, on: Interval, p: int, c: float, own: bool) -> Theorem:
    """The upper bound that is known for these anchors, or what the selector cannot do. A bound holds for the values that the
    theorem names, so that it has a number only if the selection has these values: `own`."""
    known = _selector_theorem(selector, f, on, p, c)
    if own or known.bound is None:
        return known
    return Theorem(known.name, f"{known.statement}; this selection has other values", None)


def _selector_theorem(selector: str, f: Function, on: Interval, p: int, c: float) -> Theorem:
    step, known = on.width / (p - 1), f.provable
    steep = f.lipschitz(on.lo, on.hi) if known else math.inf
    uniform = f"p = {p} uniform anchors at distance Δ = {step:.4g}"
    if selector == "softmax" and c >= 0.5:
        constant = nearest_constant(c)
        said = f"|g - f| <= K Δ C(c) with {uniform}, values f(L_k), c = {c:g}, C(c) = {constant:.4g}"
        return _theorem("nearest anchors", said, steep * step * constant)
    if selector == "softmax" or selector == "sigmoid":
        kinks = [k for k in f.kinks if on.lo < k < on.hi]
        if kinks:
            at = ", ".join(f"{k:g}" for k in kinks)
            return _theorem(
                "no theorem", f"nothing is proved for {selector} at c = {c:g}: f has a kink at {at}", math.inf
            )
        said = (
            "some values have |g - f| <= M A q^(p-1) with q < 1, for every p, if f is analytic and at most M in size on a "
            "neighbourhood E of the interval; attnc.paper.selectors.analytic_bound computes M A q^(p-1)"
        )
        return _theorem(f"{selector} at the right sharpness: exponential", said, math.inf)
    if selector == "linear":
        said = "g is affine in s, whatever p is: if f'' >= m on an interval of length h, then sup |g - f| >= m h²/16"
        return _theorem("linear attention is linear", said, math.inf)
    if (selector == "sparsemax" and c == 1) or selector == "relu":
        bound = steep * step / 2
        if known and _are_anchors(f, on, p):
            bound = min(bound, curvature(f, on) * step**2 / 8)
        values = "values f(L_k)" if selector == "sparsemax" else "second differences of f(L_k) as values"
        spline = f"g is the linear spline through (L_k, f(L_k)) with {uniform} and {values}"
        said = f"{spline}: |g - f| <= K Δ/2, and M Δ²/8 if |f''| <= M"
        return _theorem("linear interpolation", said, bound)
    if c >= LEAST[selector]:
        said = f"|g - f| <= K Δ/2 with {uniform}, values f(L_k), c = {c:g}: only the two neighbours of s have weight"
        return _theorem("two neighbours", said, steep * step / 2)
    return _theorem("no theorem", f"nothing is proved for {selector} at c = {c:g}", math.inf)


def _theorem(name: str, statement: str, bound: float) -> Theorem:
    finite = math.isfinite(bound)
    return Theorem(
        name, f"in exact arithmetic {statement}", math.nextafter(bound * _UP, math.inf) if finite else None
    )


def least_error(selector: str, p: int, *, slope: float = 0.0, bend: float = 0.0, length: float) -> float:
    """No scores that are affine in s and no values have a smaller largest error, on an interval of this length, if f' >= `slope`
    (hard) or f'' >= `bend` (sparsemax, relu, linear) there. Rounded down.

    >>> [least_error(name, 8, bend=2, length=2) for name in ("linear", "relu", "sparsemax")]
    [0.5, 0.00617..., 0.00222...]
    >>> least_error("hard", 8, slope=1, length=2)
    0.125
    """
    p, part = checked_count("p", p), Fraction(checked_positive("length", length))
    pieces = {"hard": p, "sparsemax": 2 * p - 1, "relu": p + 1, "linear": 1}
    part /= pieces[checked_choice("selector", selector, tuple(pieces))]
    steep, bent = (Fraction(checked_nonnegative(*given)) for given in (("slope", slope), ("bend", bend)))
    return _down(steep * part / 2 if selector == "hard" else bent * part**2 / 16)


def analytic_bound(selector: str, size: float, p: int, *, switch: float, ellipse: float) -> float:
    """M A q^(p-1) of docs/selectors.md, rounded up: some values of p anchors on [-1, 1] have at most this error, if |f| <= M =
    `size` on the domain E. λ = `switch` is the sharpness of the switch between two anchors, λ = 2c/Δ; ρ = `ellipse` > 1.

    >>> [f"{analytic_bound('softmax', 1, p, switch=0.1, ellipse=8):.1e}" for p in (8, 16, 32)]
    ['3.1e-06', '6.4e-12', '2.8e-23']
    """
    checked_choice("selector", selector, ("softmax", "sigmoid"))
    size, p = checked_nonnegative("size", size), checked_count("p", p, 2)
    lam, rho = arb(checked_positive("switch", switch)), arb(checked_positive("ellipse", ellipse))
    with working(128):
        # the largest and the smallest |u| on the ellipse
        far = lam.cosh() + lam.sinh() * (rho + 1 / rho) / 2
        near = lam.cosh() - lam.sinh() * (rho + 1 / rho) / 2
        if not (rho > 1 and lam > 0 and near > 0):
            raise InputError(
                f"ellipse={ellipse!r} and switch={switch!r}: give 1 < ρ with (ρ + 1/ρ)/2 < coth λ"
            )
        growth = far * lam.exp() if selector == "softmax" else (far * lam.exp() + 1) / 2
        bound = arb(size) * 2 / (rho - 1) * (growth / rho) ** (p - 1)
        return upper(bound if selector == "softmax" else bound * growth * lam.exp() / near)


def curvature(f: Function, on: Interval) -> float:
    """At least |f''| wherever f has no kink: cells in ball arithmetic, the worst halved until within 1 % of a value of |f''|.

    >>> from attnc.functions import sin
    >>> 1.0 <= curvature(sin(), Interval(-3, 3)) < 1.02
    True
    """
    with working(96, 4):
        cells = []
        for piece in f.pieces(on.lo, on.hi):
            edges = [piece.lo + (piece.hi - piece.lo) * (i / _CELLS) for i in range(_CELLS)] + [piece.hi]
            cells += [_bend(piece.branch, a, b) for a, b in pairwise(edges)]
        heapq.heapify(cells)
        attained = max(cell[1] for cell in cells)  # decides only when to stop
        for _ in range(_HALVED):
            worst, _, a, b, branch = cells[0]
            if -worst <= 1.01 * attained:
                break
            middle = a / 2 + b / 2
            for half in (_bend(branch, a, middle), _bend(branch, middle, b)):
                attained = max(attained, half[1])
                (heapq.heapreplace if half[2] == a else heapq.heappush)(cells, half)
        return -cells[0][0]


def _bend(branch: Branch, a: float, b: float) -> tuple[float, float, float, float, Branch]:
    """Minus an upper bound of |f''| on [a, b], by the mean value theorem; |f''| at the middle, from below; the cell."""
    middle = a / 2 + b / 2
    try:
        everywhere, at = branch(variable(ball(a, b))), branch(variable(arb(middle)))
        half = arb(max(b - middle, middle - a)) * (1 + arb(2) ** -50)
        bounds = [upper(2 * abs(everywhere[2])), upper(2 * abs(at[2]) + 6 * abs(everywhere[3]) * half)]
        found = min((x for x in bounds if math.isfinite(x)), default=math.inf)
        return -found, lower(2 * abs(at[2])), a, b, branch
    except (ValueError, ZeroDivisionError):
        return -math.inf, 0.0, a, b, branch


def _are_anchors(f: Function, on: Interval, p: int) -> bool:
    """Whether every kink inside is exactly an anchor: where it is not, a spline cannot bend there."""
    ends = Fraction(on.lo), Fraction(on.hi)
    places = [(Fraction(k) - ends[0]) * (p - 1) / (ends[1] - ends[0]) for k in f.kinks if k in on]
    return all(place.denominator == 1 for place in places)


def _down(x: Fraction) -> float:
    near = float(x)
    return near if Fraction(near) <= x else math.nextafter(near, -math.inf)
