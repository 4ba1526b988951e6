"""1/√u of a quadratic form u becomes heads of two keys, stored in a dtype, with a proof of their relative error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from attnc.arithmetic import ARITHMETIC
from attnc.domain import Array
from attnc.errors import PrecisionError
from attnc.heads.quadratic import POWER, power_heads
from attnc.prove.quadratic import closed_form_error, executed_error, relative_error, score_weight
from attnc.records.fields import round_up
from attnc.records.numbers import QuadraticNumbers

_ROOM = 1 + 2.0**-6  # for the checker, which derives the rounding in another way


@dataclass(frozen=True)
class QuadraticProof:
    """Relative errors of Σ_j value_j w_j against 1/√u for every u from the offset to `most`: in exact arithmetic, and as
    executed."""

    numbers: QuadraticNumbers
    most: float
    approximation: float
    executed: float  # by softmax
    closed_form: float  # executed, by a square root


def quadratic_numbers(dim: int, offset: float, most: float, target: float, dtype: str) -> QuadraticNumbers:
    """The heads for u = |z|²/dim + offset <= 2·most, stored in a dtype: slope_j = λ_j/dim, intercept_j = b - λ_j·offset."""
    heads = power_heads(offset, 2 * most, target)
    intercept = np.minimum(heads.bias - heads.scale * offset, 0.0)
    slope, intercept, value = (_stored(array, dtype) for array in (heads.scale / dim, intercept, heads.value))
    return QuadraticNumbers(slope, intercept, value, dim, offset, POWER, dtype)


@cache
def proved_heads(dim: int, offset: float, most: float, target: float, dtype: str) -> QuadraticProof:
    """The fewest heads whose relative error in exact arithmetic is proved to be at most `target`, with both errors."""
    numbers = quadratic_numbers(dim, offset, most, 0.9 * target, dtype)
    relative = relative_error(numbers, 2 * most)
    weight = score_weight(numbers, 2 * most)
    executed = executed_error(numbers, most, relative, weight, ARITHMETIC[dtype])
    if not relative <= target or not executed < 1:
        other = ", or float64" if dtype == "float32" else ""
        raise PrecisionError(
            f"a relative error of {target:g} cannot be met with numbers stored in {dtype}: the heads that come closest have "
            f"{relative:.2g}; use a larger one{other}",
            relative,
        )
    errors = relative, executed, closed_form_error(numbers, most, ARITHMETIC[dtype])
    return QuadraticProof(numbers, most, *(round_up(error * _ROOM) for error in errors))


def _stored(array: Array, dtype: str) -> Array:
    """Rounded to the dtype; what would be subnormal is 0."""
    rounded = array.astype(dtype)
    rounded[np.abs(rounded) < np.finfo(dtype).tiny] = 0.0
    return rounded.astype(np.float64)
