"""Writer: tensors of scalar operations on a tape, and the formulas that several ATen operations share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnc.frontends.activations import RefusedError
from attnc.frontends.tape import Symbols, Tape

Real = Symbols | Tensor | float
Range = Callable[[int], tuple[float, float]]  # of a value on the box
MOST_SORTED = 8


class Writer:
    """Writes tensors of operations to a tape."""

    def __init__(self, tape: Tape, reach: Range) -> None:
        self.tape, self.reach = tape, reach
        self.inverted: list[int] = []  # determinants: torch raises an error where one is 0

    def symbols(self, x: Real) -> Tensor:
        """Numbers of values; numbers that do not depend on the input become constants."""
        if isinstance(x, Symbols):
            return x.at
        numbers = torch.as_tensor(x, dtype=None if isinstance(x, Tensor) else torch.float64)
        numbers = numbers.double() if numbers.dtype == torch.bool else numbers
        if numbers.is_complex():
            raise RefusedError("has complex numbers")
        if not numbers.is_floating_point() and numbers.numel() and int(numbers.abs().max()) >= 2**53:
            raise RefusedError("has whole numbers beyond 2^53")
        wide = numbers.detach().double().cpu()
        if not bool(wide.isfinite().all()):
            raise RefusedError("has constants that are infinite or NaN")
        at = [self.tape.constant(c) for c in wide.flatten().tolist()]
        return torch.tensor(at, dtype=torch.int64).reshape(wide.shape)

    def broadcast(self, *given: Real) -> list[Tensor]:
        """Numbers of values in one shape."""
        tensors = [self.symbols(x) for x in given]
        shape = np.broadcast_shapes(*(t.shape for t in tensors))
        return [t.expand(shape) for t in tensors]

    def each(self, write: Callable[..., int], *given: Real) -> Symbols:
        """An operation on every number of tensors that are broadcast against each other."""
        tensors = self.broadcast(*given)
        rows = zip(*(t.flatten().tolist() for t in tensors), strict=True)
        return Symbols(
            torch.tensor([write(*row) for row in rows], dtype=torch.int64).reshape(tensors[0].shape)
        )

    def apply(self, name: str, *given: Real) -> Symbols:
        return self.each(lambda *row: self.tape.write(name, *row), *given)

    def fold(self, x: Real, dim: Any, keepdim: bool, combine: Callable[[list[int]], int]) -> Symbols:
        """One value for all the values along some axes, or along all."""
        at = self.symbols(x)
        every = dim is None or (isinstance(dim, Sequence) and not dim)
        dims = list(range(at.ndim)) if every else [dim] if isinstance(dim, int) else list(dim)
        axes = sorted(d % max(at.ndim, 1) for d in dims)
        kept = [d for d in range(at.ndim) if d not in axes]
        shape = [at.shape[d] for d in kept]
        rows = at.permute(*kept, *axes).reshape(math.prod(shape), -1).tolist()
        found = torch.tensor([combine(row) for row in rows], dtype=torch.int64)
        return Symbols(
            found.reshape([1 if d in axes else n for d, n in enumerate(at.shape)] if keepdim else shape)
        )

    def along(self, x: Real, dim: int, rows: Callable[[list[int]], list[int]]) -> Symbols:
        """Other values for those along an axis."""
        at = self.symbols(x)
        if at.ndim == 0:
            return Symbols(torch.tensor(rows([int(at)])[0]))
        moved = at.movedim(dim, -1)
        found = torch.tensor(
            [rows(row) for row in moved.reshape(-1, moved.shape[-1]).tolist()], dtype=torch.int64
        )
        return Symbols(found.reshape(*moved.shape[:-1], -1).movedim(-1, dim))

    # scalar formulas
    def total(self, row: list[int]) -> int:
        return reduce(lambda a, b: self.tape.write("add", a, b), row) if row else self.tape.constant(0.0)

    def dot(self, a: Sequence[int], b: Sequence[int]) -> int:
        return self.total([self.tape.write("multiply", p, q) for p, q in zip(a, b, strict=True)])

    def reciprocal(self, a: int) -> int:
        return self.tape.write("divide", self.tape.constant(1.0), a)

    def tanh(self, a: int) -> int:
        """1 - 2/(1 + e^2a)."""
        write, constant = self.tape.write, self.tape.constant
        e = write("exp", write("multiply", constant(2.0), a))
        return write(
            "subtract", constant(1.0), write("divide", constant(2.0), write("add", constant(1.0), e))
        )

    def sigmoid(self, a: int) -> int:
        e = self.tape.write("exp", self.tape.write("negate", a))
        return self.reciprocal(self.tape.write("add", self.tape.constant(1.0), e))

    def softplus(self, a: int) -> int:
        return self.tape.write(
            "log", self.tape.write("add", self.tape.constant(1.0), self.tape.write("exp", a))
        )

    def softmax(self, row: list[int]) -> list[int]:
        weights = [self.tape.write("exp", a) for a in row]
        total = self.total(weights)
        return [self.tape.write("divide", w, total) for w in weights]

    def logsumexp(self, row: list[int]) -> int:
        return self.tape.write("log", self.total([self.tape.write("exp", a) for a in row]))

    def ordered(self, row: list[int]) -> list[int]:
        """In ascending order, by comparing neighbours."""
        if len(row) > MOST_SORTED:
            raise RefusedError(f"sorts {len(row)} values: up to {MOST_SORTED} are traced")
        found = list(row)
        for last in range(len(found) - 1, 0, -1):
            for i in range(last):
                low, high = (self.tape.write(name, found[i], found[i + 1]) for name in ("minimum", "maximum"))
                found[i], found[i + 1] = low, high
        return found

    def power(self, a: int, exponent: float) -> int:
        if float(exponent).is_integer() and abs(exponent) <= 64:
            if exponent == 0 and self.tape.is_partial(a):
                raise RefusedError("has the exponent 0 for what may be undefined")
            return self.tape.write("power", a, int(exponent)) if exponent else self.tape.constant(1.0)
        if exponent == 0.5:
            return self.tape.write("sqrt", a)
        if 0 < exponent <= 64 and (2 * exponent).is_integer():  # unlike e^(q log a), defined where a is 0
            whole = self.tape.write("power", a, int(exponent))
            return self.tape.write("multiply", whole, self.tape.write("sqrt", a))
        if not abs(exponent) <= 64:
            raise RefusedError(f"has the exponent {exponent}: up to 64 is traced")
        return self.tape.write("power", a, float(exponent))

    def determinant(self, m: list[list[int]]) -> int:
        """By the first row, for up to three rows."""
        if len(m) == 1:
            return m[0][0]
        parts = [self.tape.write("multiply", m[0][j], self.cofactor(m, 0, j)) for j in range(len(m))]
        return self.total(parts)

    def cofactor(self, m: list[list[int]], i: int, j: int) -> int:
        if len(m) == 1:
            return self.tape.constant(1.0)
        rest = [[x for c, x in enumerate(row) if c != j] for r, row in enumerate(m) if r != i]
        if len(rest) == 1:
            found = rest[0][0]
        else:
            write = self.tape.write
            ad, bc = write("multiply", rest[0][0], rest[1][1]), write("multiply", rest[0][1], rest[1][0])
            return write("subtract", *((ad, bc) if (i + j) % 2 == 0 else (bc, ad)))
        return found if (i + j) % 2 == 0 else self.tape.write("negate", found)

    def inverse(self, m: list[list[int]]) -> list[list[int]]:
        """The adjugate over the determinant."""
        det = self.determinant(m)
        self.inverted.append(det)
        size = range(len(m))
        return [[self.tape.write("divide", self.cofactor(m, j, i), det) for j in size] for i in size]
