"""The verdict on the certificate of a head: proved or refuted with code, precision and cells of its own.

The checker imports nothing that builds heads and nothing of the prover, so that they cannot share a mistake. They share what
gives a certificate its meaning: the enclosures of functions, the numbers, the assumptions of `arithmetic`.

First an attack executes the head at inputs where errors are likely, and compares in high precision. Then the error is bounded
cell by cell (`cell`): a cell is halved until approximation, rounding and their sum are below what the certificate states."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC, probe
from attnc.check.cell import ORDER, ActiveHeads, CellError, all_active, cell_error, in_range, still_active
from attnc.check.execution import execute
from attnc.check.witness import PRECISION, error_of, false_claim, head_error, refutes
from attnc.errors import UnknownFunctionError
from attnc.functions import Function, get
from attnc.functions.balls import working
from attnc.functions.function import Branch, label_of
from attnc.records.certificate import Certificate, Status
from attnc.records.numbers import TENSORS, HeadNumbers
from attnc.records.verdict import Verdict

FIRST_CELLS, MOST_CELLS = 23, 400_000


def check_head(
    numbers: HeadNumbers,
    certificate: Certificate,
    function: Function | None = None,
    module: torch.nn.Module | None = None,
) -> Verdict:
    """The verdict on one certificate for these numbers, and for the module that claims to run them."""
    reason = _does_not_apply(numbers, certificate)
    if reason is not None:
        return Verdict(Status.UNKNOWN, f"the certificate does not apply: {reason}")
    name = certificate.facts["function"]
    try:
        f = function or get(name)
    except UnknownFunctionError:
        reason = f"{name!r} is not a known function: register it, or pass verify(..., function=...)"
        return Verdict(Status.UNKNOWN, reason)
    label = label_of(f)  # raises if f has the name of a built-in function and is another one
    if not f.provable or label != name:
        reason = (
            f"the certificate is about {name!r}, the function given is {label!r} (provable: {f.provable})"
        )
        return Verdict(Status.UNKNOWN, reason)
    broken = probe(numbers.dtype)
    if broken is not None:
        return Verdict(
            Status.UNKNOWN, f"this machine does not satisfy the assumptions of certificates: {broken}"
        )
    with working(PRECISION, ORDER + 1):
        attacked = _attack(numbers, certificate, f, module)
        if attacked is not None:
            return attacked
        false = _false_witness(numbers, certificate, f)
        if false is not None:
            return Verdict(Status.UNKNOWN, false, certificate.bound)
        return _prove(numbers, certificate, f)


def _does_not_apply(numbers: HeadNumbers, certificate: Certificate) -> str | None:
    if certificate.subject != "head" or not certificate.proved:
        return f"it is about a {certificate.subject}, {certificate.status}"
    if numbers.dtype != certificate.dtype:
        return f"it is for {certificate.dtype}, the numbers are {numbers.dtype}"
    found = numbers.digests()
    changed = [name for name in TENSORS if found[name] != certificate.digests[name]]
    return f"changed since it was issued: {', '.join(changed)}" if changed else None


def _attack(
    numbers: HeadNumbers, certificate: Certificate, f: Function, module: torch.nn.Module | None
) -> Verdict | None:
    """Execute the numbers, and the module, where errors are likely, and compare in high precision."""
    domain, bound = certificate.interval, certificate.bound
    jump = f.jump(domain.lo, domain.hi)
    if jump is not None:
        reason = f"{f.label} jumps at s={jump!r}: nothing can be proved across a jump"
        return Verdict(Status.UNKNOWN, reason, bound)
    points = _attack_points(certificate, f)
    outputs = [execute(numbers, points)]
    if module is not None:
        executed = run_module(module, points.to(getattr(torch, numbers.dtype)), points.shape)
        if isinstance(executed, str):
            return Verdict(Status.UNKNOWN, executed, bound)
        outputs.append(executed)
    for s, *ys in zip(points.tolist(), *(y.tolist() for y in outputs), strict=True):
        for y in ys:
            error = error_of(y, f.value(s))
            if refutes(error, arb(bound)):
                reason = f"at s={s!r} the head returns {y!r}"
                return Verdict(Status.REFUTED, reason, bound, (s,), float(error.mid()))
    return None


def run_module(module: torch.nn.Module, x: torch.Tensor, shape: torch.Size) -> torch.Tensor | str:
    """The outputs of a module in float64, or why there are none."""
    try:
        with torch.no_grad():
            device = next(iter((*module.parameters(), *module.buffers()))).device
            found: torch.Tensor = module(x.to(device)).cpu().double()
    except Exception as problem:  # of any kind: the module may be anyone's
        return f"the module failed on inputs of its domain: {problem}"
    return found if found.shape == shape else f"the module returned the shape {tuple(found.shape)}"


def _attack_points(certificate: Certificate, f: Function) -> torch.Tensor:
    domain = certificate.interval
    seen = certificate.witness.input if certificate.witness is not None else ()
    special = [domain.lo, domain.hi, *seen, *f.kinks]
    spread = [domain.lo + domain.width * i / 4000 for i in range(4001)]
    near = [x + sign * domain.width * 2.0**-j for x in special for j in range(3, 56) for sign in (-1, 1)]
    points = torch.tensor([*special, *spread, *near], dtype=torch.float64)
    points = points.to(getattr(torch, certificate.dtype)).double()
    inside: torch.Tensor = torch.unique(points[(points >= domain.lo) & (points <= domain.hi)])
    return inside


def _prove(numbers: HeadNumbers, certificate: Certificate, f: Function) -> Verdict:
    """Halve cells until each of the certificate's three numbers is an upper bound on every one of them."""
    a, domain, bound = ARITHMETIC[numbers.dtype], certificate.interval, certificate.bound
    if not in_range(numbers, domain, a):
        return Verdict(Status.UNKNOWN, "scores may overflow on the domain, or a number is subnormal", bound)
    stack: list[tuple[float, float, Branch, ActiveHeads]] = []
    for piece in f.pieces(domain.lo, domain.hi):
        edges = np.linspace(piece.lo, piece.hi, FIRST_CELLS + 1).tolist()
        edges[0], edges[-1] = piece.lo, piece.hi
        stack += [(x, y, piece.branch, all_active(numbers)) for x, y in pairwise(edges)]
    done = 0
    while stack:
        lo, hi, branch, active = stack.pop()
        done += 1
        active = still_active(numbers, lo, hi, active, a)
        if _within(cell_error(numbers, lo, hi, branch, a, active), certificate):
            continue
        middle = lo / 2 + hi / 2
        if not lo < middle < hi or done + len(stack) > MOST_CELLS:
            reason = f"no proof near s={middle!r} after {done} cells"
            return Verdict(Status.UNKNOWN, reason, bound, cells=done)
        stack += [(lo, middle, branch, active), (middle, hi, branch, active)]
    return Verdict(Status.PROVED, f"the bound holds on {done} cells at {PRECISION} bits", bound, cells=done)


def _within(error: CellError | None, certificate: Certificate) -> bool:
    return (
        error is not None
        and error.approximation <= arb(certificate.approximation)
        and error.rounding <= arb(certificate.rounding)
        and error.approximation + error.rounding <= arb(certificate.bound)
    )


def _false_witness(numbers: HeadNumbers, certificate: Certificate, f: Function) -> str | None:
    """The witness must be an input of the domain and claim the error that it has there."""
    if certificate.witness is None:
        return "the certificate has no witness"
    (s,) = certificate.witness.input
    stored = torch.tensor(s, dtype=getattr(torch, numbers.dtype)).item()
    if s not in certificate.interval or stored != s:
        return f"the witness {s!r} is not an input of the domain"
    error = head_error(numbers, f, s)
    return false_claim(certificate.witness.error, error, certificate.rounding)
