"""exp, log, sin, cos, erf and atan of float64 arrays, with proved errors: only `+ - × ÷ √` are used, each rounded once.

u = 2^-53. The errors stated are those of the exact argument x; all of them are larger than what the derivations give.

    exp   |found - e^x| <= 8u e^x + 2^-1000          arguments are reduced by k ln 2; Taylor's polynomial of degree 14, |r| < 0.35
    log   |found - log x| <= 8u + 4u|log x|            x >= 2^-1000; log m = 2 artanh((m-1)/(m+1)), m in [√½, √2]
    sin   |found - sin x| <= 8u, cos the same          |x| <= 2^20; arguments are reduced by k π/2 in three parts
    erf   |found - erf x| <= 1024u                     2/√π e^{-x²} Σ 2^n x^{2n+1}/(2n+1)!!, whose terms have one sign
    atan  |found - atan x| <= 32u                      atan x = π/2 - atan 1/x, then twice atan t = 2 atan(t/(1 + √(1 + t²)))

NaN is returned where an argument is outside these limits.

The error of exp: k·HIGH is exact, so r has errors of at most 3u|r| + 2e-23. Horner's rule for Σ r^i/i! gives an error of at most
2.5u + 0.35·(that of the rest), together below 4u of a result above 0.7, and the argument adds 1.1u. That of log: (m-1) is exact,
its quotient errs by 2u, the polynomial and the product by 5u, of at most 0.35; k·HIGH is exact. That of sin and cos: k·P is
exact for the first two parts of π/2, each of three subtractions rounds a number below 0.8, and polynomials err by 3u. That of
erf: 44u from e^{-x²} with the rounding of x², 3u a term and u a sum for each of 130 terms, the largest term being the sum's. Of
atan: 1/x errs by u, each halving by 4u, the polynomial in t² < 0.04 and the product by 3u, all relative, so 12u·π/4; π/2 and
the subtraction add 3u."""

from __future__ import annotations

import math

import numpy as np

from attnc.domain import Array

U = 2.0**-53
LEAST = 2.0**-1000
EXP, TRIG, ERF, ATAN = 8 * U, 8 * U, 1024 * U, 32 * U
_HIGH, _LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")  # ln 2
_P1, _P2 = float.fromhex("0x1.921fb544p+0"), float.fromhex("0x1.0b4611a6p-34")  # π/2
_P3 = float.fromhex("0x1.3198a2e037073p-69")
_EXP = [1 / math.factorial(i) for i in range(15)]
_SIN = [(-1) ** i / math.factorial(2 * i + 1) for i in range(9)]
_COS = [(-1) ** i / math.factorial(2 * i) for i in range(10)]
_LOG = [1 / (2 * i + 1) for i in range(13)]
_ATAN = [(-1) ** i / (2 * i + 1) for i in range(14)]
_TERMS = 130


def _horner(coefficients: list[float], x: Array) -> Array:
    found = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        found *= x
        found += c
    return found


def exp(x: Array) -> Array:
    """e^x; 0 below -740, infinite above 709."""
    inside = np.clip(x, -740.0, 709.0)
    k = np.rint(inside * 1.4426950408889634)
    r = (inside - k * _HIGH) - k * _LOW
    found = np.ldexp(_horner(_EXP, r), k.astype(np.int32))
    return np.where(x > 709.0, np.inf, np.where(x < -740.0, 0.0, np.where(np.isnan(x), np.nan, found)))


def log(x: Array) -> Array:
    good = x >= LEAST
    m, k = np.frexp(np.where(good, x, 1.0))
    small = m < math.sqrt(0.5)
    m, k = np.where(small, 2 * m, m), k - small.astype(k.dtype)
    s = (m - 1) / (m + 1)
    found = k * _HIGH + (2 * s * _horner(_LOG, s * s) + k * _LOW)
    return np.where(good & np.isfinite(x), found, np.nan)


def log_error(found: Array) -> Array:
    """At least |found - log x|."""
    return np.asarray(8 * U + 4 * U * np.abs(found))


def sin_cos(x: Array) -> tuple[Array, Array]:
    good = np.abs(x) <= 2.0**20
    inside = np.where(good, x, 0.0)
    k = np.rint(inside * 0.6366197723675814)
    r = ((inside - k * _P1) - k * _P2) - k * _P3
    square = r * r
    s, c = r * _horner(_SIN, square), _horner(_COS, square)
    quarter = k.astype(np.int64) % 4
    swap = quarter % 2 == 1
    sine, cosine = np.where(swap, c, s), np.where(swap, s, c)
    sine = np.where(quarter >= 2, -sine, sine)
    cosine = np.where((quarter == 1) | (quarter == 2), -cosine, cosine)
    return np.where(good, sine, np.nan), np.where(good, cosine, np.nan)


def erf(x: Array) -> Array:
    """±1 beyond 6, where 1 - |erf| < 2.2e-17."""
    inside = np.clip(x, -6.0, 6.0)
    square = inside * inside
    term, total = inside.copy(), inside.copy()
    for n in range(_TERMS):
        term = term * (2 * square / (2 * n + 3))
        total += term
    found = 1.1283791670955126 * exp(-square) * total
    return np.where(np.abs(x) > 6.0, np.sign(x), np.where(np.isnan(x), np.nan, found))


def atan(x: Array) -> Array:
    size = np.abs(x)
    outer = size > 1
    with np.errstate(divide="ignore", over="ignore"):
        t = np.where(outer, 1 / size, size)
    for _ in range(2):
        t = t / (1 + np.sqrt(1 + t * t))
    found = 4 * (t * _horner(_ATAN, t * t))
    return np.copysign(np.where(outer, math.pi / 2 - found, found), x)
