"""|g - f| over a whole box in exact arithmetic, for a fitted network g(x) = W2 tanh(W1 x + b1) + b2 and a traced function f.

As in `traced`, with D = 1: on a cell f = A + δ, |δ| <= rest, and A - g is interpolated at Chebyshev nodes. There tanh z is
1 - 2/(1 + e^{2z}), and e^{2z} is a product over the axes. Interpolation errs by at most c(R, n)·M, M a bound of |A - A(c)| or of
|tanh(z + s) - tanh z| on the polydisc of R, the best R for f and for each neuron. There |s| <= r = R Σ|w_j| h_j, and for r < π/2

    |tanh(z + s) - tanh z| = |sinh s/(cosh z cosh(z + s))| <= sinh r/(cosh z √(sinh² m + cos² r)),    m = max(|z| - r, 0)"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from attnc.check import real_functions as real
from attnc.check.cell_operations import Cells, remainder_factors
from attnc.check.cell_values import RADII, CellValue, Mask, exp_above, up
from attnc.check.lattice import chebyshev, interpolant_size, lebesgue
from attnc.check.real_functions import U
from attnc.check.traced import DEGREES, FEW_DEGREES, PRECISION, Proof
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.functions.balls import lower, working
from attnc.functions.function import label_of
from attnc.program import Affine, Pointwise, Reshape, Traced
from attnc.program.evaluate import exact
from attnc.program.program import Program

FIT_DEGREES: dict[int, tuple[int, ...]] = {4: (2, 3, 4, 6), 5: (1, 2, 3, 4), 6: (1, 2, 3)}  # nodes: (n+1)^d
FIT_NODES = 1 << 34  # values of neurons: about two minutes
FIT_SHARE = 0.5  # of the claim: what interpolation may add before a cell is halved
_MOST_RADIUS = 1.5  # of s: below π/2
_MOST_SLOPE = 150.0  # of |w|·h: larger ones might overflow
_SATURATED = 2.0**-500  # more than 1 - |tanh| where e^{2z} is not a float
_MOST = 2.0**400


@dataclass(frozen=True, eq=False)
class _FitSizes:
    """What holds of f and of the neurons on cells (M) before nodes are chosen."""

    centre: Array  # (M, d)
    half: Array
    z: Array  # (M, K): the neurons at the centre
    off: Array  # (M, K): at least what is lost in z, also at nodes
    change: Array  # (radii, M, K): at least |tanh(z + s) - tanh z|
    outputs: list[CellValue]
    defined: Mask
    least: Array  # (M,): 1, the denominator

    @property
    def rest(self) -> Array:
        rests = [np.broadcast_to(o.rest, self.defined.shape) for o in self.outputs]
        return np.asarray(np.max(rests, axis=0))


class FitProof(Proof):
    """The proof of one claim: |g - f| <= claimed on [low, high]."""

    def __init__(self, f: Traced, program: Program, low: Array, high: Array, claimed: float) -> None:
        self.f, self.program, self.claimed = f, program, claimed
        self.w1, self.b1, self.w2, self.b2 = _numbers(program)
        self.low, self.high, self.axes = low.ravel(), high.ravel(), low.size
        if f.width != self.axes or self.w1.shape[1] != self.axes or len(f.returned) != len(self.b2):
            raise CheckError("its program, its function and its box have different numbers of variables")
        self.degrees, self.share = FIT_DEGREES.get(self.axes, DEGREES.get(self.axes, FEW_DEGREES)), FIT_SHARE
        self.cells = self.nodes = 0

    def _sizes(self, low: Array, high: Array) -> _FitSizes:  # type: ignore[override]
        centre, half = low / 2 + high / 2, high / 2 - low / 2
        steep = np.abs(self.w1).T
        reach = up((half + 8 * U * np.abs(centre)) @ steep * (1 + 2.0**-40))
        z = centre @ self.w1.T + self.b1
        size = (np.abs(centre) + half) @ steep + np.abs(self.b1) + 1
        off = up(32 * (self.axes + 1) * U * size)
        r = up(RADII[:, None, None] * reach + off)
        good = r < _MOST_RADIUS
        inside = np.where(good, r, 1.0)
        m = np.maximum((np.abs(z) - off - inside) * (1 - 2.0**-40) - 2.0**-40 * np.abs(z), 0.0)
        growing = np.maximum((real.exp(np.minimum(m, 300.0)) * (1 - 2.0**-40) - 1) / 2, 0.0)  # <= sinh m
        cosine = np.maximum(real.sin_cos(inside)[1] - 2 * real.TRIG, 0.0)
        root = np.sqrt(growing**2 + cosine**2) * (1 - 2.0**-40)
        far = np.maximum(np.abs(z) - off, 0.0)
        cosh = np.maximum(real.exp(np.minimum(far, 300.0)) / 2 * (1 - 2.0**-40), 1.0)
        sinh = np.minimum(exp_above(inside) / 2, inside * (1 + exp_above(inside)) / 2)
        change = np.where(good & np.isfinite(z), up(up(sinh) / root / cosh * (1 + 2.0**-30)), np.inf)
        cells = Cells(low, high)
        outputs = cells.outputs(self.f)
        small = (reach <= _MOST_SLOPE).all(1) & np.isfinite(z).all(1)
        defined = cells.defined & small
        return _FitSizes(centre, half, z, off, change, outputs, defined, np.ones(len(low)))

    def _remainders(self, sizes: _FitSizes, degree: int) -> Array:  # type: ignore[override]
        """At least what interpolation adds to |A - g|, by output (outputs, M)."""
        factors = remainder_factors(degree, self.axes)
        neurons = (sizes.change * factors[:, None, None]).min(0)
        found = np.empty((len(self.b2), len(sizes.defined)))
        for i, output in enumerate(sizes.outputs):
            ceiling = output.radius * factors[:, None]
            own = np.where(np.isnan(ceiling), np.inf, ceiling).min(0)
            found[i] = up((own + neurons @ np.abs(self.w2[i])) * (1 + 2.0**-30))
        return np.where(np.isnan(found), np.inf, found)

    def bounds(self, low: Array, high: Array, degree: int) -> tuple[Array, Array, Array]:
        """Of each cell: at least |g - f|, infinite where nothing is known; the variation along each axis (d, M); f's rest."""
        count, d, n = len(low), self.axes, degree + 1
        self.nodes += count * n**d
        sizes = self._sizes(low, high)
        cells = Cells(low, high, chebyshev(degree)[0])
        outputs = cells.outputs(self.f)
        made = self._at(sizes, degree)
        remainder = self._remainders(sizes, degree)
        worst, along, weight = np.zeros(count), np.zeros((d, count)), np.arange(n) ** 2.0
        for i, a in enumerate(outputs):
            assert a.nodes is not None
            total = np.abs(self.w2[i]).sum() + abs(self.b2[i])
            lost = sizes.off @ np.abs(self.w2[i]) + (2 * (len(self.b1) + 8) * U + _SATURATED) * total
            lost = up((lost + a.error + 4 * U * (a.size + total)) * (1 + 2.0**-30))
            value = np.broadcast_to(a.nodes, made[i].shape) - made[i]
            self._refute_at(value, lost + a.rest, low, high, degree)
            most, spectrum = interpolant_size(value, degree)
            bound = up(up((most + lebesgue(degree) ** d * lost + remainder[i]) * (1 + 2.0**-40)) + a.rest)
            worst = np.fmax(worst, np.where(np.isnan(bound), np.inf, bound))
            for j in range(d):
                others = tuple(k + 1 for k in range(d) if k != j)
                along[j] = np.fmax(along[j], spectrum.sum(others) @ weight)
        known = sizes.defined & cells.defined
        return np.where(known, worst, np.inf), along, sizes.rest

    def _at(self, sizes: _FitSizes, degree: int) -> Array:
        """g at the nodes, (outputs, M, n+1, …, n+1)."""
        node, d = chebyshev(degree)[0], self.axes
        shape = (len(sizes.centre), *(len(node),) * d)
        found = np.zeros((len(self.b2), *shape)) + self.b2.reshape(-1, *(1,) * (d + 1))
        for k in range(len(self.b1)):
            power = real.exp(2 * sizes.z[:, k]).reshape(-1, *(1,) * d)
            for j in range(d):
                one = [shape[0], *(1,) * d]
                one[j + 1] = len(node)
                power = power * real.exp(2 * self.w1[k, j] * sizes.half[:, j : j + 1] * node).reshape(one)
            tanh = 1 - 2 / (1 + power)
            for o in np.flatnonzero(self.w2[:, k]):
                found[o] += self.w2[o, k] * tanh
        return found

    def _refute_at(self, value: Array, lost: Array, low: Array, high: Array, degree: int) -> None:
        """Raise `CheckError` with an input whose error is above the claim, if a node seems to be one."""
        size = np.abs(value).reshape(len(value), -1)
        excess = size.max(1) - 2 * lost - self.claimed
        if not np.nanmax(excess) > 0:
            return
        cell = int(np.nanargmax(excess))
        place = np.unravel_index(int(size[cell].argmax()), value.shape[1:])
        node = chebyshev(degree)[0][list(place)]
        middle, half = low[cell] / 2 + high[cell] / 2, high[cell] / 2 - low[cell] / 2
        x = np.clip(middle + half * node, low[cell], high[cell])
        fitted = exact(self.program, x.reshape(self.program.shape), PRECISION).ravel()
        with working(PRECISION):
            meant = self.f.exact(np.array([[arb(float(s)) for s in x]], dtype=object))[0]
            error = max(lower(abs(a - b)) for a, b in zip(fitted, meant, strict=True))
        if error > self.claimed:
            raise CheckError(f"the fitted network is {error:.6g} from f somewhere, not {self.claimed:.6g}")


def _numbers(program: Program) -> tuple[Array, Array, Array, Array]:
    """W1, b1, W2, b2 of the program. Raises `CheckError` if it is not W2 tanh(W1 vec X + b1) + b2."""
    steps = [step for step in program.steps if not isinstance(step, Reshape)]
    chained = all(step.inputs == (i,) for i, step in enumerate(program.steps))
    if chained and len(steps) == 3:
        first, middle, last = steps
        if isinstance(first, Affine) and isinstance(middle, Pointwise) and isinstance(last, Affine):
            found = []
            for step in (first, last):
                weight = step.weight.astype(np.float64)
                found += [
                    weight,
                    np.zeros(len(weight)) if step.bias is None else step.bias.astype(np.float64),
                ]
            flat = program.shapes[first.input] == (math.prod(program.shape),)
            small = all(np.abs(a).max() < _MOST for a in found)
            flat = flat and found[2].shape[1] == len(found[1])
            if flat and small and label_of(middle.function) == "tanh" and middle.deviation == 0:
                return found[0], found[1], found[2], found[3]
    raise CheckError("its program is not a fitted network of tanh neurons, or has numbers that are too large")
