"""Selectors: weights against their definitions, theorems against exact and high-precision arithmetic, the stored comparison."""

from __future__ import annotations

import itertools
import json
import math
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

import attnc
from attnc.errors import InputError
from attnc.functions import Function
from attnc.paper import selectors
from attnc.paper.selectors import SELECTORS, Selection, analytic_bound, least_error, nystrom, select
from attnc.paper.selectors.theorems import selector_theorem

ROOT = Path(__file__).parents[2]
sys.path[:0] = [path for path in (str(ROOT / "benchmarks"),) if path not in sys.path]

import selector_rates  # noqa: E402

SCORES = st.lists(st.floats(-6, 6, allow_subnormal=False), min_size=1, max_size=7)
runge = attnc.function(lambda s: 1 / (1 + s * s), name="runge", enclosure=lambda x: 1 / (1 + x * x))
laplace = attnc.function(
    lambda s: torch.exp(-s.abs()), name="laplace", enclosure=(lambda x: x.exp(), lambda x: (-x).exp()), kinks=(0.0,)
)  # fmt: skip


def double(numbers: object) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


# ---- the weights against their definitions


def projection(z: list[Fraction]) -> list[Fraction]:
    """The nearest point of the simplex, by trying every support: the nearest of all points that are stationary on their face."""
    found = []
    for size in range(1, len(z) + 1):
        for support in itertools.combinations(range(len(z)), size):
            shift = (1 - sum(z[k] for k in support)) / size
            w = [z[k] + shift if k in support else Fraction(0) for k in range(len(z))]
            if min(w) >= 0:
                found.append((sum((a - b) ** 2 for a, b in zip(w, z, strict=True)), w))
    return min(found)[1]


@given(SCORES)
@settings(max_examples=60, deadline=None)
def test_sparsemax_is_the_projection_onto_the_simplex(z: list[float]) -> None:
    exact = projection([Fraction(x) for x in z])
    assert np.abs(selectors.sparsemax(double(z)).numpy() - np.array(exact, dtype=float)).max() <= 1e-14


@given(SCORES)
@settings(max_examples=60, deadline=None)
def test_entmax_maximises_its_objective(z: list[float]) -> None:
    """F(w) = <w, z> + (4/3) Σ (w - w^{3/2}) is concave, so F(w*) - F(w) <= max_k F'_k - <w, F'>; and F'' <= -1 on the simplex, so
    |w - w*|² is at most twice that."""
    w = selectors.entmax15(double(z)).tolist()
    with mp.workdps(40):
        w = [mpf(x) / mp.fsum(map(mpf, w)) for x in w]
        slope = [mpf(x) - 2 * mp.sqrt(y) for x, y in zip(z, w, strict=True)]
        gap = max(slope) - mp.fsum(a * b for a, b in zip(w, slope, strict=True))
        assert gap <= 1e-14  # the distance from the maximiser is at most 1.5e-7


@given(SCORES)
@settings(max_examples=60, deadline=None)
def test_entmax_has_the_threshold_that_bisection_finds(z: list[float]) -> None:
    with mp.workdps(40):
        low, high = max(map(mpf, z)) / 2 - 1, max(map(mpf, z)) / 2
        for _ in range(130):
            middle = (low + high) / 2
            total = mp.fsum(max(mpf(x) / 2 - middle, 0) ** 2 for x in z)
            low, high = (middle, high) if total > 1 else (low, middle)
        wanted = [float(max(mpf(x) / 2 - low, 0) ** 2) for x in z]
    assert np.abs(selectors.entmax15(double(z)).numpy() - wanted).max() <= 1e-14


@pytest.mark.parametrize("name", ["hard", "sparsemax", "entmax15", "softmax"])
def test_normalised_weights_ignore_a_common_term_and_masks_get_none(name: str) -> None:
    z = double([[0.3, 0.1, -2.0, 0.25], [5.0, 5.0, 4.9, -60.0]])
    w = SELECTORS[name].weights(z)
    assert bool((w >= 0).all()) and torch.allclose(w.sum(-1), torch.ones(2).double(), atol=1e-14)
    assert torch.allclose(SELECTORS[name].weights(z + 1e3), w, atol=1e-12)
    masked = SELECTORS[name].weights(torch.cat([z, torch.full((2, 1), -math.inf).double()], 1))
    assert torch.allclose(masked[:, :4], w, atol=1e-14) and bool((masked[:, 4] == 0).all())


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_weights_have_the_right_derivative(name: str) -> None:
    z = double([0.31, 0.1, -0.2, -9.0]).requires_grad_()
    assert torch.autograd.gradcheck(SELECTORS[name].weights, (z,))


@pytest.mark.parametrize("bad", [[1.0], torch.tensor(1.0), torch.tensor([1, 2]), torch.zeros(2, 0)])
@pytest.mark.parametrize("name", SELECTORS)
def test_what_is_no_vector_of_scores_is_refused(name: str, bad: object) -> None:
    with pytest.raises(InputError):
        SELECTORS[name].weights(bad)  # type: ignore[arg-type]


# ---- upper bounds


def rational_sparsemax(anchors: list[Fraction], c: Fraction, s: Fraction) -> list[Fraction]:
    step = anchors[1] - anchors[0]
    return projection([-c * ((s - x) / step) ** 2 for x in anchors])


@given(st.fractions(-3, 3, max_denominator=10**6))
@settings(max_examples=40, deadline=None)
def test_sparsemax_at_one_is_linear_interpolation_exactly(s: Fraction) -> None:
    anchors = [Fraction(k) for k in range(-2, 3)]
    w = rational_sparsemax(anchors, Fraction(1), s)
    hats = [max(Fraction(0), 1 - abs(min(max(s, Fraction(-2)), Fraction(2)) - x)) for x in anchors]
    assert w == hats


@given(st.fractions(-2, 2, max_denominator=10**6), st.fractions(1, 9, max_denominator=50))
@settings(max_examples=40, deadline=None)
def test_only_two_neighbours_have_weight_from_the_stated_sharpness_on(s: Fraction, c: Fraction) -> None:
    anchors = [Fraction(k) for k in range(-2, 3)]
    for k, w in enumerate(rational_sparsemax(anchors, c, s)):
        assert w == 0 or abs(anchors[k] - s) <= 1
    x = [-2 * c * (s - a) ** 2 / 2 for a in anchors]  # half the scores of entmax at 2c >= 2
    for k, a in enumerate(anchors):  # k has no weight if Σ_j max(x_j - x_k, 0)² >= 1
        if abs(a - s) > 1:
            assert sum(max(y - x[k], Fraction(0)) ** 2 for y in x) >= 1


BOUNDED = [
    ("hard", 1.0),
    ("sparsemax", 1.0),
    ("sparsemax", 3.0),
    ("entmax15", 2.0),
    ("softmax", 0.5),
    ("softmax", 4.0),
]


@pytest.mark.parametrize("f", [runge, laplace, attnc.functions.get("sin")], ids=lambda f: f.name)
@pytest.mark.parametrize("name, c", BOUNDED)
def test_no_point_is_above_the_theorem(name: str, c: float, f: Function) -> None:
    for p, domain in ((2, (-1.0, 2.0)), (7, (-2.0, 4.0)), (10, (-2.5, 3.5))):
        made = select(f, name, anchors=p, domain=domain, sharpness=c, values="anchors")
        assert made.theorem.bound is not None and made.error <= made.theorem.bound


@pytest.mark.parametrize("name", ["hard", "sparsemax", "relu"])
def test_the_theorems_are_sharp(name: str) -> None:
    """hard: K Δ/2 for a line; splines: M Δ²/8 for a parabola."""
    f = "identity" if name == "hard" else "square"
    made = select(
        f,
        name,
        anchors=9,
        domain=(-1, 1),
        sharpness=1,
        values="least squares" if name == "relu" else "anchors",
    )
    if name == "relu":  # the best spline has half the error of the interpolating one, of which the theorem is
        assert made.theorem.bound is None
        known = selector_theorem(
            "relu", attnc.functions.get(f), attnc.Interval(-1, 1), 9, 1.0, own=True
        ).bound
        assert known is not None and 0.49 * known < made.error < 0.6 * known
    else:
        assert made.theorem.bound is not None
        assert 0.98 * made.theorem.bound < made.error <= made.theorem.bound


@pytest.mark.parametrize("name", ["hard", "sparsemax", "softmax"])
def test_a_theorem_has_a_number_only_for_the_values_that_it_names(name: str) -> None:
    fitted = select("sin", name, anchors=20, domain=(-3, 3), sharpness=1)
    named = select("sin", name, anchors=20, domain=(-3, 3), sharpness=1, values="anchors")
    assert fitted.theorem.bound is None and named.theorem.bound is not None
    assert named.error <= named.theorem.bound


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_nothing_exponential_is_said_of_a_kink(name: str) -> None:
    names = [select(f, name, anchors=9, domain=(-1, 2), sharpness=0.2).theorem.name for f in ("relu", "sin")]
    assert names[0] == "no theorem" and "exponential" in names[1]


def test_a_kink_off_the_anchors_gets_the_weaker_bound() -> None:
    on, off = (
        select(laplace, "sparsemax", anchors=10, domain=d, sharpness=1, values="anchors").theorem.bound
        for d in ((-2, 4), (-2.5, 3.5))
    )
    assert on is not None and off is not None and on < 0.2 * off


def chebyshev(h: object, low: mpf, high: mpf, degree: int) -> object:
    """The Chebyshev series of h on [low, high], truncated: coefficients by a rule of 8 times as many points."""
    count = 8 * (degree + 8)
    angles = [mp.pi * (j + mpf(1) / 2) / count for j in range(count)]
    values = [h((low + high) / 2 + (high - low) / 2 * mp.cos(a)) for a in angles]  # type: ignore[operator]
    c = [
        2 * mp.fsum(v * mp.cos(k * a) for v, a in zip(values, angles, strict=True)) / count
        for k in range(degree + 1)
    ]
    return lambda u: (
        c[0] / 2
        + mp.fsum(
            c[k] * mp.cos(k * mp.acos((2 * u - low - high) / (high - low))) for k in range(1, degree + 1)
        )
    )


@pytest.mark.parametrize("selector", ["softmax", "sigmoid"])
@pytest.mark.parametrize("p, lam, rho", [(3, 0.25, 3.0), (8, 0.1, 8.0)])
def test_the_analytic_bound_holds_for_the_values_of_its_proof(
    selector: str, p: int, lam: float, rho: float
) -> None:
    """f = exp, |f| <= exp(max Re s) on the ellipse. g = P/D with the truncated Chebyshev series P of f D."""
    with mp.workdps(40):
        anchors = [mpf(-1) + mpf(2 * k) / (p - 1) for k in range(p)]
        beta = mpf(lam) / 2 / (mpf(2) / (p - 1))

        def weight(u: mpf) -> mpf:
            if selector == "softmax":
                return mp.fsum(mp.exp(-beta * a**2) * u**k for k, a in enumerate(anchors))
            return mp.fprod(u + mp.exp(lam * a) for a in anchors) / u

        low, high = mp.exp(-lam), mp.exp(lam)
        poly = chebyshev(lambda u: mp.exp(mp.log(u) / lam) * weight(u), low, high, p - 1)
        far = mp.cosh(lam) + mp.sinh(lam) * (mpf(rho) + 1 / mpf(rho)) / 2
        size = math.nextafter(float(far ** (1 / mpf(lam))), math.inf)
        bound = analytic_bound(selector, size, p, switch=lam, ellipse=rho)
        errors = []
        for i in range(41):
            u = mp.exp(lam * (mpf(i) / 20 - 1))
            errors.append(abs(poly(u) / weight(u) - mp.exp(mp.log(u) / lam)))  # type: ignore[operator]
        assert 0 < max(errors) <= bound
    assert p == 3 or bound < 0.1  # it says something: exp reaches 31 on this ellipse


def test_bounds_refuse_what_they_do_not_cover() -> None:
    for ellipse, lam in ((1.0, 0.1), (30.0, 0.1), (2.0, -1.0)):
        with pytest.raises(InputError):
            analytic_bound("softmax", 1.0, 8, switch=lam, ellipse=ellipse)
    with pytest.raises(InputError):
        analytic_bound("relu", 1.0, 8, switch=0.1, ellipse=2.0)
    with pytest.raises(InputError):
        least_error("softmax", 8, bend=2, length=2)


def test_curvature_is_a_bound_and_is_tight() -> None:
    on = attnc.Interval(-2, 4)
    assert 2.0 <= selectors.curvature(runge, on) <= 2.03  # |f''(0)| = 2
    assert 1.0 <= selectors.curvature(laplace, on) <= 1.02  # one-sided at the kink


# ---- lower bounds


@pytest.mark.parametrize("name", ["sparsemax", "relu", "linear"])
@pytest.mark.parametrize("p", [2, 5, 12])
def test_no_values_go_below_the_least_error(name: str, p: int) -> None:
    """s² has f'' = 2; sampled errors are at most the largest error, so they may only be too small."""
    least = least_error(name, p, bend=2, length=2)
    tried = [select("square", name, anchors=p, domain=(-1, 1), sharpness=c) for c in (4.0, 1.0, 0.2, 0.01)]
    assert all(made.error >= least for made in tried)
    if name == "linear":
        assert min(made.error for made in tried) < 1.01 * least  # attained: s² - 1/2
    elif name == "relu":
        assert (
            min(made.error for made in tried) < 1.1 * least * ((p + 1) / (p - 1)) ** 2
        )  # p + 1 pieces, p - 1 are inside


@given(st.lists(st.tuples(st.fractions(-9, 9), st.fractions(-9, 9)), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_every_key_of_sparsemax_has_weight_on_an_interval(keys: list[tuple[Fraction, Fraction]]) -> None:
    """So p keys make at most 2p - 1 linear pieces."""
    held = [[w > 0 for w in projection([a * s + b for a, b in keys])] for s in map(Fraction, range(-12, 13))]
    for column in zip(*held, strict=True):
        runs = [on for on, _ in itertools.groupby(column)]
        assert sum(runs) <= 1


def test_hard_attention_cannot_go_below_its_least_error() -> None:
    made = select("identity", "hard", anchors=8, domain=(-1, 1))
    least = least_error("hard", 8, slope=1, length=2)
    assert least <= made.error < 1.2 * least * 8 / 7


# ---- selections


def test_the_same_anchors_for_all_and_the_expected_order() -> None:
    made = {name: select(runge, name, anchors=22, domain=(-2, 4)) for name in SELECTORS}
    assert all(torch.equal(one.anchors, made["hard"].anchors) for one in made.values())
    order = sorted(made, key=lambda name: made[name].error)
    assert {order[0], order[1]} == {"softmax", "sigmoid"} and order[-2:] == ["hard", "linear"]
    assert float(made["softmax"].values.abs().max()) < 10 < float(made["sigmoid"].values.abs().max())


def test_the_error_is_found_in_the_dtype() -> None:
    made = select(runge, "softmax", anchors=34, domain=(-2, 4), dtype=torch.float32)
    assert made.values.dtype == made(torch.zeros(3)).dtype == torch.float32 and 1e-8 < made.error < 1e-4


def test_a_softmax_selection_is_a_proved_head() -> None:
    made = select(runge, "softmax", anchors=16, domain=(-2, 4))
    head = made.head()
    assert made.error <= head.certificate.bound <= 1.3 * made.error
    assert attnc.verify(head, runge)
    with pytest.raises(InputError):
        select(runge, "sparsemax", anchors=4, domain=(-2, 4)).head()


def test_landmarks_are_nystrom_attention() -> None:
    full = select(runge, "softmax", anchors=40, domain=(-2, 4))
    made = full.through_landmarks(20)
    s = torch.linspace(-2, 4, 77, dtype=torch.float64)
    query, key = full._tokens(s, full.anchors)
    landmarks = full._tokens(made.anchors, made.anchors)
    by_hand = nystrom(query, key, full.values[:, None], landmarks)[:, 0]
    assert float((by_hand - made(s)).abs().max()) < 1e-9
    at_landmarks = (made(made.anchors) - full(made.anchors)).abs().max()
    assert float(at_landmarks) < 1e-9 < full.error < made.error < 1e-2
    full = select(runge, "softmax", anchors=40, domain=(-2, 4), sharpness=1)
    assert float((full.through_landmarks(40)(s) - full(s)).abs().max()) < 1e-9


def test_segment_means_of_keys_are_anchors() -> None:
    """The mean of the keys (2βL, -βL²) of a part is the key of the mean anchor, up to the same β·variance for equal parts."""
    full = select(runge, "softmax", anchors=40, domain=(-2, 4), sharpness=0.25)
    s = torch.linspace(-2, 4, 80, dtype=torch.float64)
    query, key = full._tokens(s, full.anchors)
    middles, points = full.anchors.reshape(20, 2).mean(1), s.reshape(20, 4).mean(1)
    landmarks = full._tokens(points, middles)
    two = (nystrom(query, key, full.values[:, None], m) for m in (20, landmarks))
    assert float((next(two) - next(two)).abs().max()) < 1e-8


@pytest.mark.parametrize(
    "wrong",
    [{"selector": "max"}, {"anchors": 1}, {"sharpness": 0}, {"values": "f"}, {"selector": "relu", "values": "anchors"},
     {"domain": (1, 0)}, {"dtype": torch.float16}, {"domain": (1.0, 1.0 + 2.0**-51)}],
)  # fmt: skip
def test_bad_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        select("sin", **{"anchors": 4, "domain": (-1, 1), **wrong})  # type: ignore[arg-type]
    with pytest.raises(InputError):
        nystrom(torch.zeros(3, 2), torch.zeros(4, 3), torch.zeros(4, 1), 2)


# ---- the stored comparison of benchmarks/selector_rates.py


def test_fits_find_the_law_and_their_intervals_the_noise() -> None:
    sizes = selector_rates.SIZES
    exact = [3 * (p - 1) ** -2.0 for p in sizes]
    found = selector_rates.fit("power", sizes, exact, 0.0)
    assert found is not None and found["points"] == sum(p >= selector_rates.FROM["power"] for p in sizes)
    assert found["k"] == pytest.approx(2) and found["high"] - found["low"] < 1e-6
    noisy = selector_rates.fit(
        "power", sizes, [e * (1.2 if i % 2 else 1.0) for i, e in enumerate(exact)], 0.0
    )
    assert noisy is not None and noisy["low"] < 2 < noisy["high"] and noisy["high"] - noisy["low"] > 0.1
    falling = selector_rates.fit("exponential", sizes, [math.exp(-0.5 * p) for p in sizes], 1e-9)
    assert falling is not None and falling["k"] == pytest.approx(0.5) and falling["points"] == 5
    assert selector_rates.fit("power", sizes, exact, 1.0) is None


def test_the_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import selector_figure

    stored = json.loads((ROOT / "benchmarks" / "results" / "selectors.json").read_text())
    selector_figure.draw(stored, tmp_path / "selectors.png")
    assert (tmp_path / "selectors.png").stat().st_size > 50_000


def test_the_published_rates() -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "selectors.json").read_text())
    rows = {(row["case"], row["selector"]): row for row in stored["rows"]}
    assert all(row["sizes"][0] == 4 and row["sizes"][-1] == 64 for row in rows.values())

    def within(case: str, selector: str, low: float, high: float) -> bool:
        fit = rows[case, selector]["power"]
        return bool(low <= fit["k"] <= high and fit["low"] <= fit["k"] <= fit["high"])

    assert (
        within("smooth", "hard", 0.85, 1.1)
        and within("smooth", "relu", 1.7, 2.1)
        and within("smooth", "linear", -0.01, 0.01)
    )
    assert within("kink at an anchor", "sparsemax", 1.6, 2.1) and within(
        "kink at an anchor", "softmax", 0.9, 1.1
    )
    assert all(rows["smooth", name]["exponential"]["k"] > 0.2 for name in ("softmax", "sigmoid"))
    assert rows["smooth", "softmax"]["errors"][-1] < 1e-11 < 1e-4 < rows["smooth", "sparsemax"]["errors"][-1]
    for row in rows.values():
        assert all(bound >= error for bound, error in zip(row.get("proved", []), row["errors"], strict=False))


def test_selection_is_what_its_weights_say() -> None:
    made: Selection = select("sin", "entmax15", anchors=6, domain=(-1, 1))
    s = torch.linspace(-1, 1, 5, dtype=torch.float64)
    assert torch.equal(made(s), made.weights(s) @ made.values) and made.scores(s).shape == (5, 6)
