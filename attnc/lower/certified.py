"""layers and heads → a network with its certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnc.domain import Box
from attnc.errors import CertificateError
from attnc.functions.function import label_of
from attnc.lower.program_to_network import Lowered, Request, layer_name, pointwise_step
from attnc.lower.witness import worst
from attnc.network.network import Network
from attnc.network.rebuild import rebuilt
from attnc.program.program import Program
from attnc.prove.bounds import HeadErrors, ValueBounds
from attnc.prove.compose import compose
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import round_up, versions
from attnc.records.layers import Layer, NetworkNumbers, pointwise_layer
from attnc.records.record import Record


def certified(request: Request, lowered: Lowered, strict: bool | None = None) -> Network:
    """The module with the certificates of its layers, the bound of the whole, and a witness."""
    layers = {layer.value: layer for layer in lowered.layers}
    for value, heads in lowered.heads.items():
        groups = [(neurons, head.numbers()) for neurons, head in heads]
        layers[value] = pointwise_layer(layers[value].input, value, groups)
    numbers = NetworkNumbers(tuple(layers.values()), request.dtype)
    rounded = _rounded(request, lowered)
    terms = _terms(lowered.output, rounded[lowered.layers[-1].value])
    terms["bound"] = min(terms["bound"], max(request.eps, lowered.error))
    claims = tuple(_claim(request, layers[value], lowered, rounded[value]) for value in lowered.heads)
    network = proved_network(request.program, numbers, request.box, terms, claims)
    network.strict = strict
    request.progress("searching for the largest error")
    witness = worst(network, request.program, numbers, request.box)
    if witness.error > network.certificate.bound:
        raise CertificateError(
            f"at an input of the box the error of the network is {witness.error:.6g}, above its proved bound "
            f"{network.certificate.bound:.6g}: this machine or its libraries violate the assumptions of docs/arithmetic.md"
        )
    network.certificate = replace(network.certificate, witness=witness)
    return network


def proved_network(
    program: Program,
    numbers: NetworkNumbers,
    box: Box,
    terms: dict[str, Any],
    claims: tuple[Certificate, ...],
) -> Network:
    """The module with its certificate, before the search for a witness."""
    certificate = Certificate(
        subject="network",
        status=Status.PROVED,
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
    width = lowered.known[layer.input].lo.shape[-1]
    heads = lowered.heads[layer.value]
    facts = {
        "function": label_of(pointwise_step(request.program, layer.value).function),
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
