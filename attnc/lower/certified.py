"""layers and heads → a network with its certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnc.errors import CertificateError
from attnc.functions.function import label_of
from attnc.lower.program_to_network import Lowered, Request, layer_name
from attnc.lower.witness import worst
from attnc.network.network import Network
from attnc.network.rebuild import rebuilt
from attnc.program import Pointwise
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import compose
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import round_up, versions
from attnc.records.layers import Layer, NetworkNumbers, pointwise_layer
from attnc.records.record import Record


def certified(request: Request, lowered: Lowered, engine: str, strict: bool | None) -> Network:
    """The module with the certificates of its layers, the bound of the whole, and a witness."""
    numbers = NetworkNumbers(tuple(_with_heads(layer, lowered) for layer in lowered.layers), request.dtype)
    layers = (layer for layer in lowered.layers if layer.kind == "pointwise")
    rounded = _rounded(request, lowered)
    output = _terms(lowered.output, rounded[lowered.layers[-1].value])
    certificate = Certificate(
        subject="network",
        status=Status.PROVED,
        **{**output, "bound": min(output["bound"], max(request.eps, lowered.error))},
        holds_for=request.box,
        dtype=request.dtype,
        witness=Witness((0.0,) * request.box.size, 0, 0.0),
        digests=numbers.digests(),
        facts={"program": request.program.digest()},
        children=tuple(_claim(request, layer, lowered, rounded[layer.value]) for layer in layers),
        versions=versions(),
    )
    network = rebuilt(Record(numbers, certificate, request.program), engine, strict)
    request.progress("searching for the largest error")
    witness = worst(network, request.program, numbers, request.box)
    if witness.error > certificate.bound:
        raise CertificateError(
            f"at an input of the box the network is off by {witness.error:.6g}, above its proved bound {certificate.bound:.6g}: "
            "this machine or its libraries compute otherwise than docs/arithmetic.md assumes"
        )
    network.certificate = replace(certificate, witness=witness)
    return network


def _with_heads(layer: Layer, lowered: Lowered) -> Layer:
    if layer.kind != "pointwise":
        return layer
    groups = [(neurons, head.numbers()) for neurons, head in lowered.heads[layer.value]]
    return pointwise_layer(layer.input, layer.value, groups)


def _claim(request: Request, layer: Layer, lowered: Lowered, rounded: ValueBounds) -> Certificate:
    step = request.program.steps[layer.value - 1]
    assert isinstance(step, Pointwise)
    width = lowered.known[layer.input].lo.shape[-1]
    heads = lowered.heads[layer.value]
    facts = {
        "function": label_of(step.function),
        "value": layer.value,
        "neurons": [width if neurons is None else len(neurons) for neurons, _ in heads],
        "error_in": with_room(float(lowered.known[layer.input].error.max())),
    }
    return Certificate(
        subject="layer",
        name=layer_name(request.program, layer.value),
        status=Status.PROVED,
        **_terms(lowered.known[layer.value], rounded),
        dtype=request.dtype,
        facts=facts,
        children=tuple(head.certificate for _, head in heads),
    )


def _rounded(request: Request, lowered: Lowered) -> dict[int, ValueBounds]:
    """The bounds of every value if the heads had no error but rounding: what execution alone can change."""
    errors = {}
    for value, heads in lowered.heads.items():
        found = np.zeros(lowered.known[value].lo.shape)
        for neurons, head in heads:
            found[..., slice(None) if neurons is None else neurons] = head.certificate.rounding
        errors[value] = HeadErrors(0.0, found)
    return compose(request.program, lowered.layers, request.box, errors, request.dtype)


def _terms(bounds: ValueBounds, rounded: ValueBounds) -> dict[str, Any]:
    """The bound of one value of the program, and its terms."""
    error = float(bounds.error.max())
    approximation = min(float(bounds.approximation.max()), error)
    rounding = max(float(bounds.rounding.max()), min(error, float(rounded.error.max())))
    named = {"approximation": approximation, "rounding": rounding, "bound": error}
    return {name: with_room(term) for name, term in named.items()}


def with_room(proved: float) -> float:
    """The proved bound and a part in 256 of it, in four digits: the checker may find a slightly larger bound."""
    return round_up(proved * (1 + 2.0**-8))
