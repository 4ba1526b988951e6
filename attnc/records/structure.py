"""Do the stages of a network compute the program, step by step? Nothing else is proved about another network."""

from __future__ import annotations

from attnc.functions.function import label_of
from attnc.program import Affine, BatchNorm, BlackBox, Combine, Lookup, Pointwise, Reshape, Step
from attnc.program.program import Program
from attnc.records.network_certificate import NetworkCertificate
from attnc.records.network_numbers import (
    Attention,
    Linear,
    NetworkNumbers,
    Reorder,
    Scale,
    Selection,
    Stage,
    Sum,
)


def mismatch(program: Program, numbers: NetworkNumbers, certificate: NetworkCertificate | None) -> str | None:
    """None where every stage is what its step of the program asks for, else where they part."""
    made = {0}
    for i, stage in enumerate(numbers.stages):
        if not (type(stage.value) is int and 1 <= stage.value <= len(program.steps)) or stage.value in made:
            return f"stage {i} makes no value of the program"
        step = program.steps[stage.value - 1]
        if not _fits(program, stage, step):
            return f"stage {i} is not what step {stage.value - 1} ({step.name or step.kind}) of the program asks for"
        given = stage.inputs if isinstance(stage, Sum) else (stage.input,)
        if not set(given) <= made:
            return f"stage {i} reads a value that is not made before it"
        made.add(stage.value)
    if not numbers.stages or numbers.stages[-1].value != len(program.steps):
        return "the last stage does not make the program's output"
    return None if certificate is None else _claims_mismatch(program, numbers, certificate)


def _fits(program: Program, stage: Stage, step: Step) -> bool:
    match stage, step:
        case Linear(), Affine():
            return stage.input == step.input and _same_shape(stage, step)
        case Linear(), BatchNorm():
            before = program.steps[step.input - 1] if step.input > 0 else None
            return isinstance(before, Affine) and stage.input == before.input and _same_shape(stage, before)
        case Scale(), BatchNorm():
            shapes = {stage.scale.shape, stage.shift.shape}
            return stage.input == step.input and shapes == {step.mean.shape}
        case Attention(), Pointwise():
            return stage.input == step.input and _whole(stage, program.shapes[stage.value][-1])
        case Selection(), Lookup() | BlackBox():
            given, made, k = program.shapes[step.input], program.shapes[stage.value], stage.offset.shape
            fits = (
                stage.centre.shape == given
                and stage.key.shape == (*k, *given)
                and stage.values.shape == (*k, *made)
            )
            whole = isinstance(step, BlackBox) or k == step.values.shape[:1]
            return stage.input == step.input and len(k) == 1 and k[0] > 0 and fits and whole
        case Sum(), Combine():
            return stage.inputs == step.inputs and len(stage.coefficients) == len(stage.inputs)
        case Reorder(), Reshape():
            return stage.input == step.input and stage.shape == step.to
    return False


def _same_shape(stage: Linear, step: Affine) -> bool:
    bias = stage.bias is None or stage.bias.shape == step.weight.shape[:1]
    return bias and stage.weight.shape == step.weight.shape


def _whole(stage: Attention, width: int) -> bool:
    """Every neuron has one head."""
    if len(stage.groups) == 1 and stage.groups[0].neurons is None:
        return True
    named = [j for group in stage.groups if group.neurons is not None for j in group.neurons.tolist()]
    return all(g.neurons is not None for g in stage.groups) and sorted(named) == list(range(width))


def _claims_mismatch(
    program: Program, numbers: NetworkNumbers, certificate: NetworkCertificate
) -> str | None:
    layers = [stage for stage in numbers.stages if isinstance(stage, Attention)]
    if any(isinstance(step, BlackBox) for step in program.steps):
        return "nothing of the function is stored that could be certified"
    selections = [(s.value, len(s.offset)) for s in numbers.stages if isinstance(s, Selection)]
    if [(claim.value, claim.anchors) for claim in certificate.lookups] != selections:
        return "its lookups are not those of the network"
    if [claim.value for claim in certificate.layers] != [stage.value for stage in layers]:
        return "its layers are not those of the network"
    for stage, claim in zip(layers, certificate.layers, strict=True):
        step = program.steps[stage.value - 1]
        assert isinstance(step, Pointwise)
        if claim.function != label_of(step.function):
            return f"{claim.name} is said to be {claim.function}, the program says {label_of(step.function)}"
        if len(claim.groups) != len(stage.groups):
            return f"{claim.name} has claims about {len(claim.groups)} groups, the network has {len(stage.groups)}"
        width = program.shapes[stage.value][-1]
        sizes = [width if group.neurons is None else len(group.neurons) for group in stage.groups]
        if [said.neurons for said in claim.groups] != sizes:
            return f"{claim.name} is said to have groups of other sizes than {sizes}"
        if any(said.head.function != claim.function for said in claim.groups):
            return f"{claim.name} has a head for another function"
    return None
