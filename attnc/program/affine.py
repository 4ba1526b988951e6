"""y = W x + b."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb, arb_mat
from torch import Tensor

from attnc.errors import InputError
from attnc.functions.balls import upper
from attnc.program.step import Balls, Numbers, OneInput, Shape, balls, freeze, wide

LARGE = 2**20  # numbers of a weight above which long doubles replace balls


@dataclass(frozen=True, eq=False)
class Affine(OneInput):
    """y = W x + b on the features of every token."""

    weight: Numbers  # (out, in)
    bias: Numbers | None = None  # (out,)
    kind = "affine"

    def __post_init__(self) -> None:
        freeze(self, "weight", "bias")
        w, b = self.weight.shape, None if self.bias is None else self.bias.shape
        if len(w) != 2 or 0 in w or b not in (None, w[:1]):
            raise InputError(f"{self.label}: expected shapes (out, in) and (out,), got {w} and {b}")

    def shape(self, *given: Shape) -> Shape:
        self.check_features(given[0], self.weight.shape[1])
        return (*given[0][:-1], self.weight.shape[0])

    def work(self, *given: Shape) -> int:
        return self.weight.size * math.prod(given[0][:-1])

    def exact(self, *x: Balls) -> Balls:
        rows = x[0].reshape(-1, x[0].shape[-1])
        y = _long_product(self.weight, rows) if self.weight.size > LARGE else _product(self.weight, rows)
        if self.bias is not None:
            y = y + balls(self.bias)
        return y.reshape(*x[0].shape[:-1], -1)

    def approximate(self, *x: Tensor) -> Tensor:
        y = x[0] @ wide(self.weight).T
        return y if self.bias is None else y + wide(self.bias)

    def magnitude(self, *x: Tensor) -> Tensor:
        y = x[0] @ wide(self.weight).abs().T
        return y if self.bias is None else y + wide(self.bias).abs()


def _product(weight: Numbers, rows: Balls) -> Balls:
    product = arb_mat(weight.astype(np.float64).tolist()) * arb_mat(rows.T.tolist())
    found: Balls = np.array(product.entries(), dtype=object).reshape(len(weight), len(rows)).T
    return found


def _long_product(matrix: Numbers, rows: Balls) -> Balls:
    """W x for a large W: x = high + low ± rest, summed in long doubles, whose rounding is at most γ_n |W||x|."""
    weight = matrix.astype(np.longdouble)
    high = np.array([[float(b.mid()) for b in row] for row in rows])
    pairs = zip(rows, high, strict=True)
    low = np.array([[float((b - arb(h)).mid()) for b, h in zip(*pair, strict=True)] for pair in pairs])
    rest = [
        [upper(abs(b - arb(h) - arb(t))) for b, h, t in zip(*triple, strict=True)]
        for triple in zip(rows, high, low, strict=True)
    ]
    x = high.astype(np.longdouble) + low
    y = x @ weight.T
    size, n = np.abs(matrix.astype(np.float64)), matrix.shape[1]
    unit = float(np.finfo(np.longdouble).eps)
    lost = (2 * (n + 4) * unit * (np.abs(high) + np.abs(low)) + np.array(rest)) @ size.T
    lost = lost * (1 + n * 2.0**-50) + n * 2.0**-1000
    found = np.empty(y.shape, dtype=object)
    for i, j in np.ndindex(y.shape):
        top = float(y[i, j])
        radius = float(lost[i, j]) + 2 * abs(top) * 2.0**-100
        found[i, j] = arb(top) + arb(float(y[i, j] - top)) + arb(0, radius)
    return found
