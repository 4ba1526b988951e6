"""The error of a block: an adversary who may do whatever the assumptions allow stays within it, in rational arithmetic and
without slack, and comes near it term by term."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Box
from attnc.functions.balls import working
from attnc.prove import norm as normed
from tests.feed_forward import FeedForward, Norm, attainable
from tests.prove.blocks import (
    TERMS,
    A,
    Adversary,
    Heads,
    Squares,
    affine,
    behind,
    block,
    block_bound,
    coarse,
    kept32,
    original,
    proved,
    q,
    random_block,
    reach,
    square_reach,
)  # fmt: skip


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
        monkeypatch.setattr(normed, "RHO", rho)
        heads, squares = proved(ff, 10.0 ** draw.uniform(-8, 0, 4))
        bound = block_bound(ff, heads, "float32", squares)
        assert ff.norm is not None
        for W in (ff.W1, ff.W1 if ff.U is None else ff.U):
            y = attainable(W, ff.norm.domain())[0] * draw.choice([-1, 1])
            x = behind(draw, ff.norm, rho, y)
            pushes = [lambda _: 1, lambda _: -1, lambda _, draw=draw: int(draw.integers(0, 2)) * 2 - 1]
            for push in pushes:
                executed = Adversary(ff, heads, squares, a, push).run(x)
                for i, (was, now) in enumerate(zip(original(ff, x), executed, strict=True)):
                    assert abs(now - was) <= q(bound.error[i])


@pytest.mark.parametrize("gated", [False, True])
def test_no_adversary_leaves_the_exact_bound(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that err by all that they may, each in the direction that is worst for one output; nothing is rounded."""
    monkeypatch.setattr(normed, "RHO", 0.0)
    for seed in range(12):
        draw = np.random.default_rng(seed)
        ff = random_block(draw, gated)
        heads, squares = proved(ff, 10.0 ** draw.uniform(-8, 0, 4) * [1, 0, 1, 0])
        bound = block_bound(ff, heads, "float32", squares)
        assert ff.norm is not None
        x = behind(draw, ff.norm, 0.0, attainable(ff.W1, ff.norm.domain())[-1])
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
            assert abs(now - was[i]) <= q(bound.approximation[i])
            assert gated or abs(now - was[i]) >= q(bound.approximation[i]) * (1 - Fraction(1, 10**12))


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
        squares = dataclasses.replace(squares, scale=first * 0 + power, radius=first * 0 + 2.0**20)
    bound = block_bound(ff, heads, "float32", squares, box)
    x = [Fraction(1)] * ff.W1.shape[1]
    against = {"sum-", "square-", "square- rounding", "sum- underflow"}
    made = Adversary(ff, heads, squares, a, lambda where: -1 if where in against else 1)
    lost = abs(made.run(x)[0] - original(ff, x)[0])
    allowed = q(bound.error[0])
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
    size = np.maximum(np.abs(hi), 0.28)  # at least |silu| there
    heads = Heads(lo, hi, np.full(m, off), 2 * unit * (size + off) + 2.0**-50)
    scale, radius = square_reach(ff, heads, dtype) if gated else (np.ones(m), np.ones(m))
    squares = Squares(scale, radius, np.zeros(m), unit * radius**2 * 1.01) if gated else None
    bound = block_bound(ff, heads, dtype, squares)
    z = torch.tensor(np.concatenate([attainable(W1, norm.domain())[:2], draw.standard_normal((2, d))]))
    kept = getattr(torch, dtype)
    gain, shift = (torch.tensor(t).to(kept) for t in (norm.gain, norm.shift))
    x = torch.nn.functional.layer_norm(z.to(kept), (d,), gain, shift).double().numpy()
    found = executed_in_torch(ff, kept, x, off, scale)
    with working(200):
        for row, outs in zip(x, found, strict=True):
            was = original(ff, [arb(float(t)) for t in row], lambda s: s / (1 + (-s).exp()), arb)
            for i, now in enumerate(outs):
                lost, exact = abs(arb(float(now)) - was[i]), arb(float(bound.approximation[i]))
                assert lost <= arb(float(bound.error[i]))
                assert gated or i or lost >= 0.99 * off / 1e-3 * exact


def test_balanced_scales_are_powers_of_two() -> None:
    box = Box(1, 1, shape=(1,))
    for f, t in ((1.0, 1.0), (1000.0, 0.01), (1e-6, 50.0), (0.0, 3.0), (1e-30, 1e30)):
        ff = block(0, [f], gate=(0, t))
        heads = Heads(*reach(ff.W1, ff.b1, box, "float64"), np.zeros(1), np.zeros(1))
        (power,), (radius,) = square_reach(ff, heads, "float64", box)
        assert np.frexp(power)[0] == 0.5 and 2.0**-100 <= power <= 2.0**100
        assert f / power + power * t <= radius
        assert f == 0 or radius <= 2 * 2.2 * np.sqrt(f * t)


@pytest.mark.parametrize(("weight", "size"), [(2.0**60, 2.0**-127), (2.0**-127, 2.0**60)])
def test_subnormal_operands_of_the_projection_are_counted(weight: float, size: float) -> None:
    ff = dataclasses.replace(block(0, [size]), W2=np.array([[weight]]))
    box = Box(1, 1, shape=(1,))
    heads = Heads(*reach(ff.W1, ff.b1, box, "float32"), np.zeros(1), np.zeros(1))
    bound = block_bound(ff, heads, "float32", inputs=box)
    assert bound.approximation[0] + bound.rounding[0] >= bound.error[0] >= weight * size


def test_nothing_is_proved_of_what_may_overflow_or_leave_its_square() -> None:
    box, ff, gated = Box(1, 1, shape=(1,)), block(1, [0.0]), block(1, [0.0], gate=(1, 0))
    heads, _ = proved(ff, 0 * A, box)
    _, squares = proved(gated, 0 * A, box)
    assert squares is not None

    def error(ff: FeedForward, squares: Squares | None = None) -> float:
        return float(block_bound(ff, heads, "float32", squares, box).error[0])

    assert np.isfinite(error(ff)) and np.isfinite(error(gated, squares))
    assert error(dataclasses.replace(ff, b2=np.array([2.0**126]))) == np.inf
    assert error(gated, dataclasses.replace(squares, radius=squares.radius / 2)) == np.inf
    assert (
        error(gated, dataclasses.replace(squares, scale=np.array([2.0**62]), radius=np.array([2.0**70])))
        == np.inf
    )
