"""The numbers of heads that compute a power of a quadratic form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnc.domain import Array
from attnc.errors import InputError
from attnc.records.numbers import digest

QUADRATIC = ("slope", "intercept", "value")


@dataclass(frozen=True)
class QuadraticNumbers:
    """H heads of two keys; every number is representable in `dtype` and held here as a float64.

    R(q) = Σ_j value_j σ(intercept_j - slope_j q) ≈ (q/dim + offset)^-power,     q = |z|², z of `dim` numbers
    """

    slope: Array  # (H,), positive
    intercept: Array  # (H,), not positive
    value: Array  # (H,), positive
    dim: int
    offset: float  # ε, exact
    power: float
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype {self.dtype!r}: heads run in float32 or float64")
        for name in QUADRATIC:
            array = getattr(self, name)
            if array.ndim != 1 or not len(array) or array.shape != self.slope.shape:
                raise InputError(
                    f"{name} has the shape {array.shape}: slope, intercept and value are (heads,)"
                )
            if array.dtype != np.float64 or not np.array_equal(array.astype(self.dtype), array):
                raise InputError(f"{name} holds numbers that {self.dtype} cannot represent: round them first")
            if not np.isfinite(array).all() or (np.abs(array[array != 0]) < np.finfo(self.dtype).tiny).any():
                raise InputError(f"{name} holds a number that is not finite, or is subnormal in {self.dtype}")
        if not ((self.slope > 0).all() and (self.value > 0).all() and (self.intercept <= 0).all()):
            raise InputError("slopes and values must be positive, intercepts not positive")
        if type(self.dim) is not int or self.dim < 1 or not 0 < self.offset < np.inf or not self.power > 0:
            raise InputError(
                f"dim={self.dim!r}, offset={self.offset!r}, power={self.power!r}: give a positive whole number and positive "
                "numbers"
            )

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each tensor."""
        return {name: digest(name, getattr(self, name).astype(self.dtype)) for name in QUADRATIC}

    def __len__(self) -> int:
        return len(self.slope)
