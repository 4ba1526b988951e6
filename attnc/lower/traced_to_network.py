"""traced function → network: one head over the points of a lattice, proved from the operations of the function.

X ↦ vec X ↦ Σ_k softmax_k(κ_k·vec X + c_k) v_k ↦ Y,    |executed - f| <= approximation + rounding"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array
from attnc.heads.tensor import Lattice
from attnc.lower.function_to_network import Source, around, proved_lookup, selection
from attnc.lower.witness import check_refuted, worst
from attnc.network.network import Network
from attnc.program import Traced
from attnc.prove.bounds import HeadErrors
from attnc.prove.compose import compose
from attnc.prove.lattice import LatticeNetwork
from attnc.prove.lattice_bound import Effort, LatticeBound, Progress, lattice_bound
from attnc.prove.lattice_rounding import lattice_rounding
from attnc.records.layers import Layer, NetworkNumbers

SLACK = 1.5  # of the rounding term: the checker's own may be larger
_CHECKED = 64  # roundings in float64: what a check in float64 may add to the bound
_VALUE = 2.0**-38  # of the size of f: the same for values of f
_SAMPLES, _FACES = 1 << 14, 1 << 13
_EFFORT, _STARTS = 4096, 32  # inputs at which the witness is searched for


@dataclass(frozen=True, eq=False)
class Samples:
    """The largest error seen, the inputs with the largest errors, and the range of f."""

    largest: float
    worst: Array
    low: Array
    high: Array


@dataclass(frozen=True, eq=False)
class LatticeDraft:
    """A lattice as stored numbers, and the function that it approximates: nothing is proved yet."""

    source: Source
    traced: Traced
    layer: Layer
    network: LatticeNetwork
    dtype: str

    @classmethod
    def of(cls, source: Source, traced: Traced, lattice: Lattice, dtype: str) -> LatticeDraft:
        centre = (source.box.lo / 2 + source.box.hi / 2).ravel()
        layer = selection(lattice, centre, dtype)
        return cls(source, traced, layer, LatticeNetwork.of(layer), dtype)

    @property
    def ends(self) -> tuple[Array, Array]:
        return self.source.box.lo.ravel(), self.source.box.hi.ravel()

    @cached_property
    def samples(self) -> Samples:
        """Errors in float64 at random points, corners and faces. They prove nothing."""
        lo, hi = self.ends
        draw = np.random.default_rng(0)
        x = lo + draw.random((_SAMPLES + _FACES, len(lo))) * (hi - lo)
        side = draw.random((_FACES, len(lo)))
        x[:_FACES] = np.where(side < 0.35, lo, np.where(side > 0.65, hi, x[:_FACES]))
        x = np.clip(x, lo, hi)
        f = self.traced.approximate(torch.from_numpy(x)).numpy()
        key, offset, values, centre = (
            torch.from_numpy(self.layer.tensor(name).astype(np.float64))
            for name in ("key", "offset", "values", "centre")
        )
        off, rows = np.zeros(len(x)), max(1, (1 << 22) // len(key))
        for start in range(0, len(x), rows):
            part = torch.from_numpy(x[start : start + rows])
            y = torch.softmax((part - centre) @ key.T + offset, -1) @ values
            off[start : start + rows] = np.abs(y.numpy() - f[start : start + rows]).max(1)
        chosen = off.argsort()[-_STARTS:]
        return Samples(float(off.max()), x[chosen], f.min(0), f.max(0))

    def rounding(self, low: Array, high: Array) -> Array:
        """At least |executed - exact| for each output, if the exact network's outputs are between low and high."""
        return lattice_rounding(self.layer, *self.ends, low, high, ARITHMETIC[self.dtype])

    def bound(self, target: float, seconds: float, progress: Progress) -> LatticeBound:
        size = max(float(np.abs(self.layer.tensor("values")).max()), target)
        relative = target / min(size, max(1.0, float(np.abs(self.samples.high).max())))
        effort = Effort.for_target(self.traced.width, relative, self.traced.has_kinks, seconds)
        return lattice_bound(self.traced, self.network, *self.ends, target, effort, progress)

    def stated(self, found: LatticeBound, room: float) -> LatticeBound:
        """The bound that is stated: what is proved and what a check in float64 may lose, at most `room` in all."""
        low, high = found.low - found.bound, found.high + found.bound
        wide = lattice_rounding(self.layer, *self.ends, low, high, ARITHMETIC["float64"])
        size = max(float(np.abs(low).max()), float(np.abs(high).max()))
        wanted = found.bound + _CHECKED * float(wide.max()) + _VALUE * size
        return replace(found, bound=max(found.bound, min(wanted, room))) if np.isfinite(wanted) else found

    def proved(self, found: LatticeBound, name: str) -> Network:
        """The network with its certificate and a witness."""
        low, high = found.low - found.bound, found.high + found.bound
        rounding = SLACK * self.rounding(low, high)
        step = replace(self.traced, name=name)
        program, layers = around(self.source, step, self.layer)
        (value,) = (layer.value for layer in layers if layer.kind == "lookup")
        errors = {
            value: HeadErrors(np.full(len(low), found.bound), np.nextafter(found.bound + rounding, np.inf))
        }
        numbers = NetworkNumbers(layers, self.dtype)
        output = compose(program, layers, self.source.box, errors, self.dtype)[len(program.steps)]
        net = proved_lookup(self.source, program, numbers, output, cells=found.cells)
        witness = worst(net, program, numbers, self.source.box, _EFFORT, torch.from_numpy(self.samples.worst))
        check_refuted("at an input of the box the network", witness.error, net.certificate.bound)
        net.certificate = replace(net.certificate, witness=witness)
        return net
