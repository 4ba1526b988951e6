"""A bare callable of one number as a function that its own torch operations define, so that the error of a head is proved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from flint import arb
from torch import Tensor

from attnc.domain import Array, Box, Interval
from attnc.errors import ConvergenceError, InputError, Problem
from attnc.frontends.trace import TraceError, disagreement, trace
from attnc.functions import Function
from attnc.functions.balls import variable, working
from attnc.program.traced import KINKS, Traced
from attnc.prove.defined import is_defined
from attnc.prove.lattice_bound import SingularError, check_defined
from attnc.prove.traced_function import TracedFunction, traced_function

MOST = 400  # operations: a proof evaluates them on every cell
_COPIES = 1031  # of two numbers in the longest vector: copies are equal operations, which are written once
_POINTS = 4097  # at which signs are compared, to find kinks
_HALVINGS = 64
_ROOT = 2.0**-40  # of its size on the interval: where the argument of a root is 0
_MOST_KINKS = 64
_SINGULAR = "a root, a power, a logarithm or a quotient is not proved to be defined"
_BESIDE, _NEAR, _ORDER = 2.0**-36, 2.0**-12, 5  # of the interval; of the size of a coefficient; coefficients


def traced_head(f: Function, domain: Interval, dtype: torch.dtype) -> TracedFunction | str:
    """The function that the operations of f define on the domain, or why they are not known. Raises `ConvergenceError` at a jump.

    f is run on tensors of the dtype, in several shapes: its operations must be the same in all of them, so that it is a function
    of each number alone. It is compared with the values of its operations, too."""
    try:
        traced = _read(f, domain, dtype)
        if len(traced.operations) > MOST:
            return f"it has {len(traced.operations)} operations, and up to {MOST} are read"
        if (wrong := _disagreement(f, traced, domain, dtype)) is not None:
            return wrong
        _check_defined(traced, domain)
        kinks = sorted({*f.kinks, *_kinks(traced, domain)})
        if len(kinks) > _MOST_KINKS:
            return f"it has {len(kinks)} kinks"
        found = traced_function(traced, f.name, tuple(kinks), f.torch_form)
        for k in kinks:
            if domain.lo < k < domain.hi and _jumps(found, k, domain):
                what = f"{f.name!r} jumps near s={k:.9g}, and attention is continuous"
                raise ConvergenceError(f"{what}: use an interval without this point, or another function")
        return found
    except TraceError as problem:
        return str(problem)
    except SingularError as problem:
        other = f"attnc.compile(f, domain=attnc.Box({domain.lo:g}, {domain.hi:g}, shape=(1, 1)), eps=…, lipschitz=K)"
        return f"{_SINGULAR} {problem}; if f has there a Lipschitz constant K, {other} gives a proof"
    except InputError as problem:
        return str(problem)


def _check_defined(traced: Traced, domain: Interval) -> None:
    try:
        check_defined(traced, np.array([domain.lo]), np.array([domain.hi]))
    except SingularError:
        if not is_defined(traced, domain.lo, domain.hi):
            raise


def _read(f: Function, domain: Interval, dtype: torch.dtype) -> Traced:
    """The operations of f. Anything else than its numbers that f depends on is a constant of the recording: the shape, or state
    that changes from one call to the next (a counter, random numbers of another library). So f is recorded several times."""
    box, calls = Box(domain.lo, domain.hi, shape=(1,)), _shapes(f.torch_form)
    traced, *others = (trace(call, box, dtype, f.name) for call in (*calls, calls[0]))
    if any(other.settings() != traced.settings() for other in others):
        what = "runs other operations, or has other constants, for other shapes or at another call"
        raise TraceError([Problem("f", what)], dependent=True)
    return traced


def _shapes(f: Callable[[Tensor], Tensor]) -> list[Callable[[Tensor], Tensor]]:
    """f of the two numbers of a batch: as a vector, a column and rows, with more axes, within longer vectors, and each alone."""

    def longer(copies: int) -> Callable[[Tensor], Tensor]:
        return lambda x: f(torch.cat([x.reshape(-1)] * copies))[:2].reshape(x.shape)

    def alone(x: Tensor) -> Tensor:
        return torch.stack([f(x[0, 0]), f(x[1, 0])]).reshape(x.shape)

    return [
        lambda x: f(x.reshape(-1)).reshape(x.shape),
        lambda x: f(x.reshape(2, 1)).reshape(x.shape),
        lambda x: f(x.reshape(1, 1, 2)).reshape(x.shape),
        lambda x: f(x.reshape(1, 2, 1, 1, 1)).reshape(x.shape),
        longer(4),
        longer(_COPIES),
        alone,
    ]


def _disagreement(
    f: Callable[[Tensor], Tensor], traced: Traced, domain: Interval, dtype: torch.dtype
) -> str | None:
    """Where f returns something else than its operations: at the ends and at random points, in vectors of several lengths."""
    s = np.random.default_rng(11).uniform(domain.lo, domain.hi, 509)
    s = np.clip(np.concatenate([[domain.lo, domain.hi], s]), domain.lo, domain.hi)
    for part in (s, s[::-1][:64], s[:1], s[-1:]):
        x = torch.from_numpy(part.copy()).to(dtype)
        with torch.no_grad():
            values = f(x).double().numpy()
        wrong = disagreement(traced, x.double().numpy()[:, None], values[:, None], dtype)
        if wrong is not None:
            return wrong
    return None


def _kinks(traced: Traced, domain: Interval) -> list[float]:
    """Where an operation of the function is not smooth, to the precision of float64. Nothing is proved of these points: they
    guide the designs, and cells are cut there."""
    found: list[float] = []
    s = np.linspace(domain.lo, domain.hi, _POINTS)
    for name, *given in traced.operations:
        if name in KINKS:
            found += _crossings(_argument(traced, name, given), s)
        elif name == "sqrt":
            found += _roots(_argument(traced, name, given), s)
    inside = sorted({k + 0.0 for k in found if domain.lo <= k <= domain.hi})
    apart, smooth = 2.0**-40 * domain.width, traced_function(traced, "f")
    inside = [k for i, k in enumerate(inside) if i == 0 or k - inside[i - 1] > apart]
    return [k for k in inside if not domain.lo < k < domain.hi or _bends(smooth, k, domain)]


def _sides(f: Function, kink: float, domain: Interval) -> list[list[arb]]:
    """Taylor coefficients just left and just right of a point."""
    away = _BESIDE * domain.width
    with working(128, _ORDER):
        found = []
        for s in (kink - away, kink + away):
            series = f.pieces(s, s)[0].branch(variable(arb(s)))
            found.append([series[k] * arb(domain.width) ** k for k in range(_ORDER)])
    return found


def _differ(a: arb, b: arb) -> bool:
    """Whether two numbers differ by more than smooth functions do over so short a distance, or are not known."""
    return not abs(a - b) <= _NEAR * (abs(a) + abs(b) + 1).upper()


def _bends(f: Function, kink: float, domain: Interval) -> bool:
    """Whether f, or one of its first derivatives, seems to jump there: max(s², 0) does not."""
    return any(_differ(a, b) for a, b in zip(*_sides(f, kink, domain), strict=True))


def _jumps(f: Function, kink: float, domain: Interval) -> bool:
    left, right = _sides(f, kink, domain)
    return _differ(left[0], right[0])


def _argument(traced: Traced, name: str, given: list[int]) -> Callable[[Array], Array]:
    """The number on whose sign the operation depends."""
    difference = (("subtract", given[0], given[1]),) if name in ("maximum", "minimum") else ()
    at = traced.width + len(traced.operations) if difference else given[0]
    part = Traced(0, 1, (*traced.operations, *difference), (at,))

    def values(s: Array) -> Array:
        return np.asarray(part.approximate(torch.from_numpy(s.reshape(-1, 1).copy())).numpy()[:, 0])

    return values


def _crossings(u: Callable[[Array], Array], s: Array) -> list[float]:
    """Points where u changes its sign, by halving; those where it is 0 and only touches 0 as well."""
    sign = np.sign(u(s))
    at = np.flatnonzero(sign[1:] * sign[:-1] < 0)
    low, high, left = s[at], s[at + 1], sign[at]
    for _ in range(_HALVINGS):
        middle = low / 2 + high / 2
        here = np.sign(u(middle)) if len(middle) else left
        low, high = np.where(here == left, middle, low), np.where(here == left, high, middle)
    touched = np.flatnonzero((sign[1:-1] == 0) & ((sign[:-2] != 0) | (sign[2:] != 0))) + 1
    crossed = np.where((low <= 0) & (high >= 0), 0.0, high)
    return [float(k) for k in (*crossed, *s[touched])]


def _roots(u: Callable[[Array], Array], s: Array) -> list[float]:
    """Points where u, which is not negative, is 0: its smallest values, by ternary search."""
    size = u(s)
    floor = _ROOT * float(np.abs(size).max(initial=0.0))
    inner = np.flatnonzero((size[1:-1] <= size[:-2]) & (size[1:-1] < size[2:])) + 1
    low, high = s[inner - 1], s[inner + 1]
    exact = [float(s[i]) for i in (0, *inner, len(s) - 1) if size[i] == 0]
    for _ in range(2 * _HALVINGS):
        third = (high - low) / 3
        a, b = low + third, high - third
        lower = u(a) < u(b) if len(a) else np.zeros(0, bool)
        low, high = np.where(lower, low, a), np.where(lower, b, high)
    middle = low / 2 + high / 2
    kept = middle[u(middle) <= floor].tolist() if len(middle) else []
    return exact + [k for k in kept if all(abs(k - e) > 2.0**-20 * (s[-1] - s[0]) for e in exact)]
