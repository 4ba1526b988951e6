"""Attention subsumes known approximators: ReLU networks, piecewise linear splines, maxima of affine functions.

Each is a ReLU network, and each ReLU neuron is a head: relu on [-R, R] is Range_[0,R], and a head with enough anchors is as
close as the error that reaches the output allows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from attnc.domain import Array, Box
from attnc.errors import InputError, PrecisionError, UnsupportedError
from attnc.frontends import to_program
from attnc.functions import relu
from attnc.heads.target import Progress
from attnc.lower.function_to_head import check_arithmetic, check_box, checked_dtype, checked_eps
from attnc.lower.program_to_network import Request, certified, lower
from attnc.network.network import Network
from attnc.paper.assemble import box_of, numbers_of
from attnc.program import Affine, Combine, Pointwise, Program, Step
from attnc.records.fields import round_up
from attnc.records.presentation import Theorem


@dataclass(frozen=True, eq=False)
class Spline:
    """The piecewise linear function of one number through (knots[j], values[j]); beyond the outer knots its outer pieces go on.

        y(x) = y_0 + σ_0 (x - t_0) + Σ_j (σ_j - σ_{j-1}) relu(x - t_j),     σ_j = (y_{j+1} - y_j)/(t_{j+1} - t_j)

    >>> tent = Spline([0, 1, 3], [0, 2, 1])
    >>> [float(tent.at(x)) for x in (0.5, 1, 2, 5)]
    [1.0, 2.0, 1.5, 0.0]
    """

    knots: Array
    values: Array
    first_slope: float = field(init=False)
    bends: Array = field(init=False)  # the change of slope at each inner knot
    _pieces: tuple[tuple[Fraction, Fraction], ...] = field(
        init=False, repr=False
    )  # the program's values and slopes from knot j on

    def __post_init__(self) -> None:
        knots, values = numbers_of("knots", self.knots), numbers_of("values", self.values)
        if knots.ndim != 1 or knots.shape != values.shape:
            raise InputError(
                f"knots have the shape {knots.shape} and values {values.shape}: one list of numbers each, equally long"
            )
        if len(knots) < 3:
            raise InputError(
                f"{len(knots)} knots: at least 3 are expected; through fewer there is a line, which needs no attention"
            )
        wrong = np.flatnonzero(~(np.diff(knots) > 0))
        if len(wrong):
            j = int(wrong[0])
            raise InputError(
                f"knots increase: knots[{j}]={float(knots[j])!r} is followed by knots[{j + 1}]={float(knots[j + 1])!r}"
            )
        object.__setattr__(self, "knots", knots)
        object.__setattr__(self, "values", values)
        self._solve()

    def _solve(self) -> None:
        """Slopes in float64, each chosen for the exact value that those before it lead to, so that their errors do not add up."""
        t, y = list(map(Fraction, self.knots.tolist())), list(map(Fraction, self.values.tolist()))
        slopes: list[float] = []
        pieces = []
        at, slope = y[0], Fraction(0)
        for j in range(len(t) - 1):
            wanted = (y[j + 1] - at) / (t[j + 1] - t[j])
            try:
                slopes.append(float(wanted - slope))
            except OverflowError:
                raise InputError(
                    f"between knots[{j}] and knots[{j + 1}] the spline is too steep for float64: move them apart"
                ) from None
            slope += Fraction(slopes[-1])
            pieces.append((at, slope))
            at += slope * (t[j + 1] - t[j])
        object.__setattr__(self, "first_slope", slopes[0])
        object.__setattr__(self, "bends", np.array(slopes[1:]))
        object.__setattr__(self, "_pieces", tuple(pieces))

    def at(self, x: float) -> Fraction:
        """The spline at x, exactly."""
        j = self._piece(x)
        t0, t1, y0, y1 = (Fraction(float(v)) for v in (*self.knots[j : j + 2], *self.values[j : j + 2]))
        return y0 + (y1 - y0) / (t1 - t0) * (Fraction(float(x)) - t0)

    def _piece(self, x: float) -> int:
        return int(np.clip(np.searchsorted(self.knots, x, side="right") - 1, 0, len(self.knots) - 2))

    def program(self) -> Program:
        """The formula of the class with its float64 slopes: x of shape (1,) to y of shape (1,)."""
        inner = self.knots[1:-1]
        neurons = Affine(0, np.ones((len(inner), 1)), -inner, name="knots")
        bent = Affine(2, self.bends[None], self.values[:1], name="bends")
        line = [Affine(0, np.ones((1, 1)), -self.knots[:1]), Affine(4, np.array([[self.first_slope]]))]
        return Program((1,), (neurons, Pointwise(1, relu()), bent, *line, Combine((3, 5), (1.0, 1.0))))

    def deviation(self, lo: float, hi: float) -> Fraction:
        """sup |program - spline| over [lo, hi], exactly: both are linear between knots, so it is attained at one or at an end."""
        points = [lo, *(x for x in self.knots.tolist() if lo < x < hi), hi]
        return max(abs(self._program_at(x) - self.at(x)) for x in points)

    def _program_at(self, x: float) -> Fraction:
        j = self._piece(x)
        value, slope = self._pieces[j]
        return value + slope * (Fraction(float(x)) - Fraction(float(self.knots[j])))


@dataclass(frozen=True, eq=False)
class MaxAffine:
    """max_i <a_i, x> + b_i for x of d numbers: a tree of max(u, v) = u + relu(v - u), ceil(log2 m) layers for m functions.

    >>> MaxAffine([[1.0], [-1.0], [0.0]], [0.0, 0.0, 0.5]).program().layers  # two of its steps are layers of attention
    (2, 7)
    """

    A: Array  # (m, d)
    b: Array  # (m,)

    def __post_init__(self) -> None:
        a, b = numbers_of("A", self.A), numbers_of("b", self.b)
        if a.ndim != 2 or 0 in a.shape:
            raise InputError(
                f"A has the shape {a.shape}: (m, d) is expected, a row for every affine function"
            )
        if b.shape != a.shape[:1]:
            raise InputError(
                f"A has the shape {a.shape} and b {b.shape}: one number for each of the {len(a)} rows is expected"
            )
        if len(a) < 2:
            raise InputError("A has one row: a maximum of at least 2 affine functions is expected")
        object.__setattr__(self, "A", a)
        object.__setattr__(self, "b", b)

    def program(self) -> Program:
        """x of shape (d,) to the maximum, of shape (1,). Every number but A and b is 0, 1 or -1, so the program is exact."""
        steps: list[Step] = [Affine(0, self.A, self.b, name="affine functions")]
        width = len(self.A)
        while width > 1:
            steps += _halved(len(steps), width)
            width = -(-width // 2)
        return Program((self.A.shape[1],), tuple(steps))


def _halved(value: int, width: int) -> list[Step]:
    """The maxima of neighbours; the last of an odd number passes on."""
    pairs, left = width // 2, -(-width // 2)
    difference, first, place = np.zeros((pairs, width)), np.zeros((left, width)), np.zeros((left, pairs))
    for i in range(pairs):
        difference[i, 2 * i : 2 * i + 2] = -1.0, 1.0
        place[i, i] = 1.0
    first[np.arange(left), 2 * np.arange(left)] = 1.0
    return [
        Affine(value, difference, None, name="differences"),
        Pointwise(value + 1, relu()),
        Affine(value + 2, place),
        Affine(value, first),
        Combine((value + 4, value + 3), (1.0, 1.0)),
    ]


def relu_network(
    source: Any,
    *,
    eps: float,
    domain: Box | tuple[float, float] | None = None,
    dtype: torch.dtype = torch.float64,
    progress: Progress | None = None,
) -> Network:
    """A known approximator as attention: every output proved within eps of it, for every input of the domain.

    `source` is a ReLU network (a torch module or a `Program`; other activations that `attnc.compile` takes are taken too), a
    `Spline`, whose domain is [knots[0], knots[-1]] unless given, or a `MaxAffine`. The certificate is about the program; a
    spline's program has slopes of float64, `net.notes` says how far that is from the spline, exactly, and eps covers both.

    >>> import attnc.paper, torch
    >>> tent = attnc.paper.Spline([0, 1, 3], [0, 2, 1])
    >>> net = attnc.paper.relu_network(tent, eps=1e-6)
    >>> abs(net(torch.tensor([2.0], dtype=torch.float64)).item() - 1.5) <= 1e-6
    True
    """
    name, allowed = checked_dtype(dtype), checked_eps(eps)
    program, box, notes = _meaning(source, domain)
    found = program.problems()
    if found:
        raise UnsupportedError("the source cannot be written as attention", found)
    check_box(box, name)
    check_arithmetic(name, network=True)
    left = allowed
    if isinstance(source, Spline):
        deviation = source.deviation(float(box.lo[0]), float(box.hi[0]))
        left = _left(allowed, deviation)
        above = round_up(math.nextafter(float(deviation), math.inf)) if deviation else 0.0
        notes += (
            f"slopes in float64: the program is within {above:g} of the spline on the domain, in exact arithmetic",
        )
    request = Request(program, box, left, name, progress or (lambda _: None))
    net = certified(request, lower(request), strict=False)
    net.theorem, net.notes = _theorem(program), notes
    return net


def _meaning(source: Any, domain: Any) -> tuple[Program, Box, tuple[str, ...]]:
    """The program, where it is to hold, and what was taken."""
    if isinstance(source, Spline):
        ends = (float(source.knots[0]), float(source.knots[-1])) if domain is None else domain
        note = f"a piecewise linear spline on {len(source.knots)} knots"
        return source.program(), box_of(ends, (1,)), (note,)
    if domain is None:
        raise InputError(
            "give domain=attnc.Box(lo, hi, shape=…): only a Spline has one of its own, its knots"
        )
    if isinstance(source, MaxAffine):
        m, d = source.A.shape
        return source.program(), box_of(domain, (d,)), (f"the maximum of {m} affine functions",)
    if isinstance(source, Program):
        box = box_of(domain, source.shape)
    elif isinstance(domain, Box):
        box = domain
    else:
        raise InputError(f"domain is an attnc.Box of the shape of the network's input: got {domain!r}")
    program = to_program(source, box.shape, box)
    return program, box, (f"a network of {len(program.layers)} layers with {_activations(program)}",)


def _activations(program: Program) -> str:
    labels = {step.function.label: None for step in program.steps if isinstance(step, Pointwise)}
    return ", ".join(labels) or "no activation"


def _left(eps: float, deviation: Fraction) -> float:
    """eps less the deviation, rounded down."""
    left = Fraction(eps) - deviation
    if left <= 0:
        shown = f"{round_up(2 * float(deviation), 2):g}"
        raise PrecisionError(
            f"eps={eps:g} is below what slopes of float64 can hold of this spline ({float(deviation):.2g}): use eps >= {shown}, "
            "or knots and values of a smaller size",
            float(shown),
        )
    near = float(left)
    return near if Fraction(near) <= left else math.nextafter(near, 0.0)


def _theorem(program: Program) -> Theorem:
    neurons = sum(program.shapes[i + 1][-1] for i in program.layers)
    return Theorem(
        "attention subsumes known approximators",
        f"in exact arithmetic, for every eps > 0 attention (layers: {len(program.layers)}, heads: {neurons}) with anchors enough "
        "is within eps of the network on the whole domain; no number of anchors is named",
        None,
    )
