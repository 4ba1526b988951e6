"""One step of a program: what the prover and the checker derive of it from what holds of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnc.arithmetic import ARITHMETIC
from attnc.check.compose import KINDS
from attnc.check.values import NormErrors, Passing, Value, long
from attnc.domain import Array
from attnc.lower.layers import lower_steps
from attnc.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import advance

WHO = pytest.mark.parametrize("who", ["prover", "checker"])
FINE, COARSE = 2.0**-100, 2.0**-14


@dataclass(frozen=True)
class Given:
    """An input of a step: exactly x, off by at most `error` as executed and `approximation` in exact arithmetic."""

    x: Array
    error: Array | float = 0.0
    approximation: Array | float = 0.0
    half: Array | float = 0.0  # the exact value is within this of x


@dataclass(frozen=True)
class Found:
    lo: Array
    hi: Array
    error: Array
    approximation: Array
    normed: bool


def derived(
    who: str, program: Program, given: Sequence[Given], relative: float = 0.0, most: float = np.inf
) -> Found:
    """What holds of the last step of a program, whose inputs are the values before it; `relative` errors of a norm's heads."""
    layer = lower_steps(program, "float32")[-1]
    arrays = [
        [np.broadcast_to(part, g.x.shape) for part in (g.error, g.approximation, g.half)] for g in given
    ]
    if who == "prover":
        known = {
            i: ValueBounds(g.x - h, g.x + h, a, e)
            for i, g, (e, a, h) in zip(layer.inputs, given, arrays, strict=True)
        }
        made = advance(program, layer, known, "float32", HeadErrors(relative, relative, most=most))
        return Found(made.lo, made.hi, made.error, made.approximation, made.normed is not None)
    values = [_value(g.x, *parts) for g, parts in zip(given, arrays, strict=True)]
    passing = Passing(program, layer, values, ARITHMETIC["float32"], NormErrors(relative, relative, most))
    with np.errstate(all="ignore"):
        now = KINDS[layer.kind](passing)
    shape = program.shapes[-1]
    above = (_rounded_up(part).reshape(shape) for part in (now.hi, now.error, now.approximation))
    return Found(-_rounded_up(-now.lo).reshape(shape), *above, now.normed is not None)


def _rounded_up(x: NDArray[Any]) -> Array:
    """Long doubles as float64, rounded up."""
    nearest: Array = x.astype(float)
    return np.where(nearest < x, np.nextafter(nearest, np.inf), nearest)


def _value(x: Array, error: Array, approximation: Array, half: Array) -> Value:
    flat = [long(part).reshape(-1, x.shape[-1]) for part in (x - half, x + half, error, approximation)]
    return Value.of(*flat)
