"""Do the layers of a network compute the program, step by step? A certificate is about these two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnc.functions.function import label_of
from attnc.program import Affine, BatchNorm, BlackBox, Combine, Lookup, Pointwise, Reshape, Step
from attnc.program.program import Program
from attnc.records.certificate import Certificate
from attnc.records.layers import Heads, Layer, NetworkNumbers, heads_of


def mismatch(program: Program, numbers: NetworkNumbers, certificate: Certificate | None) -> str | None:
    """The first layer that differs from its step of the program, or the first claim about other layers; None if all agree."""
    computed = {0}
    for i, layer in enumerate(numbers.layers):
        if not 1 <= layer.value <= len(program.steps) or layer.value in computed:
            return f"stage {i} computes value {layer.value}, which is not a new value of the program"
        step = program.steps[layer.value - 1]
        fits = _FITS[layer.kind]
        if not fits(program, layer, step):
            return f"stage {i} ({layer.kind}) does not compute step {layer.value - 1} ({step.label}) of the program"
        if not set(layer.inputs) <= computed:
            return f"stage {i} reads a value that is not computed before it"
        computed.add(layer.value)
    if not numbers.layers or numbers.layers[-1].value != len(program.steps):
        return "the last stage does not compute the output of the program"
    return None if certificate is None else _claims_mismatch(program, numbers, certificate)


def _affine(program: Program, layer: Layer, step: Step) -> bool:
    """An affine step, or one together with the normalisation that follows it."""
    if isinstance(step, BatchNorm) and step.input > 0:
        step = program.steps[step.input - 1]
    if not isinstance(step, Affine) or layer.inputs != step.inputs:
        return False
    bias = layer.tensors.get("bias")
    return layer.tensors["weight"].shape == step.weight.shape and (
        bias is None or bias.shape == step.weight.shape[:1]
    )


def _batch_norm(program: Program, layer: Layer, step: Step) -> bool:
    shapes = {array.shape for array in layer.tensors.values()}
    return isinstance(step, BatchNorm) and layer.inputs == step.inputs and shapes == {step.mean.shape}


def _pointwise(program: Program, layer: Layer, step: Step) -> bool:
    width = program.shapes[layer.value][-1]
    return (
        isinstance(step, Pointwise)
        and layer.inputs == step.inputs
        and each_neuron_once(heads_of(layer), width)
    )


def _lookup(program: Program, layer: Layer, step: Step) -> bool:
    if not isinstance(step, (Lookup, BlackBox)) or layer.inputs != step.inputs:
        return False
    given, made = program.shapes[step.input], program.shapes[layer.value]
    k = layer.tensors["offset"].shape
    expected = {"centre": given, "key": (*k, *given), "offset": k, "values": (*k, *made)}
    whole = isinstance(step, BlackBox) or k == step.values.shape[:1]
    fits = all(layer.tensors[name].shape == shape for name, shape in expected.items())
    return len(k) == 1 and k[0] > 0 and fits and whole


def _combine(program: Program, layer: Layer, step: Step) -> bool:
    count = len(layer.settings["coefficients"])
    return isinstance(step, Combine) and layer.inputs == step.inputs and count == len(layer.inputs)


def _reshape(program: Program, layer: Layer, step: Step) -> bool:
    return isinstance(step, Reshape) and layer.inputs == step.inputs and layer.settings["to"] == step.to


_FITS: dict[str, Callable[[Program, Layer, Any], bool]] = {
    "affine": _affine,
    "batch_norm": _batch_norm,
    "pointwise": _pointwise,
    "lookup": _lookup,
    "combine": _combine,
    "reshape": _reshape,
}


def each_neuron_once(heads: Heads, width: int) -> bool:
    """Whether every neuron has exactly one head."""
    if len(heads) == 1 and heads[0][0] is None:
        return True
    named = [j for neurons, _ in heads if neurons is not None for j in neurons.tolist()]
    return all(neurons is not None for neurons, _ in heads) and sorted(named) == list(range(width))


def _claims_mismatch(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> str | None:
    if any(isinstance(step, BlackBox) for step in program.steps):
        return "the program has a black box, of which nothing can be proved"
    lookups = [(s.value, len(s.tensors["offset"])) for s in numbers.layers if s.kind == "lookup"]
    if [(c.facts["value"], c.facts["anchors"]) for c in certificate.parts("lookup")] != lookups:
        return "the certificate is about other lookups"
    layers = [layer for layer in numbers.layers if layer.kind == "pointwise"]
    claims = certificate.parts("layer")
    if [claim.facts["value"] for claim in claims] != [layer.value for layer in layers]:
        return "the certificate is about other layers"
    for layer, claim in zip(layers, claims, strict=True):
        step = program.steps[layer.value - 1]
        assert isinstance(step, Pointwise)
        function, width = label_of(step.function), program.shapes[layer.value][-1]
        named = {claim.facts["function"], *(head.facts.get("function") for head in claim.children)}
        if named != {function}:
            return f"{claim.name}: the certificate is about {sorted(map(str, named))}, the program has {function}"
        sizes = [width if neurons is None else len(neurons) for neurons, _ in heads_of(layer)]
        if claim.facts["neurons"] != sizes or any(head.subject != "head" for head in claim.children):
            return f"{claim.name}: the certificate is about heads of {claim.facts['neurons']} neurons, not {sizes}"
    return None
