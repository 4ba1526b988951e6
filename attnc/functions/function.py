"""A univariate function: what torch computes, what ball arithmetic encloses, and where it is not smooth.

A certificate about "relu" must be about relu. So a name that `attnc.functions.get` reads as a built-in belongs to the object that
`get` returns and to no other: each built-in is created once for each list of parameters, and recognised by identity."""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from flint import arb, arb_series, ctx
from torch import Tensor

from attnc.errors import FunctionError, InputError
from attnc.functions.balls import ball, lower, upper, variable, working

Branch = Callable[[arb_series], arb_series]
TorchForm = Callable[[Tensor], Tensor]
_CELLS, _HALVED = 64, 2000  # of a Lipschitz constant: cells of each piece, and how many may be halved
SPEC = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*", re.DOTALL)
NAMES: set[str] = set()
_building: ContextVar[bool] = ContextVar("attnc_building", default=False)
_built_ins: WeakValueDictionary[tuple[str, tuple[tuple[str, float], ...]], Function] = WeakValueDictionary()
_fields: WeakKeyDictionary[Function, dict[str, Any]] = WeakKeyDictionary()  # as they were created


def _shortest(x: float) -> str:
    short = f"{x:g}"
    return short if float(short) == x else repr(float(x))


@dataclass(frozen=True)
class Piece:
    """An interval [lo, hi] without kinks in its interior: the function equals the branch, which is analytic."""

    lo: float
    hi: float
    branch: Branch


@dataclass(frozen=True, eq=False)
class Function:
    """f: R → R. `branches[i]` is f between the i-th pair of neighbouring kinks, as a map of power series.

    Without branches errors are measured, not proved. Functions are compared by identity: `attnc.functions.relu()` returns the
    same object on every call, and only that object may have the name "relu".

    >>> from attnc import functions
    >>> functions.relu().kinks, functions.relu().provable
    ((0.0,), True)
    """

    name: str
    torch_form: TorchForm = field(repr=False)
    branches: tuple[Branch, ...] = field(default=(), repr=False)
    kinks: tuple[float, ...] = ()
    parameters: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.parameters, Mapping):
            raise InputError(f"name is a str, parameters a mapping: got {self.name!r}, {self.parameters!r}")
        if is_reserved(self.name) and not _building.get():
            raise _taken(self.name)
        if list(self.kinks) != sorted(set(self.kinks)) or not all(map(math.isfinite, self.kinks)):
            raise InputError(f"the kinks of {self.name!r} must be finite and increasing: got {self.kinks}")
        if self.branches and len(self.branches) != len(self.kinks) + 1:
            kinks, maps = len(self.kinks), len(self.branches)
            given = f"{kinks} kink{'s' * (kinks != 1)} and {maps} enclosure{'s' * (maps != 1)}"
            example = "(left, right)" if kinks == 1 else "(left, …, right)" if kinks else "map"
            wanted = f"give {kinks + 1}, from left to right, enclosure={example}"
            raise InputError(f"{self.name!r} has {given}: {wanted}")
        if not all(map(math.isfinite, self.parameters.values())):
            raise InputError(f"the parameters of {self.name!r} must be finite: got {dict(self.parameters)}")

    @property
    def provable(self) -> bool:
        """Whether it has a ball-arithmetic form, so that errors can be proved."""
        return bool(self.branches)

    @property
    def label(self) -> str:
        """The name with its parameters, as `attnc.functions.get` reads it back.

        >>> from attnc import functions
        >>> functions.clip(-25, 25).label
        'clip(-25,25)'
        """
        return label_of(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """A built-in is copied and stored by its label: it is one object in a process."""
        if is_builtin(self):
            return _by_label, (self.label,)
        return _restored, (type(self), dict(vars(self)))

    def __call__(self, s: Tensor) -> Tensor:
        """f(s) by torch, checked: the same shape and dtype, and finite wherever s is. A callable that works in place changes
        a copy of s."""
        try:
            out = self.torch_form(s.clone())
        except Exception as problem:
            reason = f"{type(problem).__name__}: {problem}"
            advice = _advice(problem)
            raise FunctionError(
                f"{self.name!r} failed on a tensor of {s.dtype}: {reason}. {advice}."
            ) from problem
        if not isinstance(out, Tensor) or out.shape != s.shape or out.dtype != s.dtype:
            tensor = isinstance(out, Tensor)
            shape = f"{out.dtype} of shape {tuple(out.shape)}" if tensor else type(out).__name__
            wanted = f"a torch.Tensor of {s.dtype} and of shape {tuple(s.shape)}"
            if tensor and out.dtype == torch.float32:
                wanted += (
                    ". Python numbers make float32: write torch.where(s > 0, torch.ones_like(s), torch.zeros_like(s)), "
                    "not torch.where(s > 0, 1.0, 0.0)"
                )
            if isinstance(out, torch.nn.Module):
                wanted += f". Give a module, {shape}(), and not the class"
            raise FunctionError(f"{self.name!r} returned {shape}: it must return {wanted}")
        bad = torch.isfinite(s) & ~torch.isfinite(out)
        if bool(bad.any()):
            found = f"{out[bad].flatten()[0].item()} at s={s[bad].flatten()[0].item():.17g}"
            raise FunctionError(f"{self.name!r} returned {found}: it must be finite on the whole interval")
        return out

    def pieces(self, lo: float, hi: float) -> list[Piece]:
        """[lo, hi] cut at the kinks."""
        if not lo <= hi:
            raise InputError(f"{self.name!r} cannot be cut on [{lo}, {hi}]: give lo <= hi")
        cuts = [lo, *(k for k in self.kinks if lo < k < hi), hi]
        return [Piece(a, b, self._branch(bisect_right(self.kinks, a))) for a, b in pairwise(cuts)]

    def value(self, s: float) -> arb:
        """A ball that contains f(s), at the working precision."""
        return self._branch(bisect_right(self.kinks, s))(variable(arb(s)))[0]

    def over(self, s: arb) -> arb:
        """A ball that contains f(t) for every t of the ball s: the union of the branches that it meets."""
        # kinks surely below, and not surely above: an equal one leaves both branches in
        first, last = sum(arb(k) < s for k in self.kinks), sum(not arb(k) > s for k in self.kinks)
        found = self._branch(first)(variable(s))[0]
        for i in range(first + 1, last + 1):
            found = found.union(self._branch(i)(variable(s))[0])
        return found

    def jump(self, lo: float, hi: float) -> float | None:
        """A kink of [lo, hi] at which the branches on both sides differ, or None: attention is continuous."""
        with working(96, 2):
            return next((k for k in self.kinks if lo <= k <= hi and self._jumps(k)), None)

    def _jumps(self, kink: float) -> bool:
        """Whether the branches on both sides of a kink disagree, or have a pole there."""
        i, at = self.kinks.index(kink), variable(arb(kink))
        try:
            return not self._branch(i)(at)[0].overlaps(self._branch(i + 1)(at)[0])
        except (ValueError, ZeroDivisionError):
            return True

    def _branch(self, i: int) -> Branch:
        """The i-th branch, with its results checked: a series that lost coefficients would look like one with zeros."""
        if not self.branches:
            advice = "give attnc.function(..., enclosure=...)"
            raise FunctionError(f"{self.name!r} has no enclosure, so that nothing can be proved: {advice}")

        def guarded(x: arb_series) -> arb_series:
            length = ctx.cap
            try:
                y = self.branches[i](x)
            except (ValueError, ZeroDivisionError):  # a cell that is too wide for it
                raise
            except Exception as problem:
                reason = f"{type(problem).__name__}: {problem}"
                raise FunctionError(f"the enclosure of {self.name!r} failed: {reason}") from problem
            if not isinstance(y, arb_series) or y.prec < length or ctx.cap != length:
                what = f"a series of {y.prec} coefficients" if isinstance(y, arb_series) else type(y).__name__
                wanted = f"a flint.arb_series of {length} (derivative() loses one: write the formula out)"
                raise FunctionError(f"the enclosure of {self.name!r} returned {what}, and not {wanted}")
            return y

        return guarded

    def lipschitz(self, lo: float, hi: float) -> float:
        """A proved Lipschitz constant on [lo, hi]: on each cell |f'| <= |f'(m)| + h·sup|f''|; inf if f jumps at a kink.

        The worst of the cells is halved until its bound is within 1 % of a slope that f has.

        >>> from attnc import functions
        >>> 1.0 <= functions.tanh().lipschitz(-8, 8) < 1.02
        True
        """
        with working(96, 3):
            pieces = self.pieces(lo, hi)
            if any(self._jumps(piece.lo) for piece in pieces[1:]):
                return math.inf
            cells = []
            for piece in pieces:
                edges = [piece.lo + (piece.hi - piece.lo) * (i / _CELLS) for i in range(_CELLS)] + [piece.hi]
                cells += [SlopeCell(piece.branch, a, b) for a, b in pairwise(edges)]
            heapq.heapify(cells)
            attained = max(cell.attained for cell in cells)  # decides only when to stop
            for _ in range(_HALVED):
                if cells[0].steepest <= 1.01 * attained:
                    break
                for half in heapq.heappop(cells).halves():
                    attained = max(attained, half.attained)
                    heapq.heappush(cells, half)
            return cells[0].steepest


class SlopeCell:
    """f at the middle of [a, b], and its slope on the whole cell by the mean value theorem: each from below and from above."""

    def __init__(self, branch: Branch, a: float, b: float) -> None:
        self.branch, self.a, self.b = branch, a, b
        self.middle = min(b, max(a, a / 2 + b / 2))
        self.half = math.nextafter(max(self.middle - a, b - self.middle), math.inf)
        self.value = self.slope = (-math.inf, math.inf)
        self.attained = 0.0  # |slope| at the middle, from below
        try:
            at, everywhere = branch(variable(arb(self.middle))), branch(variable(ball(a, b)))
        except (ValueError, ZeroDivisionError):  # too wide for the branch: it divides by a ball that holds 0
            return
        bend = 2 * abs(everywhere[2]) * arb(self.half)
        low = max(lower(everywhere[1]), lower(at[1] - bend))
        high = min(upper(everywhere[1]), upper(at[1] + bend))
        self.value, self.slope = (lower(at[0]), upper(at[0])), (low, high)
        self.attained = lower(abs(at[1]))

    @property
    def steepest(self) -> float:
        """At least |slope|."""
        return max(map(abs, self.slope))

    def __lt__(self, other: SlopeCell) -> bool:
        return self.steepest > other.steepest

    def halves(self) -> tuple[SlopeCell, SlopeCell]:
        return SlopeCell(self.branch, self.a, self.middle), SlopeCell(self.branch, self.middle, self.b)


def function(
    torch_form: TorchForm,
    *,
    name: str | None = None,
    enclosure: Branch | Sequence[Branch] | None = None,
    kinks: Sequence[float] = (),
) -> Function:
    """A function of your own.

    With `torch_form` alone, `attnc.head` proves errors from its torch operations, or measures them. With `enclosure`, a map of
    `flint.arb_series`, they are proved from the enclosure. `kinks` are the points where f is not analytic: with one kink give
    `enclosure=(left, right)`, with n kinks n + 1 maps, from left to right. The value of a map must be finite on every small
    cell, also on one with a kink; where a derivative is not bounded, its coefficient may be NaN.

    >>> import torch
    >>> f = function(lambda s: 1 / (1 + s * s), name="runge", enclosure=lambda x: 1 / (1 + x * x))
    >>> f.provable, f(torch.zeros(2))
    (True, tensor([1., 1.]))
    >>> ramp = function(torch.relu, name="ramp", kinks=(0.0,), enclosure=(lambda x: 0 * x, lambda x: x))
    >>> ramp.provable
    True
    """
    if not callable(torch_form):
        raise InputError(f"torch_form is a callable on tensors: got {torch_form!r}")
    given = (enclosure,) if callable(enclosure) else () if enclosure is None else enclosure
    several = isinstance(given, Sequence) and all(map(callable, given))
    if not several or (enclosure is not None and not given):
        accepted = "a map of flint.arb_series, or one such map for each interval between kinks"
        raise InputError(f"enclosure is {accepted}: got {enclosure!r}")
    if not isinstance(kinks, Sequence) or not all(isinstance(k, (int, float)) for k in kinks):
        raise InputError(f"kinks is a list of numbers, e.g. kinks=(0.0,): got {kinks!r}")
    chosen = name or str(getattr(torch_form, "__name__", "function"))
    if name is None and is_reserved(chosen):
        chosen = f"my_{chosen}"
    created = Function(chosen, torch_form, tuple(given), tuple(float(k) for k in kinks))
    if given:
        _check_enclosure(created)
    return created


def is_reserved(name: str) -> bool:
    """Whether a name, with or without parameters, is read as a built-in, or looks like one."""
    match = SPEC.fullmatch(unicodedata.normalize("NFKC", name))
    return match is not None and match.group(1).casefold() in NAMES


def _taken(name: str) -> InputError:
    advice = "give it another name, e.g. 'my_f', or use attnc.functions.get(...) for the built-in"
    return InputError(f"{name!r} is the name of a built-in function, and this is another function: {advice}")


def built_in(
    name: str,
    torch_form: TorchForm,
    branches: tuple[Branch, ...],
    kinks: tuple[float, ...] = (),
    parameters: Mapping[str, float] | None = None,
) -> Function:
    """The built-in of this name and these parameters: created once, and the same object as long as it is in use."""
    given = dict(parameters or {})
    key = (name, tuple(given.items()))
    found = _built_ins.get(key)
    if found is None or not is_builtin(found):
        token = _building.set(True)
        try:
            found = Function(name, torch_form, branches, kinks, given)
        finally:
            _building.reset(token)
        _built_ins[key], _fields[found] = found, dict(vars(found))
    return found


def is_builtin(f: Function) -> bool:
    """Whether f is attnc's own, unchanged: the very object that `attnc.functions.get` returns for its label."""
    if type(f) is not Function:
        return False
    held = vars(f)
    name, parameters = held.get("name"), held.get("parameters")
    if not isinstance(name, str) or not isinstance(parameters, dict):
        return False
    if _built_ins.get((name, tuple(parameters.items()))) is not f:
        return False
    created = _fields[f]
    return held.keys() == created.keys() and all(held[k] is v for k, v in created.items())


def label_of(f: Function) -> str:
    """The name with its parameters, as in certificates, files and messages.

    Raises InputError for another object with the name of a built-in, also if it did not pass the constructor."""
    label = f.name if not f.parameters else f"{f.name}({','.join(map(_shortest, f.parameters.values()))})"
    if is_reserved(label) and not is_builtin(f):
        raise _taken(label)
    return label


def _advice(problem: Exception) -> str:
    """How to write a function of tensors that raised this."""
    if "Boolean value of Tensor" in str(problem):
        return (
            "An if, max(s, a) and min(s, a) ask for one answer, and a tensor has many: write torch.where(s < 0, a, b), "
            "torch.clamp(s, min=a) or torch.maximum(a, b)"
        )
    if isinstance(problem, TypeError) and "positional argument" in str(problem):
        return "A head computes a function of one number; attnc.compile takes f(x) with x of shape (batch, n)"
    return (
        "A function takes and returns tensors: write it with torch operations, torch.sin instead of math.sin"
    )


def _by_label(label: str) -> Function:
    from attnc.functions.registry import get

    return get(label)


def _restored(cls: type[Function], state: dict[str, Any]) -> Function:
    if not issubclass(cls, Function):
        raise InputError(f"a stored function is of the type {cls!r}: a Function is expected")
    restored = object.__new__(cls)
    vars(restored).update(state)
    restored.__post_init__()
    return restored


def _check_enclosure(f: Function) -> None:
    """Raise FunctionError if the enclosure differs from the torch form at a point by more than rounding explains.

    This finds mistakes; it proves nothing: in a certificate, the enclosure defines f."""
    beside_kinks = torch.tensor([k + side for k in f.kinks for side in (-0.5, 0.5)], dtype=torch.float64)
    s = torch.cat([torch.linspace(-2.0, 2.0, 33, dtype=torch.float64), beside_kinks])
    try:
        y = f.torch_form(s)
    except Exception as problem:
        raise FunctionError(f"{f.name!r} failed on a float64 tensor: {problem}") from problem
    if not isinstance(y, Tensor) or y.shape != s.shape or y.dtype != s.dtype:
        return
    with working(128, 3):
        for at, value in zip(s.tolist(), y.tolist(), strict=True):
            if not math.isfinite(value):  # f is not defined there: 1/s at 0
                continue
            try:
                enclosed = f.value(at)
            except (ValueError, ZeroDivisionError) as problem:
                raise FunctionError(f"the enclosure of {f.name!r} failed at s={at}: {problem}") from problem
            gap = abs(enclosed - arb(value)) if enclosed.is_finite() else arb(0)
            if gap > 1e-6 * (1 + abs(value)):
                values = f"{enclosed.str(12)} at s={at}, and its torch form {value:.12g}"
                raise FunctionError(f"the enclosure of {f.name!r} is {values}: they must be one function")
