"""The error of a network against the function itself, at fresh random inputs."""

from __future__ import annotations

import sys
from typing import Protocol

import numpy as np
import torch

from attnc.domain import Array, Box
from attnc.lower.witness import within
from attnc.network.network import Network
from attnc.records.measured import NetworkMeasured

_ROWS = 1 << 15


class Source(Protocol):
    """A function that can be asked: inputs (N, box.size) in, outputs (N, size) out, in float64."""

    box: Box
    shape: tuple[int, ...]
    dtype_name: str

    @property
    def size(self) -> int: ...

    def __call__(self, x: Array) -> Array: ...

    def held(self, x: Array) -> Array: ...

    def uniform(self, count: int, seed: int) -> Array: ...


def fresh(source: Source, count: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Uniform random inputs of the box that the dtype holds, (N, *shape)."""
    drawn = source.uniform(count, seed).reshape(-1, *source.box.shape)
    return within(torch.from_numpy(drawn), source.box, dtype)


def measured(network: Network, source: Source, method: str, points: int, seed: int) -> NetworkMeasured:
    """The largest |network - f| at `points` inputs drawn by the seed."""
    numbers = network.numbers()
    x = fresh(source, points, seed, getattr(torch, numbers.dtype))
    worst, at, output, squares = -1.0, 0, 0, 0.0
    for start in range(0, len(x), _ROWS):
        part = x[start : start + _ROWS]
        with torch.no_grad():
            made = network(part).double().reshape(len(part), -1).numpy()
        with np.errstate(over="ignore"):
            off = np.abs(made - source(part.double().numpy()))
            squares += float(np.square(off).sum())
        row, column = np.unravel_index(int(off.argmax()), off.shape)
        if not off[row, column] <= worst:  # a NaN is the worst there is
            worst, at, output = float(off[row, column]), start + int(row), int(column)
    return NetworkMeasured(
        method=method,
        domain=source.box,
        dtype=numbers.dtype,
        error=worst,
        mean_square=min(squares / (len(x) * source.size), sys.float_info.max),
        input=tuple(x[at].double().ravel().tolist()),
        output=output,
        points=len(x),
        seed=seed,
        digests=numbers.digests(),
    )
