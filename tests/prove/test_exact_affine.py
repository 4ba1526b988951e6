"""What is folded is enclosed: the exact numbers lie within their radius, in 300 bits and without slack."""

from __future__ import annotations

import numpy as np
from flint import arb

from attnc.domain import Array
from attnc.functions.balls import working
from attnc.program import Affine, BatchNorm
from attnc.prove.exact_affine import Enclosed, folded, scaling


def source(seed: int, rows: int = 60, columns: int = 5) -> tuple[Affine, BatchNorm]:
    draw = np.random.default_rng(seed)
    affine = Affine(0, draw.normal(size=(rows, columns)), draw.normal(size=rows))
    mean, gain, shift = draw.normal(size=(3, rows))
    return affine, BatchNorm(1, mean, draw.uniform(0.1, 3, rows), gain, shift, 0.25)


def meant(step: BatchNorm) -> tuple[list[arb], list[arb]]:
    rows = zip(step.gain, step.variance, step.mean, step.shift, strict=True)
    scale, shift = [], []
    for g, v, m, s in rows:
        a = arb(float(g)) / (arb(float(v)) + arb(step.epsilon)).sqrt()
        scale.append(a)
        shift.append(arb(float(s)) - a * arb(float(m)))
    return scale, shift


def check_enclosed(found: Enclosed, exact: list[arb]) -> None:
    radii: Array = np.broadcast_to(found.radius, found.number.shape)
    worst = 0.0
    for number, radius, ball in zip(found.number.ravel(), radii.ravel(), exact, strict=True):
        off = abs(ball - arb(float(number)))
        assert off <= arb(float(radius))
        worst = max(worst, float((off / arb(float(radius))).mid()))
    assert worst > 0.3


def test_a_normalisation_is_enclosed() -> None:
    _, step = source(0)
    with working(300):
        for found, exact in zip(scaling(step), meant(step), strict=True):
            check_enclosed(found, exact)


def test_a_folded_map_is_enclosed() -> None:
    for seed in range(4):
        affine, step = source(seed)
        assert affine.bias is not None
        weight, bias = folded(affine, step)
        assert weight.folded and bias.folded
        with working(300):
            scale, shift = meant(step)
            check_enclosed(
                weight, [a * arb(float(w)) for a, row in zip(scale, affine.weight, strict=True) for w in row]
            )
            check_enclosed(
                bias, [a * arb(float(b)) + c for a, b, c in zip(scale, affine.bias, shift, strict=True)]
            )


def test_numbers_that_are_enclosed_only_are_never_the_stored_ones() -> None:
    number = np.array([1.0, 2.0])
    assert Enclosed(number).gap(number) is None
    gap = Enclosed(number, np.array([0.0, 0.5])).gap(number)
    assert gap is not None and gap[1] >= 0.5
    other = Enclosed(number).gap(np.array([1.0, 2.25]))
    assert other is not None and other[1] >= 0.25
