"""Taylor models of a fitted network g(x) = W2 tanh(W1 x + b1) + b2, all neurons at once.

On a cell x = c + h∘t a neuron is tanh(z + s), z = w·c + b, s = Σ_j a_j t_j, a = w∘h, |s| <= ρ = Σ|a_j|. With the Taylor
coefficients τ_i of tanh at z,

    tanh(z + s) = Σ_{i<=n} τ_i Σ_{|α|=i} i!/α! a^α t^α + rest,      |rest| <= T ρ^{n+1}

(i+1) τ_{i+1} = [i = 0] - Σ_j τ_j τ_{i-j} because tanh' = 1 - tanh², and T comes from Cauchy's estimate on discs of radius R
around the points of [z - ρ, z + ρ]: |tanh| <= tan R there if π/4 <= R < π/2, and |1 - tanh| <= 2e^{-2(|z| - ρ - R)}/sin 2R, for
neurons that are saturated. Coefficients of all neurons are products of matrices, one for each degree.

The numbers are those of the program that is stored, as float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from attnc.domain import Array
from attnc.functions.function import label_of
from attnc.program import Affine, Pointwise, Program, Reshape
from attnc.prove.taylor import GROW, TINY, Model, Monomials, U
from attnc.prove.taylor_functions import scalars

_RADII = ((1.2, 2.58, 0.675), (1.4, 5.80, 0.334))  # R; at least tan R; at most sin 2R
_LARGEST, _LARGEST_OUTPUT = 2.0**20, 2.0**400  # of |w∘h| and of |W2|, |b2|: so that underflow is below _LOST
_LOST = 2.0**-300


@dataclass(frozen=True, eq=False)
class FittedNumbers:
    """W1 (K, d), b1 (K,), W2 (outputs, K), b2 (outputs,)."""

    w1: Array
    b1: Array
    w2: Array
    b2: Array

    @classmethod
    def of(cls, program: Program) -> FittedNumbers | None:
        """The numbers of a program W2 tanh(W1 vec X + b1) + b2; None if it is another one."""
        steps = [step for step in program.steps if not isinstance(step, Reshape)]
        chained = all(step.inputs == (i,) for i, step in enumerate(program.steps))
        if len(steps) != 3 or not chained:
            return None
        first, middle, last = steps
        if not (isinstance(first, Affine) and isinstance(middle, Pointwise) and isinstance(last, Affine)):
            return None
        if label_of(middle.function) != "tanh" or middle.deviation:
            return None
        numbers = []
        for step in (first, last):
            weight = step.weight.astype(np.float64)
            bias = np.zeros(len(weight)) if step.bias is None else step.bias.astype(np.float64)
            numbers += [weight, bias]
        found = cls(*numbers)
        whole = found.w1.shape[1] == math.prod(program.shape) and len(program.shapes[first.input]) == 1
        whole = whole and found.w2.shape[1] == len(found.b1)
        return found if whole and all(np.isfinite(a).all() for a in numbers) else None

    def rows(self, table: int) -> int:
        """See `lattice_bound.Approximation`."""
        return 4 * (table + 1) * len(self.b1)

    def errors(self, found: list[Model], x: Monomials, centre: Array, half: Array, m: int) -> list[Model]:
        """g - f, output by output."""
        return [g - f for g, f in zip(self.models(x, centre, half), found, strict=True)]

    def models(self, x: Monomials, centre: Array, half: Array) -> list[Model]:
        """Models of the outputs on cells centre ± half, (M, d)."""
        cells, n = len(centre), x.n
        unit = np.ldexp(1.0, np.frexp(np.maximum(half.max(0), 2.0**-900))[1])  # powers of two
        steep = self.w1 * unit
        if (
            np.abs(steep).max() > _LARGEST
            or max(np.abs(self.w2).max(), np.abs(self.b2).max()) > _LARGEST_OUTPUT
        ):
            return [x.constant(0.0, cells, np.inf) for _ in self.b2]
        z = centre @ self.w1.T + self.b1
        sizes = np.abs(centre) @ np.abs(self.w1).T + np.abs(self.b1)
        off = (x.d + 3) * U * sizes * GROW + TINY  # of z
        rho = (half @ np.abs(self.w1).T) * GROW + TINY
        tau, wrong = tanh_coefficients(z, n)
        part, counts = _powers(x, steep), [0, *x.count]
        scale = np.ones((cells, len(x.exponents)))
        for j in range(x.d):
            for k in range(1, n + 1):
                scale[:, x.exponents[:, j] >= k] *= (half[:, j] / unit[j])[:, None]
        power, own, size = np.ones_like(z), off.copy(), np.zeros_like(z)
        made = np.zeros((len(self.b2), len(x.exponents), cells))
        for i in range(n + 1):
            columns = slice(counts[i], counts[i + 1])
            own, size = own + wrong[i] * power, size + np.abs(tau[i]) * power
            for o, weight in enumerate(self.w2):
                made[o, columns] = ((tau[i] @ (weight[:, None] * part[:, columns])) * scale[:, columns]).T
            power = power * rho
        own = own + _beyond(z, rho, n) * power
        results = []
        for o, weight in enumerate(np.abs(self.w2)):
            rounded = (len(self.b1) + 4 * n + 4 * x.d + 24) * U * (size @ weight)
            radius = (own @ weight + rounded) * (1 + 2.0**-30) + _LOST
            radius = np.where(np.isnan(radius), np.inf, radius)
            results.append(Model(x, made[o], radius).shifted(self.b2[o]))
        return results


def _powers(x: Monomials, steep: Array) -> Array:
    """i!/α! w^α for the monomials α, i = |α|: (K, C)."""
    found = np.ones((len(steep), len(x.exponents)))
    for at, e in enumerate(x.exponents.tolist()):
        found[:, at] = math.factorial(sum(e)) // math.prod(math.factorial(k) for k in e)
    for j in range(x.d):
        for k in range(1, x.n + 1):
            found[:, x.exponents[:, j] >= k] *= steep[:, j : j + 1]
    return found


def tanh_coefficients(z: Array, n: int) -> tuple[list[Array], list[Array]]:
    """The Taylor coefficients τ_0 … τ_n of tanh at z, and at least their errors.

    If τ_j errs by e_j, then Σ_j τ_j τ_{i-j} errs by at most Σ_j (2|τ_j| + e_j) e_{i-j} + (i + 4)u Σ_j |τ_j||τ_{i-j}|."""
    first = scalars(arb.tanh, z.ravel()).reshape(z.shape)
    found, wrong = [first], [4 * U * np.abs(first) + TINY]
    for i in range(n):
        total, size, error = np.zeros_like(z), np.zeros_like(z), np.zeros_like(z)
        for j in range(i + 1):
            product = found[j] * found[i - j]
            total, size = total + product, size + np.abs(product)
            error = error + (2 * np.abs(found[j]) + wrong[j]) * wrong[i - j]
        start = 1.0 if i == 0 else 0.0
        following = (start - total) / (i + 1)
        found.append(following)
        error = (error + (i + 6) * U * (size + start)) / (i + 1)
        wrong.append((error + 2 * U * np.abs(following)) * (1 + 2.0**-30) + TINY)
    return found, wrong


def _beyond(z: Array, rho: Array, n: int) -> Array:
    """At least |tanh^(n+1)|/(n+1)! on [z - ρ, z + ρ]."""
    found = np.full(z.shape, np.inf)
    room = np.maximum(np.floor(np.abs(z) - rho * (1 + 2.0**-30) - 2.0**-20 * np.abs(z)), 0.0)
    for radius, tangent, sine in _RADII:
        tail = 2.0 ** -np.minimum(np.floor(2.88 * room), 900.0)  # 2^(-2.88 k) > e^(-2k)
        shared = 2 * math.exp(2 * radius) * (1 + 2.0**-30) / sine
        most = np.minimum(tangent, shared * tail)
        found = np.minimum(found, most / (radius * (1 - 2.0**-40)) ** (n + 1))
    return found * (1 + 2.0**-30) + TINY
