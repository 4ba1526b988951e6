"""Each design keeps what its docstring says."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from attnc import functions
from attnc.domain import Interval
from attnc.errors import InputError
from attnc.heads.chain import Chain, anchor_positions, lattice, softmax_weights
from attnc.heads.designs import SHARPNESS, gated, graded, many, nearest, nearest_constant, smooth, split
from attnc.heads.draft import columns, finish, forward, reweighted, solve_values
from attnc.heads.target import make_target
from attnc.heads.tuned import Tuning, grow, tuned
from attnc.prove.supnorm import supnorm


def target_of(spec: str, lo: float, hi: float, dtype: str = "float64"):
    return make_target(functions.get(spec), Interval(lo, hi), dtype)


def sampled_error(draft, target) -> float:
    return finish(draft, target).approximation


def test_a_lattice_weighs_anchors_by_a_gaussian_of_their_distance() -> None:
    p, c = 9, 0.7
    keys = lattice(-1, 1, p, c).keys()
    anchors = np.linspace(-1, 1, p)
    x = np.linspace(-1.3, 1.3, 41)
    gaussian = np.exp(-c * (x[:, None] - anchors) ** 2 / 0.25**2)
    assert np.allclose(
        softmax_weights(keys, x), gaussian / gaussian.sum(1, keepdims=True), rtol=1e-12, atol=0
    )
    assert np.allclose(anchor_positions(keys), anchors)


def test_a_chain_ties_neighbours_at_its_breakpoints() -> None:
    chain = Chain(np.array([3.0, 50.0, 0.2]), np.array([-0.5, 0.1, 0.4]))
    keys = chain.keys()
    for i, (lam, t) in enumerate(zip(chain.sharpness, chain.breakpoints, strict=True)):
        weights = softmax_weights(keys, np.array([t, t + 0.3]))
        assert weights[0, i] == pytest.approx(weights[0, i + 1])
        assert weights[1, i + 1] / weights[1, i] == pytest.approx(math.exp(lam * 0.3))


@pytest.mark.parametrize("p", [4, 7, 64, 257])
@pytest.mark.parametrize(
    ("spec", "lo", "hi", "a", "b"), [("clip(-25,25)", -80, 80, -25, 25), ("relu", -1, 1, 0, 1)]
)
def test_nearest_is_within_the_paper_s_bound(
    p: int, spec: str, lo: float, hi: float, a: float, b: float
) -> None:
    target = target_of(spec, lo, hi)
    numbers = finish(nearest(target, p), target).numbers
    s = np.linspace(lo, hi, 9001)
    error = np.abs(forward(numbers, s) - np.clip(s, a, b)).max()
    assert 0 < error <= (b - a) / (2 * (p - 1))


@pytest.mark.parametrize("p", [4, 9, 33])
@pytest.mark.parametrize("spec", ["sin", "gelu", "abs", "softsign", "exp"])
def test_nearest_keeps_its_theorem(p: int, spec: str) -> None:
    """|g - f| <= K Δ C(c), proved beside proved."""
    target = target_of(spec, -2, 2)
    proof = supnorm(finish(nearest(target, p), target).numbers, target.f, target.domain)
    assert proof.bound <= target.f.lipschitz(-2, 2) * 4 / (p - 1) * nearest_constant()


@pytest.mark.slow
@pytest.mark.parametrize("p", [2048, 4096])
def test_nearest_is_proved_for_thousands_of_anchors(p: int) -> None:
    target = target_of("clip(-25,25)", -80, 80)
    proof = supnorm(
        finish(nearest(target, p), target).numbers,
        target.f,
        target.domain,
        quality=1.5,
        seen=0.02 * 50 / (p - 1),
    )
    assert proof.bound <= 50 / (2 * (p - 1))


def test_the_constant_bounds_the_mean_distance_to_the_anchors() -> None:
    """C(c) against sup over s of Σ w_k |k - s| on a long lattice."""
    k = np.arange(-40, 41)
    for c in (0.5, 1.0, 2.0, SHARPNESS, 9.0):
        s = np.linspace(0, 1, 2001)
        weights = np.exp(-c * (s[:, None] - k) ** 2)
        mean = (weights * np.abs(s[:, None] - k)).sum(1) / weights.sum(1)
        assert mean.max() <= nearest_constant(c)
    assert nearest_constant(9.0) < 0.5002
    with pytest.raises(ValueError, match="1/2"):
        nearest_constant(0.4)


def test_smooth_converges_exponentially() -> None:
    errors = [
        sampled_error(smooth(target_of("gelu", -8, 8), p), target_of("gelu", -8, 8)) for p in (12, 20, 28, 36)
    ]
    assert all(later < earlier / 10 for earlier, later in pairwise(errors))
    assert errors[-1] < 1e-8


def test_graded_converges_root_exponentially_where_smooth_does_not() -> None:
    target = target_of("relu", -1, 1)
    errors = [sampled_error(graded(target, p), target) for p in (9, 16, 25, 36)]
    rates = [-math.log(e) / math.sqrt(p) for e, p in zip(errors, (9, 16, 25, 36), strict=True)]
    assert errors[-1] < 1e-6
    assert max(rates) / min(rates) < 1.35
    assert sampled_error(smooth(target, 36), target) > 100 * errors[-1]


def test_graded_beats_the_published_figures() -> None:
    target = target_of("relu", -1, 1)
    for p, published in ((9, 1.5e-3), (17, 1.0e-4), (33, 8e-6), (49, 8e-7)):
        assert sampled_error(graded(target, p), target) < published


@pytest.mark.parametrize(
    ("spec", "lo", "hi"), [("clip(-1,2)", -4, 4), ("soft_threshold(1)", -3, 3), ("clip(-1,2)", 0, 4)]
)
def test_graded_takes_several_kinks(spec: str, lo: float, hi: float) -> None:
    target = target_of(spec, lo, hi)
    assert sampled_error(graded(target, 41), target) < 2e-4


@pytest.mark.parametrize(("spec", "lo"), [("gelu", -1), ("relu", 0)])
def test_graded_refuses_without_a_kink(spec: str, lo: float) -> None:
    with pytest.raises(InputError):
        graded(target_of(spec, lo, 1), 9)


@pytest.mark.parametrize(
    ("spec", "lo", "hi", "p", "error"),
    [("tanh", -8, 8, 2, 1e-14), ("sigmoid", -9, 3, 2, 1e-14), ("silu", -8, 8, 3, 1e-6), ("relu", -1, 1, 3, 1e-6),
     ("clip(-25,25)", -80, 80, 4, 1e-3), ("exp", -2, 2, 2, 1e-4)],
)  # fmt: skip
def test_tuned_finds_the_closed_forms(spec: str, lo: float, hi: float, p: int, error: float) -> None:
    target = target_of(spec, lo, hi)
    assert sampled_error(tuned(target, p), target) < error


def test_tuned_is_never_worse_than_the_lattice_it_starts_from() -> None:
    target = target_of("mish", -6, 6)
    placed = smooth(target, 9)
    assert sampled_error(tuned(target, 9, extra=[placed.chain]), target) <= sampled_error(placed, target)


def test_the_jacobian_is_the_derivative_of_the_projected_residual() -> None:
    """Kaufman's Jacobian drops a term orthogonal to the residual's range: its gradient Jᵀr is exact."""
    target = target_of("gelu", -3, 3, "float32")
    rng = np.random.default_rng(0)
    for own in (np.zeros(4, bool), np.array([False, False, True, False])):
        tuning = Tuning(target, own, rng.uniform(0.5, 2, len(target.x)))
        log_lam, t = np.log([2.0, 3.0, 1.5]), np.array([-0.4, 0.05, 0.5])
        now = tuning.state(log_lam, t)
        gradient = 2 * tuning.jacobian(now).T @ now.residual
        for i in range(6):
            step = np.zeros(6)
            step[i] = 1e-6
            up, down = (tuning.state(log_lam + sign * step[:3], t + sign * step[3:]).cost for sign in (1, -1))
            assert gradient[i] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-8)


def test_growing_adds_keys_where_the_error_is() -> None:
    target = target_of("gelu", -8, 8)
    small = tuned(target, 4).chain
    grown = grow(small, target, 7)
    assert grown.size == 7
    assert set(small.breakpoints) <= set(grown.breakpoints)


@pytest.mark.parametrize(
    ("spec", "p", "error"),
    [("silu", 2, 1e-13), ("relu", 2, 1e-3), ("clip(-1,2)", 3, 1e-3), ("gelu", 5, 1e-3)],
)
def test_gated_heads_use_the_token_itself(spec: str, p: int, error: float) -> None:
    target = target_of(spec, -4, 4)
    draft = gated(target, p)
    assert draft.own.sum() == 1
    assert sampled_error(draft, target) < error


@pytest.mark.parametrize("heads", [2, 5])
def test_many_nearest_heads_act_as_one(heads: int) -> None:
    """H heads of p keys are one head of H(p - 2) anchors, up to what leaks over two sentinels."""
    target = target_of("sin", -3, 3)
    several = finish(many(target, 8, heads, nearest), target).numbers
    one = finish(nearest(target, heads * 6), target).numbers
    s = np.linspace(-3, 3, 3001)
    inner = np.abs(forward(several, s) - forward(one, s))
    assert inner.max() < 12 * math.exp(-2 * SHARPNESS)


def test_each_of_many_heads_is_silent_outside_its_range() -> None:
    target = target_of("clip(-3,3)", -3, 3)
    draft = many(target, 8, 4, nearest)
    x = np.array([-0.9])
    third = columns(draft.keys[2:3], draft.own[2:3], x, target.to_s(x)) @ draft.values[2]
    assert abs(third[0]) < 1e-12


def test_split_runs_share_their_sentinels() -> None:
    chain = lattice(-1, 1, 12, 4.0)
    runs = split(chain, 3, 6)
    assert [run.size for run in runs] == [6, 6, 6]
    assert np.allclose(runs[0].breakpoints[-1], runs[1].breakpoints[0])


def test_values_minimise_and_reweighting_lowers_the_largest_error() -> None:
    rng = np.random.default_rng(5)
    matrix, y = rng.normal(size=(80, 6)), rng.normal(size=80)
    assert np.allclose(solve_values(matrix, y, 0.0), np.linalg.lstsq(matrix, y, rcond=None)[0])
    plain, better = (np.abs(matrix @ reweighted(matrix, y, 0.0, rounds)[0] - y).max() for rounds in (0, 30))
    assert better < 0.95 * plain


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_finished_numbers_are_representable_and_equal_in_exact_arithmetic(dtype: str) -> None:
    """Centre and origin of the slopes change nothing but rounding."""
    target = target_of("gelu", 1, 9, dtype)
    draft = smooth(target, 14)
    numbers = finish(draft, target).numbers
    for array in (numbers.query, numbers.key, numbers.value, numbers.output):
        assert np.array_equal(array.astype(dtype).astype(np.float64), array)
    exact = columns(draft.keys, draft.own, target.x, target.to_s(target.x)) @ draft.values.ravel()
    assert np.abs(forward(numbers, target.to_s(target.x)) - exact).max() < (
        1e-4 if dtype == "float32" else 1e-10
    )


def test_a_kink_keeps_the_query_s_centre_where_rounding_is_small() -> None:
    target = target_of("relu", -1, 3, "float32")
    finished = finish(graded(target, 16), target)
    assert finished.rounding < 3e-4
