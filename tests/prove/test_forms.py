"""Affine forms hold every value, whatever rounding their own numbers suffer: in 200 bits and without slack."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flint import arb

from attnc.domain import Array
from attnc.functions.balls import working
from attnc.prove.exact_affine import Enclosed
from attnc.prove.forms import Form, along, combined, mapped

INPUTS, ROWS = 40, 12
SEEDS = pytest.mark.parametrize("seed", range(3))
RADII = pytest.mark.parametrize("radius", [0.0, 0.5])


def form(draw: np.random.Generator, radius: float) -> Form:
    matrix, centre = draw.normal(size=(ROWS, INPUTS)), draw.normal(size=ROWS)
    return Form(matrix, centre, np.full(ROWS, radius), np.abs(draw.normal(size=INPUTS)))


def value(x: Form, xi: Array, signs: Array) -> list[arb]:
    """Aξ + c + signs·r, exactly."""
    found = []
    for row, c, r, sign in zip(x.matrix, x.centre, x.radius, signs, strict=True):
        line = sum((arb(float(a)) * arb(float(t)) for a, t in zip(row, xi, strict=True)), arb(float(c)))
        found.append(line + arb(float(sign)) * arb(float(r)))
    return found


def check_held(
    made: Form, draw: np.random.Generator, x: Form, exact: Callable[[Array, Array], list[arb]]
) -> None:
    """Random and extreme inputs, random and extreme places within the radius."""
    with working(200):
        for k in range(6):
            xi = x.half * (draw.choice([-1.0, 1.0], INPUTS) if k % 2 else draw.uniform(-1, 1, INPUTS))
            signs = draw.choice([-1.0, 1.0], ROWS) if k % 3 else np.ones(ROWS)
            lines = value(
                Form(made.matrix, made.centre, 0 * made.radius, x.half), xi, np.zeros(len(made.centre))
            )
            for line, r, y in zip(lines, made.radius, exact(xi, signs), strict=True):
                assert abs(y - line) <= arb(float(r))


@SEEDS
@RADII
def test_a_linear_map(seed: int, radius: float) -> None:
    draw = np.random.default_rng(seed)
    x, W, b = form(draw, radius), draw.normal(size=(ROWS, ROWS)), draw.normal(size=ROWS)
    made = along(x, Enclosed(W), Enclosed(b))

    def exact(xi: Array, signs: Array) -> list[arb]:
        before = value(x, xi, signs)
        return [
            sum((arb(float(w)) * v for w, v in zip(row, before, strict=True)), arb(float(c)))
            for row, c in zip(W, b, strict=True)
        ]

    check_held(made, draw, x, exact)


@SEEDS
def test_a_linear_map_whose_numbers_are_enclosed(seed: int) -> None:
    draw = np.random.default_rng(seed)
    x, W, b = form(draw, 0.0), draw.normal(size=(ROWS, ROWS)), draw.normal(size=ROWS)
    off = np.abs(draw.normal(size=(ROWS, ROWS))) * 2.0**-10
    made = along(x, Enclosed(W, off), Enclosed(b, np.full(ROWS, 0.25)))

    def exact(xi: Array, signs: Array) -> list[arb]:
        before = value(x, xi, signs)
        found = []
        for row, radii, c in zip(W, off, b, strict=True):
            terms = (
                (arb(float(w)) + arb(float(r)) * (1 if v > 0 else -1)) * v
                for w, r, v in zip(row, radii, before, strict=True)
            )
            found.append(sum(terms, arb(float(c)) + arb(0.25)))
        return found

    check_held(made, draw, x, exact)


@SEEDS
@RADII
def test_a_line_beside_a_function(seed: int, radius: float) -> None:
    draw = np.random.default_rng(seed)
    x, slope, constant = form(draw, radius), *draw.normal(size=(2, ROWS))
    distance = np.abs(draw.normal(size=ROWS)) * radius
    made = mapped(x, slope, constant, distance)

    def exact(xi: Array, signs: Array) -> list[arb]:
        rows = zip(slope, value(x, xi, signs), constant, distance, signs, strict=True)
        return [
            arb(float(k)) * v + arb(float(c)) + arb(float(d)) * (1 if k * s > 0 else -1)
            for k, v, c, d, s in rows
        ]

    check_held(made, draw, x, exact)


@SEEDS
@RADII
def test_a_sum(seed: int, radius: float) -> None:
    draw = np.random.default_rng(seed)
    x = form(draw, radius)
    y = Form(draw.normal(size=(ROWS, INPUTS)), draw.normal(size=ROWS), x.radius / 3, x.half)
    p, r = 0.3, -1.7
    made = combined([x, y], [p, r])

    def exact(xi: Array, signs: Array) -> list[arb]:
        pairs = zip(value(x, xi, signs), value(y, xi, -signs), strict=True)
        return [arb(p) * v + arb(r) * w for v, w in pairs]

    check_held(made, draw, x, exact)


def test_the_interval_of_a_form_is_met() -> None:
    draw = np.random.default_rng(0)
    x = form(draw, 0.5)
    low, high = x.interval()
    with working(200):
        for i in range(ROWS):
            top = value(x, x.half * np.sign(x.matrix[i]), np.ones(ROWS))[i]
            bottom = value(x, -x.half * np.sign(x.matrix[i]), -np.ones(ROWS))[i]
            assert arb(float(low[i])) <= bottom and top <= arb(float(high[i]))
            assert float(high[i]) <= float(top.mid()) + 1e-12
