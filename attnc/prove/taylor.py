"""Taylor models: polynomials with a remainder, on many cells at once.

A cell is a box c + h∘t, t in [-1, 1]^d. A model of degree n is, for each cell, a polynomial p of total degree at most n in t and
a radius r with |f(c + h∘t) - p(t)| <= r for all t. Coefficients are float64 numbers; each operation adds to r what it truncates
and at least what it rounds:

    |x ∘ y - fl(x ∘ y)| <= u|fl(x ∘ y)|/(1 - u) + τ        u = 2⁻⁵³, τ = 2⁻¹⁰²² (gradual underflow, or flushing to zero)

Radii and norms are sums and products of fewer than 4000 non-negative numbers, computed in float64 and multiplied by 1 + 2⁻⁴⁰,
which is more than they lose. |p|_q is the sum of the absolute coefficients of degree q and |p| that of all, so |p(t)| <= |p|.

A radius that is infinite or NaN promises nothing, whatever the coefficients are."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from attnc.domain import Array

U = 2.0**-53
GROW = 1 + 2.0**-40
TINY = 2.0**-960  # more than any operation here loses by underflow
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Monomials:
    """The monomials t^e of total degree at most n in d variables, by degree; within a degree in a fixed order."""

    d: int
    n: int

    @cached_property
    def exponents(self) -> Index:
        """(C, d)."""
        every = [e for e in itertools.product(range(self.n + 1), repeat=self.d) if sum(e) <= self.n]
        every.sort(key=lambda e: (sum(e), tuple(-v for v in e)))
        return np.array(every, dtype=np.int64).reshape(-1, self.d)

    @cached_property
    def place(self) -> dict[tuple[int, ...], int]:
        return {tuple(e): i for i, e in enumerate(self.exponents.tolist())}

    @cached_property
    def degree(self) -> list[int]:
        """Of each monomial."""
        return [int(q) for q in self.exponents.sum(1)]

    @cached_property
    def count(self) -> list[int]:
        """How many monomials have a degree of at most q, for q = 0 … n."""
        degrees = np.array(self.degree)
        return [int((degrees <= q).sum()) for q in range(self.n + 1)]

    @cached_property
    def products(self) -> list[Index]:
        """For each monomial, where its products with those of degree up to n minus its own are."""
        exponents, place = self.exponents, self.place
        return [
            np.array(
                [place[tuple(row)] for row in (exponents[i] + exponents[: self.count[self.n - q]]).tolist()]
            )
            for i, q in enumerate(self.degree)
        ]

    @cached_property
    def pairs(self) -> int:
        """At least how many products add up to one coefficient of a product."""
        found = np.zeros(len(self.degree), dtype=np.int64)
        for at in self.products:
            found[at] += 1
        return int(found.max())

    @cached_property
    def halves(self) -> Array:
        """(2^d, C, C): the coefficients of p((e + s)/2) in s, for e in {-1, 1}^d. Exact: whole numbers over powers of two. The
        absolute values of a column add up to at most 1."""
        one = np.zeros((2, self.n + 1, self.n + 1))
        for side, e in enumerate((-1, 1)):
            for i in range(self.n + 1):
                for k in range(i + 1):
                    one[side, k, i] = math.comb(i, k) * e ** (i - k) / 2**i
        rows, columns = self.exponents[:, None, :], self.exponents[None, :, :]
        found = []
        for sides in itertools.product((0, 1), repeat=self.d):
            matrix = np.ones((len(self.exponents),) * 2)
            for j, side in enumerate(sides):
                matrix *= one[side][rows[..., j], columns[..., j]]
            found.append(matrix)
        return np.stack(found)

    def variable(self, j: int, centre: Array, half: Array) -> Model:
        """The coordinate x_j = c + h t_j; c and h are exact."""
        coefficients = np.zeros((1 + self.d, len(centre)))
        coefficients[0], coefficients[self.place[tuple(int(i == j) for i in range(self.d))]] = centre, half
        return Model(self, coefficients, np.zeros(len(centre)))

    def constant(self, number: Array | float, cells: int, radius: Array | float = 0.0) -> Model:
        return Model(self, np.full((1, cells), number), np.full(cells, radius))


@cache
def monomials(d: int, n: int) -> Monomials:
    return Monomials(d, n)


class Model:
    """A Taylor model on M cells: coefficients (rows, M) of the first monomials, the others being 0, and radii (M,)."""

    __slots__ = ("c", "r", "x")

    def __init__(self, x: Monomials, c: Array, r: Array) -> None:
        self.x, self.c, self.r = x, c, r

    @property
    def cells(self) -> int:
        return int(self.c.shape[1])

    @property
    def norms(self) -> Array:
        """|p|_q for q = 0 … the degree of p, (degree + 1, M)."""
        starts = [0] + [k for k in self.x.count[:-1] if k < len(self.c)]
        return np.asarray(np.add.reduceat(np.abs(self.c), starts, axis=0)) * GROW

    @property
    def spread(self) -> Array:
        """At least |p(t) - p(0)|."""
        return np.asarray(np.abs(self.c[1:]).sum(0)) * GROW

    @property
    def size(self) -> Array:
        """At least |f| on each cell."""
        return np.asarray((np.abs(self.c).sum(0) + self.r) * GROW)

    @property
    def range(self) -> tuple[Array, Array]:
        """An interval that contains f on each cell."""
        reach = (self.spread + self.r + 2 * U * np.abs(self.c[0])) * GROW
        return self.c[0] - reach, self.c[0] + reach

    def columns(self, chosen: NDArray[np.bool_]) -> Model:
        """The model on some of the cells."""
        return Model(self.x, self.c[:, chosen], self.r[chosen])

    def __neg__(self) -> Model:
        return Model(self.x, -self.c, self.r)

    def __add__(self, other: Model) -> Model:
        long, short = (self, other) if len(self.c) >= len(other.c) else (other, self)
        c = long.c.copy()
        c[: len(short.c)] += short.c
        lost = 2 * U * np.abs(c[: len(short.c)]).sum(0)
        return Model(self.x, c, (self.r + other.r + lost) * GROW + TINY)

    def __sub__(self, other: Model) -> Model:
        return self + (-other)

    def shifted(self, number: Array | float) -> Model:
        """f + number."""
        c = self.c.copy()
        c[0] += number
        return Model(self.x, c, (self.r + 2 * U * np.abs(c[0])) * GROW + TINY)

    def scaled(self, factor: Array | float) -> Model:
        """factor·f."""
        c = self.c * factor
        return Model(self.x, c, (np.abs(factor) * self.r + 2 * U * np.abs(c).sum(0)) * GROW + TINY)

    def __mul__(self, other: Model) -> Model:
        return self.times(other)

    def times(self, other: Model, most: int | None = None) -> Model:
        """The product, cut to degree `most`:

        r = Σ_{p+q>most} |a|_p |b|_q + |a| r_b + |b| r_a + r_a r_b + (pairs + 3)u |a||b|"""
        x, most = self.x, self.x.n if most is None else most
        if len(other.c) == 1 and not other.r.any():
            return self.scaled(other.c[0])
        a, b = (self, other) if self._live <= other._live else (other, self)
        live = a.c.any(1)
        top = min(most, x.degree[len(a.c) - 1] + x.degree[len(b.c) - 1])
        out = np.zeros((x.count[top], a.cells))
        for i in np.flatnonzero(live):
            if x.degree[i] > most:
                break
            rows = min(x.count[most - x.degree[i]], len(b.c))
            out[x.products[i][:rows]] += a.c[i] * b.c[:rows]
        na, nb = a.norms, b.norms
        tail = np.zeros(a.cells)
        behind = np.cumsum(nb[::-1], 0)[::-1]
        for p in range(len(na)):
            if most - p + 1 < len(nb):
                tail += na[p] * behind[max(0, most - p + 1)]
        size_a, size_b = na.sum(0), nb.sum(0)
        r = tail + size_a * b.r + size_b * a.r + a.r * b.r + (x.pairs + 3) * U * size_a * size_b
        return Model(x, out, r * GROW + TINY)

    @property
    def _live(self) -> int:
        return int(np.count_nonzero(self.c.any(1)))

    def power(self, k: int) -> Model:
        """f^k for k >= 1."""
        if k == 1:
            return self
        half = self.power(k // 2)
        square = half * half
        return square * self if k % 2 else square

    def composed(self, g: Array, error: Array, slope: Array, rest: Array) -> Model:
        """g(f), from the Taylor coefficients g_i of g at c₀ = p(0), i = 0 … n: Horner's rule in p - c₀.

        `error` is at least Σ_i |g_i - exact g_i| ρ^i with ρ = spread, `slope` a Lipschitz constant of g on c₀ ± (ρ + r), and
        `rest` at least |g - Σ_i g_i (s - c₀)^i| for |s - c₀| <= ρ. Then |g(f) - Horner| is at most the radius of Horner's rule
        plus error + slope·r + rest."""
        x, n = self.x, self.x.n
        c = self.c.copy()
        c[0] = 0.0
        inner = Model(x, c, np.zeros(self.cells))
        found = x.constant(0.0, self.cells).shifted(g[n])
        for i in range(n - 1, -1, -1):
            found = found.times(inner, n - i).shifted(g[i])
        return Model(x, found.c, (found.r + error + slope * self.r + rest) * GROW + TINY)

    def where(self, chosen: NDArray[np.bool_], other: Model) -> Model:
        """This model on the chosen cells, the other on the rest."""
        rows = max(len(self.c), len(other.c))
        c = np.zeros((rows, self.cells))
        c[: len(self.c), chosen] = self.c[:, chosen]
        c[: len(other.c), ~chosen] = other.c[:, ~chosen]
        return Model(self.x, c, np.where(chosen, self.r, other.r))


def rows_of(model: Model, rows: int) -> Array:
    """The coefficients of the first `rows` monomials."""
    found = np.zeros((rows, model.cells))
    found[: len(model.c)] = model.c
    return found
