"""The verdict on the certificate of a network: structure, digests, an attack, every head, and the composition of errors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from flint import arb

from attnc import functions
from attnc.arithmetic import ARITHMETIC, probe, probe_network
from attnc.check.compose import compose
from attnc.check.execution import PRECISION, check_claim, error_of, execute_network, network_errors, refutes
from attnc.check.fitted import FIT_NODES, FitProof
from attnc.check.head import check_applies, check_head, check_machine, check_terms, run_module
from attnc.check.norm import check_norm, relative_errors
from attnc.check.traced import check_traced, output_range
from attnc.check.values import (
    CheckError,
    Errors,
    HeadErrors,
    NormErrors,
    SquareErrors,
    TracedErrors,
    head_errors,
    largest_float,
    require,
    square_errors,
    up,
)
from attnc.domain import Array, Normed, Tokens
from attnc.errors import AttncError
from attnc.functions import Function
from attnc.functions.balls import working
from attnc.program import Embed, Lookup, Norm, Pointwise, Product, Traced
from attnc.program.evaluate import differentiable, exact
from attnc.program.program import Program
from attnc.records.certificate import Certificate, Status, Verdict
from attnc.records.fields import DAMAGE
from attnc.records.fitted import concerns_function, function_of, meaning
from attnc.records.layers import Heads, Layer, NetworkNumbers, heads_of, quadratic_of, square_of
from attnc.records.structure import mismatch

ATTACKS, COMPARED = 400, 24


def check_network(
    program: Program, numbers: NetworkNumbers, certificate: Certificate, module: torch.nn.Module | None = None
) -> Verdict:
    """The verdict on one certificate for these numbers and this program, and for the module that claims to run them."""
    if concerns_function(certificate):
        return _check_fitted(program, numbers, certificate, module)
    cells, errors = 0, dict[int, Errors]()
    try:
        _check_applies(program, numbers, certificate)
        check_machine(probe(numbers.dtype) or probe_network(numbers.dtype))
        _attack(program, numbers, certificate, module)
        claims = {claim.facts["value"]: claim for claim in certificate.parts("layer")}
        for layer in numbers.layers:
            step = program.steps[layer.value - 1]
            if isinstance(step, Pointwise | Product):
                claim, heads, function = claims[layer.value], *_heads(layer, step)
                for (_, head), child in zip(heads, claim.children, strict=True):
                    cells += require(check_head(head, child, function), claim.name).cells
                if isinstance(step, Pointwise):
                    executed, shape = [child.bound for child in claim.children], program.shapes[layer.value]
                    errors[layer.value] = head_errors(heads, claim.children, executed, shape)
                else:
                    powers, (square,) = (layer.tensor("scale"), layer.tensor("radius")), claim.children
                    errors[layer.value] = square_errors(square, powers, square.bound)
            elif isinstance(step, Norm):
                (norm,) = (c for c in certificate.parts("norm") if c.facts["value"] == layer.value)
                errors[layer.value] = _norm_errors(layer, step, norm)
            elif isinstance(step, Traced):
                (claim,) = (c for c in certificate.parts("lookup") if c.facts["value"] == layer.value)
                errors[layer.value], more = _traced_errors(step, layer, certificate, claim)
                cells += more
        _check_requested(numbers, certificate, errors)
        _check_composition(program, numbers, certificate, errors)
    except CheckError as problem:
        return problem.verdict(certificate.bound, cells)
    count, lookups = len(claims), certificate.parts("lookup")
    reason = f"the bound follows from {count} layer{'s' * (count != 1)} of heads, proved on {cells} cells"
    if lookups:
        anchors = sum(claim.facts["anchors"] for claim in lookups)
        reason = f"the bound holds for every function with the stored values and Lipschitz constant, {anchors} anchors"
    if lookups and any(isinstance(step, Traced) for step in program.steps):
        reason = f"the bound holds on the whole box: {anchors} anchors and the stored function, compared on {cells} cells"
    return Verdict(Status.PROVED, reason, certificate.bound, cells=cells)


def _check_fitted(
    program: Program, numbers: NetworkNumbers, certificate: Certificate, module: torch.nn.Module | None
) -> Verdict:
    """The verdict on a network that was fitted to a function: |executed - f| <= |executed - g| + |g - f|, both proved anew."""
    cells = 0
    try:
        f = function_of(certificate)
        if f is None or len(certificate.children) != 1:
            raise CheckError("the certificate has parts that are not those of a fitted network")
        (inner,), distance = certificate.children, certificate.facts["distance"]
        if concerns_function(inner):
            raise CheckError("its part is about a fitted network again")
        if inner.holds_for != certificate.holds_for:
            raise CheckError("its part is about another domain")
        _check_applies(program, numbers, certificate)
        _attack(meaning(program, certificate), numbers, certificate, module)
        cells += require(check_network(program, numbers, inner), inner.name).cells
        with working(PRECISION):
            executed, own = (arb(x) + arb(distance) for x in (inner.bound, inner.approximation))
            terms = executed <= arb(certificate.approximation) + arb(certificate.rounding)
            if not (executed <= arb(certificate.bound) and own <= arb(certificate.approximation) and terms):
                raise CheckError("the distance to f and the errors of its part are more than is certified")
        box = certificate.box
        ends = box.lo.astype(np.float64), box.hi.astype(np.float64)
        proof = FitProof(f, program, *ends, distance)
        cells += proof.run(most_nodes=FIT_NODES // len(proof.b1)).cells
    except CheckError as problem:
        return problem.verdict(certificate.bound, cells)
    except AttncError as problem:
        return Verdict(Status.UNKNOWN, f"the certificate does not apply: {problem}")
    reason = f"the bound holds on the whole box: the fitted network and the stored function, compared on {cells} cells"
    return Verdict(Status.PROVED, reason, certificate.bound, cells=cells)


def _traced_errors(
    step: Traced, layer: Layer, certificate: Certificate, claim: Certificate
) -> tuple[TracedErrors, int]:
    """What is certified of a lattice network for a traced function, if it is proved again; and the number of cells."""
    try:
        return check_traced(step, layer, certificate.box, claim, ARITHMETIC[certificate.dtype])
    except CheckError as problem:
        raise CheckError(f"{claim.name}: {problem}", problem.input, problem.error) from problem


def _check_applies(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> None:
    check_applies("network", numbers, certificate)
    assert certificate.witness is not None
    box, at = certificate.box, np.array(certificate.witness.input)
    inside = (box.lo.ravel() <= at) & (at <= box.hi.ravel()) & (at.astype(certificate.dtype) == at)
    if program.digest() != certificate.facts["program"]:
        problem: str | None = "the weights or steps in this file are not those that were certified"
    elif not inside.all():
        problem = f"its witness is not an input of the domain, or not a {certificate.dtype}"
    elif isinstance(box, Tokens) and not np.array_equal(at, np.floor(at)):
        problem = "its witness is not a sequence of token ids"
    elif isinstance(box, Tokens) != any(isinstance(step, Embed) for step in program.steps):
        problem = "either its domain or its program is for token ids, but not both"
    elif program.shape != box.shape:
        problem = f"its domain has the shape {box.shape}, the program takes {program.shape}"
    else:
        problem = mismatch(program, numbers, certificate.claims)
    if problem is not None:
        raise CheckError(f"the certificate does not apply: {problem}")


def _check_composition(
    program: Program, numbers: NetworkNumbers, certificate: Certificate, errors: Mapping[int, Errors]
) -> None:
    """Raise `CheckError` unless the bound follows from the bounds of the heads."""
    values = compose(program, numbers.layers, certificate.box, errors, numbers.dtype)
    for claim in (*certificate.parts("layer"), *certificate.parts("lookup")):
        at = claim.facts["value"]
        leaving, entering = values[at], values[program.steps[at - 1].inputs[0]]
        for name, found, limit in (
            ("bound", leaving.error, claim.bound),
            # exact arithmetic is one of the executions
            ("approximation", np.minimum(leaving.approximation, leaving.error), claim.approximation),
            ("error_in", entering.error, claim.facts.get("error_in", math.inf)),
        ):
            if not largest_float(found) <= limit:
                raise CheckError(f"{claim.name}: {name} is {largest_float(found):.6g}, not {limit:.6g}")
    out = values[len(program.steps)]
    worst, own = largest_float(out.error), largest_float(np.minimum(out.approximation, out.error))
    with working(PRECISION):
        terms = arb(worst) <= arb(certificate.approximation) + arb(certificate.rounding)
    if not (worst <= certificate.bound and own <= certificate.approximation and terms):
        raise CheckError(f"the errors add up to {worst:.6g}, approximation {own:.6g}: more than is certified")


def magnitudes(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> dict[int, Array]:
    """At least the size of each value (tokens, features) that the layers compute in exact arithmetic, on the domain. The
    certificate must have been proved by `check_network`."""
    certificate = certificate.claims or certificate
    claims = {claim.facts["value"]: claim for claim in certificate.parts("layer")}
    norms, errors = {claim.facts["value"]: claim for claim in certificate.parts("norm")}, dict[int, Errors]()
    for layer in numbers.layers:
        if layer.kind == "pointwise":
            children = claims[layer.value].children
            executed, shape = [child.bound for child in children], program.shapes[layer.value]
            errors[layer.value] = head_errors(heads_of(layer), children, executed, shape)
        elif layer.kind == "product":
            powers, (square,) = (layer.tensor("scale"), layer.tensor("radius")), claims[layer.value].children
            errors[layer.value] = square_errors(square, powers, square.bound)
        elif layer.kind == "norm":
            facts = norms[layer.value].facts
            errors[layer.value] = NormErrors(facts["relative"], facts["executed"]["softmax"], facts["most"])
        elif isinstance(step := program.steps[layer.value - 1], Traced):
            (claim,) = (c for c in certificate.parts("lookup") if c.facts["value"] == layer.value)
            low, high = (end.astype(np.float64).ravel() for end in (certificate.box.lo, certificate.box.hi))
            terms = (claim.approximation, claim.bound)
            errors[layer.value] = TracedErrors(low, high, *output_range(step, low, high), *terms)
    values = compose(program, numbers.layers, certificate.box, errors, numbers.dtype)
    found = {}
    for number, value in values.items():
        most = up(value.magnitude + np.minimum(value.approximation, value.error))
        found[number] = np.nextafter(most.astype(np.float64), np.inf)
    return found


def _heads(layer: Layer, step: Pointwise | Product) -> tuple[Heads, Function]:
    """The heads of a layer, and the function that they approximate."""
    if isinstance(step, Pointwise):
        return heads_of(layer), step.function
    return [(None, square_of(layer))], functions.square()


def _norm_errors(layer: Layer, step: Norm, claim: Certificate) -> NormErrors:
    """What is certified of the heads of a norm, if it is proved again."""
    try:
        numbers, facts = quadratic_of(layer, step.epsilon), claim.facts
        gain, shift = (layer.tensor(name).astype(np.float64) for name in ("gain", "shift"))
        check_terms(claim, "norm", math.inf)
        check_norm(claim, numbers, Normed(step.centred, gain, shift))
        if facts["kind"] != ("layer" if step.centred else "rms") or facts["epsilon"] != step.epsilon:
            raise CheckError("it is about another norm")
        most, stated = float(facts["most"]), (facts["relative"], facts["executed"]["softmax"])
        relative, executed = relative_errors(numbers, most)
        if not (relative <= stated[0] and executed <= stated[1]):
            raise CheckError("the relative errors of its heads are larger when derived again")
        return NormErrors(*stated, most)
    except (CheckError, *DAMAGE) as problem:
        raise CheckError(f"{claim.name}: {problem}") from problem


def _check_requested(numbers: NetworkNumbers, certificate: Certificate, errors: Mapping[int, Errors]) -> None:
    """Raise `CheckError` unless every layer of attention alone is within what was requested of each."""
    requested = certificate.facts.get("requested", math.inf)
    for layer in numbers.layers:
        own, found = errors.get(layer.value), 0.0
        if isinstance(own, HeadErrors) and not float(own.approximation.max()) <= requested:
            found = math.inf
        elif isinstance(own, SquareErrors):
            found = float((own.radius**2).max() * own.approximation / 2)
        elif isinstance(own, NormErrors):
            gain = np.abs(layer.tensor("gain").astype(np.float64))
            found = float(gain.max() * math.sqrt(len(gain)) * own.approximation)
        if not found * (1 + 2.0**-40) <= requested:
            raise CheckError(
                f"value {layer.value}: its heads are within {found:.6g}, but {requested:.6g} is certified of each"
            )


def _attack(
    program: Program, numbers: NetworkNumbers, certificate: Certificate, module: torch.nn.Module | None
) -> None:
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
        _compare(program, points[chosen].double().numpy(), executed[chosen].numpy(), certificate)
    witness = certificate.witness
    assert witness is not None
    if witness.error > certificate.bound or certificate.rounding > 1.02 * certificate.bound:
        raise CheckError("the witness, or the term of rounding, exceeds the bound")
    errors = network_errors(program, numbers, np.array(witness.input).reshape(certificate.box.shape))
    if not 0 <= witness.output < len(errors):
        raise CheckError(f"the witness is about output {witness.output}, but there are {len(errors)}")
    rounding = 2 * certificate.rounding + certificate.bound / 1024  # `approximation` was rounded up
    known = not any(isinstance(step, Lookup) for step in program.steps)
    check_claim(witness.error, errors[witness.output], rounding, known)


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


def _compare(program: Program, x: Array, executed: Array, certificate: Certificate) -> None:
    """Raise `CheckError` if an executed output is refuted."""
    meant = exact(program, x, PRECISION).reshape(len(x), -1)
    with working(PRECISION):
        bound = arb(certificate.bound)
        for point, found, balls in zip(x, executed.reshape(len(x), -1), meant, strict=True):
            for y, ball in zip(found.tolist(), balls, strict=True):
                error = error_of(y, ball)
                if refutes(error, bound):
                    at = tuple(point.ravel().tolist())
                    raise CheckError(f"the network returns {y!r} there", at, float(error.mid()))
