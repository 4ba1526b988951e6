"""The numbers of a head: what is stored, what runs, what is certified."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError

Array = NDArray[np.float64]
TENSORS = ("query", "key", "value", "output")


@dataclass(frozen=True)
class HeadNumbers:
    """H heads of p anchors each (`attnc.Head` states what they compute); every number is representable in `dtype` and held here
    as a float64. value[h,k,0] is nonzero only where a token attends to itself (design "gated")."""

    query: Array  # (H, 2)
    key: Array  # (H, p, 2)
    value: Array  # (H, p, 2)
    output: Array  # (H,)
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype {self.dtype!r}: heads run in float32 or float64")
        heads, p = self.key.shape[:2] if self.key.ndim == 3 else (-1, -1)
        for name, shape in zip(TENSORS, ((heads, 2), (heads, p, 2), (heads, p, 2), (heads,)), strict=True):
            array = getattr(self, name)
            if heads < 1 or p < 1 or array.shape != shape:
                expected = "query (H, 2), key (H, p, 2), value (H, p, 2), output (H,)"
                raise InputError(f"tensor {name!r} has shape {array.shape}: expected {expected}")
            if not np.isfinite(array).all():
                raise InputError(f"tensor {name!r} contains NaN or infinity: use finite numbers")
            if array.dtype != np.float64 or not np.array_equal(array.astype(self.dtype), array):
                raise InputError(f"tensor {name!r} has numbers that {self.dtype} cannot represent")

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

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, in the dtype."""
        return {name: getattr(self, name).astype(self.dtype) for name in TENSORS}

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each tensor."""
        return {name: digest(name, array) for name, array in self.tensors().items()}


def digest(name: str, array: NDArray[Any]) -> str:
    """The SHA-256 of one tensor: name, dtype, shape and bytes (little-endian)."""
    head = f"{name} {array.dtype.name} {array.shape} ".encode()
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(head + little.tobytes()).hexdigest()
