"""|network - f| over a whole box in exact arithmetic, for a lattice network and a traced function f, from the stored numbers.

The box is cut into cells. On a cell, f = A + δ with A analytic and |δ| <= rest (`cell_values`), network = N/D (`lattice`), so

    |network - f| <= |N - A D|/D + rest,      D >= a number near 1, by Jensen's inequality

N - A D is interpolated at (n+1)^d Chebyshev nodes. The interpolant is at most the sum of its Chebyshev coefficients in absolute
value. The interpolation errs by at most

    Σ_k |v_k| (Π_j (e_k + r_k) - Π_j e_k)       for N, r_k the error of each exponential
    c(R, n) M_A(R) M_D(R)                       for A D, with M a bound on the complex polydisc of R: Cauchy's estimate

The degree n is the smallest one for which these errors are small. Cells where the bound is above what is claimed are halved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flint import arb

from attnc.arithmetic import Arithmetic
from attnc.check.cell_operations import Cells, remainder_factors
from attnc.check.cell_values import RADII, CellValue, Mask, above, below, exp_above, grid, halved, up
from attnc.check.gradients import check_lipschitz
from attnc.check.lattice import AxisTable, Lattice, chebyshev, contract, interpolant_size, lebesgue
from attnc.check.lattice_execution import execution
from attnc.check.real_functions import LEAST, U
from attnc.check.values import CheckError, TracedErrors
from attnc.domain import Array, Box
from attnc.functions.balls import lower, working
from attnc.program import Traced
from attnc.records.certificate import Certificate
from attnc.records.layers import Layer

DEGREES = {1: (4, 8, 12, 16, 20, 24, 30), 2: (4, 6, 8, 10, 12, 14, 16, 20), 3: (4, 6, 8, 10, 12, 14)}
FEW_DEGREES = (3, 4, 6, 8, 10)  # of four variables and more
SHARE = 0.04  # of the claim: what interpolation may add before a cell is halved
KINKED = 0.9  # of the claim: the rest of a cell with a kink that is tried
MOST_CELLS, MOST_NODES = 1 << 20, 1 << 31
HELPS = 0.95  # of what decides the degree: halving along an axis must lower it to this
FIRST = 3  # intervals of each axis at the start
_CHUNK, _BATCH = 1 << 19, 2048  # numbers of an array, and cells, at once
_MOST_RANGES = 1 << 16  # cells on which f is bounded
PRECISION = 192


@dataclass(frozen=True)
class Work:
    """What a proof took: cells that were proved, and values of f."""

    cells: int
    nodes: int


@dataclass(frozen=True, eq=False)
class _Sizes:
    """What holds of the network and f on cells (M) before nodes are chosen."""

    tables: list[AxisTable]
    index: Array  # (M, d): the interval of each axis
    least: Array  # (M,): at most D
    largest: Array  # (radii, M): at least |D| on the polydisc
    outputs: list[CellValue]
    defined: Mask

    @property
    def rest(self) -> Array:
        rests = [np.broadcast_to(o.rest, self.defined.shape) for o in self.outputs]
        return np.asarray(np.max(rests, axis=0))


class Proof:
    """The proof of one claim: |network - f| <= claimed on [low, high]."""

    def __init__(self, f: Traced, layer: Layer, low: Array, high: Array, claimed: float) -> None:
        self.f, self.net, self.claimed = f, Lattice(layer), claimed
        self.low, self.high, self.axes = low.ravel(), high.ravel(), low.size
        self.values = layer.tensors["values"].astype(np.float64)
        self.layer = layer
        if len(self.net.counts) != self.axes or f.width != self.axes or len(f.returned) != len(self.values.T):
            raise CheckError("its lattice, its function and its box have different numbers of variables")
        self.degrees, self.share = DEGREES.get(self.axes, FEW_DEGREES), SHARE
        self.cells = self.nodes = 0

    def run(self, most_cells: int = MOST_CELLS, most_nodes: int = MOST_NODES) -> Work:
        """Raises `CheckError` unless the claim is proved."""
        stack = [grid(self.low, self.high, FIRST)]
        while stack:
            low, high = stack.pop()
            if len(low) > _BATCH:
                stack.append((low[_BATCH:], high[_BATCH:]))
                low, high = low[:_BATCH], high[:_BATCH]
            self.cells += len(low)
            if self.cells > most_cells or self.nodes > most_nodes:
                raise CheckError(f"{self.claimed:.6g} is not proved with {self.cells} cells of the box")
            with np.errstate(all="ignore"):
                axis = self._axis_to_halve(low, high)
            left = axis >= 0
            if left.any():
                stack.append(halved(low[left], high[left], axis[left]))
        return Work(self.cells, self.nodes)

    def _sizes(self, low: Array, high: Array) -> _Sizes:
        tables, index = [], np.empty(low.shape, int)
        for j in range(self.axes):
            pairs, index[:, j] = np.unique(low[:, j] + 1j * high[:, j], return_inverse=True)
            tables.append(self.net.axis(j, pairs.real.copy(), pairs.imag.copy()))
        shift = float(exp_above(np.array([self.net.delta]))[0])
        least, largest = np.full(len(low), 1 / shift), np.full((len(RADII), len(low)), shift)
        for j, table in enumerate(tables):
            least, largest = least * table.least[index[:, j]], largest * table.reach[:, index[:, j]]
        cells = Cells(low, high)
        outputs = cells.outputs(self.f)
        return _Sizes(tables, index, least * (1 - 2.0**-40), up(largest), outputs, cells.defined)

    def _axis_to_halve(self, low: Array, high: Array) -> Array:
        """The axis along which each cell is to be halved; -1 where the claim is proved."""
        found = np.full(len(low), -2)
        sizes = self._sizes(low, high)
        degree, excess = self._degrees(sizes)
        for n in self.degrees:
            (chosen,) = np.nonzero(degree == n)
            rows = max(1, _CHUNK // (n + 1) ** self.axes)
            for start in range(0, len(chosen), rows):
                part = chosen[start : start + rows]
                found[part] = self._at_nodes(low[part], high[part], n)
        (left,) = np.nonzero(found == -2)
        if len(left):
            found[left] = self._best_axis(low[left], high[left], excess[left])
        return found

    def _degrees(self, sizes: _Sizes) -> tuple[Array, Array]:
        """The degree for each cell, 0 if none suffices; and what decides it: interpolation errors and the rest, of the claim."""
        cells = len(sizes.defined)
        degree, excess = np.zeros(cells, int), np.full(cells, np.inf)
        rest = sizes.rest
        allowed = self.share * self.claimed * sizes.least
        possible = sizes.defined & (sizes.least > 0.25) & (rest <= KINKED * self.claimed)
        for n in self.degrees:
            found = self._remainder(sizes, n)
            excess = np.fmin(excess, found / self.claimed + rest / self.claimed)
            degree = np.where((degree == 0) & possible & (found <= allowed), n, degree)
            if (degree > 0).all():
                break
        return degree, np.where(sizes.defined, excess, np.inf)

    def _remainder(self, sizes: _Sizes, degree: int) -> Array:
        """At least what interpolation adds to |N - A D|, the largest over the outputs (M,)."""
        return np.asarray(self._remainders(sizes, degree).max(0))

    def _remainders(self, sizes: _Sizes, degree: int) -> Array:
        """By output (outputs, M)."""
        factors = remainder_factors(degree, self.axes)[:, None]
        tops = [table.top[:, None] for table in sizes.tables]
        errors = [table.remainder(degree)[:, None] for table in sizes.tables]
        own = np.zeros((len(sizes.index), len(self.net.sizes) - 1))
        for j in range(self.axes):
            parts = [tops[i] + errors[i] for i in range(j)] + [errors[j]] + tops[j + 1 :]
            own = own + contract(self.net.sizes[:-1], parts, sizes.index).reshape(own.shape)
        found = own.T * (1 + 2.0**-30)
        for i, output in enumerate(sizes.outputs):
            ceiling = (np.abs(output.centre) + output.radius) * sizes.largest * factors
            least = np.where(np.isnan(ceiling), np.inf, ceiling).min(0)
            found[i] = up(found[i] + least * (1 + 2.0**-30))
        return np.where(np.isnan(found), np.inf, found)

    def _at_nodes(self, low: Array, high: Array, degree: int) -> Array:
        """As `_axis_to_halve`, with nodes."""
        bound, along, rest = self.bounds(low, high, degree)
        choice = np.where(rest > 0.1 * self.claimed, -2, np.argmax(along, 0))
        return np.asarray(np.where(bound <= self.claimed, -1, choice))

    def bounds(self, low: Array, high: Array, degree: int) -> tuple[Array, Array, Array]:
        """Of each cell: at least |network - f|, infinite where nothing is known; how much the interpolant varies along each axis
        (d, M); and the rest of f.

        Raises `CheckError` where a node refutes the claim."""
        count, d, n = len(low), self.axes, degree + 1
        self.nodes += count * n**d
        sizes = self._sizes(low, high)
        cells = Cells(low, high, chebyshev(degree)[0])
        outputs = cells.outputs(self.f)
        sums = contract(self.net.numbers, [table.at_nodes(degree) for table in sizes.tables], sizes.index)
        scale = contract(self.net.sizes, [table.top[:, None] for table in sizes.tables], sizes.index)
        scale = up(scale.reshape(count, -1) * (1 + 2.0**-30))
        rounding = up(self.net.rounding * scale)
        remainder, denominator = self._remainders(sizes, degree), sums[:, -1]
        worst, along, weight = np.zeros(count), np.zeros((d, count)), np.arange(n) ** 2.0
        for i, a in enumerate(outputs):
            assert a.nodes is not None
            value = sums[:, i] - a.nodes * denominator
            lost = rounding[:, i] + a.size * rounding[:, -1] + a.error * scale[:, -1]
            lost = up(lost + 4 * U * (scale[:, i] + a.size * scale[:, -1]) + a.error * rounding[:, -1])
            self._refute(value, denominator, lost, a, low, high, degree)
            total, spectrum = interpolant_size(value, degree)
            bound = up((total + lebesgue(degree) ** d * lost + remainder[i]) / sizes.least * (1 + 2.0**-40))
            bound = up(bound + a.rest)
            worst = np.fmax(worst, np.where(np.isnan(bound), np.inf, bound))
            for j in range(d):
                others = tuple(k + 1 for k in range(d) if k != j)
                along[j] = np.fmax(along[j], spectrum.sum(others) @ weight)
        known = sizes.defined & cells.defined & (sizes.least > 0)
        return np.where(known, worst, np.inf), along, sizes.rest

    def _best_axis(self, low: Array, high: Array, excess: Array) -> Array:
        """The axis along which halving helps most, judged by a cell of half the width in the middle; the widest if none helps."""
        gain = np.empty((self.axes, len(low)))
        for j in range(self.axes):
            quarter = (high[:, j] - low[:, j]) / 4
            inner, outer = low.copy(), high.copy()
            inner[:, j], outer[:, j] = low[:, j] + quarter, high[:, j] - quarter
            gain[j] = self._degrees(self._sizes(inner, outer))[1]
        width = (high - low).T / np.maximum(self.high - self.low, LEAST)[:, None]
        least = np.where(np.isnan(gain), np.inf, gain).min(0)
        hopeless = ~(np.isfinite(least) & (least <= HELPS * excess))
        best = np.argmin(np.where(width > 0, gain, np.inf), 0)
        return np.asarray(np.where(hopeless, np.argmax(width, 0), best))

    def _refute(
        self,
        value: Array,
        denominator: Array,
        lost: Array,
        a: CellValue,
        low: Array,
        high: Array,
        degree: int,
    ) -> None:
        """Raise `CheckError` with an input whose error is above the claim, if a node seems to be one."""
        count = len(value)
        size = np.abs(value / denominator).reshape(count, -1)
        excess = size.max(1) - (lost * 2 + a.rest) - self.claimed
        if not np.nanmax(excess) > 0:
            return
        cell = int(np.nanargmax(excess))
        place = np.unravel_index(int(size[cell].argmax()), value.shape[1:])
        node = chebyshev(degree)[0][list(place)]
        x = np.clip(
            low[cell] / 2 + high[cell] / 2 + (high[cell] / 2 - low[cell] / 2) * node, low[cell], high[cell]
        )
        with working(PRECISION):
            error = max(map(lower, exact_errors(self.f, self.layer, x)))
        if error > self.claimed:
            raise CheckError(
                f"the network is {error:.6g} from f, in exact arithmetic, not {self.claimed:.6g}",
                tuple(x.tolist()),
                error,
            )


def output_range(f: Traced, low: Array, high: Array, limit: int = _MOST_RANGES) -> tuple[Array, Array]:
    """Numbers that f, output by output, stays between on [low, high]. Raises `CheckError` if f may be undefined there."""
    count = len(f.returned)
    least, most, seen = np.full(count, np.inf), np.full(count, -np.inf), 0
    cells = grid(low, high, max(1, int(1024 ** (1 / len(low)))))
    while len(cells[0]):
        seen += len(cells[0])
        over = Cells(*cells)
        outputs = over.outputs(f)
        ends = [np.stack([np.broadcast_to(end, over.defined.shape) for end in side])
                for side in ([o.low for o in outputs], [o.high for o in outputs])]  # fmt: skip
        good = over.defined & np.isfinite(ends[0]).all(0) & np.isfinite(ends[1]).all(0)
        if good.any():
            least, most = (
                np.minimum(least, ends[0][:, good].min(1)),
                np.maximum(most, ends[1][:, good].max(1)),
            )
        left = ~good
        if seen > limit and left.any():
            at = ", ".join(
                f"[{a:.6g}, {b:.6g}]" for a, b in zip(cells[0][left][0], cells[1][left][0], strict=True)
            )
            raise CheckError(f"the function may not be defined everywhere in {at}")
        width = (cells[1] - cells[0])[left] / np.maximum(high - low, LEAST)
        cells = (
            halved(cells[0][left], cells[1][left], np.argmax(width, 1)) if left.any() else (low[:0], low[:0])
        )
    return least, most


def check_traced(
    step: Traced, layer: Layer, box: Box, claim: Certificate, a: Arithmetic
) -> tuple[TracedErrors, int]:
    """What is certified of a lattice network for a traced function on the box, if it is proved again; and the number of cells.

    Raises `CheckError` otherwise."""
    low, high = box.lo.astype(np.float64).ravel(), box.hi.astype(np.float64).ravel()
    ends = output_range(step, low, high)
    room = up(np.full(1, claim.approximation))
    executed = execution(layer, low, high, (below(ends[0] - room), above(ends[1] + room)), a)
    rounding = float(executed.max())
    allowed = min(claim.approximation, float(below(np.array(claim.bound - rounding))))
    if not allowed > 0:
        raise CheckError(f"execution adds up to {rounding:.6g}, and {claim.bound:.6g} is certified in all")
    cells = Proof(step, layer, low, high, allowed).run().cells
    if "lipschitz" in claim.facts:
        cells += check_lipschitz(step, low, high, float(claim.facts["lipschitz"]))
    return TracedErrors(low, high, *ends, allowed, float(above(np.array(allowed + rounding)))), cells


def exact_errors(f: Traced, layer: Layer, x: Array) -> list[arb]:
    """|network - f| at one input in exact arithmetic, output by output. Within `working`."""
    point = [arb(float(s)) - arb(float(o)) for s, o in zip(x, layer.tensors["centre"], strict=True)]
    scores = []
    for key, offset in zip(layer.tensors["key"].tolist(), layer.tensors["offset"].tolist(), strict=True):
        scores.append(sum((arb(k) * s for k, s in zip(key, point, strict=True)), arb(offset)))
    top = max(float(z.mid()) for z in scores)
    weights = [(z - arb(top)).exp() for z in scores]
    whole = sum(weights, arb(0))
    meant = f.exact(np.array([[arb(float(s)) for s in x]], dtype=object))[0]
    found = []
    for column, y in zip(layer.tensors["values"].T.tolist(), meant, strict=True):
        made = sum((w * arb(v) for w, v in zip(weights, column, strict=True)), arb(0)) / whole
        found.append(abs(made - y))
    return found
