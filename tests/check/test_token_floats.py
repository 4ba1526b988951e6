"""Enclosures of the stream in float64: they contain what rational arithmetic bounds, and are not much wider."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from attnc import tokens
from attnc.arithmetic import ARITHMETIC
from attnc.check.token_floats import enclosed, signs
from attnc.check.token_heads import HeadChecker
from attnc.check.token_states import Column, Meaning, Stream


def stream_with_counts(dtype: str, draw: Any, large: float = 1.0) -> Stream:
    """A stream with two coordinates that are fractions with errors."""
    p = tokens.program("abc", 5)
    counts = [p.count(p.tokens == "a"), p.count(p.tokens == "b")]
    program = p.program(counts[0] + counts[1])
    net = p.compile(counts[0] + counts[1])
    numbers = net.numbers()
    stream = Stream(Meaning(program), numbers.tokens, numbers.positions, ARITHMETIC[dtype])
    for c, node in zip(range(len(numbers.coordinates) - 2, len(numbers.coordinates)), (2, 3), strict=True):
        values = np.array(
            [Fraction(int(x), 7 + i) for i, x in enumerate(draw.integers(-99, 99, 6))], dtype=object
        )
        errors = np.array([abs(v) * Fraction(3, 2**24) for v in values], dtype=object)
        stream.columns[c] = Column((node,), values * Fraction(large), errors * Fraction(large), np.arange(6))
    return stream


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_they_contain_the_rational_bounds(dtype: str) -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        stream = stream_with_counts(dtype, draw)
        d = len(stream.bos)
        matrix = draw.standard_normal((d, 2)) * (draw.random((d, 2)) < 0.6) * 2.0 ** draw.integers(-9, 9)
        matrix = matrix.astype(dtype).astype(np.float64)
        states = stream.meaning.states(stream.variables(matrix))
        exact, near = stream.read(matrix, states, rounded=True), enclosed(stream, matrix, states)
        assert near is not None
        for value, error, middle, radius in zip(
            exact.values.ravel(), exact.errors.ravel(), near.middle.ravel(), near.radius.ravel(), strict=True
        ):  # fmt: skip
            assert Fraction(middle) - Fraction(radius) <= value - error
            assert value + error <= Fraction(middle) + Fraction(radius)
            assert Fraction(radius) <= 4 * error + Fraction(stream.arithmetic.tiny)
        key = draw.integers(-3, 3, (1, 2))
        scores = HeadChecker(stream)._scores(exact, key)
        product = near.times(stream, key[0].astype(np.float64))
        for lo, hi, middle, radius in zip(
            scores.lo.ravel(), scores.hi.ravel(), product.middle.ravel(), product.radius.ravel(), strict=True
        ):
            assert Fraction(middle) - Fraction(radius) <= lo and hi <= Fraction(middle) + Fraction(radius)
        up, down = signs(product, 128)
        assert all(lo >= 128 for lo in scores.lo[up, 0]) and all(hi <= -128 for hi in scores.hi[down, 0])


@pytest.mark.parametrize("large", [2.0**510, 2.0**-510, 2.0**130])
def test_out_of_range_is_not_decided(large: float) -> None:
    stream = stream_with_counts("float32", np.random.default_rng(1), large)
    matrix = np.zeros((len(stream.bos), 1))
    matrix[-2:] = 1
    states = stream.meaning.states(stream.variables(matrix))
    assert enclosed(stream, matrix, states) is None


def test_a_product_that_overflows_is_not_decided() -> None:
    stream = stream_with_counts("float32", np.random.default_rng(2), 2.0**112)
    matrix = np.zeros((len(stream.bos), 1))
    matrix[-2:] = 1
    near = enclosed(stream, matrix, stream.meaning.states(stream.variables(matrix)))
    assert near is not None
    up, down = signs(near.times(stream, np.array([2.0**22])), 128)
    assert not (up | down).any()
