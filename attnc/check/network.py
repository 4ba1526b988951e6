"""The verdict on a network's certificate: structure, digests, attack, every head anew, and the composition anew.

Like `check`, it imports nothing that builds networks and nothing of the prover (`compose`, `forms`, `slopes`, `outward`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from flint import arb

from attnc.arithmetic import probe, probe_network
from attnc.check.compose import CheckError, Claims, final
from attnc.check.execution import execute_network
from attnc.check.head import PRECISION, check
from attnc.check.witness import network_errors, overstated, understated
from attnc.domain import Array
from attnc.functions.balls import upper, working
from attnc.program import Pointwise
from attnc.program.evaluate import differentiable, exact
from attnc.program.program import Program
from attnc.records.certificate import Certificate, Status
from attnc.records.layers import NetworkNumbers, heads_of
from attnc.records.numbers import HeadNumbers
from attnc.records.structure import mismatch
from attnc.records.verdict import Verdict

ATTACKS, COMPARED = 400, 24


def check_network(
    program: Program,
    numbers: NetworkNumbers,
    certificate: Certificate,
    module: torch.nn.Module | None = None,
) -> Verdict:
    """The verdict on one certificate beside the numbers, the program, and the module that claims to run them."""
    reason = _does_not_apply(program, numbers, certificate)
    if reason is not None:
        return Verdict(Status.UNKNOWN, f"the certificate does not apply: {reason}")
    broken = probe(numbers.dtype) or probe_network(numbers.dtype)
    if broken is not None:
        return Verdict(Status.UNKNOWN, f"this machine's arithmetic is not what certificates assume: {broken}")
    attacked = _attack(program, numbers, certificate, module)
    if attacked is not None:
        return attacked
    cells = 0
    for group, step, claim, g in _heads(program, numbers, certificate):
        verdict = check(group, claim.children[g], step.function)
        cells += verdict.cells
        if not verdict:
            reason = f"{claim.name}: {verdict.reason}"
            return Verdict(verdict.status, reason, certificate.bound, verdict.input, verdict.error, cells)
    return _composed(program, numbers, certificate, cells)


def _does_not_apply(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> str | None:
    if numbers.dtype != certificate.dtype:
        return f"it is for {certificate.dtype}, the numbers are {numbers.dtype}"
    found, known = numbers.digests(), certificate.digests
    changed = sorted(name for name in found.keys() | known.keys() if found.get(name) != known.get(name))
    if changed:
        return f"changed since it was made: {', '.join(changed)}"
    if program.digest() != certificate.facts["program"]:
        return "it is about another program"
    if certificate.witness is None or not certificate.proved:
        return "it has no witness or is not proved"
    at = np.array(certificate.witness.input)
    if not ((certificate.box.lo.ravel() <= at) & (at <= certificate.box.hi.ravel())).all():
        return "its witness is not an input of the domain"
    if program.shape != certificate.box.shape:
        return f"its domain has the shape {certificate.box.shape}, the program takes {program.shape}"
    return mismatch(program, numbers, certificate)


def _heads(
    program: Program, numbers: NetworkNumbers, certificate: Certificate
) -> Iterator[tuple[HeadNumbers, Pointwise, Certificate, int]]:
    claims = {claim.facts["value"]: claim for claim in certificate.parts("layer")}
    for stage in numbers.layers:
        if stage.kind == "pointwise":
            step = program.steps[stage.value - 1]
            assert isinstance(step, Pointwise)
            for g, (_, head) in enumerate(heads_of(stage)):
                yield head, step, claims[stage.value], g


def _composed(program: Program, numbers: NetworkNumbers, certificate: Certificate, cells: int) -> Verdict:
    """The bound follows from the heads' bounds, or it is unknown."""
    claims: Claims = {claim.facts["value"]: claim for claim in certificate.parts("layer")}
    claims |= {claim.facts["value"]: claim for claim in certificate.parts("lookup")}
    try:
        with working(96):
            found = final(program, numbers, certificate.box, claims)
            worst, own = max(map(upper, found.error)), max(map(upper, found.approximation))
            parts = arb(certificate.approximation) + arb(certificate.rounding)
            terms = arb(worst) <= parts and own <= certificate.approximation
    except CheckError as problem:
        return Verdict(Status.UNKNOWN, str(problem), certificate.bound, cells=cells)
    if not worst <= certificate.bound or not terms:
        reason = f"the errors of the layers add up to {worst:.6g}, of which approximation {own:.6g}: the certificate says less"
        return Verdict(Status.UNKNOWN, reason, certificate.bound, cells=cells)
    layers = len(certificate.parts("layer"))
    count = f"{layers} {'layer' if layers == 1 else 'layers'}"
    reason = f"the bound follows from {count}, whose heads were proved on {cells} cells at {PRECISION} bits"
    if certificate.parts("lookup"):
        anchors = sum(claim.facts["anchors"] for claim in certificate.parts("lookup"))
        reason = f"the bound holds for every function with the values and the Lipschitz constant stored, {anchors} anchors"
    return Verdict(Status.PROVED, reason, certificate.bound, cells=cells)


def _attack(
    program: Program, numbers: NetworkNumbers, certificate: Certificate, module: torch.nn.Module | None
) -> Verdict | None:
    """Execute the numbers, and the module, at corners, random inputs and the witness; compare in high precision."""
    dtype = getattr(torch, numbers.dtype)
    points = _points(certificate, dtype, max(8, min(ATTACKS, 2**27 // max(1, program.parameters))))
    outputs = [execute_network(program, numbers, points)]
    if module is not None:
        try:
            with torch.no_grad():
                device = next(module.parameters()).device
                outputs.append(module(points.to(device)).cpu().double())
        except Exception as problem:
            return Verdict(
                Status.UNKNOWN, f"the module failed on inputs of its domain: {problem}", certificate.bound
            )
        if outputs[1].shape != outputs[0].shape:
            return Verdict(
                Status.UNKNOWN, f"the module returned the shape {tuple(outputs[1].shape)}", certificate.bound
            )
    meant = differentiable(program, points.double())
    for executed in outputs:
        off = (executed - meant).abs().reshape(len(points), -1).nan_to_num(torch.inf).amax(1)
        chosen = torch.cat([torch.tensor([0]), off.argsort(descending=True)[: _compared(program)]])
        refuted = _refuted(program, points[chosen].double().numpy(), executed[chosen].numpy(), certificate)
        if refuted is not None:
            return refuted
    return _false_witness(program, numbers, certificate)


def _compared(program: Program) -> int:
    return COMPARED if program.parameters < 2**18 else 2


def _points(certificate: Certificate, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Inputs of the box that the dtype holds, the witness first."""
    box, draw = certificate.box, np.random.default_rng(20250416)
    corners = np.where(draw.random((count, *box.shape)) < 0.5, box.lo, box.hi)
    inside = box.lo + draw.random((count, *box.shape)) * (box.hi - box.lo)
    mixed = np.where(draw.random((count, *box.shape)) < 0.5, corners, inside)
    assert certificate.witness is not None
    witness = np.array(certificate.witness.input).reshape(1, *box.shape)
    found = torch.from_numpy(np.concatenate([witness, corners, inside, mixed])).to(dtype)
    lo, hi = torch.from_numpy(box.lo.copy()), torch.from_numpy(box.hi.copy())
    found = torch.where(found.double() < lo, torch.nextafter(found, found.new_tensor(torch.inf)), found)
    found = torch.where(found.double() > hi, torch.nextafter(found, found.new_tensor(-torch.inf)), found)
    return found


def _refuted(program: Program, x: Array, executed: Array, certificate: Certificate) -> Verdict | None:
    meant = exact(program, x, PRECISION).reshape(len(x), -1)
    with working(PRECISION):
        bound = arb(certificate.bound)
        for point, found, balls in zip(x, executed.reshape(len(x), -1), meant, strict=True):
            for y, ball in zip(found.tolist(), balls, strict=True):
                error = abs(arb(y) - ball) if np.isfinite(y) else arb("inf")
                if not error <= bound and (error > bound or not error.is_finite()):
                    where = tuple(point.ravel().tolist())
                    return Verdict(
                        Status.REFUTED,
                        f"the network returns {y!r} there",
                        certificate.bound,
                        where,
                        float(error.mid()),
                    )
    return None


def _false_witness(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> Verdict | None:
    """The witness must lie in the box, claim no more than is attained there, and hardly less, but for what rounding may differ
    elsewhere."""
    witness, box = certificate.witness, certificate.box
    assert witness is not None
    at = np.array(witness.input).reshape(box.shape)
    said = None
    if not ((box.lo <= at) & (at <= box.hi)).all() or not np.array_equal(at.astype(certificate.dtype), at):
        said = "the witness is not an input of the domain"
    elif witness.error > certificate.bound or certificate.rounding > 1.02 * certificate.bound:
        said = "the witness, or the term of rounding, exceeds the bound"
    else:
        errors = network_errors(program, numbers, at)
        if not 0 <= witness.output < len(errors):
            said = "the witness names an output that is not there"
        else:
            error, known = errors[witness.output], not certificate.parts("lookup")
            said = overstated(witness.error, error, known)
            said = said or understated(witness.error, error, 2 * certificate.rounding)
    return None if said is None else Verdict(Status.UNKNOWN, said, certificate.bound)
