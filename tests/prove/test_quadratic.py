"""Bounds of the two-key heads of a quadratic form, against high precision, and the two derivations against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC
from attnc.check.norm import check_executed_error, check_relative_error
from attnc.functions.balls import working
from attnc.lower.quadratic import QuadraticProof, proved_heads, quadratic_numbers
from attnc.network.norm import TwoKeySum
from attnc.prove.quadratic import relative_error
from attnc.records.numbers import QuadraticNumbers

CASES = [
    ("float32", 1e-12, 24, 1e-7),
    ("float32", 1e-5, 8, 1e-3),
    ("float64", 1e-12, 24, 1e-12),
    ("float64", 1e-6, 8, 1e-14),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def proof(request: pytest.FixtureRequest) -> QuadraticProof:
    dtype, offset, dim, target = request.param
    return proved_heads(dim, offset, 2.0**20, target, dtype)


def exact_ratio(numbers: QuadraticNumbers, z: torch.Tensor, found: float) -> float:
    """|found·u^p - 1| at 200 bits."""
    with working(200):
        u = sum((arb(x) ** 2 for x in z.tolist()), arb(0)) / numbers.dim + arb(numbers.offset)
        return float(abs(arb(found) * u ** arb(numbers.power) - 1).lower())


def tokens(proof: QuadraticProof, count: int) -> torch.Tensor:
    """Tokens of all sizes up to the limit: random ones, single features, zeros, and the ends."""
    d, rng = proof.numbers.dim, np.random.default_rng(0)
    sizes = np.exp(rng.uniform(np.log(1e-9), np.log(np.sqrt(proof.most)), count))
    z = rng.standard_normal((count, d))
    z[::3] = np.eye(d)[rng.integers(0, d, len(z[::3]))]
    z *= (sizes / np.sqrt((z**2).mean(1)))[:, None]
    z[0], z[1] = 0.0, np.sqrt(proof.most) * (1 - 1e-7)
    return torch.from_numpy(z).to(getattr(torch, proof.numbers.dtype))


def test_executed_values_are_within_the_bound(proof: QuadraticProof) -> None:
    z = tokens(proof, 600)
    found = TwoKeySum(proof.numbers)(z)
    seen = [exact_ratio(proof.numbers, row, value) for row, value in zip(z, found.tolist(), strict=True)]
    assert max(seen) <= proof.executed
    assert max(seen) >= proof.approximation / 4  # the bound is not empty


def test_the_exact_sum_is_within_its_bound_and_comes_near(proof: QuadraticProof) -> None:
    numbers, worst = proof.numbers, 0.0
    with working(200):
        for t in np.linspace(np.log(numbers.offset), np.log(2 * proof.most), 400):
            u = arb(float(t)).exp().mid()
            q = (u - arb(numbers.offset)) * numbers.dim
            rows = zip(
                numbers.slope.tolist(), numbers.intercept.tolist(), numbers.value.tolist(), strict=True
            )
            total = sum((arb(c) / (1 + (arb(k) * q - arb(b)).exp()) for k, b, c in rows), arb(0))
            worst = max(worst, float(abs(total * u.sqrt() - 1).lower()))
    assert worst <= proof.approximation <= 1.3 * worst


def test_the_checker_agrees(proof: QuadraticProof) -> None:
    checked = check_relative_error(proof.numbers, 2 * proof.most)
    executed = check_executed_error(proof.numbers, proof.most, checked, ARITHMETIC[proof.numbers.dtype])
    # the test above: no proof exceeds the error by more than 1.3
    assert proof.approximation / 1.3 <= checked <= proof.approximation
    assert 0.9 * proof.executed <= executed <= proof.executed


@pytest.mark.parametrize("name", ["slope", "intercept", "value"])
def test_a_changed_number_is_seen_by_prover_and_checker(proof: QuadraticProof, name: str) -> None:
    numbers = proof.numbers
    changed = np.array(getattr(numbers, name))
    changed[len(changed) // 2] *= 1.25
    other = replace(numbers, **{name: changed.astype(numbers.dtype).astype(np.float64)})
    for bound in (relative_error, check_relative_error):
        assert bound(other, 2 * proof.most) > 10 * proof.approximation


def test_beyond_the_limit_nothing_is_claimed(proof: QuadraticProof) -> None:
    assert relative_error(proof.numbers, 2.0**40 * proof.most) > 0.9
    assert check_relative_error(proof.numbers, 2.0**40 * proof.most) > 0.9


def test_the_planner_needs_no_more_heads_for_a_larger_error() -> None:
    sizes = [len(quadratic_numbers(8, 1e-5, 1e6, t, "float64")) for t in (1e-14, 1e-12, 1e-6, 1e-3)]
    assert sizes == sorted(sizes, reverse=True)
