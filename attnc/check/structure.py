"""Whether the layers of a network compute the program step by step, and whether the certificate is about these layers."""

from __future__ import annotations

from attnc.functions.function import label_of
from attnc.program import Affine, BatchNorm, Combine, Lookup, Pointwise, Reshape, Step
from attnc.program.program import Program
from attnc.records.certificate import Certificate
from attnc.records.layers import Layer, NetworkNumbers, heads_of


def mismatch(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> str | None:
    """None if every layer computes its step of the program, else the first difference."""
    made = {0}
    for i, layer in enumerate(numbers.layers):
        if not 1 <= layer.value <= len(program.steps) or layer.value in made:
            return f"layer {i} computes no value of the program"
        step = program.steps[layer.value - 1]
        if not _fits(program, layer, step):
            return f"layer {i} does not compute step {layer.value - 1} ({step.label}) of the program"
        if not set(layer.inputs) <= made:
            return f"layer {i} reads a value that is not computed before it"
        made.add(layer.value)
    if not numbers.layers or numbers.layers[-1].value != len(program.steps):
        return "the last layer does not compute the program's output"
    return _claims_mismatch(program, numbers, certificate)


def _fits(program: Program, layer: Layer, step: Step) -> bool:
    shapes = {name: array.shape for name, array in layer.tensors.items()}
    inputs = step.inputs
    match layer.kind, step:
        case "affine", Affine():
            fits = _affine_shapes(step) == {"bias": step.weight.shape[:1], **shapes}
        case "affine", BatchNorm():
            before = program.steps[step.input - 1] if step.input > 0 else None
            if not isinstance(before, Affine):
                return False
            inputs = before.inputs
            fits = _affine_shapes(before) == {"bias": before.weight.shape[:1], **shapes}
        case "batch_norm", BatchNorm():
            fits = set(shapes.values()) == {step.mean.shape}
        case "pointwise", Pointwise():
            fits = _every_neuron_once(layer, program.shapes[layer.value][-1])
        case "lookup", Lookup():
            given, made, k = program.shapes[step.input], program.shapes[layer.value], step.values.shape[:1]
            wanted = {"centre": given, "key": (*k, *given), "offset": k, "values": (*k, *made)}
            fits = shapes == wanted
        case "combine", Combine():
            fits = len(layer.settings["coefficients"]) == len(inputs)
        case "reshape", Reshape():
            fits = tuple(layer.settings["to"]) == step.to
        case _:
            return False
    return fits and layer.inputs == inputs


def _affine_shapes(step: Affine) -> dict[str, tuple[int, ...]]:
    return {"weight": step.weight.shape, "bias": step.weight.shape[:1]}


def _every_neuron_once(layer: Layer, width: int) -> bool:
    groups = [neurons for neurons, _ in heads_of(layer)]
    if len(groups) == 1 and groups[0] is None:
        return True
    named = [j for neurons in groups if neurons is not None for j in neurons.tolist()]
    return all(neurons is not None for neurons in groups) and sorted(named) == list(range(width))


def _claims_mismatch(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> str | None:
    kinds = {"pointwise": "layer", "lookup": "lookup"}
    wanted = [(kinds[layer.kind], layer.value) for layer in numbers.layers if layer.kind in kinds]
    if [(claim.subject, claim.facts.get("value")) for claim in certificate.children] != wanted:
        return "its layers are not those of the network"
    claims = {claim.facts["value"]: claim for claim in certificate.children}
    for layer in numbers.layers:
        step = program.steps[layer.value - 1]
        claim = claims.get(layer.value)
        if claim is None:
            continue
        if layer.kind == "lookup":
            if claim.facts["anchors"] != len(layer.tensors["offset"]):
                return f"{claim.name} is certified for {claim.facts['anchors']} anchors"
            continue
        assert isinstance(step, Pointwise)
        width = program.shapes[layer.value][-1]
        sizes = [width if neurons is None else len(neurons) for neurons, _ in heads_of(layer)]
        if claim.facts["neurons"] != sizes:
            return f"{claim.name} is certified for groups of {claim.facts['neurons']} neurons, the network has {sizes}"
        functions = {claim.facts["function"], *(head.facts.get("function") for head in claim.children)}
        if functions != {label_of(step.function)}:
            return f"{claim.name} is certified for {functions}, the program has {label_of(step.function)}"
    return None
