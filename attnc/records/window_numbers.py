"""The numbers of closed forms: what runs in place of a lattice head or of a gate, and how it follows from the head."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flint import arb

from attnc.arithmetic import ARITHMETIC, Arithmetic
from attnc.functions.balls import upper, working
from attnc.records.numbers import Array, HeadNumbers


@dataclass(frozen=True)
class Window:
    """max(s, 0) + h(|s|), executed as it stands here, with x = |s|/Δ:

        h = exp(x·(lead - c·x)) · Σ_j C_j w^j,   w = exp(-2c·x),   the sum by Horner's rule

    It stands for √(c/π) Σ_k v_k exp(-c(x + k)²) over k = -K..M: lead = 2cK, C_j = √(c/π) v_k e^{-ck²} with k = j - K.
    """

    spacing: float  # Δ, a power of two
    sharpness: float  # c
    lead: float
    coefficients: tuple[float, ...]  # C_0, C_1, …
    dtype: str


@dataclass(frozen=True)
class Gate:
    """s·σ(s·(slope + cubic·s²)). With cubic = 0, a token that attends to itself and to a zero anchor; otherwise gelu's tanh
    approximation itself, which no attention computes."""

    slope: float
    dtype: str
    cubic: float = 0.0


@dataclass(frozen=True)
class TailForm:
    """max(s, 0) - |s|Φ(-|s|), the tail Φ of the normal distribution by its Mills ratio: gelu itself, not attention.

        max(s, 0) + 2^(-κs²) · Σ_j C_j t^j,   t = 1/(1 + rate·|s|),   the sum by Horner's rule

    2^(-κs²) stands for exp(-s²/2), and Σ_j C_j t^j for -|s|·M(|s|)/√(2π) with the Mills ratio M(a) = √(2π)·exp(a²/2)·Φ(-a)."""

    rate: float
    kappa: float
    coefficients: tuple[float, ...]  # C_0, C_1, …
    dtype: str


ClosedForm = Window | Gate | TailForm


def closed_form(numbers: HeadNumbers, function: str | None) -> ClosedForm | None:
    """What engine="closed-form" runs for a head that is certified for a function (None: for none); None if it runs softmax.

    Of most heads it is their window. Lattice heads of gelu and of its tanh approximation run a formula of the function itself."""
    window = window_of(numbers)
    return FUNCTIONS.get((function, numbers.dtype), window) if isinstance(window, Window) else window


def window_of(numbers: HeadNumbers) -> Window | Gate | None:
    """The window of a head, recognised from its stored numbers alone; None where it has none.

    A gate has the keys (0, 0) and (B, 0) with the values 0 and s. A lattice head has the keys (2ck, -ck²), and values that
    are 0 to the left of a bump around 0 and exactly kΔ to the right of it.

    >>> key, value = np.array([[[0.0, 0.0], [1.0, 0.0]]]), np.array([[[0.0, 0.0], [1.0, 0.0]]])
    >>> window_of(HeadNumbers(np.array([[1.0, 0.0]]), key, value, np.ones(1), "float32"))
    Gate(slope=1.0, dtype='float32', cubic=0.0)
    """
    if numbers.heads != 1 or numbers.output[0] != 1 or numbers.query[0, 1] != 0:
        return None
    gain, key, value = float(numbers.query[0, 0]), numbers.key[0], numbers.value[0]
    if numbers.gated:
        slope = float(key[:, 0].max())
        wanted = sorted([[0.0, 0.0, 0.0, 0.0], [slope, 0.0, 1.0, 0.0]])
        stored = sorted(np.concatenate([key, value], axis=1).tolist())
        normal = ARITHMETIC[numbers.dtype].tiny <= slope
        return Gate(slope, numbers.dtype) if gain == 1 and normal and stored == wanted else None
    c = _lattice_sharpness(key)
    if c is None or gain <= 0 or math.frexp(gain)[0] != 0.5:
        return None
    return _lattice_window(1 / gain, c, int(np.argmin(np.abs(key[:, 0]))), value[:, 1], numbers.dtype)


def _lattice_sharpness(key: Array) -> float | None:
    """c where the keys are exactly (2ck, -ck²) for neighbouring integers k, 0 among them."""
    if len(key) < 3 or not (key[:, 0] == 0).any():
        return None
    c = float(key[1, 0] - key[0, 0]) / 2
    if not 2.0**-8 <= c <= 1 or c * 256 != int(c * 256) or len(key) > 1 << 20:  # products below are exact
        return None
    k = np.arange(len(key)) - float(np.argmax(key[:, 0] == 0))
    exact = np.array_equal(key[:, 0], 2 * c * k) and np.array_equal(key[:, 1], -c * k * k)
    return c if exact else None


def _lattice_window(spacing: float, c: float, zero: int, value: Array, dtype: str) -> Window | None:
    """The coefficients, where the values are max(kΔ, 0) + β_|k| and the exponentials stay in the range of the dtype."""
    a = ARITHMETIC[dtype]
    K = zero - int(np.flatnonzero(value[: zero + 1])[0]) if value[: zero + 1].any() else 0
    right = value[zero:]
    left = value[zero - K : zero + 1][::-1]
    if zero <= K or len(right) <= K + 1 or not _is_rectified(spacing, left, right, a.unit):
        return None
    if c * K * K > a.exp_limit - 1:
        return None
    with working(128):
        root = (arb(c) / arb.pi()).sqrt()
        exact = [root * arb(float(value[zero + k])) * (-arb(c) * k * k).exp() for k in range(-K, len(right))]
        kept = _enough(exact, K, a)
        stored = np.array([float(ball.mid()) for ball in exact[:kept]]).astype(dtype).astype(np.float64)
    if ((stored != 0) & (np.abs(stored) < a.tiny)).any():
        return None
    return Window(spacing, c, 2 * c * K, tuple(map(float, stored)), dtype)


def _is_rectified(spacing: float, left: Array, right: Array, unit: float) -> bool:
    """Whether v_k - v_{-k} = kΔ for k = 0, 1, …: exactly beyond the bump, up to some roundings within it. What these cost is part
    of the proof, which compares with f itself."""
    k = np.arange(len(right)) * spacing
    off = np.abs(right[: len(left)] - left - k[: len(left)])
    allowed = 64 * unit * (np.abs(right[: len(left)]) + np.abs(left) + spacing)
    return bool((off <= allowed).all()) and np.array_equal(right[len(left) :], k[len(left) :])


def _enough(coefficients: list[arb], K: int, a: Arithmetic) -> int:
    """How many are kept: what the others add up to is below a sixteenth of a rounding of their sum."""
    sizes = [upper(abs(C)) for C in coefficients]
    kept, tail = len(sizes), 0.0
    while kept > K + 1 and tail + sizes[kept - 1] <= a.unit / 16 * sum(sizes):
        kept -= 1
        tail += sizes[kept]
    return kept


# Closed forms of functions, by name and dtype. The coefficients of the tail were fitted by Lawson's algorithm and rounded to
# float32 one after the other; the proof does not depend on how they were found.
FUNCTIONS: dict[tuple[str | None, str], ClosedForm] = {}
_TAIL = (-0.39312065, -0.06757576, 0.39529184, -0.73086935, 1.4261583, -0.77504486, 0.14516048)
_KAPPA, *_TAIL_STORED = np.array([0.5 / math.log(2), *_TAIL], np.float32).tolist()
FUNCTIONS["gelu", "float32"] = TailForm(13 / 32, _KAPPA, tuple(_TAIL_STORED), "float32")
for _dtype in ("float32", "float64"):
    for _name, _given in (
        ("gelu_tanh", 2 * math.sqrt(2 / math.pi)), ("gelu_fast", 1.5957691216), ("gelu_bloom", 1.59576912),
    ):  # fmt: skip
        _slope, _cubic = np.array([_given, _given * 0.044715]).astype(_dtype).tolist()
        FUNCTIONS[_name, _dtype] = Gate(_slope, _dtype, _cubic)
