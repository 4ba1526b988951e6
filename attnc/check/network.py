"""The verdict on the certificate of a network: structure, digests, an attack, every head, and the composition of errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from flint import arb

from attnc import functions
from attnc.arithmetic import probe, probe_network
from attnc.check.compose import compose
from attnc.check.execution import execute_network
from attnc.check.head import check_applies, check_head, check_machine, run_module
from attnc.check.norm import check_norm, relative_errors
from attnc.check.upward import largest_float
from attnc.check.values import CheckError, Errors, HeadErrors, NormErrors, SquareErrors, Value
from attnc.check.witness import PRECISION, check_claim, error_of, network_errors, refutes
from attnc.domain import Array, Tokens
from attnc.functions.balls import working
from attnc.program import Embed, Norm, Pointwise, Product
from attnc.program.evaluate import differentiable, exact
from attnc.program.program import Program
from attnc.records.certificate import Certificate, Status
from attnc.records.layers import Layer, NetworkNumbers, heads_of, quadratic_of, square_of
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
    try:
        _check_applies(program, numbers, certificate)
        check_machine(probe(numbers.dtype) or probe_network(numbers.dtype))
    except CheckError as problem:
        return Verdict(Status.UNKNOWN, str(problem))
    cells, bound = 0, certificate.bound
    try:
        refuted = _attack(program, numbers, certificate, module)
        if refuted is not None:
            return refuted
        claims = {claim.facts["value"]: claim for claim in certificate.parts("layer")}
        errors: dict[int, Errors] = {}
        for layer in numbers.layers:
            step = program.steps[layer.value - 1]
            if isinstance(step, Pointwise | Product):
                claim, one = claims[layer.value], isinstance(step, Pointwise)
                function = step.function if isinstance(step, Pointwise) else functions.square()
                heads = [head for _, head in heads_of(layer)] if one else [square_of(layer)]
                for head, child in zip(heads, claim.children, strict=True):
                    verdict = check_head(head, child, function)
                    cells += verdict.cells
                    if not verdict:
                        reason = f"{claim.name}: {verdict.reason}"
                        return replace(verdict, reason=reason, bound=bound, cells=cells)
                width = program.shapes[layer.value][-1]
                errors[layer.value] = (
                    head_errors(layer, claim, width) if one else _square_errors(layer, claim)
                )
            elif isinstance(step, Norm):
                norm = next(
                    claim for claim in certificate.parts("norm") if claim.facts["value"] == layer.value
                )
                errors[layer.value] = _norm_errors(layer, step, norm)
        _check_requested(numbers, certificate, errors)
        _check_composition(program, numbers, certificate, errors)
    except CheckError as problem:
        return Verdict(Status.UNKNOWN, str(problem), bound, cells=cells)
    layers, lookups = certificate.parts("layer"), certificate.parts("lookup")
    count = f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'}"
    reason = f"the bound follows from {count}, whose heads were proved on {cells} cells at {PRECISION} bits"
    if lookups:
        anchors = sum(claim.facts["anchors"] for claim in lookups)
        reason = f"the bound holds for every function with the stored values and Lipschitz constant, {anchors} anchors"
    return Verdict(Status.PROVED, reason, bound, cells=cells)


def _check_applies(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> None:
    check_applies("network", numbers, certificate)
    assert certificate.witness is not None
    box, at = certificate.box, np.array(certificate.witness.input)
    if program.digest() != certificate.facts["program"]:
        problem: str | None = "it is about another program"
    elif not ((box.lo.ravel() <= at) & (at <= box.hi.ravel())).all():
        problem = "its witness is not an input of the domain"
    elif isinstance(box, Tokens) and not np.array_equal(at, np.floor(at)):
        problem = "its witness is not a sequence of token ids"
    elif isinstance(box, Tokens) != any(isinstance(step, Embed) for step in program.steps):
        problem = "its domain are token ids and the program reads none, or the other way round"
    elif program.shape != box.shape:
        problem = f"its domain has the shape {box.shape}, the program takes {program.shape}"
    else:
        problem = mismatch(program, numbers, certificate)
    if problem is not None:
        raise CheckError(f"the certificate does not apply: {problem}")


def _check_composition(
    program: Program, numbers: NetworkNumbers, certificate: Certificate, errors: Mapping[int, Errors]
) -> None:
    """Raise `CheckError` unless the bound follows from the bounds of the heads."""
    values = compose(program, numbers.layers, certificate.box, errors, numbers.dtype)
    for claim in (*certificate.parts("layer"), *certificate.parts("lookup")):
        step = program.steps[claim.facts["value"] - 1]
        _confirm(claim, values[step.inputs[0]], values[claim.facts["value"]])
    out = values[len(program.steps)]
    worst, own = largest_float(out.error), largest_float(out.approximation)
    with working(PRECISION):
        terms = arb(worst) <= arb(certificate.approximation) + arb(certificate.rounding)
    if not (worst <= certificate.bound and own <= certificate.approximation and terms):
        raise CheckError(f"the errors add up to {worst:.6g}, approximation {own:.6g}: more than is certified")


def head_errors(layer: Layer, claim: Certificate, width: int) -> HeadErrors:
    """What is certified of the head of each neuron of a layer."""
    found = HeadErrors(*(np.full(width, np.nan) for _ in range(4)))
    for (neurons, _), head in zip(heads_of(layer), claim.children, strict=True):
        part = slice(None) if neurons is None else neurons
        found.lo[part], found.hi[part] = head.interval.lo, head.interval.hi
        found.approximation[part], found.executed[part] = head.approximation, head.bound
    return found


def _square_errors(layer: Layer, claim: Certificate) -> SquareErrors:
    """What is certified of the squares of a product."""
    (square,) = claim.children
    if not square.interval.lo <= -1 < 1 <= square.interval.hi:
        raise CheckError("the head of the square is not proved on [-1, 1]")
    scale, radius = (np.exp2(layer.tensor(name).astype(np.float64)) for name in ("scale", "radius"))
    return SquareErrors(scale, radius, square.approximation, square.bound)


def _norm_errors(layer: Layer, step: Norm, claim: Certificate) -> NormErrors:
    """What is certified of the heads of a norm, if it is proved again."""
    numbers, facts = quadratic_of(layer, step.epsilon), claim.facts
    gain, shift = (layer.tensor(name).astype(np.float64) for name in ("gain", "shift"))
    verdict = check_norm(claim, numbers, gain, shift, math.inf)
    if not verdict:
        raise CheckError(f"{claim.name}: {verdict.reason}")
    if facts["kind"] != ("layer" if step.centred else "rms") or facts["epsilon"] != step.epsilon:
        raise CheckError(f"{claim.name}: it is about another norm")
    most = float(facts["most"])
    relative, executed = relative_errors(numbers, most)
    if not (relative <= facts["relative"] and executed <= facts["executed"]["softmax"]):
        raise CheckError(f"{claim.name}: the relative errors of its heads are larger when derived again")
    return NormErrors(facts["relative"], facts["executed"]["softmax"], most)


def _check_requested(numbers: NetworkNumbers, certificate: Certificate, errors: Mapping[int, Errors]) -> None:
    """Raise `CheckError` unless every layer of attention alone is within what was requested of each."""
    requested = certificate.facts.get("requested", math.inf)
    for layer in numbers.layers:
        own, found = errors.get(layer.value), 0.0
        if isinstance(own, HeadErrors):
            found = float(own.approximation.max()) * (1 - 2.0**-40)
        elif isinstance(own, SquareErrors):
            found = float((own.radius**2).max() * own.approximation / 2)
        elif isinstance(own, NormErrors):
            gain = np.abs(layer.tensor("gain").astype(np.float64))
            found = float(gain.max() * math.sqrt(len(gain)) * own.approximation)
        if not found * (1 + 2.0**-40) <= requested:
            raise CheckError(
                f"value {layer.value}: its heads are within {found:.6g}, but {requested:.6g} is certified of each"
            )


def _confirm(claim: Certificate, entering: Value, leaving: Value) -> None:
    """Raise `CheckError` unless every error that is stated of a layer is an upper bound."""
    for name, found, limit in (
        ("bound", leaving.error, claim.bound),
        ("approximation", leaving.approximation, claim.approximation),
        ("error_in", entering.error, claim.facts.get("error_in", math.inf)),
    ):
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
        outputs.append(run_module(module, points, outputs[0].shape))
    meant = differentiable(program, points.double())
    for executed in outputs:
        off = (executed - meant).abs().reshape(len(points), -1).nan_to_num(torch.inf).amax(1)
        compared = COMPARED if program.parameters < 2**18 else 2
        chosen = torch.cat([torch.tensor([0]), off.argsort(descending=True)[:compared]])
        refuted = _refuted(program, points[chosen].double().numpy(), executed[chosen].numpy(), certificate)
        if refuted is not None:
            return refuted
    _check_witness(program, numbers, certificate)
    return None


def _points(certificate: Certificate, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Inputs of the box that the dtype can represent, the witness first."""
    assert certificate.witness is not None
    box, draw = certificate.box, np.random.default_rng(20250416)
    if isinstance(box, Tokens):
        ids = draw.integers(0, box.vocabulary, (3 * count, *box.shape)).astype(np.float64)
        return torch.from_numpy(np.concatenate([np.array([certificate.witness.input]), ids])).to(dtype)
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


def _check_witness(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> None:
    """The witness must be a number of the dtype and claim the error that the network has there."""
    witness = certificate.witness
    assert witness is not None
    at = np.array(witness.input).reshape(certificate.box.shape)
    if not np.array_equal(at.astype(certificate.dtype), at):
        raise CheckError(f"the witness is not an input that {certificate.dtype} can represent")
    if witness.error > certificate.bound or certificate.rounding > 1.02 * certificate.bound:
        raise CheckError("the witness, or the term of rounding, exceeds the bound")
    errors = network_errors(program, numbers, at)
    if not 0 <= witness.output < len(errors):
        raise CheckError(f"the witness is about output {witness.output}, but there are {len(errors)}")
    rounding = 2 * certificate.rounding + certificate.bound / 1024  # `approximation` was rounded up
    check_claim(witness.error, errors[witness.output], rounding, not certificate.parts("lookup"))
