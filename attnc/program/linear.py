"""The linear steps: affine maps, normalisations with fixed statistics, sums, and reshapes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from flint import arb, arb_mat
from torch import Tensor

from attnc.errors import InputError
from attnc.functions.balls import upper
from attnc.program.step import Balls, Numbers, OneInput, Shape, Step, balls, freeze, wide

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


@dataclass(frozen=True, eq=False)
class BatchNorm(OneInput):
    """y = (x - mean)/√(variance + ε)·gain + shift on the features, with stored statistics."""

    mean: Numbers
    variance: Numbers
    gain: Numbers
    shift: Numbers
    epsilon: float
    kind = "batch_norm"

    def __post_init__(self) -> None:
        freeze(self, "mean", "variance", "gain", "shift")
        shapes = {a.shape for a in self.tensors().values()}
        if len(shapes) != 1 or len(self.mean.shape) != 1:
            raise InputError(f"{self.label}: expected four vectors of one size, got shapes {sorted(shapes)}")
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if float(np.min(self.variance)) + self.epsilon <= 0 or not math.isfinite(self.epsilon):
            raise InputError(f"{self.label}: variance + epsilon must be positive")

    def shape(self, *given: Shape) -> Shape:
        self.check_features(given[0], len(self.mean))
        return given[0]

    def exact(self, *x: Balls) -> Balls:
        scale = [
            arb(float(g)) / (arb(float(v)) + arb(self.epsilon)).sqrt()
            for g, v in zip(self.gain, self.variance, strict=True)
        ]
        return np.asarray((x[0] - balls(self.mean)) * np.array(scale, dtype=object) + balls(self.shift))

    def approximate(self, *x: Tensor) -> Tensor:
        scale = wide(self.gain) / torch.sqrt(wide(self.variance) + self.epsilon)
        return (x[0] - wide(self.mean)) * scale + wide(self.shift)


@dataclass(frozen=True, eq=False)
class Combine(Step):
    """y = Σ c_i x_i of values of one shape: a residual connection, a difference, a multiple."""

    inputs: tuple[int, ...]
    coefficients: tuple[float, ...]
    kind = "combine"

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))
        if not self.inputs or len(self.inputs) != len(self.coefficients):
            sizes = f"{len(self.inputs)} values and {len(self.coefficients)} coefficients"
            raise InputError(f"{self.label}: there are {sizes}, expected one coefficient for each value")
        if not all(map(math.isfinite, self.coefficients)):
            raise InputError(f"{self.label}: coefficients {self.coefficients} must be finite")

    def shape(self, *given: Shape) -> Shape:
        if len(set(given)) != 1:
            raise InputError(f"it adds values of one shape: got {', '.join(map(str, given))}")
        return given[0]

    def exact(self, *x: Balls) -> Balls:
        terms = [v * arb(c) for v, c in zip(x, self.coefficients, strict=True)]
        return np.asarray(sum(terms[1:], terms[0]), dtype=object)

    def approximate(self, *x: Tensor) -> Tensor:
        return torch.stack([c * v for c, v in zip(self.coefficients, x, strict=True)]).sum(0)


@dataclass(frozen=True, eq=False)
class Reshape(OneInput):
    """The same numbers, row by row, in another shape: tokens joined into one, or one split into tokens."""

    to: Shape
    kind = "reshape"

    def __post_init__(self) -> None:
        if not self.to or not all(type(n) is int and n > 0 for n in self.to):
            raise InputError(f"{self.label}: to={self.to} must be a shape of positive whole numbers")

    def shape(self, *given: Shape) -> Shape:
        if math.prod(given[0]) != math.prod(self.to):
            raise InputError(f"it reshapes to {self.to}, but its input has shape {given[0]}")
        return self.to

    def exact(self, *x: Balls) -> Balls:
        return x[0].reshape(len(x[0]), *self.to)

    def approximate(self, *x: Tensor) -> Tensor:
        return x[0].reshape(len(x[0]), *self.to)
