"""The measured error of a network against the function itself, at new random inputs."""

from __future__ import annotations

import sys
from typing import Protocol

import numpy as np
import torch

from attnc.domain import Array, Box
from attnc.lower.witness import within
from attnc.network.network import Network
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import versions

_ROWS = 1 << 15
CONFIDENCE = 0.999


class Source(Protocol):
    """A function of inputs (N, box.size) with outputs (N, size), in float64."""

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


def measured(network: Network, source: Source, method: str, points: int, seed: int) -> Certificate:
    """A certificate with status MEASURED: the largest |network - f| at `points` new random inputs."""
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
    facts = {
        "program": network.program.digest(),
        "method": method,
        "points": len(x),
        "seed": seed,
        "mean_square": min(squares / (len(x) * source.size), sys.float_info.max),
        "confidence": CONFIDENCE,
    }
    return Certificate(
        subject="network",
        status=Status.MEASURED,
        approximation=worst,
        rounding=0.0,
        bound=worst,
        holds_for=source.box,
        dtype=numbers.dtype,
        witness=Witness(tuple(x[at].double().ravel().tolist()), output, worst),
        digests=numbers.digests(),
        facts=facts,
        versions=versions(),
    )
