"""The proof of a fitted network: |executed - f| <= |executed - g| + |g - f|, g the program that was fitted to f.

The first term is proved by composition; the second by Taylor models of g - f on cells."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import torch

from attnc.errors import InputError
from attnc.frontends.callable_source import CallableSource
from attnc.heads.target import Progress
from attnc.lower.program_to_network import claimed
from attnc.lower.witness import check_refuted, worst
from attnc.network.network import Network
from attnc.program import Traced
from attnc.prove.fitted import FittedNumbers
from attnc.prove.lattice_bound import Effort, LatticeBound, SingularError, lattice_bound
from attnc.records.certificate import Certificate
from attnc.records.fields import round_up
from attnc.records.fitted import facts_of, meaning

MOST_AXES = 6  # numbers of the input: more have too many cells
ROOM = 1.5  # the fit aims at eps over this: a bound is larger than the error
SHARE = 0.1  # of eps: for the attention
_TIGHT = 1.4  # of the largest sampled error: the bound that is tried first
_FEW = 3  # numbers of the input: with more, a bound that suffices is all that is tried
_CLAIM = 1 / (1 + 2.0**-8 + 2.0**-9)  # certificates state a part in 256 more than is proved, in four digits
_EFFORTS = {1: (10, 8), 2: (8, 4), 3: (7, 4), 4: (6, 2), 5: (5, 2), 6: (4, 2)}  # degree; cells along an axis
_KINKS = {1: (4, 16), 2: (3, 16), 3: (3, 4), 4: (3, 2), 5: (2, 2), 6: (2, 2)}
_OVERRUN = 4.0  # a proof that seems to take so many times the time is given up
_USEFUL = 16.0  # of the room: larger bounds are not reported
_EFFORT, _STARTS = 4096, 32  # inputs at which the witness is searched for


def proved_fit(
    net: Network, source: CallableSource, f: Traced, eps: float, seconds: float, progress: Progress
) -> str | None:
    """Give the network, whose certificate is about the fitted program, a proved one about f; or say why not.

    Raises `InputError` where f has a singularity in the box."""
    inner, numbers = net.certificate, FittedNumbers.of(net.program)
    if numbers is None or source.box.size > MOST_AXES:
        return f"functions of more than {MOST_AXES} numbers are not proved"
    room = (eps - inner.bound) * _CLAIM
    if not room > 0:
        return f"rounding and attention take {inner.bound:.3g} of eps={eps:g}"
    x = np.concatenate([source.uniform(1 << 14, 5), np.stack([source.lo, source.hi])])
    g = np.tanh(x @ numbers.w1.T + numbers.b1) @ numbers.w2.T + numbers.b2
    off = np.abs(g - f.approximate(torch.from_numpy(x)).numpy()).max(1)
    proof = _bound(numbers, source, f, float(off.max()), room, seconds, progress)
    if not proof.bound <= room:
        if proof.refuted is not None:
            return (
                f"the fitted network is {proof.refuted:.3g} from f at an input, and {room:.3g} is left for it"
            )
        reached = f"; {proof.bound:.3g} was reached" if proof.bound <= _USEFUL * room else ""
        return f"the distance to the fitted network takes more than {seconds:g} s of the processor to prove{reached}"
    certificate = _combined(inner, f, claimed(proof.bound), proof.cells)
    if not certificate.bound <= eps:
        return f"{certificate.bound:.4g} is proved, above eps={eps:g}"
    start = torch.from_numpy(x[off.argsort()[-_STARTS:]])
    witness = worst(net, meaning(net.program, certificate), net.numbers(), source.box, _EFFORT, start)
    check_refuted("at an input of the box the network", witness.error, certificate.bound)
    net.certificate = replace(certificate, witness=witness)
    return None


def _bound(
    numbers: FittedNumbers, source: CallableSource, f: Traced, sampled: float, room: float, seconds: float, progress: Progress
) -> LatticeBound:  # fmt: skip
    """A bound near the sampled error, if that can be proved in half of the time; else one that just suffices."""
    degree, cells = (_KINKS if f.has_kinks else _EFFORTS)[len(source.lo)]
    tight = max(_TIGHT * sampled, room / 16) if len(source.lo) <= _FEW else room
    deadline, target = time.process_time() + seconds, min(room, tight)
    while True:
        left = deadline - time.process_time()
        effort = Effort(degree, degree, cells, left / 2 if target < room else left, _OVERRUN)
        try:
            proof = lattice_bound(f, numbers, source.lo, source.hi, target, effort, progress)
        except SingularError as problem:
            cell = f"x between {source.shown(problem.lo)} and {source.shown(problem.hi)}"
            advice = "Give a box without this point, or method='grid' and lipschitz=K if f has a Lipschitz constant K there."
            raise InputError(f"f has a singularity near {cell}. {advice}") from problem
        if proof.bound <= room or target >= room:
            return proof
        target = room


def _combined(inner: Certificate, f: Traced, distance: float, cells: int) -> Certificate:
    """|executed - f| <= |executed - g| + |g - f|, rounded up; the same for exact arithmetic."""

    def total(a: float, b: float) -> float:
        return round_up(math.nextafter(a + b, math.inf))

    rounding = max(inner.rounding, total(inner.bound, -inner.approximation))
    return replace(
        inner,
        approximation=total(inner.approximation, distance),
        rounding=rounding,
        bound=total(inner.bound, distance),
        facts={**inner.facts, "method": "fit", "cells": cells, **facts_of(f, distance)},
        children=(replace(inner, name="against the fitted network"),),
    )
