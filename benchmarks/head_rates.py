"""How the error falls with the number of anchors, and the law that fits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from cases import STANDARD, Row, build, has_kinks, largest_value

import attnc
from attnc.heads.designs import nearest_constant

FUNCTIONS = ("relu", "clip(-25,25)", "gelu", "tanh", "sin")
SIZES: dict[str, Sequence[int]] = {
    "nearest": (4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "smooth": (4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64),
    "graded": (5, 9, 13, 17, 25, 33, 49, 65, 97),
    "tuned": (2, 3, 4, 6, 8, 10, 12, 24),
}
FULL_SIZES = {**SIZES, "nearest": (*SIZES["nearest"], 2048, 4096)}
RANGES = ("relu", "clip(-25,25)")  # what the paper's line is about: the others stop at p = 256 without --full
QUICK_SIZES = {"nearest": (4, 8, 16, 32), "smooth": (8, 12, 16), "graded": (5, 9, 13), "tuned": (2, 4, 6)}

ABSCISSA: dict[str, Callable[[float], float]] = {
    "p^-k": math.log,
    "exp(-k p)": float,
    "exp(-k sqrt p)": math.sqrt,
}
RESOLVED = 0.5  # of max |f|: a head with a larger error has not begun to follow the function
FLOOR = 1e-10  # of max |f|: below this the float64 least squares, not the design, sets the error


@dataclass(frozen=True)
class Fit:
    """error ≈ scale · law(k, p), by least squares on the logarithms of the proved bounds."""

    law: str
    k: float
    scale: float
    first: int
    last: int
    points: int
    spread: float  # root mean square of the residuals, in decades

    def __call__(self, p: float) -> float:
        return self.scale * math.exp(-self.k * ABSCISSA[self.law](p))


@dataclass(frozen=True)
class Curve:
    function: str
    design: str
    rows: list[Row]
    fit: Fit | None
    paper: list[float] | None = None  # (b - a)/(2(p - 1)) for each p, [a, b] the stretch that holds anchors
    theorem: list[float] | None = None  # K Δ C(4) for each p


def curve(spec: str, design: str, sizes: Sequence[int], step: Callable[[str], None]) -> Curve | None:
    """Proved bounds of one design over its sizes; None where the design does not apply."""
    if design == "graded" and not has_kinks(spec):
        return None
    rows = []
    for p in sizes:
        step(f"{spec} {design} p={p}")
        rows.append(build(spec, anchors=p, design=design)[0])
    law = _law(spec, design)
    found = fit(law, rows, largest_value(spec)) if law else None
    if design != "nearest":
        return Curve(spec, design, rows, found)
    width, lipschitz = _anchored(spec)
    steps = [width / (p - 1) for p in sizes]
    theorem = [lipschitz * delta * nearest_constant() for delta in steps]
    return Curve(spec, design, rows, found, [delta / 2 for delta in steps], theorem)


def fit(law: str, rows: Sequence[Row], scale: float) -> Fit | None:
    """Fit the stretch of a curve that is resolved, above the floor and still falling."""
    start = 32 if rows[0].asked == "nearest" else 0
    above = [(r.anchors, r.bound) for r in rows if _above_rounding(r, scale)]
    lowest = min(above, key=lambda point: point[1], default=(0, 0.0))[0]
    used = [(p, e) for p, e in above if start <= p <= lowest and e < RESOLVED * scale]
    if len(used) < 3:
        return None
    x = np.array([ABSCISSA[law](p) for p, _ in used])
    y = np.log([e for _, e in used])
    slope, constant = np.polyfit(x, y, 1)
    spread = float(np.sqrt(np.mean((slope * x + constant - y) ** 2)) / math.log(10))
    return Fit(law, -float(slope), math.exp(float(constant)), used[0][0], used[-1][0], len(used), spread)


def _above_rounding(row: Row, scale: float) -> bool:
    return row.bound is not None and row.bound > FLOOR * scale and row.rounding <= 0.1 * row.bound


def _law(spec: str, design: str) -> str | None:
    """What theory expects; of `tuned` it expects nothing."""
    if design == "smooth" and has_kinks(spec):
        return "p^-k"
    return {"nearest": "p^-k", "smooth": "exp(-k p)", "graded": "exp(-k sqrt p)"}.get(design)


def _anchored(spec: str) -> tuple[float, float]:
    """The width of the stretch on which `nearest` lays its anchors (f is constant beyond), and K."""
    lo, hi = STANDARD[spec]
    first, last = {"relu": (0.0, hi), "clip(-25,25)": (-25.0, 25.0)}.get(spec, (lo, hi))
    return last - first, attnc.functions.get(spec).lipschitz(lo, hi)
