"""The verdict on the certificate of a head, with code, precision and cells of the checker's own.

First an attack executes the head at inputs where errors are likely, and compares in high precision. Then the error is bounded
cell by cell (`cell`): a cell is halved until approximation, rounding and their sum are below what the certificate states."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from flint import arb

from attnc.arithmetic import ARITHMETIC, probe, probe_network
from attnc.check.cell import ORDER, ActiveHeads, all_active, cell_error, in_range, still_active
from attnc.check.execution import PRECISION, check_claim, error_of, execute, head_error, refutes
from attnc.check.traced_function import StatedFunction, function_of
from attnc.check.values import CheckError
from attnc.errors import UnknownFunctionError
from attnc.functions import Function, get
from attnc.functions.balls import working
from attnc.functions.function import Branch, label_of
from attnc.records.certificate import HALF, Certificate, Status, Verdict
from attnc.records.fields import round_up
from attnc.records.layers import NetworkNumbers
from attnc.records.numbers import HeadNumbers, listed
from attnc.records.traced import OPERATIONS

FIRST_CELLS, MOST_CELLS = 23, 400_000


def check_alone(
    numbers: HeadNumbers,
    certificate: Certificate,
    function: Function | None = None,
    module: torch.nn.Module | None = None,
) -> Verdict:
    """The verdict on a head that is no part of another object: its certificate may state its function by operations."""
    try:
        if certificate.name != certificate.facts["function"]:
            raise CheckError(
                f"its title is {certificate.title!r}, its function {certificate.facts['function']!r}"
            )
        stated = function_of(certificate)
        if stated is not None and function is not None:
            raise CheckError("its certificate states its function by operations: leave out function=…")
    except CheckError as problem:
        return problem.verdict(certificate.bound)
    return check_head(numbers, certificate, stated or function, module)


def check_head(
    numbers: HeadNumbers,
    certificate: Certificate,
    function: Function | None = None,
    module: torch.nn.Module | None = None,
) -> Verdict:
    """The verdict on one certificate for these numbers, and for the module that claims to run them."""
    try:
        check_applies("head", numbers, certificate)
        f = _function(certificate, function)
        check_machine(probe(numbers.dtype))
        with working(PRECISION, ORDER + 1):
            _attack(numbers, certificate, f, module)
            cells = _prove(numbers, certificate, f)
    except CheckError as problem:
        return problem.verdict(certificate.bound)
    reason = f"the bound holds on {cells} cells at {PRECISION} bits"
    return Verdict(Status.PROVED, reason, certificate.bound, cells=cells)


def check_applies(subject: str, numbers: HeadNumbers | NetworkNumbers, certificate: Certificate) -> None:
    """Raise `CheckError` unless the certificate is about these numbers."""
    found, known = numbers.digests(), certificate.digests
    changed = sorted(name for name in found.keys() | known.keys() if found.get(name) != known.get(name))
    if certificate.subject != subject or not certificate.proved or certificate.witness is None:
        raise CheckError(f"{certificate.title} is {certificate.status}: no proved {subject} with a witness")
    if numbers.dtype != certificate.dtype:
        raise CheckError(f"the certificate is for {certificate.dtype}, the numbers are {numbers.dtype}")
    if changed:
        raise CheckError(
            f"the certificate does not apply: changed since it was issued: {listed(changed, len(found))}"
        )


def check_machine(broken: str | None) -> None:
    """Raise `CheckError` if a probe found that an assumption does not hold."""
    if broken is not None:
        raise CheckError(f"this machine does not satisfy the assumptions of certificates: {broken}")


def check_terms(claim: Certificate, subject: str, requested: float) -> None:
    """Raise `CheckError` if a certificate contradicts itself, or if this machine breaks the assumptions."""
    half = claim.dtype in HALF  # the approximation alone is claimed
    unknown = (claim.status, claim.rounding, claim.bound) == (Status.UNKNOWN, math.inf, math.inf)
    if not (unknown if half else claim.proved) or claim.subject != subject:
        raise CheckError(f"{claim.title} is {claim.status}: its domain, or its bound, is not proved")
    if not claim.approximation <= requested:
        raise CheckError(f"approximation is {claim.approximation:g}, above the requested {requested:g}")
    if not half and claim.bound != round_up(claim.approximation + claim.rounding):
        raise CheckError(f"its bound {claim.bound:g} is not the sum of its terms")
    if not half and claim.rounding not in claim.facts["roundings"].values():
        raise CheckError(f"rounding is {claim.rounding:g}, which is not that of an engine")
    check_machine(probe_network("float32" if half else claim.dtype))


def _function(certificate: Certificate, given: Function | None) -> Function:
    name = certificate.facts["function"]
    if OPERATIONS in certificate.facts and not isinstance(given, StatedFunction):
        raise CheckError("it states its function by operations, which only a head that stands alone may do")
    try:
        f = given or get(name)
    except UnknownFunctionError:
        raise CheckError(f"{name!r} is not known: register it, or pass verify(..., function=...)") from None
    label = label_of(f)  # raises if f has the name of a built-in function and is another one
    if not f.provable or label != name:
        raise CheckError(f"the certificate is about {name!r}, not {label!r} (provable: {f.provable})")
    return f


def _attack(
    numbers: HeadNumbers, certificate: Certificate, f: Function, module: torch.nn.Module | None
) -> None:
    """Execute the numbers, and the module, where errors are likely, and compare in high precision."""
    domain = certificate.interval
    jump = f.jump(domain.lo, domain.hi)
    if jump is not None:
        raise CheckError(f"{f.label} jumps at s={jump!r}: nothing can be proved across a jump")
    assert certificate.witness is not None
    special = [domain.lo, domain.hi, *certificate.witness.input, *f.kinks]
    spread = [domain.lo + domain.width * i / 4000 for i in range(4001)]
    near = [x + sign * domain.width * 2.0**-j for x in special for j in range(3, 56) for sign in (-1, 1)]
    points = torch.tensor([*special, *spread, *near], dtype=torch.float64)
    points = points.to(getattr(torch, numbers.dtype)).double()
    points = torch.unique(points[(points >= domain.lo) & (points <= domain.hi)])
    outputs = [execute(numbers, points)]
    if module is not None:
        outputs.append(run_module(module, points.to(getattr(torch, numbers.dtype)), points.shape))
    for s, *ys in zip(points.tolist(), *(y.tolist() for y in outputs), strict=True):
        for y in ys:
            error = error_of(y, f.value(s))
            if refutes(error, arb(certificate.bound)):
                raise CheckError(f"at s={s!r} the head returns {y!r}", (s,), float(error.mid()))
    (s,) = certificate.witness.input
    if s not in domain or torch.tensor(s, dtype=getattr(torch, numbers.dtype)).item() != s:
        raise CheckError(f"the witness {s!r} is not an input of the domain")
    check_claim(certificate.witness.error, head_error(numbers, f, s), certificate.rounding)


def run_module(module: torch.nn.Module, x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The outputs of a module in float64; raises `CheckError` if there are none."""
    try:
        with torch.no_grad():
            device = next(iter((*module.parameters(), *module.buffers()))).device
            found: torch.Tensor = module(x.to(device)).cpu().double()
    except Exception as problem:  # of any kind: the module may be anyone's
        raise CheckError(f"the module failed on inputs of its domain: {problem}") from None
    if found.shape != shape:
        raise CheckError(f"the module returned the shape {tuple(found.shape)}")
    return found


def _prove(numbers: HeadNumbers, certificate: Certificate, f: Function) -> int:
    """Halve cells until each of the certificate's three numbers is an upper bound on every one of them; return their count."""
    a, domain = ARITHMETIC[numbers.dtype], certificate.interval
    if not in_range(numbers, domain, a):
        raise CheckError("scores may overflow on the domain, or a number is subnormal")
    stated = (arb(x) for x in (certificate.approximation, certificate.rounding, certificate.bound))
    approximation, rounding, bound = stated
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
        exact, rounded = cell_error(numbers, lo, hi, branch, a, active) or (arb("inf"), arb("inf"))
        if exact <= approximation and rounded <= rounding and exact + rounded <= bound:
            continue
        middle = lo / 2 + hi / 2
        if not lo < middle < hi or done + len(stack) > MOST_CELLS:
            raise CheckError(f"no proof near s={middle!r} after {done} cells")
        stack += [(lo, middle, branch, active), (middle, hi, branch, active)]
    return done
