"""black-box function → network: one head over the points of a lattice.

X ↦ vec X ↦ Σ_k softmax_k(κ_k·vec X + c_k) v_k ↦ Y"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from attnc.check.execution import ROOM, attained, network_errors
from attnc.domain import Array, Box
from attnc.errors import InputError, PrecisionError
from attnc.heads.tensor import Axis, Lattice, counts_for, grid_axes
from attnc.lower.program_to_network import claimed, proved_network, proved_terms
from attnc.lower.witness import check_refuted, within
from attnc.network.network import Network, rebuilt
from attnc.program import BlackBox, Lookup, Reshape, Traced
from attnc.program.program import Program
from attnc.prove.bounds import ValueBounds
from attnc.prove.compose import compose
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import round_up, versions
from attnc.records.layers import Layer, NetworkNumbers
from attnc.records.record import Record

MOST_ANCHORS = 1 << 15  # every pair of them is compared
_ROWS = 64  # compared with all others at a time
_MEASURED = 1 << 15  # inputs at a time
CONFIDENCE = 0.999
NOISE = {"float64": 2.0**-46, "float32": 2.0**-18}  # of the largest value: what f's own arithmetic may err


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


def selection(lattice: Lattice, centre: Array, dtype: str) -> Layer:
    """The lattice as numbers of the dtype, its axes counted from the centre: scores are then small wherever the box lies."""
    with np.errstate(over="ignore"):
        middle = centre.astype(dtype)
        pairs = zip(lattice.axes, middle, strict=True)
        axes = tuple(replace(axis, first=axis.first - float(o)) for axis, o in pairs)
        key, offset = Lattice(axes, lattice.values).keys(np.zeros(len(axes)), dtype)
        rounded = [a.astype(dtype) for a in (middle, key, offset, lattice.values)]
    if not all(np.isfinite(a).all() for a in rounded):
        raise PrecisionError(f"the lattice has numbers too large for {dtype}: use dtype=torch.float64")
    names = ("centre", "key", "offset", "values")
    return Layer("lookup", (0,), 1, dict(zip(names, map(np.ascontiguousarray, rounded), strict=True)))


def around(
    source: Source, step: Lookup | BlackBox | Traced, made: Layer
) -> tuple[Program, tuple[Layer, ...]]:
    """The step between the shapes of the function: vec X in front, tokens behind."""
    vec = [Reshape(0, (source.box.size,), name="vec")] if len(source.box.shape) > 1 else []
    at = len(vec)
    tokens = [Reshape(at + 1, source.shape, name="tokens")] if len(source.shape) > 1 else []
    layers = [Layer("reshape", one.inputs, one.input + 1, {}, {"to": one.to}) for one in (*vec, *tokens)]
    layers.insert(at, replace(made, inputs=(at,), value=at + 1))
    return Program(source.box.shape, (*vec, replace(step, input=at), *tokens)), tuple(layers)


def unproved(source: Source, lattice: Lattice, dtype: str, name: str) -> Network:
    """A lattice of anchors as a network: nothing is proved of it."""
    centre = (source.box.lo / 2 + source.box.hi / 2).ravel()
    program, stages = around(source, BlackBox(0, source.size, name=name), selection(lattice, centre, dtype))
    return rebuilt(Record(NetworkNumbers(stages, dtype), Certificate.unknown("network", dtype), program))


def lipschitz_grid(
    source: Source, lipschitz: float, eps: float, dtype: str, name: str, noise: float | None = None
) -> tuple[Network, list[int]]:
    """A network over a grid, and the number of cells along each axis, which are so small that the Lipschitz constant proves eps
    for every function with these values, up to noise, and this constant."""
    lo, hi = source.box.lo.ravel(), source.box.hi.ravel()
    allowed, closest = 0.993 * eps, float("inf")
    for _ in range(8):
        counts = counts_for(lo, hi, lipschitz, allowed)
        _check_size(counts, lipschitz, eps)
        step = _looked_up(source, grid_axes(lo, hi, counts), lipschitz, noise, name=name)
        lattice = Lattice(grid_axes(lo, hi, counts), step.values)
        program, stages = around(source, step, selection(lattice, lo / 2 + hi / 2, dtype))
        output = compose(program, stages, source.box, {}, dtype)[len(program.steps)]
        error = float(output.error.max())
        if claimed(error) <= eps:
            for start in range(0, len(step.points), _ROWS):
                near = slice(start, start + _ROWS)
                refute(step, step.points[near], step.values[near], start)
            numbers, assumed = NetworkNumbers(stages, dtype), step.assumed
            return proved_lookup(source, program, numbers, output, assumed=assumed), counts
        closest = min(closest, error)
        allowed = min(0.993 * eps - 1.1 * (error - allowed), 0.99 * allowed)
        if not allowed > 0.2 * eps:  # also where nothing is proved
            break
    reachable = round_up(max(1.5 * closest, eps + 4 * (closest - eps)), 2) if np.isfinite(closest) else None
    other = "dtype=torch.float64, or " if dtype == "float32" else ""
    offer = f"Use {other}eps >= {reachable:g}." if reachable else f"Use {other}a smaller box."
    raise PrecisionError(
        f"eps={eps:g} cannot be proved in {dtype}: a grid of {len(step.points):,} anchors leaves too little for rounding, and "
        f"its error is proved to be at most {closest:.3g}. {offer}",
        reachable,
    )


def _check_size(counts: list[int], lipschitz: float, eps: float) -> None:
    total = float(np.prod([float(c) for c in counts]))
    if total > MOST_ANCHORS:
        per_axis = "×".join(map(str, counts)) if len(counts) <= 6 else f"about {counts[0]}^{len(counts)}"
        raise InputError(
            f"to prove eps={eps:g} with the Lipschitz constant {lipschitz:g} the grid would have {per_axis} = {total:.3g} "
            f"anchors: up to {MOST_ANCHORS:,} are built. Use a larger eps, a smaller box, or method='lattice' (smooth functions "
            "of up to 4 numbers) or method='fit', whose error is measured and not proved."
        )


def _looked_up(
    source: Source, axes: Sequence[Axis], lipschitz: float, noise: float | None, name: str
) -> Lookup:
    """f asked at the middle of every cell, at numbers that f's own dtype holds."""
    grid = np.meshgrid(*(axis.points for axis in axes), indexing="ij")
    points = source.held(np.stack([g.ravel() for g in grid], axis=1))
    values = source(points)
    if noise is None:
        across = lipschitz * math.hypot(*(source.box.hi - source.box.lo).ravel())
        noise = NOISE[source.dtype_name] * max(float(np.abs(values).max()), across)
    return Lookup(0, points, values, lipschitz, noise, name=name)


def refute(step: Lookup, x: Array, fx: Array, start: int = 0) -> None:
    """Raise where f at inputs x, and at the points from `start` on, changes faster than its constant says."""
    y, fy = step.points[start:], step.values[start:]
    distance = np.sqrt(np.square(x[:, None] - y).sum(-1))
    change = np.abs(fx[:, None] - fy).max(-1)
    above = change - 2 * step.noise > step.lipschitz * distance * (1 + 2.0**-40)
    if above.any():
        ratio = np.where(above, change / np.maximum(distance, 2.0**-1000), 0.0)
        i, j = np.unravel_index(int(ratio.argmax()), ratio.shape)
        raise InputError(
            f"lipschitz={step.lipschitz:g} is refuted: f changes by {change[i, j]:.9g} between x = {_shown(x[i])} and "
            f"x = {_shown(y[j])}, which are {distance[i, j]:.9g} apart: the constant is at least {ratio[i, j]:.9g}. Give a "
            f"larger one, or none (the error is then measured), or a larger noise if f rounds by more than {step.noise:.2g}."
        )


def _shown(x: Array) -> str:
    return f"({', '.join(f'{v:.9g}' for v in x[:8])}{', …' if len(x) > 8 else ''})"


def proved_lookup(
    source: Source, program: Program, numbers: NetworkNumbers, output: ValueBounds, **facts: Any
) -> Network:
    """The network of a lookup with its certificate, before the search for a witness."""
    (layer,) = (layer for layer in numbers.layers if layer.kind == "lookup")
    error = float(output.error.max())
    exact = min(float(output.approximation.max()), error)
    terms = proved_terms(exact, error - exact, error)
    facts = {"value": layer.value, "anchors": len(layer.tensors["offset"]), **facts}
    lookup = Certificate(subject="lookup", name="lookup", **terms, dtype=numbers.dtype, facts=facts)
    return proved_network(program, numbers, source.box, terms, lookup)


def measured(network: Network, source: Source, method: str, points: int, seed: int) -> Certificate:
    """A certificate of status MEASURED: the largest |network - f| at `points` new random inputs."""
    numbers = network.numbers()
    drawn = source.uniform(points, seed).reshape(-1, *source.box.shape)
    x = within(torch.from_numpy(drawn), source.box, getattr(torch, numbers.dtype))
    worst, at, output, squares = -1.0, 0, 0, 0.0
    for start in range(0, len(x), _MEASURED):
        part = x[start : start + _MEASURED]
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


def with_measurement(network: Network, measured: Certificate) -> None:
    """Add a measurement to a proved certificate. Its largest error becomes the witness, but not above the largest error that is
    possible for a function with the stored values and Lipschitz constant: the checker knows no more of the function."""
    proved, seen = network.certificate, measured.witness
    assert seen is not None
    cause = "the function does not have the given Lipschitz constant, or "
    check_refuted("at an input of the box the network", seen.error, proved.bound, cause)
    possible = network_errors(network.program, network.numbers(), np.array(seen.input))[seen.output]
    witness = replace(seen, error=ROOM * min(seen.error, attained(possible, known=False)))
    facts = {**measured.facts, **proved.facts, "error": seen.error}
    network.certificate = replace(proved, witness=witness, facts=facts)
