"""The checker: proves or refutes a stored bound anew, with code, precision and cells of its own.

It imports nothing that builds heads and nothing of the prover (`supnorm`, `cells`, `rounding`), so that they
cannot share a mistake. What it shares is what gives a certificate its meaning: the functions' enclosures, the
numbers, the assumptions of `arithmetic`.

It attacks first: the head is executed where errors like to hide and compared in high precision. Then it bounds the error cell by
cell (`check_cell`), and halves a cell until approximation, rounding and their sum are below what the certificate says of each.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC, probe
from attnc.check.cell import ORDER, CellError, Speaking, cell_error, everyone, in_range, speaking
from attnc.check.execution import execute
from attnc.check.witness import PRECISION, head_error, overstated, understated
from attnc.errors import UnknownFunctionError
from attnc.functions import Function, get
from attnc.functions.balls import working
from attnc.functions.function import Branch, label_of
from attnc.records.certificate import Certificate, Status
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.verdict import Verdict

FIRST_CELLS, MOST_CELLS = 23, 400_000


def check(
    numbers: HeadNumbers,
    certificate: Certificate,
    function: Function | None = None,
    module: torch.nn.Module | None = None,
) -> Verdict:
    """The verdict on one certificate beside one set of numbers, and beside the module that claims to run them."""
    if numbers.dtype != certificate.dtype:
        return Verdict(
            Status.UNKNOWN,
            f"the certificate does not apply: it is for {certificate.dtype}, the numbers are {numbers.dtype}",
        )
    found = numbers.digests()
    changed = [name for name in TENSORS if found[name] != certificate.digests[name]]
    if changed:
        return Verdict(
            Status.UNKNOWN, f"the certificate does not apply: changed since it was made: {', '.join(changed)}"
        )
    try:
        f = function or get(certificate.facts["function"])
    except UnknownFunctionError:
        return Verdict(
            Status.UNKNOWN,
            f"{certificate.facts['function']!r} is not a known function: register it, or give verify(..., function=...)",
        )
    label = label_of(f)  # raises where f bears the name of a built-in and is another function
    if not f.provable or label != certificate.facts["function"]:
        return Verdict(
            Status.UNKNOWN,
            f"the certificate is about {certificate.facts['function']!r}; given was {label!r}, provable: {f.provable}",
        )
    broken = probe(numbers.dtype)
    if broken is not None:
        return Verdict(Status.UNKNOWN, f"this machine's arithmetic is not what certificates assume: {broken}")
    with working(PRECISION, ORDER + 1):
        attacked = _attack(numbers, certificate, f, module)
        if attacked is not None:
            return attacked
        false = _false_witness(numbers, certificate, f)
        return (
            _prove(numbers, certificate, f)
            if false is None
            else Verdict(Status.UNKNOWN, false, certificate.bound)
        )


def _attack(
    numbers: HeadNumbers, certificate: Certificate, f: Function, module: torch.nn.Module | None
) -> Verdict | None:
    """Execute the numbers, and the module, where errors like to hide, and compare in high precision."""
    points = _attack_points(certificate, f)
    jump = f.jump(certificate.interval.lo, certificate.interval.hi)
    if jump is not None:
        return Verdict(
            Status.UNKNOWN,
            f"{f.label} jumps at s={jump!r}: nothing is proved across a jump",
            certificate.bound,
        )
    outputs = [execute(numbers, points)]
    if module is not None:
        try:
            with torch.no_grad():
                device = next(iter((*module.parameters(), *module.buffers()))).device
                outputs.append(module(points.to(device, getattr(torch, numbers.dtype))).cpu().double())
        except Exception as problem:
            return Verdict(
                Status.UNKNOWN, f"the module failed on inputs of its domain: {problem}", certificate.bound
            )
        if outputs[1].shape != points.shape:
            return Verdict(
                Status.UNKNOWN, f"the module returned the shape {tuple(outputs[1].shape)}", certificate.bound
            )
    bound = arb(certificate.bound)
    for s, *ys in zip(points.tolist(), *(y.tolist() for y in outputs), strict=True):
        for y in ys:
            error = abs(arb(y) - f.value(s)) if math.isfinite(y) else arb("inf")
            if not error <= bound and (error > bound or not error.is_finite()):
                return Verdict(
                    Status.REFUTED,
                    f"at s={s!r} the head returns {y!r}",
                    certificate.bound,
                    (s,),
                    float(error.mid()),
                )
    return None


def _attack_points(certificate: Certificate, f: Function) -> torch.Tensor:
    domain = certificate.interval
    witness = () if certificate.witness is None else certificate.witness.input
    special = [domain.lo, domain.hi, *witness, *f.kinks]
    spread = [domain.lo + domain.width * i / 4000 for i in range(4001)]
    near = [x + sign * domain.width * 2.0**-j for x in special for j in range(3, 56) for sign in (-1, 1)]
    points = (
        torch.tensor([*special, *spread, *near], dtype=torch.float64)
        .to(getattr(torch, certificate.dtype))
        .double()
    )
    inside: torch.Tensor = torch.unique(points[(points >= domain.lo) & (points <= domain.hi)])
    return inside


def _prove(numbers: HeadNumbers, certificate: Certificate, f: Function) -> Verdict:
    """Halve cells until each of the certificate's three numbers is an upper bound on every one of them."""
    a = ARITHMETIC[numbers.dtype]
    if not in_range(numbers, certificate.interval, a):
        return Verdict(
            Status.UNKNOWN, "scores may overflow on the domain, or a number is subnormal", certificate.bound
        )
    stack: list[tuple[float, float, Branch, Speaking]] = []
    for piece in f.pieces(certificate.interval.lo, certificate.interval.hi):
        edges = np.linspace(piece.lo, piece.hi, FIRST_CELLS + 1).tolist()
        edges[0], edges[-1] = piece.lo, piece.hi
        stack += [(x, y, piece.branch, everyone(numbers)) for x, y in pairwise(edges)]
    done = 0
    while stack:
        lo, hi, branch, who = stack.pop()
        done += 1
        who = speaking(numbers, lo, hi, who, a)
        if _within(cell_error(numbers, lo, hi, branch, a, who), certificate):
            continue
        middle = lo / 2 + hi / 2
        if not lo < middle < hi or done + len(stack) > MOST_CELLS:
            return Verdict(
                Status.UNKNOWN,
                f"no proof near s={middle!r} after {done} cells",
                certificate.bound,
                cells=done,
            )
        stack += [(lo, middle, branch, who), (middle, hi, branch, who)]
    return Verdict(
        Status.PROVED, f"the bound holds on {done} cells at {PRECISION} bits", certificate.bound, cells=done
    )


def _within(error: CellError | None, certificate: Certificate) -> bool:
    return (
        error is not None
        and error.approximation <= arb(certificate.approximation)
        and error.rounding <= arb(certificate.rounding)
        and error.approximation + error.rounding <= arb(certificate.bound)
    )


def _false_witness(numbers: HeadNumbers, certificate: Certificate, f: Function) -> str | None:
    """The witness must lie in the domain, claim no more than is attained there, and hardly less, but for what rounding may differ
    elsewhere."""
    witness = certificate.witness
    if witness is None:
        return "it has no witness"
    (at,) = witness.input
    s = torch.tensor([at], dtype=torch.float64)
    if at not in certificate.interval or s.to(getattr(torch, numbers.dtype)).double() != s:
        return f"the witness {at!r} is not an input of the domain"
    error = head_error(numbers, f, at)
    return overstated(witness.error, error) or understated(witness.error, error, certificate.rounding)


__all__ = ["PRECISION", "Verdict", "check", "execute"]
