"""program → network: each layer in order, its heads as soon as the reach of its neurons is proved.

An error of 1 in every neuron of layer l becomes at most M_l at the output (`amplification`). A head within δ costs about
log(1/δ) anchors, so the total is least if every M_l δ_l is the same share of the error that is allowed; the unused part of a
share goes to the layers behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnc.domain import Box, Interval, covering
from attnc.errors import ConvergenceError, PrecisionError
from attnc.functions import Function
from attnc.functions.function import label_of
from attnc.heads import patience
from attnc.heads.lattice import is_gate_symmetric
from attnc.heads.target import Plan
from attnc.lower.function_to_head import head_approximating, head_on_lattice, head_within
from attnc.lower.layers import check_supported, lower_steps
from attnc.lower.norm import norm_claim, norm_heads, norm_terms, root_errors, with_heads
from attnc.lower.pointwise import HeadGroup, by_reach, head_errors
from attnc.lower.product import scaled_product, square_errors, square_head, with_square
from attnc.lower.request import Lowered, Request
from attnc.lower.witness import check_refuted, worst
from attnc.network.network import Network, rebuilt
from attnc.program import Norm, Pointwise, Product
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import advance, carried, compose, start
from attnc.prove.pointwise import deviation
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import round_up, versions
from attnc.records.layers import Index, Layer, NetworkNumbers, pointwise_layer
from attnc.records.record import Record

_SPENT = 0.98  # of eps; the rest is for the products of errors
_LEAST = 0.25  # of what was spent, for the remaining layers once eps is out of reach
_ROOM = 2.0  # over an error that was reached: another eps finds other heads
_GROUPS = 4  # of neurons in a layer
_SMALL = 2.0**-60  # an error of which only the first order matters
_SQUARE_ROOM = 1.02  # for the factors of a product: the checker's may be slightly larger


def lower(request: Request) -> Lowered:
    """The network whose output is proved within eps, or an error that names the largest term and the eps that can be met."""
    check_supported(request.program)
    layers = lower_steps(request.program, request.dtype)
    multiplied = {layer.value: HeadErrors(multiplied=True) for layer in layers if layer.kind == "product"}
    exact = compose(request.program, layers, request.box, multiplied, request.dtype)
    attention = [layer.value for layer in layers if layer.kind in ("pointwise", "norm", "product")]
    weights = {value: amplification(layers, exact, value) for value in attention}
    affine = float(exact[layers[-1].value].error.max())
    if not np.isfinite(affine):
        raise _overflow(request, layers, exact)
    if request.approximation is not None:
        return _of_steps(request, layers)
    lowered, stopped = _search(request, layers, weights, affine)
    if lowered.error > request.eps and request.dtype == "float64" and _any_lattice(request.program):
        again, late = _search(replace(request, lattices=True), layers, weights, affine)
        lowered, stopped = (again, late) if again.error < lowered.error else (lowered, stopped)
    if lowered.error <= request.eps:
        return lowered
    reachable = _reachable(request, lowered, layers, weights, affine)
    raise _refusal(request, lowered, weights, affine, stopped, reachable)


def _search(
    request: Request, layers: tuple[Layer, ...], weights: dict[int, float], affine: float
) -> tuple[Lowered, bool]:
    """The first attempt within eps, or the closest one; and whether the search was stopped for time."""
    spent, closest = _SPENT, None
    for _ in range(5):
        left = spent * request.eps - affine
        with patience.sharing() as shared:
            lowered = _attempt(request, layers, weights, left if left > 0 else affine)
        closest = lowered if closest is None or lowered.error < closest.error else closest
        taken = sum(weights[value] * own_bound(lowered, value) for value in weights)
        if lowered.error <= request.eps or left <= 0 or not taken <= request.eps - affine:
            break  # met, or not only the products of errors exceed eps
        spent *= 0.75
    assert closest is not None
    return closest, shared.stopped


def _any_lattice(program: Program) -> bool:
    return any(isinstance(step, Pointwise) and is_gate_symmetric(step.function) for step in program.steps)


def _reachable(
    request: Request, lowered: Lowered, layers: tuple[Layer, ...], weights: dict[int, float], affine: float
) -> float:
    """The error that was reached if a request for it succeeds, else with room: another eps finds other heads."""
    reached = round_up(lowered.error, 2)
    if not np.isfinite(reached):
        return reached
    lattices = any(group.head.design == "lattice" for heads in lowered.heads.values() for group in heads)
    again, _ = _search(replace(request, eps=reached, lattices=lattices), layers, weights, affine)
    return reached if again.error <= reached else round_up(_ROOM * lowered.error, 2)


def _of_steps(request: Request, layers: tuple[Layer, ...]) -> Lowered:
    """Heads within `approximation` for every layer; the error of the output is what follows."""
    with patience.sharing():
        lowered = _attempt(request, layers, {}, 0.0)
    for value in (*lowered.heads, *lowered.roots):
        own, name = own_approximation(lowered, value), layer_name(request.program, value)
        assert request.approximation is not None
        if own > request.approximation:
            raise PrecisionError(
                f"attnc found no heads within approximation={request.approximation:g} at {name}: its heads reach {own:.2g}. Use "
                f"{'dtype=torch.float64, or ' * (request.dtype == 'float32')}approximation >= {round_up(1.1 * own, 2):g}.",
                round_up(1.1 * own, 2),
            )
    if not np.isfinite(lowered.error):
        raise _overflow(request, lowered.layers, lowered.known)
    return lowered


def own_bound(lowered: Lowered, value: int) -> float:
    """The error of the heads of a layer alone, as executed."""
    layer = lowered.layer(value)
    if layer.kind == "norm":
        return float(sum(norm_terms(layer, lowered.roots[value]).values()))
    if layer.kind == "product":
        return float(np.max(_square_errors(layer, lowered.heads[value]).error)) / 2
    return worst_bound(lowered.heads[value])


def own_approximation(lowered: Lowered, value: int) -> float:
    """The error of the heads of a layer alone, in exact arithmetic."""
    layer = lowered.layer(value)
    if layer.kind == "norm":
        return float(norm_terms(layer, lowered.roots[value])["approximation"])
    if layer.kind == "product":
        return float(np.max(_square_errors(layer, lowered.heads[value]).approximation)) / 2
    return max(group.certificate.approximation for group in lowered.heads[value])


def _square_errors(layer: Layer, heads: Sequence[HeadGroup]) -> HeadErrors:
    return square_errors(layer, heads[0].head, "softmax", heads[0].certificate.dtype)


def amplification(layers: Sequence[Layer], known: Mapping[int, ValueBounds], value: int) -> float:
    """M: the error of the output for a small error in every entry of a value, divided by that error."""
    return float(carried(layers, known, {value: _SMALL})[layers[-1].value].max()) / _SMALL


def _attempt(
    request: Request, layers: tuple[Layer, ...], weights: dict[int, float], allowed: float
) -> Lowered:
    """Heads for every layer in order: equal shares of what is left of `allowed`.

    If nothing is left, the attempt continues, to find what can be met."""
    made = Lowered((), {}, {0: start(request.program, request.box)})
    left, waiting, fixed = allowed, len(weights), request.approximation
    for layer in layers:
        share = 0.0
        if layer.value in weights or fixed is not None:
            weight = max(weights.get(layer.value, 1.0), 2.0**-200)
            share = (
                max(left, _LEAST * (allowed - left)) / max(waiting, 1) / weight if fixed is None else fixed
            )
        finished, errors = _with_heads(request, layer, made, share)
        made = replace(made, layers=(*made.layers, finished))
        if layer.value in weights:
            left -= weights[layer.value] * own_bound(made, layer.value)
            waiting -= 1
        made.known[layer.value] = advance(request.program, finished, made.known, request.dtype, errors)
    return made


def _with_heads(request: Request, layer: Layer, made: Lowered, share: float) -> tuple[Layer, HeadErrors]:
    """The layer with its heads, and their errors; `made` gets the heads."""
    step, value = request.program.steps[layer.value - 1], layer.value
    entering = made.known[layer.inputs[0]]
    if isinstance(step, Pointwise):
        made.heads[value] = _layer_heads(request, value, step.function, entering, share)
        return layer, head_errors(made.heads[value], step.function, entering)
    if isinstance(step, Norm):
        made.roots[value] = norm_heads(layer, step, entering, share, request.dtype)
        return with_heads(layer, made.roots[value]), root_errors(made.roots[value])
    if isinstance(step, Product):
        head = square_head(request.dtype)
        made.heads[value] = [HeadGroup(None, head)]
        scaled = with_square(scaled_product(layer, made.known, request.dtype, _SQUARE_ROOM), head)
        return scaled, square_errors(scaled, head, "softmax", request.dtype)
    return layer, HeadErrors()


def _layer_heads(
    request: Request, value: int, function: Function, entering: ValueBounds, share: float
) -> list[HeadGroup]:
    """One head for all neurons; if its error exceeds the share, one for each group of neurons, or one on a lattice."""
    name, (lo, hi) = layer_name(request.program, value), entering.reach
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        raise PrecisionError(f"the input of {name} may overflow in {request.dtype}: use a smaller box")

    def plan_for(neurons: Index | None) -> Plan:
        where = (..., slice(None)) if neurons is None else (..., neurons)
        domain = with_room(float(lo[where].min()), float(hi[where].max()))
        return Plan(
            function, domain, request.dtype, progress=lambda text: request.progress(f"{name}: {text}")
        )

    def group(neurons: Index | None) -> HeadGroup:
        within = head_within if request.approximation is None else head_approximating
        plan = plan_for(neurons)
        try:
            return HeadGroup(neurons, within(plan, min(share, plan.domain.width)))
        except (ConvergenceError, PrecisionError) as problem:
            raise type(problem)(f"{name}: {problem}") from problem

    found = [group(None)]
    farthest = max(float(np.abs([lo, hi]).max()), 2.0**-900)
    groups = by_reach(lo, hi, _GROUPS, unit=farthest, step=4.0, least=2.0**-40 * farthest)
    if worst_bound(found) > share and len(groups) > 1:
        found = [group(neurons) for _, neurons in groups]
    if request.lattices and worst_bound(found) > share:
        head = head_on_lattice(plan_for(None), min(share, plan_for(None).domain.width))
        if head is not None and head.certificate.bound < worst_bound(found):
            return [HeadGroup(None, head)]
    return found


def worst_bound(heads: Sequence[HeadGroup]) -> float:
    return max(group.certificate.bound for group in heads)


def with_room(lo: float, hi: float) -> Interval:
    """An interval around [lo, hi] and a 64th of its width on both sides: the checker's ranges may be slightly wider."""
    room = (hi - lo) / 64
    return covering(lo - room, hi + room)


def layer_name(program: Program, value: int) -> str:
    """Its number among the layers of attention, with its name in the source."""
    number = f"layer {program.layers.index(value - 1) + 1}"
    named = program.steps[value - 1].name
    return number if not named or named.isdigit() else f"{number} ({named})"


def _overflow(request: Request, layers: Sequence[Layer], exact: Mapping[int, ValueBounds]) -> PrecisionError:
    first = next(layer for layer in layers if not np.isfinite(exact[layer.value].error).all())
    step = request.program.steps[first.value - 1]
    attention = not step.linear
    name = layer_name(request.program, first.value) if attention else step.name or f"step {first.value - 1}"
    why = f"in {request.dtype} it may overflow, or its slope is unbounded"
    return PrecisionError(f"no error bound can be proved for the output of {name}: {why}. Use a smaller box.")


def _refusal(
    request: Request,
    lowered: Lowered,
    weights: dict[int, float],
    affine: float,
    stopped: bool,
    reachable: float,
) -> PrecisionError:
    """The largest term of the error, and an eps that can be met; and whether a search was stopped for time."""
    steps = ((value, request.program.steps[value - 1]) for value in lowered.heads)
    own = {v: deviation(step, lowered.known[step.input]) for v, step in steps if isinstance(step, Pointwise)}
    off = float(carried(lowered.layers, lowered.known, own)[lowered.layers[-1].value].max())
    source = "the source's own functions, which deviate from their definition (torch's softplus beyond its threshold)"
    rounding = f"{request.dtype} rounding in the other layers"
    terms = {rounding: max(affine - off, 0.0), source: off}
    for value in lowered.roots:
        name = layer_name(request.program, value)
        terms[f"the error of the heads of {name} (norm)"] = weights[value] * own_bound(lowered, value)
    for value, heads in lowered.heads.items():
        head = max((group.certificate for group in heads), key=lambda c: c.bound)
        term = "rounding" if head.rounding > head.approximation else "approximation"
        name = f"{layer_name(request.program, value)} ({head.facts['function']})"
        terms[f"the {term} error of the heads of {name}"] = weights[value] * own_bound(lowered, value)
    largest = max(terms, key=terms.__getitem__)
    other = "dtype=torch.float64, or " if request.dtype == "float32" and largest != source else ""
    offer = f"Use {other}eps >= {reachable:g}" if np.isfinite(reachable) else f"Use {other}a smaller box"
    if largest == rounding:
        worst = "the bound is for the worst order of summation, and grows with the width"
        offer += f" ({worst}; net.certified(x) proves a far smaller one for a given x)"
    late = " The search for heads was stopped for time: a longer one may come closer." if stopped else ""
    return PrecisionError(
        f"attnc found no network within eps={request.eps:g} in {request.dtype}: it reached "
        f"{round_up(lowered.error, 2):g}, to which {largest} contributes "
        f"{min(terms[largest], lowered.error):.2g}. {offer}.{late}",
        reachable if np.isfinite(reachable) else None,
    )


def certified(request: Request, lowered: Lowered, strict: bool | None = None) -> Network:
    """The module with the certificates of its layers, the bound of the whole, and a witness."""
    layers = {layer.value: layer for layer in lowered.layers}
    for value, heads in lowered.heads.items():
        if layers[value].kind == "pointwise":
            groups = [(neurons, head.numbers()) for neurons, head in heads]
            layers[value] = pointwise_layer(layers[value].input, value, groups)
    numbers = NetworkNumbers(tuple(layers.values()), request.dtype)
    rounded = _rounded(request, lowered)
    terms = _terms(lowered.output, rounded[lowered.layers[-1].value])
    terms["bound"] = min(terms["bound"], max(request.eps, lowered.error))
    claims = [_claim(request, layers[value], lowered, rounded[value]) for value in lowered.heads]
    for value, proof in lowered.roots.items():
        step = request.program.steps[value - 1]
        assert isinstance(step, Norm)
        claims.append(norm_claim(layers[value], step, layer_name(request.program, value), proof))
    network = proved_network(request.program, numbers, request.box, terms, *claims)
    if request.approximation is not None:
        facts = {**network.certificate.facts, "requested": request.approximation}
        network.certificate = replace(network.certificate, facts=facts)
    network.strict = strict
    request.progress("searching for the largest error")
    witness = worst(network, request.program, numbers, request.box)
    check_refuted("at an input of the box the network", witness.error, network.certificate.bound)
    network.certificate = replace(network.certificate, witness=witness)
    return network


def proved_network(
    program: Program, numbers: NetworkNumbers, box: Box, terms: dict[str, Any], *claims: Certificate
) -> Network:
    """The module with its certificate, before the search for a witness."""
    certificate = Certificate(
        subject="network",
        **terms,
        holds_for=box,
        dtype=numbers.dtype,
        witness=Witness((0.0,) * box.size, 0, 0.0),
        digests=numbers.digests(),
        facts={"program": program.digest()},
        children=claims,
        versions=versions(),
    )
    return rebuilt(Record(numbers, certificate, program))


def _claim(request: Request, layer: Layer, lowered: Lowered, rounded: ValueBounds) -> Certificate:
    width, step = lowered.known[layer.inputs[0]].lo.shape[-1], request.program.steps[layer.value - 1]
    heads = lowered.heads[layer.value]
    facts = {
        "function": label_of(step.function) if isinstance(step, Pointwise) else "square",
        "value": layer.value,
        "neurons": [width if neurons is None else len(neurons) for neurons, _ in heads],
        "error_in": claimed(float(lowered.known[layer.inputs[0]].error.max())),
    }
    return Certificate(
        subject="layer",
        name=layer_name(request.program, layer.value),
        **_terms(lowered.known[layer.value], rounded),
        dtype=request.dtype,
        facts=facts,
        children=tuple(head.certificate for _, head in heads),
    )


def _rounded(request: Request, lowered: Lowered) -> dict[int, ValueBounds]:
    """The bounds of every value if the heads had no error but rounding: what execution alone can change."""
    errors = {}
    for value, proof in lowered.roots.items():
        errors[value] = _rounding_only(root_errors(proof))
    for value, heads in lowered.heads.items():
        if lowered.layer(value).kind == "product":
            errors[value] = _rounding_only(_square_errors(lowered.layer(value), heads))
            continue
        found = np.zeros(lowered.known[value].lo.shape)
        for neurons, head in heads:
            found[..., slice(None) if neurons is None else neurons] = head.certificate.rounding
        errors[value] = HeadErrors(0.0, found)
    return compose(request.program, lowered.layers, request.box, errors, request.dtype)


def _rounding_only(errors: HeadErrors) -> HeadErrors:
    return replace(errors, approximation=0.0, error=np.asarray(errors.error) - errors.approximation)


def _terms(bounds: ValueBounds, rounded: ValueBounds) -> dict[str, Any]:
    """The proved bound of one value of the program, and its terms."""
    error = float(bounds.error.max())
    approximation = min(float(bounds.approximation.max()), error)
    rounding = max(float(bounds.rounding.max()), min(error, float(rounded.error.max())))
    return proved_terms(approximation, rounding, error)


def proved_terms(approximation: float, rounding: float, bound: float) -> dict[str, Any]:
    """The terms of a proved certificate."""
    named = {"approximation": approximation, "rounding": rounding, "bound": bound}
    return {"status": Status.PROVED, **{name: claimed(term) for name, term in named.items()}}


def claimed(proved: float) -> float:
    """The proved bound and a part in 256 of it, in four digits: the checker may find a slightly larger bound."""
    return round_up(proved * (1 + 2.0**-8))
