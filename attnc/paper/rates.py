"""How errors fall as a construction grows: build it at several sizes, and fit the slope of log error against log size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnc.arguments import checked_count
from attnc.errors import InputError
from attnc.progress import Progress, resolve_progress, watched
from attnc.records.certificate import Certificate


@dataclass(frozen=True)
class Rates:
    """Sizes and, for each, the largest error found, the proved bound and the theorem's bound; None where there is none."""

    sizes: tuple[int, ...]
    found: tuple[float | None, ...]
    proved: tuple[float | None, ...]
    theorem: tuple[float | None, ...]

    @property
    def slope(self) -> float:
        """The slope of the proved bounds, or of the errors found if some bound is missing."""
        return _slope(self.sizes, self.found if None in self.proved else self.proved)

    @property
    def slopes(self) -> dict[str, float]:
        """By name, the slopes of the errors found and of the proved bounds; without those that are missing at some size."""
        errors = {"largest error found": self.found, "proved bound": self.proved}
        return {name: _slope(self.sizes, e) for name, e in errors.items() if None not in e}

    def __str__(self) -> str:
        """A table."""
        rows: list[tuple[str, ...]] = [("size", "largest error found", "proved bound", "theorem's bound")]
        for size, *errors in zip(self.sizes, self.found, self.proved, self.theorem, strict=True):
            rows.append((str(size), *("—" if error is None else f"{error:.3g}" for error in errors)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(word.ljust(w) for word, w in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        slopes = ", ".join(f"{name} {slope:.2f}" for name, slope in self.slopes.items())
        return "\n".join([*lines, f"slope against size, both logarithmic: {slopes}"])


def _slope(sizes: Sequence[int], errors: Sequence[float | None]) -> float:
    """Of log error against log size, by least squares. An error of order 1/size has the slope -1."""
    logarithms = np.log([np.nan if error is None else error for error in errors])
    return float(np.polyfit(np.log(sizes), logarithms, 1)[0])


@watched("rates")
def rates(
    build: Callable[[int], Any], sizes: Sequence[int], *, progress: Progress | bool | None = None
) -> Rates:
    """Build a head or a network at each size, and collect its errors and bounds.

    `build` takes a size, such as the number of anchors, and returns an object with a certificate. Heads and networks of proved
    error have both a proved bound and the error at a witness; the networks of `attnc.paper` also have the theorem's bound.
    `attnc.plot.rates` draws the result.

    >>> import torch, attnc
    >>> W, t = torch.ones(2, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    >>> found = rates(lambda p: attnc.paper.one_head(W, t, -1, 1, anchors=p, domain=(-2, 2)), sizes=(9, 17, 33))
    >>> found.sizes, -1.2 < found.slope < -0.9
    ((9, 17, 33), True)
    """
    report, rows = resolve_progress(progress), []
    why = "for a construction that takes eps, let build compute it from the size: lambda g: two_layer(…, eps=1/g)"
    chosen = [checked_count("size", size, why=why) for size in sizes]
    if len(set(chosen)) < 2:
        raise InputError(f"sizes={tuple(sizes)!r}: give two or more different sizes to fit a slope")
    for i, size in enumerate(chosen):
        report(f"size {size}", i, len(chosen))
        built = build(size)
        certificate = getattr(built, "certificate", None)
        if not isinstance(certificate, Certificate):
            raise InputError(f"build({size}) returned a {type(built).__name__}: return a head or a network")
        theorem = getattr(getattr(built, "theorem", None), "bound", None)
        rows.append((certificate.error, certificate.bound if certificate.proved else None, theorem))
    found, proved, bounds = zip(*rows, strict=True)
    return Rates(tuple(chosen), found, proved, bounds)
