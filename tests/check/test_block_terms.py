"""Every term of the checker's bound of a block is needed: an adversary comes near it, term by term."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from attnc.arithmetic import ARITHMETIC
from attnc.check import affine
from attnc.check.values import HeadErrors, Passing, SquareErrors, start
from attnc.domain import Box, Normed
from attnc.program import Affine, Program
from attnc.records.layers import Layer
from tests.check.test_block import bounds
from tests.feed_forward import Norm, attainable
from tests.prove.blocks import (
    TERMS,
    Adversary,
    Heads,
    Squares,
    behind,
    coarse,
    original,
    q,
    reach,
    square_reach,
)  # fmt: skip

# the part of the bound that is attained, where it is less than for the prover, whose squares need no power of two
LESS = {"underflow": 0.15, "sums underflow": 3e-5}


@pytest.mark.parametrize("term", TERMS)
def test_every_term_is_needed(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All errors at their worst, in a block where this term is most of the bound, or what lifts it above the attack."""
    ff, errors, unit, tiny, power, part = TERMS[term]
    a = coarse(monkeypatch, unit, tiny or 2.0**-126)
    first = np.array([1.0] + [2.0**-20] * (len(ff.b1) - 1))
    box = Box(1, 1, shape=ff.W1.shape[1:])
    lo, hi = reach(ff.W1, ff.b1, box, "float32")
    more = 1e-9 * (1 + hi - lo) + a.tiny * (100 + 10 * np.abs(ff.W1).sum(1))
    heads = Heads(lo - more, hi + more, errors[0] * first, errors[1] * first)
    mine = HeadErrors(heads.lo, heads.hi, heads.approximation, heads.approximation + heads.rounding)
    squares, square_errors = None, None
    if ff.gated:
        scale, radius = square_reach(ff, heads, "float32", box)
        if power:
            scale, radius = first * 0 + power, first * 0 + 2.0 * max(power, 1 / power)
        radius = first * 0 + np.exp2(np.ceil(np.log2(radius.max())) + 1)
        per = radius[0] ** 2  # errors of a square on [-1, 1] are scaled by this
        squares = Squares(scale, radius, *(np.full(len(lo), e) for e in errors[2:]))
        square_errors = SquareErrors(scale, radius, errors[2] / per, (errors[2] + errors[3]) / per)
    _, executed = bounds(ff, mine, square_errors, box)
    x = [Fraction(1)] * ff.W1.shape[1]
    against = {"sum-", "square-", "square- rounding", "sum- underflow"}
    made = Adversary(ff, heads, squares, a, lambda where: -1 if where in against else 1)
    lost, allowed = abs(made.run(x)[0] - original(ff, x)[0]), q(executed)
    assert lost <= allowed
    assert lost >= q(LESS.get(term, part)) * allowed


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("row", [[1.0] * 6, [1.0, -2.0, 3.0, 0.5, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.25]])
def test_no_normalised_vector_leaves_the_interval(kind: str, row: list[float]) -> None:
    """The vector that takes w·x farthest; an rms norm does not subtract the mean."""
    draw = np.random.default_rng(0)
    norm = Norm(kind, draw.integers(1, 5, 6) / 2, draw.integers(-4, 5, 6) / 4)
    W, b = np.array([row]), np.array([0.5])
    program = Program((6,), (Affine(0, W, b),))
    domain = Normed(kind == "layer", norm.gain, norm.shift)
    layer = Layer("affine", (0,), 1, program.steps[0].tensors())
    found = affine.bound(Passing(program, layer, [start(program, domain)], ARITHMETIC["float32"]))
    lo, hi = (Fraction(float(end[0, 0])) for end in (found.lo, found.hi))
    for sign in (1, -1):
        x = behind(draw, norm, 0.0, sign * attainable(W, norm.domain())[0])
        s = sum((q(w) * t for w, t in zip(row, x, strict=True)), q(0.5))
        assert lo <= s <= hi
