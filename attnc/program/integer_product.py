"""Products of balls and exact matrices, by integers.

Balls and weights are written on grids of powers of two and cut into digits, which 64-bit integers multiply without rounding.
Nothing is assumed about floating-point arithmetic or BLAS, and large weights need no ball for each of their numbers."""

from __future__ import annotations

import math

import numpy as np
from flint import arb, arb_mat, ctx
from numpy.typing import NDArray
from torch import from_numpy

from attnc.errors import InputError
from attnc.program.step import Balls, Numbers

SMALL = 1 << 13  # numbers of a weight up to which balls are faster
Integers = NDArray[np.int64]
_DIGIT, _COARSE, _RADIUS = (
    24,
    16,
    30,
)  # bits: of a digit of a weight; of a weight and of a radius where they meet
_GUARD = 16  # bits beyond the working precision
_FAR = 1 << 20  # bits: a number this far below the grid rounds to its next point in any case


def ball_product(x: Balls, weight: Numbers) -> Balls:
    """x Wᵀ for balls x (n, k) and exact, finite numbers W (m, k), at the working precision.

    A row of x is 2^e (M ± R) with integers M, R. With W = 2^g (Σ_i 2^24i W_i + rest), integers |W_i| < 2^24 and |rest| < 1,

        x Wᵀ = 2^(e+g) (Σ_i 2^24i M W_iᵀ  ±  (2^-g R |W|ᵀ + Σ_k (|M_k| + R_k) [rest ≠ 0]))

    A row that holds a ball which is not finite has results that are not finite.

    >>> ball_product(np.array([[arb(3), arb(1) / 4]]), np.array([[2.0, 1.0], [0.5, -4.0]]))[0].tolist() == [6.25, 0.5]
    True
    """
    matrix = np.asarray(weight, dtype=np.float64)
    inner = int(matrix.shape[1]).bit_length()
    if not np.isfinite(matrix).all() or inner > 62 - _RADIUS - _COARSE:
        raise InputError("a matrix in exact arithmetic has finite numbers, and at most 65535 columns")
    found: Balls = np.full((len(x), len(matrix)), arb.nan(), dtype=object)
    if matrix.size <= SMALL:
        return matrix_product(x, np.asarray(np.frompyfunc(arb, 1, 1)(matrix.T), dtype=object))
    rows = [i for i, row in enumerate(x) if all(b.is_finite() for b in row)]
    if not rows:
        return found
    bits, width = ctx.prec + _GUARD, 62 - _DIGIT - inner
    exponents, middles, radii = zip(*(_on_grid(x[i], bits) for i in rows), strict=True)
    middle = np.array(middles, dtype=object)
    size, sign = np.abs(middle), np.where(middle < 0, -1, 1)
    count = -(-(bits + 1) // width)
    cut = np.stack([(size >> width * j & (1 << width) - 1) * sign for j in range(count)]).astype(np.int64)
    scale = int(np.frexp(np.abs(matrix).max(initial=0.0))[1])  # |W| < 2^scale
    digits, whole = _digits(matrix, scale, bits)
    total = np.zeros((len(rows), len(matrix)), dtype=object)
    for digit in digits:
        product = _product(digit, cut.reshape(-1, cut.shape[-1])).reshape(*cut.shape[:2], -1)
        total = (total << _DIGIT) + sum(part.astype(object) << width * j for j, part in enumerate(product))
    coarse = np.floor(np.ldexp(np.abs(matrix), _COARSE - scale)).astype(np.int64) + 1
    shifts = [max(0, max(row, default=0).bit_length() - _RADIUS) for row in radii]
    rounded = np.array(
        [[-(-r >> s) for r in row] for row, s in zip(radii, shifts, strict=True)], dtype=np.int64
    )
    spread, up = _product(coarse, rounded), _DIGIT * len(digits) - _COARSE
    for n, i in enumerate(rows):
        lost = 0 if whole else sum(size[n]) + sum(radii[n])
        unit = arb(2) ** (exponents[n] + scale - _DIGIT * len(digits))
        pairs = zip(total[n], spread[n].tolist(), strict=True)
        found[i] = [arb(t, (s << up + shifts[n]) + lost) * unit for t, s in pairs]
    return found


def matrix_product(x: Balls, y: Balls) -> Balls:
    """x y for matrices of balls."""
    shape = (x.shape[0], y.shape[1])
    if 0 in x.shape or 0 in y.shape:
        return np.full(shape, arb(0), dtype=object)
    return np.array((arb_mat(x.tolist()) * arb_mat(y.tolist())).entries(), dtype=object).reshape(shape)


def _product(weight: Integers, x: Integers) -> Integers:
    """x Wᵀ of integers whose sums stay below 2^62; in this order torch is several times faster than numpy."""
    found: Integers = (from_numpy(weight) @ from_numpy(x).T).numpy().T
    return found


def _digits(matrix: Numbers, scale: int, bits: int) -> tuple[list[Integers], bool]:
    """The digits of |W| < 2^scale to the base 2^24, the highest first, and whether nothing is left beyond them."""
    found = []
    for i in range(1, math.ceil(bits / _DIGIT) + 1):
        digit = np.trunc(np.ldexp(matrix, _DIGIT * i - scale))
        found.append(digit.astype(np.int64))
        matrix = matrix - np.ldexp(digit, scale - _DIGIT * i)  # exact: the lower bits of the same number
        if not matrix.any():
            return found, True
    return found, False


def _on_grid(row: Balls, bits: int) -> tuple[int, list[int], list[int]]:
    """Integers e, M and R such that each ball lies in 2^e (M ± R), with up to `bits` bits for the largest."""
    parts = [tuple(tuple(map(int, end.man_exp())) for end in (b.mid(), b.rad())) for b in row]
    tops = [man.bit_length() + exp for part in parts for man, exp in part if man]
    e = max(tops, default=0) - bits
    middle = [_floor(man, exp - e) for (man, exp), _ in parts]
    radius = [(mid[1] < e) - _floor(-man, exp - e) for mid, (man, exp) in parts]  # 1 more where M is rounded
    return e, middle, radius


def _floor(man: int, exp: int) -> int:
    """⌊man 2^exp⌋."""
    return man << exp if exp >= 0 else man >> min(-exp, _FAR)
