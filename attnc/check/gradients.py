"""A Lipschitz constant of a traced function on a box, in the Euclidean norm: |∇f_o| <= K for every output, proved on cells.

Values carry their partial derivatives (dual numbers), which are values over cells themselves (`cell_values`), and `length`, a
number that |∇v| does not exceed on the cell. At a kink the derivative is any convex combination of those beside it, so it is not
longer than the longer one: |∇max(a, b)| <= max(|∇a|, |∇b|). f is Lipschitz with the constant K if every element of these sets is
at most K, since a box is convex (Lebourg's mean value theorem). Σ_j (∂_j f)² is interpolated at nodes, as in `traced`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnc.check.cell_operations import Cells, remainder_factors
from attnc.check.cell_values import RADII, CellValue, Mask, above, below, chosen, grid, halved, up
from attnc.check.lattice import chebyshev, interpolant_size, lebesgue
from attnc.check.real_functions import LEAST
from attnc.check.values import CheckError
from attnc.domain import Array
from attnc.program import Traced

DEGREES = {1: 10, 2: 8, 3: 5}
MOST_CELLS = 1 << 18
_BATCH = 1 << 17  # nodes at once
_FIRST = 3


@dataclass(frozen=True, eq=False)
class Dual:
    """A value, its partial derivatives (None where 0), and at least |∇v| on each cell."""

    value: CellValue
    parts: tuple[CellValue | None, ...]
    length: Array


class DualCells:
    """The operations of traced functions on duals."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells

    def outputs(self, f: Traced) -> list[Dual]:
        table: dict[str, Callable[..., Dual]] = {
            "add": self.add, "subtract": lambda a, b: self.add(a, self.negate(b)), "multiply": self.multiply,
            "divide": self.divide, "maximum": self.maximum,
            "minimum": lambda a, b: self.negate(self.maximum(self.negate(a), self.negate(b))),
            "negate": self.negate, "absolute": lambda a: self.maximum(a, self.negate(a)), "exp": self.exp, "log": self.log,
            "sin": self.sin, "cos": self.cos, "sqrt": self.sqrt, "erf": self.erf, "power": self.power,
            "atan": self.atan, "where": self.where,
        }  # fmt: skip
        with np.errstate(all="ignore"):
            return f.interpret(self.inputs(), table, self.constant)

    def inputs(self) -> list[Dual]:
        found, one = [], self.cells.constant(1.0)
        for j, value in enumerate(self.cells.inputs()):
            found.append(
                Dual(value, tuple(one if i == j else None for i in range(self.cells.axes)), np.ones(1))
            )
        return found

    def constant(self, number: float) -> Dual:
        return Dual(self.cells.constant(number), (None,) * self.cells.axes, np.zeros(1))

    def _made(self, value: CellValue, parts: Sequence[CellValue | None], length: Array) -> Dual:
        """The length is also at most that of the partial derivatives."""
        sizes = [part.size for part in parts if part is not None]
        own = np.zeros(1)
        if sizes:  # squares of small numbers would be lost by underflow: relative to the largest
            largest = np.max(np.broadcast_arrays(*sizes), axis=0)
            own = up(largest * np.sqrt(sum((size / largest) ** 2 for size in sizes)))
        return Dual(value, tuple(parts), np.fmin(own, length))

    def _scaled(self, a: Dual, factor: CellValue) -> list[CellValue | None]:
        return [None if part is None else self.cells.multiply(part, factor) for part in a.parts]

    def _chain(self, a: Dual, value: CellValue, slope: CellValue) -> Dual:
        return self._made(value, self._scaled(a, slope), up(a.length * slope.size))

    def negate(self, a: Dual) -> Dual:
        parts = tuple(None if part is None else self.cells.negate(part) for part in a.parts)
        return Dual(self.cells.negate(a.value), parts, a.length)

    def _sum(self, a: Sequence[CellValue | None], b: Sequence[CellValue | None]) -> list[CellValue | None]:
        return [
            q if p is None else p if q is None else self.cells.add(p, q) for p, q in zip(a, b, strict=True)
        ]

    def add(self, a: Dual, b: Dual) -> Dual:
        either = np.where(b.length == 0, a.length, b.length)
        length = np.where((a.length == 0) | (b.length == 0), either, up(a.length + b.length))
        return self._made(self.cells.add(a.value, b.value), self._sum(a.parts, b.parts), length)

    def multiply(self, a: Dual, b: Dual) -> Dual:
        parts = self._sum(self._scaled(a, b.value), self._scaled(b, a.value))
        length = up(a.length * b.value.size + b.length * a.value.size)
        return self._made(self.cells.multiply(a.value, b.value), parts, length)

    def divide(self, a: Dual, b: Dual) -> Dual:
        """∇(a/b) = (∇a - (a/b)∇b)/b."""
        quotient, inverse = (
            self.cells.divide(a.value, b.value),
            self.cells.divide(self.cells.constant(1.0), b.value),
        )
        slope = self.cells.negate(self.cells.multiply(quotient, inverse))
        parts = self._sum(self._scaled(a, inverse), self._scaled(b, slope))
        return self._made(quotient, parts, up(a.length * inverse.size + b.length * slope.size))

    def exp(self, a: Dual) -> Dual:
        value = self.cells.exp(a.value)
        return self._chain(a, value, value)

    def log(self, a: Dual) -> Dual:
        return self._chain(a, self.cells.log(a.value), self.cells.divide(self.cells.constant(1.0), a.value))

    def sin(self, a: Dual) -> Dual:
        return self._chain(a, self.cells.sin(a.value), self.cells.cos(a.value))

    def cos(self, a: Dual) -> Dual:
        return self._chain(a, self.cells.cos(a.value), self.cells.negate(self.cells.sin(a.value)))

    def sqrt(self, a: Dual) -> Dual:
        value = self.cells.sqrt(a.value)
        return self._chain(a, value, self.cells.divide(self.cells.constant(0.5), value))

    def erf(self, a: Dual) -> Dual:
        """2/√π e^{-a²}; the constant is rounded."""
        square = self.cells.exp(self.cells.negate(self.cells.multiply(a.value, a.value)))
        factor = self._between(np.array([2 / math.sqrt(math.pi)]), np.array([2.0**-50]))
        return self._chain(a, self.cells.erf(a.value), self.cells.multiply(square, factor))

    def atan(self, a: Dual) -> Dual:
        one = self.cells.constant(1.0)
        slope = self.cells.divide(one, self.cells.add(one, self.cells.multiply(a.value, a.value)))
        return self._chain(a, self.cells.atan(a.value), slope)

    def where(self, c: Dual, a: Dual, b: Dual) -> Dual:
        """A jump has no gradient: where the branch is not known, neither is the length."""
        first, second = c.value.low > 0, c.value.high <= 0
        zero, anything = self.cells.constant(0.0), np.full(1, np.inf)
        unknown = replace(
            zero, radius=zero.radius + np.inf, low=-anything, high=anything, rest=anything, error=anything
        )
        parts = [
            chosen(first, p or zero, chosen(second, q or zero, unknown))
            for p, q in zip(a.parts, b.parts, strict=True)
        ]
        length = np.where(first, a.length, np.where(second, b.length, np.inf))
        return self._made(self.cells.where(c.value, a.value, b.value), parts, length)

    def power(self, a: Dual, exponent: int | float) -> Dual:
        value = self.cells.power(a.value, exponent)
        if exponent == 0:
            return self.constant(1.0)
        less = (
            self.cells.power(a.value, exponent - 1)
            if isinstance(exponent, int)
            else self.cells.divide(value, a.value)
        )
        return self._chain(a, value, self.cells.multiply(self.cells.constant(float(exponent)), less))

    def maximum(self, a: Dual, b: Dual) -> Dual:
        """∇ = ∇b + λ(∇a - ∇b), λ in [0, 1] if the cell has a kink; it lies between both."""
        if a is b:
            return a
        value = self.cells.maximum(a.value, b.value)
        first, second = a.value.low >= b.value.high, b.value.low >= a.value.high
        share = self._between(np.full(1, 0.5), np.full(1, 0.5))
        parts: list[CellValue | None] = []
        for p, q in zip(a.parts, b.parts, strict=True):
            if p is None and q is None:
                parts.append(None)
                continue
            here, there = (self.cells.constant(0.0) if part is None else part for part in (p, q))
            change = self.cells.add(here, self.cells.negate(there))
            mixed = self.cells.add(there, self.cells.multiply(share, change))
            low, high = np.minimum(here.low, there.low), np.maximum(here.high, there.high)
            mixed = replace(mixed, low=np.fmax(mixed.low, low), high=np.fmin(mixed.high, high))
            parts.append(chosen(first, here, chosen(second, there, mixed)))
        either = np.maximum(a.length, b.length)
        return self._made(value, parts, np.where(first, a.length, np.where(second, b.length, either)))

    def _between(self, middle: Array, rest: Array) -> CellValue:
        """A number of [middle - rest, middle + rest]; it may depend on the point."""
        nodes = None if self.cells.at is None else middle.reshape(-1, *(1,) * self.cells.axes)
        ends = below(middle - rest), above(middle + rest)
        return CellValue(middle, np.zeros((len(RADII), 1)), *ends, rest, nodes)


def check_lipschitz(f: Traced, low: Array, high: Array, constant: float, most: int = MOST_CELLS) -> int:
    """The number of cells on which |∇f_o| <= constant is proved for every output. Raises `CheckError` if it is not."""
    low, high = low.astype(np.float64).ravel(), high.astype(np.float64).ravel()
    degree = DEGREES.get(len(low), 3)
    rows, seen = max(1, _BATCH // (degree + 1) ** len(low)), 0
    stack = [grid(low, high, _FIRST)]
    while stack:
        start, end = stack.pop()
        if len(start) > rows:
            stack.append((start[rows:], end[rows:]))
            start, end = start[:rows], end[:rows]
        seen += len(start)
        if seen > most:
            raise CheckError(
                f"the Lipschitz constant {constant:.6g} is not proved with {seen} cells of the box"
            )
        left = ~_within(f, start, end, degree, constant)
        if left.any():
            width = (end - start)[left] / np.maximum(high - low, LEAST)
            stack.append(halved(start[left], end[left], np.argmax(width, 1)))
    return seen


def _within(f: Traced, low: Array, high: Array, degree: int, constant: float) -> Mask:
    """The cells on which |∇f_o| <= constant for every output."""
    axes, limit = low.shape[1], np.nextafter(constant * constant, 0.0)
    cells = Cells(low, high, chebyshev(degree)[0])
    good = np.ones(len(low), bool)
    shape = (len(low),) + (degree + 1,) * axes
    for output in DualCells(cells).outputs(f):
        with np.errstate(all="ignore"):
            fine = output.length <= constant
            parts = [part for part in output.parts if part is not None]
            if parts and not fine.all():
                total = cells.multiply(parts[0], parts[0])
                for part in parts[1:]:
                    total = cells.add(total, cells.multiply(part, part))
                assert total.nodes is not None
                size, _ = interpolant_size(np.broadcast_to(total.nodes, shape), degree)
                remainder = (np.abs(total.centre) + total.radius) * remainder_factors(degree, axes)[:, None]
                remainder = np.where(np.isnan(remainder), np.inf, remainder).min(0)
                bound = up(size + remainder + lebesgue(degree) ** axes * total.error + total.rest)
                fine = fine | (bound <= limit) | (total.high <= limit)
        good &= fine
    return np.asarray(good & cells.defined)
