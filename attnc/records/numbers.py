"""The numbers of a head: what is stored, what runs, what is certified."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnc.errors import InputError

Array = NDArray[np.float64]
TENSORS = ("query", "key", "value", "output")


@dataclass(frozen=True)
class HeadNumbers:
    """H heads of p anchors each; every number is representable in `dtype` and held here as a float64.

        x_h   = query[h,0]·s + query[h,1]
        z_hk  = key[h,k,0]·x_h + key[h,k,1]
        g(s)  = Σ_h output[h] Σ_k softmax_k(z_h) (value[h,k,0]·s + value[h,k,1])

    value[h,k,0] is nonzero only where a token attends to itself (design "gated").
    """

    query: Array  # (H, 2)
    key: Array  # (H, p, 2)
    value: Array  # (H, p, 2)
    output: Array  # (H,)
    dtype: str

    def __post_init__(self) -> None:
        heads, p = self.key.shape[:2] if self.key.ndim == 3 else (-1, -1)
        wanted = {"query": (heads, 2), "key": (heads, p, 2), "value": (heads, p, 2), "output": (heads,)}
        for name, shape in wanted.items():
            array = getattr(self, name)
            if heads < 1 or p < 1 or array.shape != shape:
                raise InputError(
                    f"tensor {name!r} has shape {array.shape}: a head of H heads and p anchors has query (H, 2), key (H, p, 2), "
                    "value (H, p, 2), output (H,)"
                )
            if not np.isfinite(array).all():
                raise InputError(
                    f"tensor {name!r} holds a NaN or an infinity: every number of a head is finite"
                )
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype {self.dtype!r}: heads run in float32 or float64")
        for name in wanted:
            array = getattr(self, name)
            if array.dtype != np.float64 or not np.array_equal(array.astype(self.dtype), array):
                raise InputError(f"tensor {name!r} holds numbers that {self.dtype} cannot: round them first")

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

    def smallest(self, name: str) -> float:
        """The least magnitude of a tensor's numbers that are not zero (inf where all are)."""
        sizes = np.abs(getattr(self, name))
        return float(sizes[sizes > 0].min(initial=np.inf))

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each tensor: dtype, shape and bytes (little-endian)."""
        code = "<f4" if self.dtype == "float32" else "<f8"
        found = {}
        for name in TENSORS:
            array = getattr(self, name)
            head = f"{name} {self.dtype} {array.shape} ".encode()
            found[name] = hashlib.sha256(
                head + np.ascontiguousarray(array).astype(code).tobytes()
            ).hexdigest()
        return found
