"""Do the layers of a network compute the program, step by step? A certificate is about these two."""

from __future__ import annotations

import numpy as np

from attnc.functions.function import label_of
from attnc.program import (
    Affine,
    Attend,
    BatchNorm,
    BlackBox,
    Combine,
    Embed,
    Lookup,
    Mix,
    Norm,
    Pointwise,
    Product,
    Reshape,
    Scale,
    Step,
    Traced,
)  # fmt: skip
from attnc.program.program import Program
from attnc.records.certificate import Certificate
from attnc.records.layers import NORM_HEADS, Heads, Layer, NetworkNumbers, heads_of


def mismatch(program: Program, numbers: NetworkNumbers, certificate: Certificate | None) -> str | None:
    """The first layer that differs from its step of the program, or the first claim about other layers; None if all agree."""
    computed = {0}
    for i, layer in enumerate(numbers.layers):
        if not 1 <= layer.value <= len(program.steps) or layer.value in computed:
            return f"stage {i} computes value {layer.value}, which is not a new value of the program"
        step = program.steps[layer.value - 1]
        if not _fits(program, layer, step):
            return f"stage {i} ({layer.kind}) does not compute step {layer.value - 1} ({step.label}) of the program"
        if not set(layer.inputs) <= computed:
            return f"stage {i} reads a value that is not computed before it"
        computed.add(layer.value)
    if not numbers.layers or numbers.layers[-1].value != len(program.steps):
        return "the last stage does not compute the output of the program"
    return None if certificate is None else _claims_mismatch(program, numbers, certificate)


_STEPS: dict[str, tuple[type[Step], ...]] = {
    "affine": (Affine,),
    "batch_norm": (BatchNorm,),
    "pointwise": (Pointwise,),
    "lookup": (Lookup, BlackBox, Traced),
    "combine": (Combine,),
    "reshape": (Reshape,),
    "product": (Product,),
    "norm": (Norm,),
    "attend": (Attend,),
    "embed": (Embed,),
    "scale": (Scale,),
    "mix": (Mix,),
}


def _fits(program: Program, layer: Layer, step: Step) -> bool:
    """Whether a layer computes a step. An affine layer may compute an affine step with the batch norm that follows it."""
    if layer.kind == "affine" and isinstance(step, BatchNorm) and step.input > 0:
        step = program.steps[step.input - 1]
    if not isinstance(step, _STEPS.get(layer.kind, ())) or layer.inputs != step.inputs:
        return False
    given, made = program.shapes[layer.inputs[0]], program.shapes[layer.value]
    shapes = {name: array.shape for name, array in layer.tensors.items()}
    if isinstance(step, Affine):
        rows = step.weight.shape[:1]
        return shapes["weight"] == step.weight.shape and shapes.get("bias", rows) == rows
    if isinstance(step, BatchNorm):
        return set(shapes.values()) == {step.mean.shape}
    if isinstance(step, Pointwise):
        return each_neuron_once(heads_of(layer), made[-1])
    if isinstance(step, Combine):
        return len(layer.settings["coefficients"]) == len(layer.inputs)
    if isinstance(step, Reshape):
        return bool(layer.settings["to"] == step.to)
    if isinstance(step, Attend):
        stored = step.tensors()
        same = shapes == {name: array.shape for name, array in stored.items()}
        mask = step.mask is None or np.array_equal(layer.tensors.get("mask", np.zeros(0)), step.mask)
        return bool(same and mask and layer.settings["split"][:2] == (step.heads, step.slices))
    if isinstance(step, Norm):
        heads = [shapes.pop(name) for name in NORM_HEADS]
        alike = len(set(heads)) == 1 and len(heads[0]) == 1 and heads[0][0] > 0
        return (
            alike and set(shapes.values()) == {step.gain.shape} and layer.settings["centred"] == step.centred
        )
    if isinstance(step, Product):
        return len(shapes) > 2 and shapes["scale"] == shapes["radius"] == made[-1:]
    if isinstance(step, Embed):
        return step.input == 0 and shapes["table"] == step.table.shape
    if isinstance(step, Scale):
        return set(shapes.values()) == {step.factor.shape}
    if isinstance(step, Mix):
        return shapes["matrix"] == step.matrix.shape
    k = shapes["offset"]
    whole = not isinstance(step, Lookup) or k == step.values.shape[:1]
    expected = {"centre": given, "key": (*k, *given), "offset": k, "values": (*k, *made)}
    return len(k) == 1 and k[0] > 0 and whole and shapes == expected


def each_neuron_once(heads: Heads, width: int) -> bool:
    """Whether every neuron has exactly one head."""
    if len(heads) == 1 and heads[0][0] is None:
        return True
    named = [j for neurons, _ in heads if neurons is not None for j in neurons.tolist()]
    return all(neurons is not None for neurons, _ in heads) and sorted(named) == list(range(width))


def _claims_mismatch(program: Program, numbers: NetworkNumbers, certificate: Certificate) -> str | None:
    if any(isinstance(step, BlackBox) for step in program.steps):
        return "the program has a black box, of which nothing can be proved"
    if unknown := [c.title for c in certificate.children if c.subject not in ("layer", "lookup", "norm")]:
        return f"the certificate has a part that is not one of a network: {unknown[0]}"
    lookups = [(s.value, len(s.tensors["offset"])) for s in numbers.layers if s.kind == "lookup"]
    if [(c.facts["value"], c.facts["anchors"]) for c in certificate.parts("lookup")] != lookups:
        return "the certificate is about other lookups"
    steps = (program.steps[claim.facts["value"] - 1] for claim in certificate.parts("lookup"))
    assumed = [step.assumed if isinstance(step, Lookup) else None for step in steps]
    if [claim.facts.get("assumed") for claim in certificate.parts("lookup")] != assumed:
        return "the certificate does not state what it assumes of the function"
    norms = [(layer.value, len(layer.tensor("slope"))) for layer in numbers.layers if layer.kind == "norm"]
    if [(c.facts.get("value"), c.facts.get("heads")) for c in certificate.parts("norm")] != norms:
        return "the certificate is about other norms"
    layers = [layer for layer in numbers.layers if layer.kind in ("pointwise", "product")]
    claims = certificate.parts("layer")
    if [claim.facts["value"] for claim in claims] != [layer.value for layer in layers]:
        return "the certificate is about other layers"
    for layer, claim in zip(layers, claims, strict=True):
        step = program.steps[layer.value - 1]
        function = label_of(step.function) if isinstance(step, Pointwise) else "square"
        width = program.shapes[layer.value][-1]
        named = {claim.facts["function"], *(head.facts.get("function") for head in claim.children)}
        if named != {function}:
            return f"{claim.name}: the certificate is about {sorted(map(str, named))}, the program has {function}"
        sizes = [width]
        if isinstance(step, Pointwise):
            sizes = [width if neurons is None else len(neurons) for neurons, _ in heads_of(layer)]
        if claim.facts["neurons"] != sizes or any(head.subject != "head" for head in claim.children):
            return f"{claim.name}: the certificate is about heads of {claim.facts['neurons']} neurons, not {sizes}"
    return None
