"""Attention between tokens: an adversary who errs by as much as is allowed stays within the bound, and comes close to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC, FLOAT32, Arithmetic
from attnc.domain import Array
from attnc.functions.balls import working
from attnc.program import Affine, Attend, Program
from tests.prove.one_step import COARSE, FINE, WHO, Found, Given, derived

ONE = np.ones((1, 1))


def attend(n: int, heads: int = 1, d: int = 1, **settings: object) -> Program:
    """Queries, keys and values are the input: only the last step is looked at."""
    maps = tuple(Affine(0, np.eye(heads * d)) for _ in range(3))
    return Program((n, heads * d), (*maps, Attend((1, 2, 3), heads, **{"scale": 1.0, **settings})))  # type: ignore[arg-type]


def found(who: str, program: Program, q: Given, k: Given, v: Given) -> Found:
    return derived(who, program, (q, k, v))


def column(*x: float) -> Array:
    return np.array(x)[:, None]


def executed(
    s: tuple[float, float], v: tuple[float, float], a: Arithmetic, roundings: int
) -> tuple[arb, arb]:
    """Two keys with the scores s and the values v, every error in favour of the second key; and what is meant."""
    u, E = arb(a.unit), arb(a.exp_units * a.unit)
    up, down = (1 + u) ** roundings, (1 - u) ** roundings
    z = [arb(x) * (up if (x > 0) == bool(i) else down) for i, x in enumerate(s)]
    top = max(z, key=float)
    gap = [(x - top) * (1 - u if i else 1 + u) for i, x in enumerate(z)]
    e = [gap[0].exp() * (1 - E), gap[1].exp() * (1 + E)]
    e = [x + 4 * arb(a.tiny) if x < arb(a.tiny) else x for x in e]
    total = sum(e, arb(0)) * (1 - u)
    y = sum((x / total * (1 + u) ** 3 * arb(c) * (1 + u) for x, c in zip(e, v, strict=True)), arb(0)) * (
        1 + u
    )
    w = [arb(x).exp() for x in s]
    return y, sum((x * arb(c) for x, c in zip(w, v, strict=True)), arb(0)) / sum(w, arb(0))


# scores, values, unit, units of exp, tiny, roundings of a score, the part of the bound that is attained
EXECUTED = {
    "scores": ((-1.0, 1.0), (0.0, 1.0), COARSE, 0, 0.0, 3, 0.2),
    "exp": ((0.0, 0.0), (-1.0, 1.0), 2.0**-16, 400, 0.0, 3, 0.9),
    "sums": ((0.0, 0.0), (1.0, 1.0), COARSE, 0, 0.0, 3, 0.7),
    "distance": ((30.0, 29.0), (0.0, 1.0), COARSE, 0, 0.0, 3, 0.1),
    "underflow": ((20.0, -20.0), (0.0, 1.0), FINE, 0, 2.0**-20, 3, 0.01),
}


@WHO
@pytest.mark.parametrize("name", EXECUTED)
def test_what_rounding_does_is_bounded(name: str, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s, v, unit, units, tiny, roundings, part = EXECUTED[name]
    a = replace(FLOAT32, unit=unit, exp_units=units, tiny=tiny)
    monkeypatch.setitem(ARITHMETIC, "float32", a)
    made = found(who, attend(2), Given(column(1.0, 1.0)), Given(column(*s)), Given(column(*v)))
    with working(200):
        y, meant = executed(s, v, a, roundings)
        lost = abs(y - meant)
        assert lost <= arb(float(made.error[0, 0]))
        assert lost >= arb(part) * arb(float(made.error[0, 0]))


@WHO
def test_scores_are_rounded_relative_to_what_cancels(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of ±1000 and biases of ∓1000: the scores are 0, and off by two roundings of 1000."""
    u = 2.0**-24
    monkeypatch.setitem(ARITHMETIC, "float32", replace(FLOAT32, exp_units=0))
    bias = np.array([[[-1000.0, 1000.0]] * 2])
    v = Given(column(1.0, -1.0))
    made = found(who, attend(2, bias=bias), Given(column(1.0, 1.0)), Given(column(1000.0, -1000.0)), v)
    lost = np.tanh(1000 * ((1 + u) ** 2 - 1))
    assert 0.2 * made.error[0, 0] <= lost <= made.error[0, 0]


@WHO
def test_weights_that_underflow_add_up(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """63 keys with a weight of e^-60, for which exp may return 4τ."""
    tau, keys = 2.0**-20, 64
    monkeypatch.setitem(ARITHMETIC, "float32", replace(FLOAT32, unit=FINE, tiny=tau))
    far = np.r_[0.0, np.full(keys - 1, -60.0)]
    zero = Given(np.zeros((keys, 1)))
    made = found(
        who, attend(keys, bias=np.tile(far, (1, keys, 1))), zero, zero, Given((far < 0)[:, None] * 1.0)
    )
    lost = 4 * (keys - 1) * tau / (1 + 4 * (keys - 1) * tau)
    assert 0.02 * made.error[0, 0] <= lost <= made.error[0, 0]


@WHO
@pytest.mark.parametrize(("by", "part"), [("query", 0.95), ("key", 0.95), ("both", 0.9), ("value", 0.999)])
def test_errors_of_the_inputs_pass(by: str, part: float, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys ±2, values ±3: a query that is off by e moves the scores by ±2e, and y = 3 tanh(2q)."""
    monkeypatch.setitem(ARITHMETIC, "float32", replace(FLOAT32, unit=FINE, tiny=0.0))
    e, q = 2.0**-8, 1.0 if by == "key" else 0.0
    e_q, e_k, e_v = (
        e if by in chosen else 0.0 for chosen in (("query", "both"), ("key", "both"), ("value",))
    )
    given = [
        Given(column(q, q), e_q, e_q),
        Given(column(2.0, -2.0), e_k, e_k),
        Given(column(3.0, -3.0), e_v, e_v),
    ]
    bias = np.array([[[-2 * q, 2 * q]] * 2])  # so that the weights are equal
    made = found(who, attend(2, bias=bias), *given)
    moved = 3 * np.tanh((q + e_q) * (2 + e_k) - 2 * q) + e_v
    for error in (made.error, made.approximation):
        assert part * error[0, 0] <= moved <= error[0, 0]


@WHO
def test_a_rounded_scale_and_a_rounded_bias_cost(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARITHMETIC, "float32", replace(FLOAT32, unit=FINE, tiny=0.0))
    q, k, v = Given(column(1.0, 1.0)), Given(column(1.0, -1.0)), Given(column(3.0, -3.0))
    off = 2.0**-26
    for settings in ({"scale": 1 - off}, {"bias": np.array([[[1 - off, -1 + off]] * 2])}):
        made = found(who, attend(2, **settings), q, k, v)
        shift = 2.0 if "bias" in settings else 1.0
        slope = 3 / np.cosh(shift) ** 2
        assert 0.05 * made.error[0, 0] <= slope * off <= made.error[0, 0]
        assert made.approximation.max() == 0


@WHO
def test_no_error_exceeds_the_spread(who: str) -> None:
    made = found(
        who, attend(2), Given(column(0.0, 0.0), 1e6), Given(column(1.0, -1.0)), Given(column(3.0, 2.0))
    )
    assert 1.0 <= made.error.max() <= 1.001
    assert made.lo.min() == 2.0 and made.hi.max() == 3.0


@WHO
def test_masked_keys_do_not_count(who: str) -> None:
    mask = np.array([[1, 0], [1, 1]])
    v = Given(column(1.0, 100.0), column(0.0, 5.0))
    made = found(who, attend(2, mask=mask), Given(column(1.0, 1.0), 1.0), Given(column(1.0, 1.0)), v)
    assert made.hi[0, 0] == 1.0 and made.error[0, 0] < 1e-3
    assert made.hi[1, 0] == 100.0 and made.error[1, 0] > 50


@WHO
def test_heads_share_their_keys_in_order(who: str) -> None:
    """Heads 0 and 1 use the first slice of the values, heads 2 and 3 the second."""
    maps = (Affine(0, np.eye(4)), Affine(0, np.eye(2, 4)), Affine(0, np.eye(2, 4)))
    program = Program((2, 4), (*maps, Attend((1, 2, 3), 4, 1.0, kv_heads=2)))
    v = Given(np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[0.0, 0.5]] * 2))
    made = derived(who, program, (Given(np.zeros((2, 4))), Given(np.zeros((2, 2))), v))
    assert (
        (made.lo == [[1, 1, 2, 2]] * 2).all()
        and (made.error[:, 2:] >= 0.5).all()
        and made.error[:, :2].max() < 1e-4
    )


@WHO
def test_scores_that_may_overflow_promise_nothing(who: str) -> None:
    big = Given(column(1e20, 1e20))
    assert found(who, attend(2), big, big, Given(column(0.0, 1.0))).error.max() == np.inf


@pytest.mark.parametrize("seed", range(12))
def test_random_perturbations_stay_within_both_bounds(seed: int) -> None:
    """Exact weights of perturbed scores and values, in the dtype of the proof's own arithmetic with room for its rounding."""
    draw = np.random.default_rng(seed)
    n, heads, slices, d = 3, 4, int(draw.choice([1, 2, 4])), 2
    maps = (Affine(0, np.eye(8)), *(Affine(0, np.eye(slices * d, 8)) for _ in range(2)))
    bias = draw.normal(size=(int(draw.choice([1, 4])), n, n)) if seed % 2 else None
    mask = np.tril(np.ones((n, n))) if seed % 3 else None
    step = Attend((1, 2, 3), heads, float(draw.normal()), mask, slices, bias)
    program = Program((n, 8), (*maps, step))
    x = [draw.normal(size=(n, w)) for w in (8, slices * d, slices * d)]
    e = [10.0 ** draw.uniform(-6, -1) * draw.random(part.shape) for part in x]
    found = [
        derived(who, program, [Given(*pair) for pair in zip(x, e, e, strict=True)])
        for who in ("prover", "checker")
    ]
    meant = step.approximate(*(torch.from_numpy(part)[None] for part in x))[0].numpy()
    for _ in range(200):
        off = [part + off * draw.choice([-1.0, 1.0], off.shape) for part, off in zip(x, e, strict=True)]
        moved = np.abs(step.approximate(*(torch.from_numpy(part)[None] for part in off))[0].numpy() - meant)
        for one in found:
            assert (moved <= one.error + 1e-13).all() and (moved <= one.approximation + 1e-13).all()
    ratio = found[1].error / found[0].error
    assert ratio.min() > 0.9 and ratio.max() < 1.001
