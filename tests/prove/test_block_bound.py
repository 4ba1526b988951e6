"""The error of a block: an adversary who may do whatever the assumptions allow stays within it, in rational arithmetic and
without slack, and comes near it term by term."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from flint import arb

from attnc import functions
from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.domain import Box
from attnc.errors import InputError
from attnc.functions.balls import working
from attnc.program.block import FeedForward, Norm
from attnc.prove.block_bound import Heads, Squares, block_bound, proved_heads, square_reach
from attnc.prove.normed import attainable, reach

Push = Callable[[str], int]  # where something may go wrong: by how much of what is allowed, -1, 0 or 1


def q(x: float) -> Fraction:
    return Fraction(float(x))


def qs(x: np.ndarray) -> list[Fraction]:
    return [q(t) for t in x]


def relu(s: Fraction) -> Fraction:
    return max(s, Fraction(0))


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
        products = [self.rounded(p * t, where) for p, t in zip(qs(w), x, strict=True)]
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
    ff: FeedForward, errors: Sequence[float], inputs: Norm | Box | None = None, rho: float = 0.0
) -> tuple[Heads, Squares | None]:
    """Heads on just the intervals that are needed, with errors (a, r, A, ϱ)."""
    where = ff.norm if inputs is None else inputs
    assert where is not None
    lo, hi = reach(ff.W1, ff.b1, where, "float32", rho)
    heads = proved_heads(functions.relu(), lo, hi, *errors[:2])
    if not ff.gated:
        return heads, None
    scale, radius = square_reach(ff, heads, "float32", inputs, rho)
    return heads, Squares(scale, radius, *(np.full(len(lo), e) for e in errors[2:]))


def coarse(monkeypatch: pytest.MonkeyPatch, unit: float, tiny: float = 2.0**-126) -> Arithmetic:
    """A dtype in which roundings are large enough to be seen beside one another."""
    made = dataclasses.replace(ARITHMETIC["float32"], unit=unit, tiny=tiny)
    monkeypatch.setitem(ARITHMETIC, "float32", made)
    return made


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("unit", [2.0**-6, 2.0**-24])
@pytest.mark.parametrize("tiny", [2.0**-9, 2.0**-126])
def test_no_adversary_leaves_the_bound(
    gated: bool, unit: float, tiny: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = coarse(monkeypatch, unit, tiny)
    for seed in range(8):
        draw = np.random.default_rng(seed)
        ff, rho = random_block(draw, gated), float(draw.choice([0.0, 2.0**-10, 0.25]))
        heads, squares = proved(ff, 10.0 ** draw.uniform(-8, 0, 4), rho=rho)
        bound = block_bound(ff, heads, "float32", squares, rho=rho)
        assert ff.norm is not None
        for W in (ff.W1, ff.W1 if ff.U is None else ff.U):
            y = attainable(W, ff.norm)[0] * draw.choice([-1, 1])
            x = behind(draw, ff.norm, rho, y)
            pushes = [lambda _: 1, lambda _: -1, lambda _, draw=draw: int(draw.integers(0, 2)) * 2 - 1]
            for push in pushes:
                executed = Adversary(ff, heads, squares, a, push).run(x)
                for i, (was, now) in enumerate(zip(original(ff, x), executed, strict=True)):
                    assert abs(now - was) <= q(bound.exact[i]) + q(bound.rounding[i])


@pytest.mark.parametrize("gated", [False, True])
def test_no_adversary_leaves_the_exact_bound(gated: bool) -> None:
    """Heads that err by all that they may, each in the direction that is worst for one output; nothing is rounded."""
    for seed in range(12):
        draw = np.random.default_rng(seed)
        ff = random_block(draw, gated)
        heads, squares = proved(ff, 10.0 ** draw.uniform(-8, 0, 4) * [1, 0, 1, 0])
        bound = block_bound(ff, heads, "float32", squares, rho=0.0)
        assert ff.norm is not None
        x = behind(draw, ff.norm, 0.0, attainable(ff.W1, ff.norm)[-1])
        was = original(ff, x)
        s = affine(ff.W1, ff.b1, x)
        t = [Fraction(1)] * len(s) if ff.U is None or ff.c is None else affine(ff.U, ff.c, x)
        for i, row in enumerate(ff.W2):
            made = Adversary(ff, heads, squares, ARITHMETIC["float32"], lambda _: 0)
            outs = []
            for j, sign in enumerate(np.where(row < 0, -1, 1).tolist()):
                worst = {"head": sign if t[j] >= 0 else -sign, "square+": sign, "square-": -sign}
                made.push = lambda where, worst=worst: worst.get(where, 0)
                h = made.head(j, s[j])
                outs.append(made.product(j, h, t[j]) if gated else h)
            (now,) = affine(row[None], ff.b2[i : i + 1], outs)
            assert abs(now - was[i]) <= q(bound.exact[i])
            assert gated or abs(now - was[i]) >= q(bound.exact[i]) * (1 - Fraction(1, 10**12))


def block(
    w: float, b: Sequence[float], last: float = 0.0, d: int = 1, gate: tuple[float, float] | None = None
) -> FeedForward:
    """Neurons with the biases b and the weights w, next to nothing after the first of d; one output, their sum."""
    m = len(b)
    row = np.array([1.0] + [2.0**-20] * (d - 1))
    gates = (None, None) if gate is None else (np.tile(gate[0] * row, (m, 1)), np.full(m, gate[1]))
    W1, W2 = np.tile(w * row, (m, 1)), np.ones((1, m))
    return FeedForward("relu", W1, np.array(b), W2, np.array([last]), *gates)


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


@pytest.mark.parametrize("term", TERMS)
def test_every_term_is_needed(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All errors at their worst, in a block where this term is most of the bound, or what lifts it above the attack."""
    ff, errors, unit, tiny, power, part = TERMS[term]
    a = coarse(monkeypatch, unit, tiny)
    first = np.array([1.0] + [2.0**-20] * (len(ff.b1) - 1))
    box = Box(1, 1, shape=ff.W1.shape[1:])
    heads, squares = proved(ff, errors, box)
    heads = dataclasses.replace(heads, approximation=errors[0] * first, rounding=errors[1] * first)
    if squares is not None and power:
        squares = dataclasses.replace(squares, scale=first * 0 + power, radius=first * 0 + 1e6)
    bound = block_bound(ff, heads, "float32", squares, box)
    x = [Fraction(1)] * ff.W1.shape[1]
    against = {"sum-", "square-", "square- rounding", "sum- underflow"}
    made = Adversary(ff, heads, squares, a, lambda where: -1 if where in against else 1)
    lost = abs(made.run(x)[0] - original(ff, x)[0])
    allowed = q(bound.exact[0]) + q(bound.rounding[0])
    assert q(part) * allowed <= lost <= allowed


def executed_in_torch(
    ff: FeedForward, dtype: torch.dtype, x: np.ndarray, off: float, scale: np.ndarray
) -> np.ndarray:
    """silu and squares by torch, from float64 rounded once, silu `off` to one side or the other."""

    def kept(t: np.ndarray | None) -> torch.Tensor:
        assert t is not None
        return torch.tensor(t).to(dtype)

    s = torch.nn.functional.linear(kept(x), kept(ff.W1), kept(ff.b1))
    signs = torch.tensor(np.sign(ff.W2[0]))
    h = (torch.nn.functional.silu(s.double()) + signs * off).to(dtype)
    if ff.gated:
        t, power = torch.nn.functional.linear(kept(x), kept(ff.U), kept(ff.c)), kept(scale)
        up, down = h / power + power * t, h / power - power * t
        h = (up * up - down * down) / 4
    return torch.nn.functional.linear(h, kept(ff.W2), kept(ff.b2)).double().numpy()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("off", [0.0, 1e-3])
def test_what_torch_executes_is_within_the_bound(dtype: str, gated: bool, off: float) -> None:
    draw, (d, m, outputs) = np.random.default_rng(8), (32, 24, 3)
    W1, b1, W2, b2, U, c, gain, shift = (
        kept32(draw.standard_normal(n) / np.sqrt(n[-1]))
        for n in ((m, d), (m,), (outputs, m), (outputs,), (m, d), (m,), (d,), (d,))
    )
    norm = Norm("layer", gain * 6, shift)
    ff = FeedForward("silu", W1, b1, W2, b2, *((U, c) if gated else (None, None)), norm)
    lo, hi = reach(W1, b1, norm, dtype)
    unit = ARITHMETIC[dtype].unit
    heads = proved_heads(functions.silu(), lo, hi, off, 0.0)
    heads = dataclasses.replace(heads, rounding=2 * unit * (heads.size + off) + 2.0**-50)
    scale, radius = square_reach(ff, heads, dtype) if gated else (np.ones(m), np.ones(m))
    squares = Squares(scale, radius, np.zeros(m), unit * radius**2 * 1.01) if gated else None
    bound = block_bound(ff, heads, dtype, squares)
    z = torch.tensor(np.concatenate([attainable(W1, norm)[:2], draw.standard_normal((2, d))]))
    kept = getattr(torch, dtype)
    gain, shift = (torch.tensor(t).to(kept) for t in (norm.gain, norm.shift))
    x = torch.nn.functional.layer_norm(z.to(kept), (d,), gain, shift).double().numpy()
    found = executed_in_torch(ff, kept, x, off, scale)
    with working(200):
        for row, outs in zip(x, found, strict=True):
            was = original(ff, [arb(float(t)) for t in row], lambda s: s / (1 + (-s).exp()), arb)
            for i, now in enumerate(outs):
                lost, exact = abs(arb(float(now)) - was[i]), arb(float(bound.exact[i]))
                assert lost <= exact + arb(float(bound.rounding[i]))
                assert gated or i or lost >= 0.99 * off / 1e-3 * exact


def test_sizes_and_slopes_of_the_activation_are_enclosed() -> None:
    draw = np.random.default_rng(0)
    ends = np.sort(draw.standard_normal((2, 40)) * 6, axis=0)
    for f in (functions.gelu(), functions.silu(), functions.relu()):
        heads = proved_heads(f, *ends, 0.5, np.full(40, 0.25))
        assert (heads.approximation == 0.5).all() and (heads.rounding == 0.25).all()
        s = np.linspace(*ends, 60)
        with working(128):
            for j in range(40):
                values = [f.value(float(t)) for t in s[:, j]]
                assert all(abs(v) <= arb(float(heads.size[j])) for v in values)
                largest = max(float(abs(v)) for v in values)
                assert heads.size[j] <= largest * 1.05 + 0.05
                rises = [
                    float(abs(v - u)) / (t - r)
                    for u, v, r, t in zip(values, values[1:], s[:, j], s[1:, j], strict=False)
                ]
                assert max(rises) * (1 - 1e-9) <= heads.lipschitz[j] <= max(rises) + 0.15


def test_balanced_scales_are_powers_of_two() -> None:
    box = Box(1, 1, shape=(1,))
    for f, t in ((1.0, 1.0), (1000.0, 0.01), (1e-6, 50.0), (0.0, 3.0), (1e-30, 1e30)):
        ff = block(0, [f], gate=(0, t))
        lo, hi = reach(ff.W1, ff.b1, box, "float64")
        heads = proved_heads(functions.relu(), lo, hi, 0.0, 0.0)
        (power,), (radius,) = square_reach(ff, heads, "float64", box)
        assert np.frexp(power)[0] == 0.5 and 2.0**-100 <= power <= 2.0**100
        assert f / power + power * t <= radius
        assert f == 0 or radius <= 2.2 * np.sqrt(f * t)


@pytest.mark.parametrize(("weight", "size"), [(2.0**60, 2.0**-127), (2.0**-127, 2.0**60)])
def test_subnormal_operands_of_the_projection_are_counted(weight: float, size: float) -> None:
    ff = dataclasses.replace(block(0, [-1.0]), W2=np.array([[weight]]))
    heads = Heads(*(np.array([v]) for v in (-2.0, 0.0, 0.0, 0.0, size, 0.0)))
    bound = block_bound(ff, heads, "float32", inputs=Box(1, 1, shape=(1,)))
    assert bound.exact[0] + bound.rounding[0] <= bound.total[0]
    assert bound.rounding[0] >= weight * size


def test_bad_input_is_refused() -> None:
    box, ff, gated = Box(1, 1, shape=(1,)), block(1, [0.0]), block(1, [0.0], gate=(1, 0))
    heads, _ = proved(ff, 0 * A, box)
    _, squares = proved(gated, 0 * A, box)
    assert squares is not None

    def refused(
        match: str, ff: FeedForward = ff, heads: Heads = heads, dtype: str = "float32", **given: object
    ) -> None:
        with pytest.raises(InputError, match=match):
            block_bound(ff, heads, dtype, **{"inputs": box, **given})  # type: ignore[arg-type]

    def other(**changes: float) -> Heads:
        return dataclasses.replace(heads, **{name: np.array([v]) for name, v in changes.items()})

    refused("no norm stands in front", inputs=None)
    refused("bfloat16", dtype="bfloat16")
    refused("no heads for its product", ff=gated)
    refused("head of neuron 0 is proved on", heads=other(hi=1 + 1e-9))
    refused("head of neuron 0 is proved on", heads=other(lo=1 - 1e-9))
    refused("approximation holds", heads=other(approximation=np.nan))
    refused("rounding holds", heads=other(rounding=-1.0))
    refused("lipschitz holds", heads=other(lipschitz=np.inf))
    refused("size has the shape", heads=dataclasses.replace(heads, size=np.ones(2)))
    refused("W2 has the shape", ff=dataclasses.replace(ff, W2=np.ones((1, 2))))
    refused("W2 holds a number that is not finite", ff=dataclasses.replace(ff, W2=np.array([[np.nan]])))
    refused("b2 holds a number that is not of float32", ff=dataclasses.replace(ff, b2=np.array([0.1])))
    refused("U has the shape", ff=dataclasses.replace(gated, U=np.ones((1, 2))), squares=squares)
    refused("outputs may overflow", ff=dataclasses.replace(ff, b2=np.array([2.0**126])))
    refused("square head of neuron 0", ff=gated, squares=dataclasses.replace(squares, radius=np.ones(1)))
    refused("other than 2", ff=gated, squares=dataclasses.replace(squares, scale=np.array([3.0])))
    wide = dataclasses.replace(squares, scale=np.array([2.0**64]), radius=np.array([2.0**70]))
    refused("products may overflow", ff=gated, squares=wide)
    with pytest.raises(InputError):
        square_reach(ff, heads, "float32", box)
