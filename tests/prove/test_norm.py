"""Intervals behind a norm: no input leaves them, compared without slack in high precision, and they are attained."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from flint import arb

from attnc.domain import Box, Normed
from attnc.errors import InputError, PrecisionError
from attnc.functions.balls import working
from attnc.prove import norm as normed
from attnc.prove.norm import RHO
from attnc.prove.outward import total, weighed
from tests.feed_forward import attainable
from tests.prove.blocks import affine_bounds, reach


def pre_activations(
    W: np.ndarray, b: np.ndarray, inputs: Normed | Box, rho: float = RHO
) -> tuple[np.ndarray, np.ndarray]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normed, "RHO", rho)
        found = affine_bounds(W, b, inputs)
    return found.lo, found.hi


def magnitudes(W: np.ndarray, b: np.ndarray, inputs: Normed | Box, rho: float = RHO) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normed, "RHO", rho)
        if isinstance(inputs, Box):
            found = weighed(W, np.maximum(np.abs(inputs.lo), np.abs(inputs.hi)))
        else:
            found = normed.magnitudes(W, inputs)
    return total(found, np.abs(b))


def roundings(W: np.ndarray, b: np.ndarray, inputs: Normed, dtype: str, rho: float = RHO) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normed, "RHO", rho)
        return affine_bounds(W, b, inputs, dtype).error


SCALES = ["plain", "bad", "huge", "tiny", "zeros", "constant"]


def numbers(draw: np.random.Generator, shape: tuple[int, ...], scale: str) -> np.ndarray:
    found = draw.standard_normal(shape)
    match scale:
        case "bad":
            return found * 10.0 ** draw.uniform(-12, 12, shape)
        case "huge":
            return found * 1e170
        case "tiny":
            return found * 1e-170
        case "zeros":
            return found * (draw.random(shape) < 0.5)
        case "constant":
            return np.broadcast_to(found[..., :1], shape).copy()
    return found


def case(seed: int, kind: str, d: int, m: int = 3) -> tuple[np.ndarray, np.ndarray, Normed]:
    draw = np.random.default_rng(seed)
    scales = draw.permutation(SCALES)
    W, gain, shift, b = (
        numbers(draw, shape, s) for shape, s in zip(((m, d), (d,), (d,), (m,)), scales, strict=False)
    )
    return W, b, Normed(kind == "layer", gain, shift)


def balls(x: np.ndarray) -> list[arb]:
    return [arb(float(t)) for t in x]


def normalised(z: list[arb], kind: str, eps: float) -> list[arb]:
    d = len(z)
    middle = sum(z, arb(0)) / d if kind == "layer" else arb(0)
    z = [t - middle for t in z]
    power = sum((t * t for t in z), arb(0)) / d + arb(eps)
    return [t / power.sqrt() for t in z] if power > 0 else [arb(0)] * d


def value(w: list[arb], b: arb, norm: Normed, y: list[arb]) -> arb:
    parts = zip(w, balls(norm.gain), y, balls(norm.shift), strict=True)
    return sum((u * (g * t + s) for u, g, t, s in parts), b)


def size(w: list[arb], b: arb, norm: Normed, y: list[arb]) -> arb:
    parts = zip(w, balls(norm.gain), y, balls(norm.shift), strict=True)
    return sum((abs(u * (g * t + s)) for u, g, t, s in parts), abs(b))


def attacks(w: list[arb], norm: Normed, draw: np.random.Generator) -> list[list[arb]]:
    """The vector that attains the end, in 400 bits, and some that do not."""
    d = len(w)
    v = [g * u for g, u in zip(balls(norm.gain), w, strict=True)]
    one_hot = [arb(int(i == draw.integers(d))) for i in range(d)]
    return [v, [-t for t in v], [abs(t) for t in v], one_hot, [arb(3)] * d, balls(draw.standard_normal(d))]


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("d", [1, 2, 3, 384])
def test_no_input_leaves_its_interval(kind: str, d: int) -> None:
    for seed in range(2 if d > 3 else 25):
        W, b, norm = case(seed, kind, d)
        lo, hi = pre_activations(W, b, norm, rho=0.0)
        largest = magnitudes(W, b, norm, rho=0.0)
        draw = np.random.default_rng(seed)
        with working(400):
            for j, w in enumerate(balls(row) for row in W):
                for z in attacks(w, norm, draw):
                    y = normalised(z, kind, draw.choice([0.0, 1e-5]))
                    s = value(w, arb(float(b[j])), norm, y)
                    assert arb(float(lo[j])) <= s <= arb(float(hi[j]))
                    assert size(w, arb(float(b[j])), norm, y) <= arb(float(largest[j]))


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("d", [1, 2, 3, 384])
def test_intervals_are_attained(kind: str, d: int) -> None:
    for seed in range(2 if d > 3 else 25):
        W, b, norm = case(seed, kind, d)
        lo, hi = pre_activations(W, b, norm, rho=0.0)
        loose = 1e-12 * magnitudes(W, b, norm, rho=0.0)
        with working(400):
            for j, z in enumerate(attainable(W, norm)):
                w, bias = balls(W[j]), arb(float(b[j]))
                top = value(w, bias, norm, normalised(balls(z), kind, 0.0))
                low = value(w, bias, norm, normalised(balls(-z), kind, 0.0))
                width = arb(float(hi[j])) - arb(float(lo[j]))
                assert width <= (top - low) * arb(1 + 1e-9) + arb(float(loose[j])) + arb(1e-300)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_ordinary_intervals_are_attained_to_nine_digits(kind: str) -> None:
    draw = np.random.default_rng(3)
    W, norm = (
        draw.standard_normal((4, 50)),
        Normed(kind == "layer", draw.random(50) + 0.5, draw.standard_normal(50)),
    )
    lo, hi = pre_activations(W, np.ones(4), norm, rho=0.0)
    x = attainable(W, norm) * norm.gain
    attained = 2 * (W * x).sum(axis=1)
    assert (hi - lo <= attained * (1 + 1e-9)).all()
    assert np.allclose(np.sqrt((attainable(W, norm) ** 2).sum(axis=1)), np.sqrt(50))


def test_what_is_lost_in_gain_times_weight_is_counted() -> None:
    """fl(γw) = 1 in every coordinate, so that the rounded numbers have no spread, but the exact ones do."""
    gain = np.random.default_rng(0).uniform(1, 2, 400)
    w = 1 / gain
    gain, w = gain[gain * w == 1][:50], w[gain * w == 1][:50]
    norm = Normed(True, gain, np.zeros(50))
    lo, hi = pre_activations(w[None], np.zeros(1), norm, rho=0.0)
    with working(400):
        exact = [p * r for p, r in zip(balls(gain), balls(w), strict=True)]
        for end, sign in ((hi, 1), (lo, -1)):
            s = value(balls(w), arb(0), norm, normalised([sign * t for t in exact], "layer", 0.0))
            assert 0 < sign * s <= sign * arb(float(end[0])) < 1e-13


def worst(w: np.ndarray, norm: Normed, rho: float) -> list[tuple[arb, arb]]:
    """(ŷ_i, r_i) of the set that the module describes which takes w·x̂ furthest up."""
    d = len(w)
    v = [g * u for g, u in zip(balls(norm.gain), balls(w), strict=True)]
    mean = sum(v, arb(0)) / d if norm.centred else arb(0)
    rest = [t - mean for t in v]
    length = sum((t * t for t in rest), arb(0)).sqrt()
    along = arb(rho) if mean > 0 else -arb(rho)
    if not norm.centred:
        along = arb(0)
    left = (d * ((1 + arb(rho)) ** 2 - along * along)).sqrt()
    y = [along + (left * t / length if length > 0 else arb(0)) for t in rest]
    still = [arb(rho) * (abs(s) + arb(2.0**-100)) for s in balls(norm.shift)]
    return [(t, r if u > 0 else -r) for t, r, u in zip(y, still, balls(w), strict=True)]


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("scales", [(0, 0), (1, 0), (0, 1), (1, 1), (1e-40, 1e-40)])
@pytest.mark.parametrize("rho", [2.0**-10, 0.25])
def test_what_rounding_of_the_norm_may_add(kind: str, scales: tuple[float, float], rho: float) -> None:
    for seed in range(10):
        draw = np.random.default_rng(seed)
        d = int(draw.integers(1, 5))
        w = draw.standard_normal(d) if seed % 2 else np.full(d, draw.standard_normal())
        norm = Normed(kind == "layer", np.full(d, scales[0] * 1.5), np.full(d, scales[1] * -0.7))
        lo, hi = pre_activations(w[None], np.zeros(1), norm, rho)
        most = magnitudes(w[None], np.zeros(1), norm, rho)
        with working(400):
            parts = list(zip(balls(w), balls(norm.gain), balls(norm.shift), worst(w, norm, rho), strict=True))
            x = [g * y + s + r for _, g, s, (y, r) in parts]
            reached = sum((u * t for (u, *_), t in zip(parts, x, strict=True)), arb(0))
            passing = sum((abs(u * t) for (u, *_), t in zip(parts, x, strict=True)), arb(0))
            centre = sum((u * s for u, _, s, _ in parts), arb(0))
            assert reached <= arb(float(hi[0]))
            assert 2 * centre - reached >= arb(float(lo[0]))
            assert passing <= arb(float(most[0]))
            room = 1 + 2 * rho**2 + 1e-9 if min(scales[0], rho) < 0.1 else 1.1
            assert arb(float(hi[0])) - centre <= (reached - centre) * arb(room) + arb(1e-15) * abs(centre)


def test_magnitudes_are_attained() -> None:
    draw = np.random.default_rng(5)
    W, gain, shift = draw.standard_normal((3, 7)), draw.standard_normal(7), draw.standard_normal(7)
    for rho in (0.0, 0.125):
        found = magnitudes(W, np.array([1.0, -2, 0]), Normed(False, gain, shift), rho)
        v = np.abs(W * gain)
        y = v / np.sqrt((v**2).sum(axis=1, keepdims=True)) * np.sqrt(7) * (1 + rho)
        attained = (np.abs(W) * (np.abs(gain) * y + np.abs(shift) * (1 + rho))).sum(axis=1)
        attained += np.array([1, 2, 0])
        assert (found <= attained * (1 + 1e-12)).all()


def test_boxes_are_exact() -> None:
    draw = np.random.default_rng(1)
    for _ in range(20):
        W, b = numbers(draw, (3, 4), "bad"), numbers(draw, (3,), "bad")
        ends = np.sort(numbers(draw, (2, 4), "bad"), axis=0)
        lo, hi = pre_activations(W, b, Box(*ends, shape=(4,)))
        most = magnitudes(W, b, Box(*ends, shape=(4,)))
        for j in range(3):
            products = [
                [Fraction(float(w)) * Fraction(float(e)) for e in ends[:, i]] for i, w in enumerate(W[j])
            ]
            low, high = (Fraction(float(b[j])) + sum(pick(p) for p in products) for pick in (min, max))
            large = abs(Fraction(float(b[j]))) + sum(max(map(abs, p)) for p in products)
            assert Fraction(float(lo[j])) <= low and high <= Fraction(float(hi[j]))
            assert large <= Fraction(float(most[j])) <= large * (1 + Fraction(1, 10**12))
            assert float(hi[j]) - float(lo[j]) <= float(high - low) * (1 + 1e-9) + 1e-12 * float(large)


def test_rounding_of_a_long_sum_is_nearly_met() -> None:
    """32(1 + 2⁻²⁴ + 2⁻²⁴ + …) stays 32 when it is summed from the left in float32."""
    d = 1030
    w = np.full(d, 2.0**-12)
    w[0] = 1.0
    norm = Normed(False, np.ones(d), np.zeros(d))
    x = 32 * w
    assert (x**2).sum() <= d
    found = np.float32(0)
    for p in (x * w).astype(np.float32):
        found = np.float32(found + p)
    lost = 32 * (1 + (d - 1) * 2.0**-24) - float(found)
    bound = float(roundings(w[None], np.zeros(1), norm, "float32", rho=0.0)[0])
    assert 0.98 * bound <= lost <= bound


@pytest.mark.parametrize(
    ("weight", "gain"), [(2.0**-100, 2.0**-100), (2.0**-127, 2.0**60), (2.0**60, 2.0**-127)]
)
def test_what_underflows_is_counted(weight: float, gain: float) -> None:
    """A product of 2⁻²⁰⁰ that becomes 0; a weight or an input that is subnormal and taken for 0."""
    norm = Normed(False, np.array([gain]), np.zeros(1))
    bound = roundings(np.array([[weight]]), np.zeros(1), norm, "float32", rho=0.0)
    assert bound[0] >= weight * gain


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_what_torch_executes_lies_within(kind: str, dtype: str) -> None:
    d, m, kept = 384, 12, getattr(torch, dtype)
    draw = np.random.default_rng(2)
    W, b, gain, shift = (torch.tensor(draw.standard_normal(s)).to(kept) for s in ((m, d), (m,), (d,), (d,)))
    if kind == "rms":
        shift = torch.zeros_like(shift)
    wide = [t.double().numpy() for t in (W, b, gain, shift)]
    norm = Normed(kind == "layer", *wide[2:])
    z = np.concatenate(
        [attainable(wide[0], norm)[:4], draw.standard_normal((2, d)) * 100 + 1000, np.eye(d)[:1]]
    )
    z = torch.tensor(z).to(kept)
    x = torch.nn.functional.layer_norm(z, (d,), gain, shift, 1e-12)
    if kind == "rms":
        x = torch.nn.functional.rms_norm(z, (d,), gain, 1e-12)
    s = torch.nn.functional.linear(x, W, b).double().numpy()
    lo, hi = reach(wide[0], wide[1], norm, dtype)
    assert ((lo <= s) & (s <= hi)).all()
    error = roundings(wide[0], wide[1], norm, dtype)
    with working(300):
        for k, row in enumerate(x.double().numpy()):
            for j, w in enumerate(wide[0]):
                exact = sum(
                    (p * q for p, q in zip(balls(w), balls(row), strict=True)), arb(float(wide[1][j]))
                )
                assert abs(exact - arb(float(s[k, j]))) <= arb(float(error[j]))


ONES = (np.ones((2, 3)), np.ones(2), np.ones(3), np.zeros(3))


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_is_proved_of_numbers_that_are_not_finite(at: int, bad: float) -> None:
    given = [x.copy() for x in ONES]
    given[at].flat[-1] = bad
    domain = Normed(True, *given[2:])
    if at < 2:
        with pytest.raises(PrecisionError):
            affine_bounds(given[0], given[1], domain)
    else:
        assert not np.isfinite(affine_bounds(given[0], given[1], domain).error).any()


def test_shapes_must_fit() -> None:
    W, b, gain, shift = ONES
    for domain in (Normed(True, gain[:2], shift[:2]), Box(-1, 1, shape=(4,))):
        with pytest.raises(InputError, match=str(domain.shape[0])):
            affine_bounds(W, b, domain)


def test_nothing_is_proved_of_what_may_overflow() -> None:
    W, b, gain, shift = ONES
    assert np.isinf(affine_bounds(W * 1e30, b, Normed(False, gain * 1e10, shift), "float32").error).all()
    W = W * [[1.0], [-1.0]] * [1.0, 2.0, 3.0]
    for size in (1e200, 1.7e154):
        assert np.isinf(affine_bounds(W * size, b, Normed(True, gain * size, shift)).error).all()


@pytest.mark.parametrize(("lo", "hi"), [(0.0, 5e-324), (-5e-324, 0.0), (1.0, 1 + 2.0**-52), (-3.0, 0.1)])
@pytest.mark.parametrize("weight", [2.0**1000, 1.0, -0.3])
def test_a_box_whose_middle_is_rounded_reaches_both_ends(lo: float, hi: float, weight: float) -> None:
    """The middle of 0 and the smallest number is 0 or that number."""
    low, high = pre_activations(np.array([[weight]]), np.zeros(1), Box(lo, hi, shape=(1,)))
    for end in (lo, hi):
        assert Fraction(float(low[0])) <= Fraction(weight) * Fraction(end) <= Fraction(float(high[0]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_a_head_must_cover_holds_the_rounding(dtype: str) -> None:
    draw = np.random.default_rng(0)
    W, b = draw.standard_normal((5, 40)), draw.standard_normal(5)
    inputs = Normed(False, draw.standard_normal(40), draw.standard_normal(40))
    lo, hi = pre_activations(W, b, inputs)
    error = roundings(W, b, inputs, dtype)
    low, high = reach(W, b, inputs, dtype)
    for j in range(5):
        off = Fraction(float(error[j]))
        assert off > 0
        assert Fraction(float(low[j])) <= Fraction(float(lo[j])) - off
        assert Fraction(float(high[j])) >= Fraction(float(hi[j])) + off
