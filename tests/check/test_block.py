"""The checker of blocks: no adversary leaves its bounds, it agrees with the prover, and false claims are not proved."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flint import arb

from attnc import functions
from attnc.arithmetic import ARITHMETIC
from attnc.check import block as checker
from attnc.check.block import BlockClaim, block_program
from attnc.check.slopes import CellTable
from attnc.check.values import RHO, HeadErrors, SquareErrors, largest_float
from attnc.domain import Box, Normed
from attnc.functions.balls import variable, working
from attnc.program import Program
from attnc.records.certificate import Verdict
from tests.feed_forward import FeedForward, Norm, attainable
from tests.prove.blocks import (
    Adversary,
    Heads,
    Squares,
    behind,
    block_bound,
    coarse,
    original,
    q,
    random_block,
    reach,
    square_reach,
)  # fmt: skip

Known = tuple[Heads, Squares | None, HeadErrors, SquareErrors | None]


def known(ff: FeedForward, errors: np.ndarray, name: str = "relu", inputs: Box | None = None) -> Known:
    """The same heads for the prover and for the checker, on a little more than the intervals that are needed."""
    where = ff.norm if inputs is None else inputs
    assert where is not None
    lo, hi = reach(ff.W1, ff.b1, where, "float32")
    more = 1e-9 * (hi - lo) + ARITHMETIC["float32"].tiny * (100 + 10 * np.abs(ff.W1).sum(1))
    lo, hi = lo - more, hi + more
    a, r, A, R = (float(e) for e in errors)
    heads = Heads(lo, hi, np.full(len(lo), a), np.full(len(lo), r))
    mine = HeadErrors(lo, hi, np.full(len(lo), a), np.full(len(lo), a + r))
    if not ff.gated:
        return heads, None, mine, None
    scale, radius = square_reach(ff, heads, "float32", inputs)
    radius = np.exp2(np.ceil(np.log2(radius)) + 1)
    squares = Squares(scale, radius, A * radius**2, R * radius**2)
    return heads, squares, mine, SquareErrors(scale, radius, A, A + R)


def parts(ff: FeedForward, inputs: Box | None = None) -> tuple[Program, Box | Normed]:
    """The block as a program, and its domain."""
    W1, b1, W2, b2, *up = (
        np.asarray(x, np.float64) for x in (ff.W1, ff.b1, ff.W2, ff.b2, ff.U, ff.c) if x is not None
    )
    program = block_program(functions.get(ff.activation), (W1, b1), (W2, b2), (up[0], up[1]) if up else None)
    if inputs is not None:
        return program, inputs
    assert ff.norm is not None
    return program, Normed(ff.norm.kind == "layer", ff.norm.gain, ff.norm.shift)


def check_block(
    ff: FeedForward,
    heads: HeadErrors,
    claim: BlockClaim,
    dtype: str = "float32",
    squares: SquareErrors | None = None,
    inputs: Box | None = None,
) -> Verdict:
    program, domain = parts(ff, inputs)
    return checker.check_block(program, domain, heads, squares, claim, dtype)


def bounds(
    ff: FeedForward, mine: HeadErrors, squares: SquareErrors | None, inputs: Box | None = None
) -> tuple[float, float]:
    """What the checker itself finds: in exact arithmetic, and executed."""
    _, out = checker._composed(*parts(ff, inputs), mine, squares, "float32")
    return largest_float(out.approximation), largest_float(out.error)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("unit", [2.0**-6, 2.0**-24])
@pytest.mark.parametrize("tiny", [2.0**-30, 2.0**-126])
def test_no_adversary_leaves_the_bound(
    gated: bool, unit: float, tiny: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, near = coarse(monkeypatch, unit, tiny), 0.0
    for seed in range(8):
        draw = np.random.default_rng(seed)
        ff = random_block(draw, gated)
        heads, squares, mine, square_errors = known(ff, 10.0 ** draw.uniform(-8, 0, 4))
        _, executed = bounds(ff, mine, square_errors)
        assert ff.norm is not None
        x = behind(draw, ff.norm, RHO, attainable(ff.W1, ff.norm.domain())[0] * draw.choice([-1, 1]))
        for push in (lambda _: 1, lambda _: -1, lambda _, draw=draw: int(draw.integers(0, 2)) * 2 - 1):
            outputs = Adversary(ff, heads, squares, a, push).run(x)
            for was, now in zip(original(ff, x), outputs, strict=True):
                assert abs(now - was) <= q(executed)
                near = max(near, float(abs(now - was) / q(executed)))
    assert near > 0.1


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_it_agrees_with_the_prover_and_proves_nothing_below(name: str, gated: bool) -> None:
    for seed in range(4):
        draw = np.random.default_rng(seed)
        ff = replace(random_block(draw, gated), activation=name)
        inputs = Box(-1, 2, shape=(ff.W1.shape[1],)) if seed == 3 else None
        heads, squares, mine, square_errors = known(ff, 10.0 ** draw.uniform(-9, -3, 4), name, inputs)
        found = block_bound(ff, heads, "float32", squares, inputs)
        exact, rounding = float(found.approximation.max()), float(found.rounding.max())

        def status(e: float, r: float) -> str:
            claim = BlockClaim(exact * e, rounding * r)  # noqa: B023
            found = check_block(ff, mine, claim, "float32", square_errors, inputs)  # noqa: B023
            return found.status

        assert status(1 + 1e-9, 1.02) == "proved"
        assert status(1 - 1e-6, 1e9) == "unknown"
        if (
            not gated and len(ff.b2) == 1
        ):  # the largest terms belong to one output, and no term is counted twice
            assert status(1 + 1e-9, 0.7) == "unknown"


def small() -> tuple[FeedForward, HeadErrors, BlockClaim]:
    draw = np.random.default_rng(1)
    W1, W2 = (draw.integers(-8, 9, (4, 4)) / 8 for _ in range(2))
    norm = Norm("layer", np.ones(4), np.zeros(4))
    ff = FeedForward("relu", W1, np.zeros(4), W2, np.zeros(4), norm=norm)
    heads = HeadErrors(*(np.full(4, x) for x in (-8.0, 8.0, 1e-4, 1.001e-4)))
    exact = float((np.abs(W2).sum(1) * 1e-4).max())
    return ff, heads, BlockClaim(exact * (1 + 1e-12), 2e-5, 2e-5)


def test_what_is_not_proved_and_why() -> None:
    ff, heads, claim = small()

    def reason(
        ff: FeedForward = ff, heads: HeadErrors = heads, claim: BlockClaim = claim, **more: object
    ) -> str:
        found = check_block(ff, heads, claim, **more)  # type: ignore[arg-type]
        assert found.status == "unknown"
        return found.reason

    assert check_block(ff, heads, claim).status == "proved"
    assert reason(claim=replace(claim, approximation=claim.approximation * (1 - 1e-9))).startswith(
        "approximation is"
    )
    assert reason(claim=replace(claim, rounding=1e-8)).startswith("approximation + rounding is")
    assert reason(claim=replace(claim, products=1e-8)).startswith("products is")
    assert "neuron 0" in reason(replace(ff, b1=ff.b1 + 8))
    assert reason(replace(ff, W2=ff.W2 * 2)).startswith("approximation is")
    assert "not finite" in reason(replace(ff, b2=ff.b2 + np.nan))
    assert "float32" in reason(replace(ff, b2=ff.b2 + 0.1))
    assert "(3,)" in reason(inputs=Box(-1, 1, shape=(3,)))
    assert "gated" in reason(replace(ff, U=ff.W1, c=ff.b1))
    assert "heads" in reason(heads=replace(heads, approximation=np.zeros(3)))
    assert "float16" in reason(dtype="float16")
    huge = Box(-(2.0**126), 2.0**126, shape=(4,))
    wide = replace(heads, lo=heads.lo - 2.0**140, hi=heads.hi + 2.0**140)
    assert (
        check_block(ff, wide, replace(claim, approximation=1e300, rounding=1e300), inputs=huge).status
        == "unknown"
    )


def test_a_product_must_stay_where_its_square_is_proved() -> None:
    ff = random_block(np.random.default_rng(0), True)
    _, _, mine, squares = known(ff, np.full(4, 1e-6))
    assert squares is not None
    claim = BlockClaim(1e30, 1e30)
    assert check_block(ff, mine, claim, "float32", squares)
    found = check_block(ff, mine, claim, "float32", replace(squares, radius=squares.radius / 8))
    assert (found.status, "radius" in found.reason) == ("unknown", True)


@pytest.mark.parametrize("name", ["gelu", "relu", "tanh", "gelu_tanh"])
def test_slopes_and_sizes_hold_and_are_near(name: str) -> None:
    f, draw = functions.get(name), np.random.default_rng(3)
    lo = np.concatenate([draw.uniform(-9, 3, 40), [0.0, -1.0, 1.0]])
    hi = np.concatenate([lo[:40] + 10.0 ** draw.uniform(-4, 1, 40), [2.0, 0.0, 1.0]])
    table = CellTable(f, float(lo.min()), float(hi.max()), np.stack([lo, hi]))
    slopes, ends = table.steepest(lo, hi), table.line(lo, hi, np.zeros_like(lo))
    sizes = np.maximum(np.abs(ends[0]), np.abs(ends[1]))
    with working(128, 3):
        for a, b, slope, size in zip(lo, hi, slopes, sizes, strict=True):
            seen = [
                piece.branch(variable(arb(float(x))))
                for piece in f.pieces(a, b) or []
                for x in np.linspace(piece.lo, piece.hi, 200)
            ]
            steepest, largest = (max(abs(s[j]).upper() for s in seen) for j in (1, 0)) if seen else (0, 0)
            assert all(abs(s[1]) <= arb(slope) and abs(s[0]) <= arb(size) for s in seen)
            assert not seen or (
                slope <= 1.02 * float(steepest) + 1e-3 and size <= 1.02 * float(largest) + 1e-3
            )


def test_claims_are_compared_exactly() -> None:
    ff, heads, _ = small()
    heads = replace(heads, approximation=np.full(4, 2.0**-12), executed=np.full(4, 2.0**-12))
    exact = Fraction(float(np.abs(ff.W2).sum(1).max())) * Fraction(1, 2**12)
    assert check_block(ff, heads, BlockClaim(float(exact) * (1 + 1e-12), 1.0))
    assert not check_block(ff, heads, BlockClaim(float(np.nextafter(float(exact), 0)), 1.0))


def test_products_are_those_of_squares() -> None:
    """`products` is claimed of exact squares, whichever engine runs: the closed form rounds less, and proves less of it."""
    ff = random_block(np.random.default_rng(1), True)
    _, _, mine, squares = known(ff, np.array([1e-9, 1e-9, 1e-9, 1e-9]))
    assert squares is not None
    none = replace(mine, approximation=0 * mine.approximation, executed=0 * mine.executed)
    exact = bounds(ff, none, replace(squares, approximation=0.0, executed=0.0))[1]
    direct = replace(squares, multiplied=True)
    found = bounds(ff, mine, direct)
    assert found[1] < bounds(ff, mine, squares)[1]
    for part, status in ((1.001, "proved"), (0.999, "unknown")):
        claim = BlockClaim(found[0] * 1.001, found[1] * 1.001, exact * part)
        assert check_block(ff, mine, claim, squares=direct).status == status
