"""The verdict on the certificate of a network: structure, digests, an attack, every head, and the composition of errors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from flint import arb

from attnc.arithmetic import probe, probe_network
from attnc.check.compose import compose
from attnc.check.execution import execute_network
from attnc.check.head import check_head, run_module
from attnc.check.upward import largest_float
from attnc.check.values import CheckError, HeadErrors, Value
from attnc.check.witness import PRECISION, error_of, false_claim, network_errors, refutes
from attnc.domain import Array
from attnc.functions.balls import working
from attnc.program import Pointwise
from attnc.program.evaluate import differentiable, exact
from attnc.program.program import Program
from attnc.records.certificate import Certificate, Status
from attnc.records.layers import Layer, NetworkNumbers, heads_of
from attnc.records.structure import mismatch
from attnc.records.verdict import Verdict

ATTACKS, COMPARED = 400, 24


def check_network(
    program: Program,
    numbers: NetworkNumbers,
    certificate: Certificate,
    module: torch.nn.Module | None = None,
) -> Verdict:
    """The verdict on one certificate for these numbers and this program, and for the module that claims to run them."""
    reason = _does_not_apply(program, numbers, certificate)
    if reason is not None:
        return Verdict(Status.UNKNOWN, f"the certificate does not apply: {reason}")
    broken = probe(numbers.dtype) or probe_network(numbers.dtype)
    if broken is not None:
        return Verdict(
            Status.UNKNOWN, f"this machine does not satisfy the assumptions of certificates: {broken}"
        )
    attacked = _attack(program, numbers, certificate, module)
    if attacked is not None:
        return attacked
    cells = 0
    claims = {claim.facts["value"]: claim for claim in certificate.parts("layer")}
    for layer in numbers.layers:
        step = program.steps[layer.value - 1]
        if isinstance(step, Pointwise):
            claim = claims[layer.value]
            for (_, head), child in zip(heads_of(layer), claim.children, strict=True):
                verdict = check_head(head, child, step.function)
                cells += verdict.cells
                if not verdict:
                    reason = f"{claim.name}: {verdict.reason}"
                    return Verdict(
                        verdict.status, reason, certificate.bound, verdict.input, verdict.error, cells
                    )
    return _composed(program, numbers, certificate, claims, cells)


def _does_not_apply(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> str | None:
    if certificate.subject != "network" or not certificate.proved or certificate.witness is None:
        return f"it is about a {certificate.subject}, {certificate.status}"
    if numbers.dtype != certificate.dtype:
        return f"it is for {certificate.dtype}, the numbers are {numbers.dtype}"
    found, known = numbers.digests(), certificate.digests
    changed = sorted(name for name in found.keys() | known.keys() if found.get(name) != known.get(name))
    if changed:
        return f"changed since it was issued: {', '.join(changed)}"
    if program.digest() != certificate.facts["program"]:
        return "it is about another program"
    box, at = certificate.box, np.array(certificate.witness.input)
    if not ((box.lo.ravel() <= at) & (at <= box.hi.ravel())).all():
        return "its witness is not an input of the domain"
    if program.shape != box.shape:
        return f"its domain has the shape {box.shape}, the program takes {program.shape}"
    return mismatch(program, numbers, certificate)


def _composed(
    program: Program,
    numbers: NetworkNumbers,
    certificate: Certificate,
    claims: Mapping[int, Certificate],
    cells: int,
) -> Verdict:
    """The bound follows from the heads' bounds, or it is unknown."""
    errors = {
        layer.value: head_errors(layer, claims[layer.value], program.shapes[layer.value][-1])
        for layer in numbers.layers
        if layer.kind == "pointwise"
    }
    try:
        values = compose(program, numbers.layers, certificate.box, errors, numbers.dtype)
        for claim in (*certificate.parts("layer"), *certificate.parts("lookup")):
            step = program.steps[claim.facts["value"] - 1]
            _confirm(claim, values[step.inputs[0]], values[claim.facts["value"]])
    except CheckError as problem:
        return Verdict(Status.UNKNOWN, str(problem), certificate.bound, cells=cells)
    out = values[len(program.steps)]
    worst, own = largest_float(out.error), largest_float(out.approximation)
    with working(PRECISION):
        terms = arb(worst) <= arb(certificate.approximation) + arb(certificate.rounding)
    if not (worst <= certificate.bound and own <= certificate.approximation and terms):
        reason = f"the errors of the layers add up to {worst:.6g}, of which approximation {own:.6g}: more than is certified"
        return Verdict(Status.UNKNOWN, reason, certificate.bound, cells=cells)
    layers, lookups = certificate.parts("layer"), certificate.parts("lookup")
    count = f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'}"
    reason = f"the bound follows from {count}, whose heads were proved on {cells} cells at {PRECISION} bits"
    if lookups:
        anchors = sum(claim.facts["anchors"] for claim in lookups)
        reason = f"the bound holds for every function with the stored values and Lipschitz constant, {anchors} anchors"
    return Verdict(Status.PROVED, reason, certificate.bound, cells=cells)


def head_errors(layer: Layer, claim: Certificate, width: int) -> HeadErrors:
    """What is certified of the head of each neuron of a layer."""
    found = HeadErrors(*(np.full(width, np.nan) for _ in range(4)))
    for (neurons, _), head in zip(heads_of(layer), claim.children, strict=True):
        part = slice(None) if neurons is None else neurons
        found.lo[part], found.hi[part] = head.interval.lo, head.interval.hi
        found.approximation[part], found.executed[part] = head.approximation, head.bound
    return found


def _confirm(claim: Certificate, entering: Value, leaving: Value) -> None:
    """Raise `CheckError` unless every error that is stated of a layer is an upper bound."""
    stated = [
        ("bound", leaving.error, claim.bound),
        ("approximation", leaving.approximation, claim.approximation),
    ]
    if "error_in" in claim.facts:
        stated.append(("error_in", entering.error, claim.facts["error_in"]))
    for name, found, limit in stated:
        worst = largest_float(found)
        if not worst <= limit:
            raise CheckError(f"{claim.name}: {name} is {worst:.6g}, but {limit:.6g} is certified")


def _attack(
    program: Program, numbers: NetworkNumbers, certificate: Certificate, module: torch.nn.Module | None
) -> Verdict | None:
    """Execute the numbers, and the module, at corners, random inputs and the witness; compare in high precision."""
    dtype = getattr(torch, numbers.dtype)
    points = _points(certificate, dtype, max(8, min(ATTACKS, 2**27 // max(1, program.parameters))))
    outputs = [execute_network(program, numbers, points)]
    if module is not None:
        executed = run_module(module, points, outputs[0].shape)
        if isinstance(executed, str):
            return Verdict(Status.UNKNOWN, executed, certificate.bound)
        outputs.append(executed)
    meant = differentiable(program, points.double())
    for executed in outputs:
        off = (executed - meant).abs().reshape(len(points), -1).nan_to_num(torch.inf).amax(1)
        compared = COMPARED if program.parameters < 2**18 else 2
        chosen = torch.cat([torch.tensor([0]), off.argsort(descending=True)[:compared]])
        refuted = _refuted(program, points[chosen].double().numpy(), executed[chosen].numpy(), certificate)
        if refuted is not None:
            return refuted
    false = _false_witness(program, numbers, certificate)
    return None if false is None else Verdict(Status.UNKNOWN, false, certificate.bound)


def _points(certificate: Certificate, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Inputs of the box that the dtype can represent, the witness first."""
    assert certificate.witness is not None
    box, draw = certificate.box, np.random.default_rng(20250416)
    corners = np.where(draw.random((count, *box.shape)) < 0.5, box.lo, box.hi)
    inside = box.lo + draw.random((count, *box.shape)) * (box.hi - box.lo)
    mixed = np.where(draw.random((count, *box.shape)) < 0.5, corners, inside)
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
                error = error_of(y, ball)
                if refutes(error, bound):
                    reason, at = f"the network returns {y!r} there", tuple(point.ravel().tolist())
                    return Verdict(Status.REFUTED, reason, certificate.bound, at, float(error.mid()))
    return None


def _false_witness(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> str | None:
    """The witness must be a number of the dtype and claim the error that the network has there."""
    witness = certificate.witness
    assert witness is not None
    at = np.array(witness.input).reshape(certificate.box.shape)
    if not np.array_equal(at.astype(certificate.dtype), at):
        return f"the witness is not an input that {certificate.dtype} can represent"
    if witness.error > certificate.bound or certificate.rounding > 1.02 * certificate.bound:
        return "the witness, or the term of rounding, exceeds the bound"
    errors = network_errors(program, numbers, at)
    if not 0 <= witness.output < len(errors):
        return f"the witness is about output {witness.output}, but there are {len(errors)}"
    known = not certificate.parts("lookup")
    return false_claim(witness.error, errors[witness.output], 2 * certificate.rounding, known)
