"""Layer A: the reading head and its bound. Layer C: the theorem's bound, in high precision, and what is executed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC
from attnc.functions.balls import lower, working
from attnc.incontext.layers import gather_error, gathered, reading_head


@pytest.mark.parametrize(
    ("reach", "name", "most", "bound"),
    [
        (3.03, "float64", 6, 6e-13),
        (75.75, "float64", 6, 2e-11),
        (3.03, "float32", 3, 2e-4),
        (75.75, "float32", 3, 6e-3),
    ],
)
def test_the_reading_head(reach: float, name: str, most: int, bound: float) -> None:
    """|head(s) - s| in rational arithmetic stays within a bound that two heads do not reach in float64; values are powers of two,
    so that the difference of two products is exact, and the outputs extrapolate: Σ h·output_h = 1, Σ h^(2k+1) output_h = 0."""
    head = reading_head(reach, name)
    assert 2 <= head.heads <= most and head.certificate.proved and head.certificate.bound <= bound
    value = head.value[..., 1].double()
    assert all(math.frexp(float(v))[0] in (0.5, -0.5) for v in value.flatten()) and torch.equal(
        value.sum(1), value.sum(1) * 0
    )
    factors = [Fraction(h + 1) for h in range(head.heads)]
    outputs, unit = [Fraction(float(out)) for out in head.output], Fraction(ARITHMETIC[name].unit)
    for k in range(head.heads):
        terms = [h ** (2 * k + 1) * out for h, out in zip(factors, outputs, strict=True)]
        assert abs(sum(terms) - (k == 0)) <= unit * sum(map(abs, terms))
    s = (
        (torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1) * reach
    ).to(head.key.dtype)
    s = torch.cat([s.clamp(-reach, reach), torch.zeros(1, dtype=s.dtype)])
    off = [abs(Fraction(a) - Fraction(b)) for a, b in zip(head(s).tolist(), s.tolist(), strict=True)]
    assert 0 < max(off) <= Fraction(head.certificate.bound)


def exact_mean(r: list[float], x: list[float]) -> arb:
    return sum((arb(a) * arb(b) for a, b in zip(r, x, strict=True)), arb(0)) / len(r)


def exact_gathered(r: list[float], x: list[float], e: float) -> arb:
    """e·h(e) by its definition."""
    above = sum((arb(b) * (arb(e) * arb(a)).sinh() for a, b in zip(r, x, strict=True)), arb(0))
    return above / sum(((arb(e) * arb(a)).cosh() for a in r), arb(0))


@pytest.mark.parametrize("rho", [0.05, 0.2, 0.45, 0.6])
def test_the_theorem(rho: float) -> None:
    """400 contexts, many of them extreme: all numbers at an end, or all of one sign."""
    draw = np.random.default_rng(0)
    worst = 0.0
    with working(160):
        for k in range(400):
            n = int(draw.integers(1, 9))
            r, x = draw.uniform(-1, 1, (2, n))
            if k % 2:
                r, x = np.sign(r), np.sign(x)
            if k % 5 == 0:
                x = np.abs(x) * np.sign(r)
            one, two = (exact_gathered(r.tolist(), x.tolist(), f * rho) / arb(f * rho) for f in (1, 2))
            off = abs((4 * one - two) / 3 - exact_mean(r.tolist(), x.tolist()))
            bound = gather_error(rho, n, 1.0, 1.0, ARITHMETIC["float64"]).approximation
            assert off <= arb(bound)
            worst = max(worst, lower(off) / bound)
    assert worst > (0.05 if rho < 0.5 else 0.02)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("n", [1, 7, 300])
def test_what_is_executed(dtype: torch.dtype, n: int) -> None:
    name = str(dtype).removeprefix("torch.")
    draw, e = torch.Generator().manual_seed(n), 2.0**-6
    for _ in range(20):
        r, x = (torch.rand(n, generator=draw, dtype=torch.float64).to(dtype) * 8 - 4 for _ in range(2))
        found = gathered(r, x[:, None], e)
        error = gather_error(e, n, 4.0, 4.0, ARITHMETIC[name])
        with working(160):
            for y, factor, bound, size in zip(
                found, (1, 2), (error.one, error.two), (error.size_one, error.size_two), strict=True
            ):
                meant = exact_gathered(r.tolist(), x.tolist(), factor * e)
                assert abs(arb(float(y[0])) - meant) <= arb(bound)
                assert abs(float(y[0])) <= size


def test_scores_that_are_too_large_say_nothing() -> None:
    assert gather_error(1.0, 10, 4.0, 1.0, ARITHMETIC["float64"]).approximation == float("inf")
    assert gather_error(2.0**-6, 2**23, 4.0, 1.0, ARITHMETIC["float32"]).one == float("inf")
