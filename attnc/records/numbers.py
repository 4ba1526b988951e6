"""The numbers of heads: what is stored, what runs, what is certified."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError

Array = NDArray[np.float64]
TENSORS = ("query", "key", "value", "output")
QUADRATIC = ("slope", "intercept", "value")
POWERS = {
    "rsqrt": 0.5,
    "reciprocal": 1.0,
    "exp": math.inf,
}  # functions of a quadratic form u: u^-1/2, 1/u, e^-u


class StoredNumbers:
    """Arrays by name, held as float64; every number is representable in `dtype`."""

    names: ClassVar[tuple[str, ...]]
    dtype: str

    def check(self, *shapes: Sequence[int]) -> None:
        """Raise `InputError` unless the arrays have these shapes, and numbers of the dtype."""
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype {self.dtype!r}: heads run in float32 or float64")
        for name, shape in zip(self.names, shapes, strict=True):
            array = getattr(self, name)
            if not shape or min(shape) < 1 or array.shape != shape:
                raise InputError(f"tensor {name!r} has shape {array.shape}, which does not fit the others")
            if not np.isfinite(array).all():
                raise InputError(f"tensor {name!r} contains NaN or infinity: use finite numbers")
            if array.dtype != np.float64 or not np.array_equal(array.astype(self.dtype), array):
                raise InputError(f"tensor {name!r} has numbers that {self.dtype} cannot represent")

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, in the dtype."""
        return {name: getattr(self, name).astype(self.dtype) for name in self.names}

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each tensor."""
        return {name: digest(name, array) for name, array in self.tensors().items()}


@dataclass(frozen=True)
class HeadNumbers(StoredNumbers):
    """H heads of p anchors each (`attnc.Head` states what they compute). value[h,k,0] is nonzero only where a token attends to
    itself (design "gated")."""

    query: Array  # (H, 2)
    key: Array  # (H, p, 2)
    value: Array  # (H, p, 2)
    output: Array  # (H,)
    dtype: str
    names = TENSORS

    def __post_init__(self) -> None:
        heads, p = self.key.shape[:2] if self.key.ndim == 3 else (0, 0)
        self.check((heads, 2), (heads, p, 2), (heads, p, 2), (heads,))

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]], dtype: str) -> HeadNumbers:
        """The inverse of `tensors`."""
        return cls(**{name: tensors[name].astype(np.float64) for name in TENSORS}, dtype=dtype)

    @property
    def heads(self) -> int:
        return int(self.key.shape[0])

    @property
    def anchors_per_head(self) -> int:
        return int(self.key.shape[1])

    @property
    def gated(self) -> bool:
        """Whether a token attends to itself."""
        return bool(self.value[..., 0].any())


@dataclass(frozen=True)
class QuadraticNumbers(StoredNumbers):
    """H heads of two keys, which compute a power of a quadratic form.

    R(q) = Σ_j value_j σ(intercept_j - slope_j q) ≈ (q/dim + offset)^-power,     q = |z|², z of `dim` numbers

    power = ∞ stands for e^-(q/dim + offset), which takes one head."""

    slope: Array  # (H,), positive
    intercept: Array  # (H,), not positive
    value: Array  # (H,), positive
    dim: int
    offset: float  # ε, exact
    power: float
    dtype: str
    names = QUADRATIC

    def __post_init__(self) -> None:
        self.check(*[self.slope.shape[:1]] * 3)
        stored = np.abs(np.concatenate([self.slope, self.intercept, self.value]))
        if (stored[stored != 0] < np.finfo(self.dtype).tiny).any():
            raise InputError(f"a number is subnormal in {self.dtype}")
        if not ((self.slope > 0).all() and (self.value > 0).all() and (self.intercept <= 0).all()):
            raise InputError("slopes and values must be positive, intercepts not positive")
        least = 0.0 if self.power == np.inf and len(self.slope) == 1 else np.finfo(np.float64).tiny
        if (
            type(self.dim) is not int
            or self.dim < 1
            or not least <= self.offset < np.inf
            or not self.power > 0
        ):
            given = f"dim={self.dim!r}, offset={self.offset!r}, power={self.power!r}"
            raise InputError(f"{given}: give a positive whole number and positive numbers")

    def __len__(self) -> int:
        return len(self.slope)


def digest(name: str, array: NDArray[Any]) -> str:
    """The SHA-256 of one tensor: name, dtype, shape and bytes (little-endian)."""
    head = f"{name} {array.dtype.name} {array.shape} ".encode()
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    found = hashlib.sha256(head)
    found.update(little.reshape(-1).view(np.uint8).data)  # no copy
    return found.hexdigest()


def listed(changed: Sequence[str], count: int) -> str:
    """The names of tensors: a few, or how many of `count` there are.

    >>> listed(["key", "value"], 4), listed([f"{i}.weight" for i in range(14)], 14)
    ('key, value', 'all 14 tensors')
    """
    if len(changed) <= 4:
        return ", ".join(changed)
    if len(changed) == count:
        return f"all {count} tensors"
    return f"{', '.join(changed[:3])} and {len(changed) - 3} more tensors"
