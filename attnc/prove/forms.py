"""Values as affine functions of the input, Aξ + c ± r with |ξ| <= ρ, which keeps what cancels between neurons.

ξ is the input minus the middle of its box. Every operation rounds; a bound of its rounding is added to r."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnc.domain import Array, Box
from attnc.program.program import MOST_FORM_SIZE, MOST_FORM_WORK, Program
from attnc.prove.exact_affine import Enclosed
from attnc.prove.outward import U, above, below, gamma, product, times, total


@dataclass(frozen=True)
class Form:
    """A: (*shape, D); c and r: shape; ρ: (D,)."""

    matrix: Array
    centre: Array
    radius: Array
    half: Array

    @property
    def swing(self) -> Array:
        """At least |Aξ|."""
        return product(self.half[None, :], np.abs(self.matrix))[..., 0]

    def interval(self) -> tuple[Array, Array]:
        reach = total(self.swing, self.radius)
        return below(self.centre - reach), above(self.centre + reach)


def input_form(box: Box, program: Program) -> Form | None:
    """The identity, or None if the products would cost too much."""
    rows = max(math.prod(shape) for shape in program.shapes)
    far = max(float(np.abs(box.lo).max()), float(np.abs(box.hi).max()))
    if program.form_work > MOST_FORM_WORK or rows * box.size > MOST_FORM_SIZE or far > 2.0**60:
        return None
    middle = box.lo / 2 + box.hi / 2
    half = above(np.maximum(above(box.hi - middle), above(middle - box.lo)))
    matrix = np.eye(box.size).reshape(*box.shape, box.size)
    return Form(matrix, middle, np.zeros(box.shape), half.ravel())


def along(x: Form, weight: Enclosed, bias: Enclosed) -> Form:
    """W(Aξ + c ± r) + b."""
    size = np.abs(weight.number)
    matrix = np.moveaxis(np.moveaxis(x.matrix, -1, -2) @ weight.number.T, -1, -2)
    centre = x.centre @ weight.number.T + bias.number
    swing, constant = x.swing, np.abs(x.centre)
    lost = times(
        gamma(size.shape[1] + 2, U),
        total(product(size, total(swing, constant)), np.abs(bias.number), size.shape[1] * 2.0**-960),
    )
    radius = total(product(size, x.radius), bias.radius, lost)
    if weight.folded:
        radius = total(radius, product(np.asarray(weight.radius), total(swing, constant, x.radius)))
    return Form(matrix, centre, radius, x.half)


def mapped(x: Form, slope: Array, constant: Array, distance: Array) -> Form:
    """λ∘(Aξ + c ± r) + μ ± distance."""
    slope = np.broadcast_to(slope, x.centre.shape)
    lost = times(
        2.0**-50, total(times(np.abs(slope), total(x.swing, np.abs(x.centre))), np.abs(constant), 2.0**-960)
    )
    radius = total(times(np.abs(slope), x.radius), distance, lost)
    return Form(x.matrix * slope[..., None], x.centre * slope + constant, radius, x.half)


def combined(xs: Sequence[Form], coefficients: Sequence[float]) -> Form:
    """Σ c_i (A_i ξ + …)."""
    pairs = list(zip(xs, coefficients, strict=True))
    sizes = total(*(times(abs(c), total(x.swing, np.abs(x.centre))) for x, c in pairs), 2.0**-960)
    radius = total(*(times(abs(c), x.radius) for x, c in pairs), times(2.0**-50, len(pairs), sizes))
    matrix = np.asarray(sum(x.matrix * c for x, c in pairs))
    return Form(matrix, np.asarray(sum(x.centre * c for x, c in pairs)), radius, xs[0].half)


def reshaped(x: Form, shape: tuple[int, ...]) -> Form:
    return Form(x.matrix.reshape(*shape, -1), x.centre.reshape(shape), x.radius.reshape(shape), x.half)
