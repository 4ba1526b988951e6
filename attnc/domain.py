"""Domains: the inputs for which a certificate holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attnc.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """The closed interval [lo, hi] of real inputs.

    >>> Interval(-8, 8)
    Interval(lo=-8.0, hi=8.0)
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        for name in ("lo", "hi"):
            end = getattr(self, name)
            if isinstance(end, bool) or not isinstance(end, (int, float)):
                advice = "give e.g. domain=(-8, 8)"
                raise InputError(f"the ends of an interval are numbers: got {end!r}; {advice}")
            try:
                number = float(end)
            except OverflowError:
                raise InputError("an end of the interval is too large for floating point") from None
            if isinstance(end, int) and number != end:
                raise InputError(f"no float equals {end}: give the end of the interval as a float")
            object.__setattr__(self, name, number)
        lo, hi, width = self.lo, self.hi, self.hi - self.lo
        if not 2.0**-1000 <= width < math.inf:
            finite = math.isfinite(lo) and math.isfinite(hi)
            wrong = "is empty" if lo == hi else "is reversed" if lo > hi else f"has a width of {width}"
            advice = "give two finite numbers lo < hi, and a finite width of at least 2^-1000"
            raise InputError(f"the interval ({lo}, {hi}) {wrong if finite else 'is not finite'}: {advice}")

    @property
    def middle(self) -> float:
        return self.lo / 2 + self.hi / 2

    @property
    def width(self) -> float:
        return self.hi - self.lo

    def __contains__(self, s: float) -> bool:
        return self.lo <= s <= self.hi


def covering(lo: float, hi: float) -> Interval:
    """An interval around [lo, hi] whose ends are multiples of a sixteenth of the power of two above them."""
    reach = max(abs(lo), abs(hi), 2.0**-60)
    step = 2.0 ** (math.frexp(reach)[1] - 4)
    a, b = math.floor(lo / step) * step, math.ceil(hi / step) * step
    return Interval(a, b) if a < b else Interval(a - step, b + step)


class Box:
    """lo <= x <= hi, coordinate by coordinate: all the inputs x of a shape (tokens …, features).

    `lo` and `hi` are numbers, or tensors of the shape.

    >>> Box(-1, 1, shape=(16,))
    Box(-1, 1, shape=(16,))
    >>> Box(torch.tensor([0.0, -1.0]), 1).shape
    (2,)
    """

    shape: tuple[int, ...]
    lo: Array
    hi: Array

    def __init__(self, lo: Any, hi: Any, shape: tuple[int, ...] | int | None = None) -> None:
        ends = [real_numbers(lo, "lo"), real_numbers(hi, "hi")]
        known = _shape(shape) if shape is not None else max((end.shape for end in ends), key=len)
        if not known:
            raise InputError("a box needs a shape: Box(-1, 1, shape=(d,)), or give lo or hi as a tensor")
        for name, end in zip(("lo", "hi"), ends, strict=True):
            if end.shape not in ((), known):
                raise InputError(f"{name} has the shape {end.shape}, the box {known}: give a number, or that")
        self.shape = known
        self.lo, self.hi = (np.array(np.broadcast_to(end, known)) for end in ends)
        self.lo.flags.writeable = self.hi.flags.writeable = False
        reversed_ = np.argwhere(~(self.lo <= self.hi))
        if len(reversed_):
            at = tuple(int(i) for i in reversed_[0])
            ends_at = f"lo={self.lo[at]:g} exceeds hi={self.hi[at]:g} at coordinate {at}"
            raise InputError(f"the box is empty: {ends_at}; give lo <= hi")

    @classmethod
    def from_data(cls, x: Any, margin: float = 0.0) -> Box:
        """The smallest box that contains every row of the data x (rows, *shape), an array, a tensor or a DataFrame; with
        `margin`, wider at each end by that fraction of its width. Ends that float32 rounds outwards are rounded, so that the box
        contains x rounded to float32 too, which is what a network in float32 reads.

        >>> Box.from_data([[0.0, 5.0], [1.0, 9.0]], margin=0.5).lo.tolist()
        [-0.5, 3.0]
        """
        array = real_numbers(x if isinstance(x, torch.Tensor) else np.asarray(x), "x")
        if array.ndim < 2 or not array.size:
            raise InputError(f"x has the shape {array.shape}: give data of the shape (rows, features)")
        if not isinstance(margin, (int, float)) or not 0 <= margin < math.inf:
            raise InputError(f"margin={margin!r}: give a finite number that is at least 0")
        lo, hi = array.min(0), array.max(0)
        lo, hi = lo - margin * (hi - lo), hi + margin * (hi - lo)
        return Box(np.fmin(lo, _float32(lo)), np.fmax(hi, _float32(hi)))

    @property
    def size(self) -> int:
        return int(self.lo.size)

    def contains(self, x: torch.Tensor) -> torch.Tensor:
        """For each input of a batch (…, *shape), whether it lies in the box; NaN does not."""
        if tuple(x.shape[x.ndim - len(self.shape) :]) != self.shape or x.ndim < len(self.shape):
            expected = f"(…, {', '.join(map(str, self.shape))})"
            raise InputError(f"inputs of the shape {expected} are expected: got {tuple(x.shape)}")
        wide = x.detach().to("cpu", torch.float64)
        inside = (wide >= torch.from_numpy(self.lo.copy())) & (wide <= torch.from_numpy(self.hi.copy()))
        return inside.flatten(x.ndim - len(self.shape)).all(-1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Box) or type(other) is not type(self):
            return False
        return np.array_equal(self.lo, other.lo) and np.array_equal(self.hi, other.hi)

    def __hash__(self) -> int:
        return hash((self.shape, self.lo.tobytes(), self.hi.tobytes()))

    def __repr__(self) -> str:
        ends = ((float(end.min()), float(end.max())) for end in (self.lo, self.hi))
        lo, hi = (f"{low:g}" if low == high else f"{low:g}…{high:g}" for low, high in ends)
        return f"Box({lo}, {hi}, shape={self.shape})"


class Tokens(Box):
    """All sequences of `length` token ids, whole numbers from 0 to `vocabulary` - 1.

    >>> ids = Tokens(vocabulary=100, length=3)
    >>> ids, ids.contains(torch.tensor([[0, 99, 7], [1, 2, 100]])).tolist()
    (Tokens(vocabulary=100, length=3), [True, False])
    """

    def __init__(self, vocabulary: int, length: int) -> None:
        for name, count in (("vocabulary", vocabulary), ("length", length)):
            if type(count) is not int or not 0 < count < 2**24:
                raise InputError(f"{name}={count!r}: give a positive whole number below 2^24")
        super().__init__(0.0, float(vocabulary - 1), shape=(length,))
        self.vocabulary, self.length = vocabulary, length

    def contains(self, x: torch.Tensor) -> torch.Tensor:
        """For each sequence of a batch (…, length), whether it holds whole numbers from 0 to V - 1."""
        wide = x.detach().to("cpu", torch.float64)
        return super().contains(x) & (wide == wide.floor()).all(-1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and (self.vocabulary, self.length) == (
            other.vocabulary,
            other.length,
        )

    def __hash__(self) -> int:
        return hash((self.vocabulary, self.length))

    def __repr__(self) -> str:
        return f"Tokens(vocabulary={self.vocabulary}, length={self.length})"


@dataclass(frozen=True, eq=False)
class Normed:
    """Every vector that a LayerNorm (`centred`) or RMSNorm with this gain and shift can return, whatever its input.

    In exact arithmetic x = gain∘y + shift with |y|₂ <= √d, and Σ y = 0 if centred. As executed, x may differ by a relative
    2⁻¹⁰ (`prove.normed`)."""

    centred: bool
    gain: Array  # (d,)
    shift: Array  # (d,)

    def __post_init__(self) -> None:
        for name in ("gain", "shift"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        if self.gain.ndim != 1 or not len(self.gain) or self.gain.shape != self.shift.shape:
            shapes = f"gain has shape {self.gain.shape} and shift {self.shift.shape}"
            raise InputError(f"{shapes}: both must be (d,)")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.gain.shape

    def rounded(self) -> Normed:
        """Contains every vector of this one after a few roundings to bfloat16 or float16: with
        |e_i| <= c(|gain_i y_i| + |shift_i|) + t, c = 2⁻⁵ and t = 2⁻²⁰, all of gain∘y + shift + e.
        Since (a y + b w)² <= (a²/p + b²/q)(p y² + q w²) for p + q = 1, with
        a = (1 + c)|gain|, b = c|shift| + t, |w_i| <= 1 and p = 15/16, a gain of √(a²/p + b²/q) is enough. It is not centred."""
        a, b = (1 + 2.0**-5) * np.abs(self.gain), 2.0**-5 * np.abs(self.shift) + 2.0**-20
        gain = (1 + 2.0**-40) * np.sqrt(a * a * (16 / 15) + 16 * b * b)
        return Normed(False, gain, self.shift)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Normed) or self.centred != other.centred:
            return False
        return np.array_equal(self.gain, other.gain) and np.array_equal(self.shift, other.shift)

    def __hash__(self) -> int:
        return hash((self.centred, self.gain.tobytes(), self.shift.tobytes()))

    def __repr__(self) -> str:
        return f"Normed({'LayerNorm' if self.centred else 'RMSNorm'}, d={len(self.gain)})"


@dataclass(frozen=True)
class Ball:
    """Every vector of `features` numbers whose Euclidean norm is at most `radius`; if `centred`, every token x that becomes such
    a vector when its mean is subtracted, as executed: what follows is compared with the exact result for that vector."""

    features: int
    radius: float
    centred: bool

    def __post_init__(self) -> None:
        if type(self.features) is not int or self.features < 1:
            raise InputError(f"features={self.features!r}: give a positive whole number")
        if type(self.radius) is not float or not 0 < self.radius < math.inf:
            raise InputError(f"radius={self.radius!r}: give a positive finite float")
        if type(self.centred) is not bool:
            raise InputError(f"centred={self.centred!r}: give True or False")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.features,)

    def __repr__(self) -> str:
        return f"Ball({self.features} features, radius {self.radius:g}{', centred' * self.centred})"


@dataclass(frozen=True)
class Context:
    """Contexts of at most `examples` examples in which every quantity stays within its limit: |x_ij| <= limits["x"], |y_i| <=
    limits["y"], and so on for the quantities that a learner computes."""

    examples: int
    limits: Mapping[str, float]

    def __post_init__(self) -> None:
        if type(self.examples) is not int or self.examples < 1:
            raise InputError(f"examples={self.examples!r}: give a positive whole number")
        for name, limit in self.limits.items():
            if type(limit) is not float or not 0 < limit < math.inf:
                raise InputError(f"limit {name}={limit!r}: give a positive finite float")

    def __repr__(self) -> str:
        sizes = ", ".join(f"|{name}| <= {limit:g}" for name, limit in self.limits.items())
        return f"Context(up to {self.examples:,} examples, {sizes})"


@dataclass(frozen=True)
class Sequences:
    """Every sequence of 1 to `length` token ids, whole numbers from 0 to `vocabulary` - 1.

    >>> Sequences(vocabulary=2, length=3).count
    14
    """

    vocabulary: int
    length: int

    def __post_init__(self) -> None:
        for name, count in (("vocabulary", self.vocabulary), ("length", self.length)):
            if type(count) is not int or not 0 < count < 2**24:
                raise InputError(f"{name}={count!r}: give a positive whole number below 2^24")

    @property
    def count(self) -> int:
        """How many sequences there are."""
        v, n = self.vocabulary, self.length
        return n if v == 1 else (v ** (n + 1) - v) // (v - 1)

    def __repr__(self) -> str:
        return f"Sequences(vocabulary={self.vocabulary}, up to {self.length} tokens)"


Domain = Interval | Box | Normed | Ball | Context | Sequences


def _float32(end: Array) -> Array:
    """Rounded to float32 as torch does; where that overflows, the number itself."""
    rounded = torch.from_numpy(end).float().double().numpy()
    return np.where(np.isfinite(rounded), rounded, end)


def real_numbers(end: Any, name: str) -> Array:
    """A number or a tensor of finite real numbers in float64."""
    if isinstance(end, torch.Tensor):
        if end.is_complex() or end.dtype == torch.bool or end.is_meta:
            what = f"{name} is a tensor of {end.dtype} on {end.device}"
            raise InputError(f"{what}: real numbers with values are accepted")
        end = end.detach().to("cpu", torch.float64).numpy()
    try:
        given = np.asarray(end)
    except (TypeError, ValueError):
        given = np.array(None)
    if given.dtype.kind not in "iuf":
        raise InputError(f"{name} is a number or a tensor of numbers: got {end!r}")
    array = given.astype(np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"{name} is not finite: give finite numbers")
    if given.dtype.kind in "iu" and [int(a) for a in array.flat] != given.ravel().tolist():
        raise InputError(f"{name} holds a whole number that no float equals: give it as a float")
    return array


def _shape(shape: object) -> tuple[int, ...]:
    axes = (shape,) if isinstance(shape, int) else shape
    if not isinstance(axes, (tuple, list)) or not axes or not all(type(n) is int and n > 0 for n in axes):
        raise InputError(f"shape={shape!r}: give the shape of one input, positive numbers, e.g. shape=(16,)")
    return tuple(axes)
