"""How large the numbers of a context may be: where the promise of a learner holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attnc.errors import InputError


def check_sizes(radius: object) -> None:
    """Every field of a radius is a positive finite number, and becomes a float."""
    for name, size in vars(radius).items():
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < math.inf:
            raise InputError(f"radius {name}={size!r}: a positive finite number is accepted")
        object.__setattr__(radius, name, float(size))


@dataclass(frozen=True)
class Radius:
    """|x_ij| <= x, |y_i| <= y, |w_j| <= w at every step, and |w·x_i| <= u.

    >>> Radius(4.0, 3.0, 2.0, 10.0).u
    10.0
    """

    x: float
    y: float
    w: float
    u: float

    def __post_init__(self) -> None:
        check_sizes(self)


def radius_of(given: Any, features: int, nonlinear: str) -> Radius:
    """One number for x, y and w; then |w·x| is at most features·x·w, or what the activation can bear."""
    if isinstance(given, Radius):
        return given
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise InputError(f"radius={given!r}: a number, or attnc.incontext.Radius(x=, y=, w=, u=)")
    size = float(given)
    if not 0 < size < math.inf:
        raise InputError(f"radius={given!r}: a positive finite number is accepted")
    reach = features * size * size
    return Radius(size, size, size, min(reach, 6.0) if nonlinear == "poisson" else min(reach, 64.0))
