"""No executed output is farther from f than its proved bound: random heads, attack points, 128 bits, zero slack."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC
from attnc.functions.balls import working
from attnc.network.head import Head
from attnc.prove.cells import Cell, head_on_cell, rounding_on_cell
from attnc.prove.rounding import projection_rounding
from attnc.prove.supnorm import supnorm
from tests.sampled import every

from .attack import DESIGNS, SPECS, Attacked, attack_points, random_head, wild_numbers

HEADS_PER_CASE = 2  # 20 functions x 7 designs of both dtypes, and some: 2 x 160 = 320 heads
POINTS = 3400
CASES = [(spec, DESIGNS[(i + j) % 7], j) for i, spec in enumerate(SPECS) for j in range(8)]


def assert_within(case: Attacked, s: torch.Tensor, bound: float) -> None:
    executed = Head(case.finished.numbers, "any")(s)
    limit = arb(bound)
    with working(128):
        for at, y in zip(s.tolist(), executed.tolist(), strict=True):
            error = abs(arb(y) - case.f.value(at))
            assert error <= limit, f"{case.f.label} at {at!r}: {error.str(20)} exceeds {bound!r}"


@pytest.mark.parametrize(("spec", "design", "seed"), every(3, CASES), ids=lambda x: str(x).replace(" ", "-"))
def test_executed_error_stays_within_the_proved_bound(spec: str, design: str, seed: int) -> None:
    for k in range(HEADS_PER_CASE):
        case, bound, rng = proved_head(spec, design, ("float32", "float64")[(seed + k) % 2], [seed, k])
        edges = np.linspace(case.domain.lo, case.domain.hi, 65).tolist()
        s = attack_points(rng, case, edges, POINTS)
        assert len(s) == POINTS
        assert_within(case, s, bound)


def proved_head(
    spec: str, design: str, dtype: str, seed: list[int]
) -> tuple[Attacked, float, np.random.Generator]:
    """A random head about which something is proved; now and then rounding drowns one, and another is taken."""
    for attempt in range(6):
        rng = np.random.default_rng([attempt, *seed, *map(ord, spec + design)])
        case = random_head(rng, spec, design, dtype)
        proof = supnorm(
            case.finished.numbers, case.f, case.domain, quality=1.5, seen=case.finished.approximation
        )
        if np.isfinite(proof.bound):
            return case, proof.bound, rng
    raise AssertionError("six heads in a row without a proof")


def test_the_attack_is_as_large_as_promised() -> None:
    assert len(CASES) * HEADS_PER_CASE >= 300
    assert len(CASES) * HEADS_PER_CASE * POINTS >= 1_000_000


def exact(numbers, s: float) -> arb:
    """The head in ball arithmetic, straight from the formula."""
    total = arb(0)
    for query, key, value, out in zip(numbers.query, numbers.key, numbers.value, numbers.output, strict=True):
        x = arb(query[0]) * arb(s) + arb(query[1])
        scores = [arb(k) * x + arb(c) for k, c in key]
        top = max(float(z.mid()) for z in scores)
        e = [(z - top).exp() for z in scores]
        total += (
            arb(out)
            * sum((w * (arb(o) * arb(s) + arb(v)) for w, (o, v) in zip(e, value, strict=True)), arb(0))
            / sum(e, arb(0))
        )
    return total


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", every(2, range(60)))
def test_rounding_alone_stays_within_its_term_for_wild_numbers(dtype: str, seed: int) -> None:
    """|executed - exact| against the rounding term of a tiny cell around each point: this is where the term is sharpest."""
    rng = np.random.default_rng([seed, len(dtype)])
    numbers, a = wild_numbers(rng, dtype), ARITHMETIC[dtype]
    s = torch.from_numpy(
        np.concatenate([rng.normal(size=30) * 10.0 ** rng.uniform(-3, 1), [0.0, 1e-310, 1.0]])
    )
    s = s.to(getattr(torch, dtype))
    executed = Head(numbers, "wild")(s)
    with working(256, 3):
        for at, y in zip(s.tolist(), executed.tolist(), strict=True):
            cell = Cell(at, np.nextafter(at, np.inf))
            models = [head_on_cell(numbers, h, cell, 2, a) for h in range(numbers.heads)]
            assert all(model is not None for model in models)
            errors = [rounding_on_cell(numbers, h, cell, model, a) for h, model in enumerate(models)]
            bound = projection_rounding(
                a, [m.value for m in models], errors, [arb(o) for o in numbers.output]
            )
            off = abs(arb(y) - exact(numbers, at))
            assert off <= bound or not bound.is_finite(), (at, off.str(10), bound.str(10))


def test_the_rounding_term_is_not_idle() -> None:
    """Beside soundness, tightness: somewhere in many trials the executed error uses a fair part of the term."""
    best = 0.0
    for seed in range(12):
        rng = np.random.default_rng([seed, 99])
        numbers, a = wild_numbers(rng, "float32"), ARITHMETIC["float32"]
        s = torch.from_numpy(rng.normal(size=200)).to(torch.float32)
        executed = Head(numbers, "wild")(s)
        with working(256, 3):
            for at, y in zip(s.tolist(), executed.tolist(), strict=True):
                cell = Cell(at, float(np.nextafter(at, np.inf)))
                models = [head_on_cell(numbers, h, cell, 2, a) for h in range(numbers.heads)]
                errors = [rounding_on_cell(numbers, h, cell, model, a) for h, model in enumerate(models)]
                bound = projection_rounding(
                    a, [m.value for m in models], errors, [arb(o) for o in numbers.output]
                )
                if bound.is_finite() and bound > 0:
                    best = max(best, float((abs(arb(y) - exact(numbers, at)) / bound).mid()))
    assert best > 0.05
