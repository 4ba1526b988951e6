"""Theorems about a given function, each compiled: universal approximation, and known approximators as attention.

two_layer            A∘Attn∘A∘Attn∘A        a network of one hidden layer, or any continuous function of a sequence
attention_softmax    A∘Softmax∘A∘Attn∘A     the same
relu_network         a ReLU network, a piecewise linear spline, or a maximum of affine functions"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from attnc.arguments import checked_choice, checked_dtype, checked_eps
from attnc.compiler import compile
from attnc.domain import Box, real_numbers
from attnc.errors import ArgumentError, InputError, PrecisionError
from attnc.functions import relu
from attnc.heads.designs import nearest_constant
from attnc.heads.tensor import CONSTANT, SHARPNESS
from attnc.network.literal.parts import read
from attnc.network.network import Network
from attnc.paper.truncated import box_of
from attnc.program import Affine, Combine, Lookup, Pointwise, Program, Step
from attnc.progress import Progress, checked_call, wrong_call
from attnc.records.fields import round_up
from attnc.records.presentation import Theorem


@checked_call
def two_layer(
    f: Any, domain: Box, *, eps: float, layout: str = "heads", dtype: torch.dtype | str = torch.float64, **options: Any
) -> Network:  # fmt: skip
    """f, a network of one hidden layer or any function of (batch, n, d), as two layers of attention and affine maps.

    `layout="tokens"` is the paper's: layer 1 applies the activation to N neurons, each of them a token, and layer 2 adds them.
    `layout="heads"`: layer 1 copies the sequence into every token, layer 2 has a head for every neuron, or one head over the
    lattice of a function. The `options` and the error are those of `attnc.compile`.

    >>> import attnc, attnc.paper, torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 6),
    ...                             torch.nn.Unflatten(1, (3, 2))).double().eval()
    >>> net = attnc.paper.two_layer(model, attnc.Box(0, 1, shape=(3, 2)), eps=1e-6, layout="tokens")
    >>> net.as_self_attention().kinds, net.certificate.bound <= 1e-6
    (('map', 'attention', 'map', 'attention', 'map'), True)
    """
    checked_choice("layout", layout, ("heads", "tokens"))
    _check_options(two_layer, options)
    net = compile(f, domain=domain, eps=eps, form="two-layer", dtype=dtype, **options)
    if layout == "tokens" and net.selections:
        reason = "this function was compiled to a lattice, which has no neurons"
        raise InputError(f"layout='tokens': {reason}; use layout='heads', or method='fit'")
    net.layout, net.theorem = layout, _theorem(net, "two layers of attention")
    return net


@checked_call
def attention_softmax(
    f: Any, domain: Box, *, eps: float, dtype: torch.dtype | str = torch.float64, **options: Any
) -> Network:
    """f, as for `two_layer`, as one layer of attention, affine maps, and one softmax.

    The scores of the attention are 0, so it is linear: it computes the scores of the softmax, which selects anchors; an affine
    map reads their values.

    >>> import attnc, attnc.paper, torch
    >>> def product(x):
    ...     return x.prod(1, keepdim=True)
    >>> net = attnc.paper.attention_softmax(product, attnc.Box(-1, 1, shape=(2, 1)), eps=1e-3, tokens=1)
    >>> net.as_self_attention().kinds, str(net.certificate.status), net.certificate.error <= 1e-3
    (('map', 'attention', 'map', 'softmax', 'map'), 'proved', True)
    """
    _check_options(attention_softmax, options)
    net = compile(f, domain=domain, eps=eps, form="attention-softmax", dtype=dtype, **options)
    net.theorem = _theorem(net, "attention and softmax")
    return net


def _check_options(called: Callable[..., Network], options: dict[str, Any]) -> None:
    """Raise ArgumentError, about the function that was called, for options that are not those of `attnc.compile`."""
    own = inspect.signature(called).parameters
    others = inspect.signature(compile).parameters
    accepted = {word: p for word, p in {**own, **others}.items() if word not in ("options", "model", "form")}
    if all(word in accepted for word in options):
        return
    if "anchors" in options:
        raise ArgumentError(
            f"{called.__name__} has no argument 'anchors': their number follows from eps (for a function with lipschitz=K a "
            f"grid with cells of the size eps/K); its arguments are {', '.join(accepted)}"
        )
    given = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in accepted.values()])
    raise wrong_call(called.__name__, given, options, "wrong arguments")


def _theorem(net: Network, name: str) -> Theorem:
    """The bound that nearest anchors, as many as the network has, are known to reach."""
    parts = read(net)
    fitted = net.certificate.parts("network")  # to f: the theorem about neurons is about the fitted network
    if parts.groups and net.certificate.proved and not fitted:
        return _of_neurons(net, float(np.abs(parts.second).sum(1).max()), name)
    lookup = next((step for step in net.program.steps if isinstance(step, Lookup)), None)
    if lookup is None:
        statement = "such weights exist for every continuous f on the box and every eps; no number of anchors is named"
        return Theorem(f"{name}: universal", statement, None)
    counts = [len(np.unique(column)) for column in lookup.points.T]
    diagonal = math.hypot(*((net.domain.hi - net.domain.lo).ravel() / counts))
    statement = (
        f"in exact arithmetic |net(X) - f(X)| <= K √C₂ · diagonal of a cell, for every f with the Lipschitz constant K = "
        f"{lookup.lipschitz:g}: {len(lookup.points)} grid points, diagonal {diagonal:.4g}, C₂ = {CONSTANT} at c = "
        f"{SHARPNESS:g} (1/4 for a hard choice of the nearest); the certificate includes rounding, and a margin of 1/256"
    )
    bound = lookup.lipschitz * math.sqrt(CONSTANT) * diagonal * (1 + 2.0**-48)
    return Theorem(f"{name}: grid", statement, bound)


def _of_neurons(net: Network, weights: float, name: str) -> Theorem:
    """max_i Σ_j |W2_ij| · Lip(f) C Δ: each neuron by its nearest anchor, the errors added up."""
    (claim,) = net.certificate.parts("layer")
    (step,) = (step for step in net.program.steps if isinstance(step, Pointwise))
    amount = 0.0
    for said, (_, head) in zip(claim.children, net.layers[0].groups, strict=True):
        on, p = said.interval, int(head.key.shape[0] * head.key.shape[1])
        steep = step.function.lipschitz(on.lo, on.hi)
        amount = max(amount, steep * nearest_constant() * on.width / (p - 1))
    statement = (
        "if every neuron took the nearest of as many uniform anchors as it has here, the error would be at most "
        f"max_i Σ_j |W2_ij| · Lip · C Δ = {weights:.4g} · {amount:.4g}; the anchors of this network are placed better, and the "
        "certificate has the proved bound"
    )
    return Theorem(f"{name}: one hidden layer", statement, weights * amount)


class Spline:
    """The piecewise linear function of one number through (knots[j], values[j]). The outer pieces continue outwards.

        y(x) = y_0 + σ_0 (x - t_0) + Σ_j (σ_j - σ_{j-1}) relu(x - t_j),     σ_j = (y_{j+1} - y_j)/(t_{j+1} - t_j)

    `slopes` has σ_0 and the changes of slope in float64. Each is chosen for the exact value that those before it give at its
    knot, so that their rounding errors do not add up.

    >>> tent = Spline([0, 1, 3], [0, 2, 1])
    >>> [float(tent.at(x)) for x in (0.5, 1, 2, 5)]
    [1.0, 2.0, 1.5, 0.0]
    """

    def __init__(self, knots: Any, values: Any) -> None:
        self.knots, self.values = real_numbers(knots, "knots"), real_numbers(values, "values")
        if self.knots.ndim != 1 or self.knots.shape != self.values.shape or len(self.knots) < 3:
            given = f"knots have the shape {self.knots.shape} and values {self.values.shape}"
            raise InputError(f"{given}: give two lists of the same length, with at least 3 numbers")
        wrong = np.flatnonzero(~(np.diff(self.knots) > 0))
        if len(wrong):
            j = int(wrong[0])
            first, second = self.knots[j : j + 2].tolist()
            raise InputError(f"knots[{j}]={first!r} is followed by {second!r}: give increasing knots")
        t, y = ([Fraction(x) for x in numbers.tolist()] for numbers in (self.knots, self.values))
        at, slope = y[0], Fraction(0)  # of the program
        self.slopes: list[float] = []
        self._pieces = []  # from knot j on: the knot, the value and slope of the spline, and those of the program
        for j, (near, far) in enumerate(pairwise(t)):
            try:
                self.slopes.append(float((y[j + 1] - at) / (far - near) - slope))
            except OverflowError:
                where = f"between knots[{j}] and knots[{j + 1}]"
                raise InputError(f"the spline is too steep for float64 {where}: move them apart") from None
            slope += Fraction(self.slopes[-1])
            self._pieces.append((near, y[j], (y[j + 1] - y[j]) / (far - near), at, slope))
            at += slope * (far - near)

    def _piece(self, x: float) -> tuple[Fraction, ...]:
        return self._pieces[bisect_right(self.knots[1:-1], x)]

    def at(self, x: float) -> Fraction:
        """The spline at x, exactly."""
        knot, value, slope, *_ = self._piece(x)
        return value + slope * (Fraction(float(x)) - knot)

    def program(self) -> Program:
        """The formula of the class with its float64 slopes: x of shape (1,) to y of shape (1,)."""
        inner, bends = self.knots[1:-1], np.array(self.slopes[1:])
        neurons = Affine(0, np.ones((len(inner), 1)), -inner, name="knots")
        bent = Affine(2, bends[None], self.values[:1], name="bends")
        line = [Affine(0, np.ones((1, 1)), -self.knots[:1]), Affine(4, np.array([self.slopes[:1]]))]
        return Program((1,), (neurons, Pointwise(1, relu()), bent, *line, Combine((3, 5), (1.0, 1.0))))

    def deviation(self, lo: float, hi: float) -> Fraction:
        """sup |program - spline| over [lo, hi], exactly: both are linear between knots, so it is attained at one or at an end."""
        found = Fraction(0)
        for x in (lo, *(x for x in self.knots.tolist() if lo < x < hi), hi):
            knot, value, slope, at, executed = self._piece(x)
            found = max(found, abs(at - value + (executed - slope) * (Fraction(x) - knot)))
        return found


class MaxAffine:
    """max_i <a_i, x> + b_i for x of d numbers: a tree of max(u, v) = u + relu(v - u), ceil(log2 m) layers for m functions.

    >>> MaxAffine([[1.0], [-1.0], [0.0]], [0.0, 0.0, 0.5]).program().layers  # two of its steps are layers of attention
    (2, 7)
    """

    def __init__(self, A: Any, b: Any) -> None:
        self.A, self.b = real_numbers(A, "A"), real_numbers(b, "b")
        if self.A.ndim != 2 or 0 in self.A.shape or self.b.shape != self.A.shape[:1] or len(self.A) < 2:
            given = f"A has the shape {self.A.shape} and b {self.b.shape}"
            raise InputError(f"{given}: give A of shape (m, d) and b of shape (m,) with m >= 2")

    def program(self) -> Program:
        """x of shape (d,) to the maximum, of shape (1,). Every number but A and b is 0, 1 or -1, so the program is exact.

        Each round takes the maxima of neighbours; the last of an odd number passes on."""
        steps: list[Step] = [Affine(0, self.A, self.b, name="affine functions")]
        width = len(self.A)
        while width > 1:
            value, pairs, left = len(steps), width // 2, -(-width // 2)
            difference = np.kron(np.eye(pairs, left), [[-1.0, 1.0]])[:, :width]
            steps += [
                Affine(value, difference, name="differences"),
                Pointwise(value + 1, relu()),
                Affine(value + 2, np.eye(left, pairs)),
                Affine(value, np.eye(width)[::2]),
                Combine((value + 4, value + 3), (1.0, 1.0)),
            ]
            width = left
        return Program((self.A.shape[1],), tuple(steps))


@checked_call
def relu_network(
    source: Any,
    *,
    eps: float,
    domain: Box | tuple[float, float] | None = None,
    dtype: torch.dtype | str = torch.float64,
    progress: Progress | bool | None = None,
) -> Network:
    """A known approximator as attention: every output is proved within eps of it, for every input of the domain.

    `source` is a ReLU network (a torch module or a `Program`; other activations that `attnc.compile` accepts work too), a
    `Spline`, whose domain is [knots[0], knots[-1]] by default, or a `MaxAffine`. The certificate is about the program. The slopes
    of a spline's program are float64 numbers; eps covers their exact distance from the spline, which `net.notes` states.

    >>> import attnc.paper, torch
    >>> tent = attnc.paper.Spline([0, 1, 3], [0, 2, 1])
    >>> net = attnc.paper.relu_network(tent, eps=1e-6)
    >>> abs(net(torch.tensor([2.0], dtype=torch.float64)).item() - 1.5) <= 1e-6
    True
    """
    checked_dtype(dtype)
    left, program, notes = checked_eps(eps), source, []
    if isinstance(source, Spline):
        box = box_of((source.knots[0], source.knots[-1]) if domain is None else domain, (1,))
        deviation, program = source.deviation(float(box.lo[0]), float(box.hi[0])), source.program()
        left = _left(left, deviation)
        above = round_up(math.nextafter(float(deviation), math.inf)) if deviation else 0.0
        notes = [
            f"a piecewise linear spline on {len(source.knots)} knots",
            f"slopes in float64: the program is within {above:g} of the spline on the domain, in exact arithmetic",
        ]
    elif domain is None:
        raise InputError("give domain=attnc.Box(lo, hi, shape=…): only a Spline has a default domain")
    elif isinstance(source, MaxAffine):
        program, box = source.program(), box_of(domain, source.A.shape[1:])
        notes = [f"the maximum of {len(source.A)} affine functions"]
    elif callable(source) and not isinstance(source, nn.Module | Program):
        raise InputError(f"source is a {type(source).__name__}: give a ReLU network, a Spline or a MaxAffine")
    else:
        box = box_of(domain, source.shape) if isinstance(source, Program) else domain  # type: ignore[assignment]
    net = compile(program, domain=box, eps=left, dtype=dtype, progress=progress)
    neurons, layers = sum(net.program.shapes[i + 1][-1] for i in net.program.layers), len(net.program.layers)
    if not notes:
        labels = dict.fromkeys(s.function.label for s in net.program.steps if isinstance(s, Pointwise))
        notes = [f"a network of {layers} layers with {', '.join(labels) or 'no activation'}"]
    statement = (
        f"in exact arithmetic, for every eps > 0 attention (layers: {layers}, heads: {neurons}) with enough anchors is within "
        "eps of the network on the whole domain; the theorem states no number of anchors"
    )
    net.theorem, net.notes = Theorem("attention subsumes known approximators", statement, None), tuple(notes)
    return net


def _left(eps: float, deviation: Fraction) -> float:
    """eps - deviation, rounded down."""
    left = Fraction(eps) - deviation
    if left <= 0:
        least = round_up(2 * float(deviation), 2)
        distance = f"the distance {float(deviation):.2g} of float64 slopes from this spline"
        advice = f"use eps >= {least:g}, or smaller knots and values"
        raise PrecisionError(f"eps={eps:g} is below {distance}: {advice}", least)
    near = float(left)
    return near if Fraction(near) <= left else math.nextafter(near, 0.0)
