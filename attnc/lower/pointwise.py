"""A function of every neuron becomes a layer of heads: neurons whose inputs reach equally far share one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from attnc.domain import Array
from attnc.functions import Function
from attnc.functions.function import is_builtin
from attnc.network.engines import closed_form_of
from attnc.network.head import Head
from attnc.program import Pointwise
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.window import window_bound
from attnc.records.certificate import Certificate
from attnc.records.layers import Index, Layer, pointwise_layer

ROOM = 1 + 2.0**-5  # the factor of the claimed bound of a closed form: the checker's proof may be less sharp


class HeadGroup(NamedTuple):
    """Neurons of a layer (None: all of them) and the head that they share."""

    neurons: Index | None
    head: Head

    @property
    def certificate(self) -> Certificate:
        return self.head.certificate


def lower_pointwise(step: Pointwise, program: Program, value: int, dtype: str) -> Layer:
    """The layer, without heads: these depend on what is proved of its input."""
    return pointwise_layer(step.input, value, [])


def by_reach(
    lo: Array, hi: Array, most: int, unit: float = 1.0, step: float = 2.0, least: float = 1.0
) -> list[tuple[float, Index | None]]:
    """Radii unit·step^k, the largest first, each with the neurons whose intervals [lo, hi] it holds and the next smaller one
    does not; None stands for all neurons. There are at most `most` radii, and those below `least` are merged.

    >>> groups = by_reach(np.array([-3.0, -30.0]), np.array([2.0, 9.0]), most=3)
    >>> [(radius, None if neurons is None else neurons.tolist()) for radius, neurons in groups]
    [(32.0, [1]), (4.0, [0])]
    """
    reach = np.maximum(np.abs(lo), np.abs(hi)).max(axis=tuple(range(lo.ndim - 1)))
    reach = np.maximum(reach, least)
    power = np.ceil(np.log2(reach / unit) / np.log2(step))
    power += unit * step**power < reach
    kept = np.unique(power)
    if len(kept) > most:  # the largest, and those nearest to equal shares of the others
        kept = kept[np.unique(np.rint(np.linspace(0, len(kept) - 1, most + 1)[1:]).astype(int))]
    if len(kept) == 1:
        return [(unit * step ** float(kept[0]), None)]
    chosen = kept[np.searchsorted(kept, power)]
    return [(unit * step ** float(k), np.flatnonzero(chosen == k)) for k in kept[::-1]]


def head_errors(
    groups: Sequence[HeadGroup], f: Function, x: ValueBounds, engine: str = "softmax"
) -> HeadErrors:
    """The errors of the heads of each neuron on the reach of its input; infinity if the certificate does not cover it."""
    approximation, error = np.full((2, *x.lo.shape), np.inf)
    lo, hi = x.reach
    for group in groups:
        where = (..., slice(None)) if group.neurons is None else (..., group.neurons)
        domain = group.certificate.interval
        covered = (domain.lo <= lo[where]) & (hi[where] <= domain.hi)
        approximation[where] = np.where(covered, group.certificate.approximation, np.inf)
        error[where] = np.where(covered, executed_error(group.head, f, engine), np.inf)
    return HeadErrors(approximation, error)


def executed_error(head: Head, f: Function, engine: str) -> float:
    """At least |executed head - f| on the domain of its certificate; infinity if nothing is proved of its closed form. A head
    without a closed form runs softmax."""
    certificate = head.certificate
    assert certificate.proved
    window = closed_form_of(head) if engine == "closed-form" else None
    if window is None:
        terms = math.nextafter(certificate.approximation + certificate.rounding, math.inf)
        return min(certificate.bound, terms)
    prove = _kept_bound if is_builtin(f) else window_bound  # a user's function may change what it does
    return max(ROOM * prove(window, f, certificate.interval).bound, certificate.approximation)


_kept_bound = cache(window_bound)
