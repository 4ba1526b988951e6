"""The heads of a block: neurons that reach equally far share one, and what is proved of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attnc.domain import Array, Interval
from attnc.functions import Function
from attnc.functions.function import is_builtin
from attnc.lower.activation_head import activation_head
from attnc.network.head import Head
from attnc.prove.outward import above
from attnc.prove.window import Gate, Window, window_bound, window_of
from attnc.records.fields import round_up
from attnc.records.layers import Index

MOST = 3  # groups of neurons
ROOM = 1 + 2.0**-5  # so that another prover need not tie with this one
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Group:
    """Neurons (None: all of the block) and the head they share."""

    neurons: Index | None
    head: Head


@dataclass(frozen=True, eq=False)
class Proved:
    """Neuron by neuron: the error of its head in exact arithmetic, and what rounding adds under each engine."""

    approximation: Array
    rounding: dict[str, Array]


def by_radius(lo: Array, hi: Array) -> list[tuple[float, Index | None]]:
    """Powers of two and the neurons whose intervals they hold, the largest first: few radii, so that blocks share heads.

    >>> [(radius, None if n is None else n.tolist()) for radius, n in by_radius(np.array([-3.0, -30.0]), np.array([2.0, 9.0]))]
    [(32.0, [1]), (4.0, [0])]
    """
    reach = np.maximum(np.maximum(np.abs(lo), np.abs(hi)), 1.0)
    steps = np.exp2(np.ceil(np.log2(reach)))
    steps = np.where(steps < reach, 2 * steps, steps)
    kept = np.array(_spread(sorted(set(steps.tolist()))))
    radius = kept[np.searchsorted(kept, steps)]
    if len(kept) == 1:
        return [(float(kept[0]), None)]
    return [(float(r), np.flatnonzero(radius == r)) for r in kept[::-1]]


def _spread(radii: list[float]) -> list[float]:
    """At most MOST of them: the largest, and those nearest to an equal share of the octaves below."""
    if len(radii) <= MOST:
        return radii
    places = np.linspace(0, len(radii) - 1, MOST + 1)[1:]
    return [radii[i] for i in np.unique(np.rint(places).astype(int))]


def groups_for(
    f: Function, lo: Array, hi: Array, eps: float, dtype: str, design: str, say: Say
) -> list[Group]:
    """Heads within eps of f in exact arithmetic on the interval of each neuron."""
    return [
        Group(neurons, activation_head(f, Interval(-radius, radius), eps, dtype, design, say))
        for radius, neurons in by_radius(lo, hi)
    ]


def proved(groups: list[Group], f: Function, neurons: int) -> Proved:
    """What the certificates of the heads, and the proofs of their windows, say of each neuron."""
    approximation, dense, window = (np.empty(neurons) for _ in range(3))
    for group in groups:
        where = slice(None) if group.neurons is None else group.neurons
        certificate = group.head.certificate
        assert certificate.proved
        approximation[where] = certificate.approximation
        dense[where] = certificate.rounding
        window[where] = window_rounding(group.head, f)
    rounding = {"softmax": dense, "closed-form": window} if np.isfinite(window).all() else {"softmax": dense}
    return Proved(approximation, rounding)


def window_rounding(head: Head, f: Function) -> float:
    """What is left of |executed window - f| where the head's own distance to f, its approximation, is taken off: of a block
    nothing but their sum is needed. A head without a window runs dense; inf where nothing can be proved of its window."""
    certificate = head.certificate
    assert certificate.proved
    window = window_of(head.numbers())
    if window is None:
        return certificate.rounding
    bound = ROOM * _window_bound(window, f, certificate.interval)
    left = float(above(np.float64(bound - certificate.approximation)))
    return round_up(max(0.0, left)) if math.isfinite(bound) else math.inf


def _window_bound(window: Window | Gate, f: Function, domain: Interval) -> float:
    """Kept for built-ins, each of which is one object: a user's function may change what it does."""
    if not is_builtin(f):
        return window_bound(window, f, domain).bound
    key = (window, f, domain)
    if key not in _proved:
        _proved[key] = window_bound(window, f, domain).bound
    return _proved[key]


_proved: dict[tuple[Window | Gate, Function, Interval], float] = {}
