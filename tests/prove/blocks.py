"""Feed-forward blocks for tests of prover and checker: their bounds by composition, and an adversary who executes them with
every error that the assumptions allow, in rational arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Array, Box, Normed
from attnc.lower.layers import lower_steps
from attnc.program import Affine, Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import compose
from attnc.prove.product import square_powers
from attnc.records.layers import Layer
from tests.feed_forward import FeedForward, Norm

Push = Callable[[str], int]  # where something may go wrong: by how much of what is allowed, -1, 0 or 1


def q(x: float) -> Fraction:
    return Fraction(float(x))


def qs(x: np.ndarray) -> list[Fraction]:
    return [q(t) for t in x]


def relu(s: Fraction) -> Fraction:
    return max(s, Fraction(0))


@dataclass(frozen=True, eq=False)
class Heads:
    """Errors of the head of each neuron on [lo, hi]."""

    lo: Array
    hi: Array
    approximation: Array
    rounding: Array

    @property
    def errors(self) -> HeadErrors:
        return HeadErrors(self.approximation, self.approximation + self.rounding)


@dataclass(frozen=True, eq=False)
class Squares:
    """λ and radius of each neuron, powers of two, and the errors of its square head on [-radius, radius]."""

    scale: Array
    radius: Array
    approximation: Array
    rounding: Array

    @property
    def errors(self) -> HeadErrors:
        return HeadErrors(self.approximation, self.approximation + self.rounding)


def domain_of(ff: FeedForward, inputs: Norm | Box | None) -> Normed | Box:
    where = ff.norm if inputs is None else inputs
    assert where is not None
    return where.domain() if isinstance(where, Norm) else where


def affine_bounds(W: Array, b: Array, inputs: Norm | Normed | Box, dtype: str = "float64") -> ValueBounds:
    """The bounds of W x + b."""
    program = Program((W.shape[1],), (Affine(0, W, b),))
    domain = inputs.domain() if isinstance(inputs, Norm) else inputs
    return compose(program, lower_steps(program, dtype), domain, {}, dtype)[1]


def reach(W: Array, b: Array, inputs: Norm | Normed | Box, dtype: str) -> tuple[Array, Array]:
    """An interval that contains W x + b, executed or exact."""
    return affine_bounds(W, b, inputs, dtype).reach


def bounds_of(
    ff: FeedForward,
    heads: Heads,
    dtype: str,
    squares: Squares | None = None,
    inputs: Norm | Box | None = None,
) -> dict[int, ValueBounds]:
    """The bounds of the values of a block, without the product if there are no squares."""
    program, domain = ff.program(), domain_of(ff, inputs)
    layers = [*lower_steps(program, dtype)]
    errors = {2: heads.errors}
    if ff.gated and squares is None:
        layers = layers[:3]
    elif squares is not None:
        powers = {name: np.log2(getattr(squares, name)).astype(np.int8) for name in ("scale", "radius")}
        layers[3] = Layer("product", (2, 3), 4, powers)
        errors[4] = squares.errors
    return compose(program, layers, domain, errors, dtype)


def square_reach(
    ff: FeedForward, heads: Heads, dtype: str, inputs: Norm | Box | None = None
) -> tuple[Array, Array]:
    """(λ, radius) of a gated block."""
    known = bounds_of(ff, heads, dtype, None, inputs)
    powers = square_powers(known[2], known[3], ARITHMETIC[dtype])
    assert powers is not None
    scale, radius = (np.exp2(k.astype(np.float64)) for k in powers)
    return scale, radius


def block_bound(
    ff: FeedForward,
    heads: Heads,
    dtype: str,
    squares: Squares | None = None,
    inputs: Norm | Box | None = None,
) -> ValueBounds:
    """The bounds of the output; the heads must cover what enters them."""
    known = bounds_of(ff, heads, dtype, squares, inputs)
    low, high = known[1].reach
    assert (heads.lo <= low).all() and (high <= heads.hi).all()
    return known[3 + 2 * ff.gated]


@dataclass
class Adversary:
    """Executes a block with every error that the assumptions allow, as `push` says."""

    ff: FeedForward
    heads: Heads
    squares: Squares | None
    a: Arithmetic
    push: Push

    def rounded(self, x: Fraction, where: str) -> Fraction:
        return x * (1 + self.push(where) * q(self.a.unit)) + self.push(where + " underflow") * q(self.a.tiny)

    def scaled(self, x: Fraction, by: Fraction, where: str) -> Fraction:
        return x * by + self.push(where + " underflow") * q(self.a.tiny)

    def dot(self, w: np.ndarray, x: Sequence[Fraction], b: float, where: str) -> Fraction:
        """Adding a product with 0 rounds nothing."""
        products = [self.rounded(p * t, where) for p, t in zip(qs(w), x, strict=True) if p]
        found = q(b)
        for p in products:
            found = self.rounded(found + p, where)
        return found

    def head(self, j: int, s: Fraction) -> Fraction:
        assert q(self.heads.lo[j]) <= s <= q(self.heads.hi[j])
        off = self.push("head") * q(self.heads.approximation[j])
        return relu(s) + off + self.push("head rounding") * q(self.heads.rounding[j])

    def square(self, j: int, z: Fraction, which: str) -> Fraction:
        assert self.squares is not None and abs(z) <= q(self.squares.radius[j])
        off = self.push("square" + which) * q(self.squares.approximation[j])
        return z * z + off + self.push(f"square{which} rounding") * q(self.squares.rounding[j])

    def product(self, j: int, h: Fraction, t: Fraction) -> Fraction:
        assert self.squares is not None
        power = q(self.squares.scale[j])
        left, right = self.scaled(h, 1 / power, "scale"), self.scaled(t, power, "scale")
        up, down = self.rounded(left + right, "sum+"), self.rounded(left - right, "sum-")
        difference = self.rounded(self.square(j, up, "+") - self.square(j, down, "-"), "difference")
        return self.scaled(difference, Fraction(1, 4), "quarter")

    def run(self, x: Sequence[Fraction]) -> list[Fraction]:
        ff = self.ff
        s = [self.dot(w, x, b, "first") for w, b in zip(ff.W1, ff.b1, strict=True)]
        h = [self.head(j, t) for j, t in enumerate(s)]
        if ff.U is not None and ff.c is not None:
            gate = [self.dot(w, x, b, "gate") for w, b in zip(ff.U, ff.c, strict=True)]
            h = [self.product(j, p, t) for j, (p, t) in enumerate(zip(h, gate, strict=True))]
        return [self.dot(w, h, b, "second") for w, b in zip(ff.W2, ff.b2, strict=True)]


def affine(W: np.ndarray, b: np.ndarray, x: Sequence[Any], of: Callable[[float], Any] = q) -> list[Any]:
    return [
        sum((of(float(p)) * t for p, t in zip(w, x, strict=True)), of(float(c)))
        for w, c in zip(W, b, strict=True)
    ]


def original(
    ff: FeedForward, x: Sequence[Any], f: Callable[[Any], Any] = relu, of: Callable[[float], Any] = q
) -> list[Any]:
    h = [f(s) for s in affine(ff.W1, ff.b1, x, of)]
    if ff.U is not None and ff.c is not None:
        h = [s * t for s, t in zip(h, affine(ff.U, ff.c, x, of), strict=True)]
    return affine(ff.W2, ff.b2, h, of)


def behind(draw: np.random.Generator, norm: Norm, rho: float, y: np.ndarray) -> list[Fraction]:
    """x̂ of the set that `normed` describes, near a multiple of y: the conditions are checked in rationals."""
    d = len(y)
    shrunk = 1 - 2.0**-30
    length = np.sqrt((y * y).sum())
    found = qs(y * np.sqrt(d) * shrunk / length) if length > 0 else qs(y)
    if norm.kind == "layer":
        middle = sum(found) / d
        found = [t - middle for t in found]
        found = [t * q(shrunk) + q(draw.choice([-1, 1]) * 2.0**-31) * q(rho) for t in found]
    else:
        found = [t * (1 + q(rho)) * q(shrunk) for t in found]
    assert sum(t * t for t in found) <= (1 + q(rho)) ** 2 * d
    assert norm.kind == "rms" or abs(sum(found)) <= q(rho) * d
    still = [q(rho) * (abs(s) + q(2.0**-100)) * int(draw.integers(-1, 2)) for s in qs(norm.shift)]
    parts = zip(qs(norm.gain), found, qs(norm.shift), still, strict=True)
    return [g * t + s + r for g, t, s, r in parts]


def kept32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(np.float64)


def random_block(draw: np.random.Generator, gated: bool) -> FeedForward:
    d, m, outputs = (int(n) for n in draw.integers(1, 5, 3))

    def some(*shape: int) -> np.ndarray:
        return kept32(draw.standard_normal(shape) * 10.0 ** draw.uniform(-3, 3))

    norm = Norm(str(draw.choice(["layer", "rms"])), some(d), some(d))
    gate = (some(m, d), some(m)) if gated else (None, None)
    return FeedForward("relu", some(m, d), some(m), some(outputs, m), some(outputs), *gate, norm)


def proved(
    ff: FeedForward, errors: Sequence[float], inputs: Norm | Box | None = None
) -> tuple[Heads, Squares | None]:
    """Heads on just the intervals that are needed, with errors (a, r, A, ϱ)."""
    where = ff.norm if inputs is None else inputs
    assert where is not None
    lo, hi = reach(ff.W1, ff.b1, where, "float32")
    heads = Heads(lo, hi, np.full(len(lo), errors[0]), np.full(len(lo), errors[1]))
    if not ff.gated:
        return heads, None
    scale, radius = square_reach(ff, heads, "float32", inputs)
    return heads, Squares(scale, radius, *(np.full(len(lo), e) for e in errors[2:]))


def coarse(monkeypatch: pytest.MonkeyPatch, unit: float, tiny: float = 2.0**-126) -> Arithmetic:
    """A dtype in which roundings are large enough to be seen beside one another."""
    made = dataclasses.replace(ARITHMETIC["float32"], unit=unit, tiny=tiny)
    monkeypatch.setitem(ARITHMETIC, "float32", made)
    return made


def block(
    w: float, b: Sequence[float], last: float = 0.0, d: int = 1, gate: tuple[float, float] | None = None
) -> FeedForward:
    """Neurons with the biases b and the weights w, next to nothing after the first of d; one output, their sum."""
    m = len(b)
    row = np.array([1.0] + [2.0**-20] * (d - 1))
    gates = (None, None) if gate is None else (np.tile(gate[0] * row, (m, 1)), np.full(m, float(gate[1])))
    W1, W2 = np.tile(w * row, (m, 1)), np.ones((1, m))
    return FeedForward("relu", W1, np.array(b, dtype=np.float64), W2, np.array([last]), *gates)


BIG_FIRST = [1.0] + [2.0**-20] * 29
DEAD = [-1.0] * 30
A, R, Q, QR = (np.eye(4)[k] for k in range(4))  # |head - f|, its rounding, |head - ζ²|, its rounding

# block, errors, unit, tiny, λ where it is not that of square_reach, and the part of the bound that is attained
TERMS = {
    "L e": (block(1, [0], d=99), 0 * A, 2.0**-14, 0, 0, 0.99),
    "r": (block(1, [0]), 1e-3 * R, 2.0**-24, 0, 0, 0.99),
    "γ F": (block(0, BIG_FIRST), 0 * A, 2.0**-14, 0, 0, 0.96),
    "γ a": (block(0, DEAD), A, 2.0**-14, 0, 0, 0.99),
    "γ r": (block(0, DEAD), R, 2.0**-14, 0, 0, 0.99),
    "γ b2": (block(0, DEAD, last=1.0), 0 * A, 2.0**-14, 0, 0, 0.96),
    "L e underflow": (block(1, [0], d=99), 0 * A, 2.0**-60, 2.0**-20, 0, 0.2),
    "underflow": (block(0, DEAD), 0 * A, 2.0**-60, 2.0**-20, 0, 0.2),
    "a V": (block(0, [-1], gate=(0, 7)), A, 2.0**-24, 0, 0, 0.99),
    "r V": (block(0, [-1], gate=(0, 7)), R, 2.0**-24, 0, 0, 0.99),
    "A": (block(0, [-1], gate=(0, 0)), Q, 2.0**-24, 0, 0, 0.99),
    "ϱ": (block(0, [-1], gate=(0, 0)), QR, 2.0**-24, 0, 0, 0.99),
    "L e V": (block(1, [0], d=99, gate=(0, 1)), 0 * A, 2.0**-14, 0, 0, 0.98),
    "F e'": (block(0, [1], d=99, gate=(1, 0)), 0 * A, 2.0**-14, 0, 0, 0.98),
    "a e'": (block(0, [-1], d=99, gate=(1, 0)), A, 2.0**-14, 0, 0, 0.999),
    "every rounding once": (block(1, [0], gate=(1, 0)), 0 * A, 2.0**-14, 0, 0, 0.999),
    "sums": (block(0, [1], gate=(0, 1)), 0 * A, 2.0**-14, 0, 32.0, 0.99),
    "sums, other side": (block(0, [1], gate=(0, 1)), 0 * A, 2.0**-14, 0, 1 / 32, 0.99),
    "sums underflow": (block(0, [1], gate=(0, 1)), 0 * A, 2.0**-60, 2.0**-20, 1024.0, 0.0004),
    "u A": (block(0, [1], gate=(0, 1)), 100 * Q, 2.0**-14, 0, 0, 0.99),
    "u ϱ": (block(0, [1], gate=(0, 1)), 100 * QR, 2.0**-14, 0, 0, 0.99),
    "γ p": (block(0, BIG_FIRST, gate=(0, 1)), 0 * A, 2.0**-14, 0, 0, 0.94),
}
