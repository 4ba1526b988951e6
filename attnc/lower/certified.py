"""layers and heads → a network with its certificate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attnc.domain import Array
from attnc.errors import CertificateError
from attnc.functions.function import label_of
from attnc.lower.budget import carried
from attnc.lower.program_to_network import Lowered, Wish, layer_name
from attnc.lower.witness import worst
from attnc.network.network import Network
from attnc.network.rebuild import rebuilt
from attnc.program import Pointwise
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import round_up, versions
from attnc.records.layers import Layer, NetworkNumbers, pointwise_layer
from attnc.records.record import Record


def certified(wish: Wish, made: Lowered, engine: str, strict: bool | None) -> Network:
    """The module with the certificates of its layers, the bound of the whole, and a witness."""
    numbers = NetworkNumbers(tuple(_with_heads(stage, made) for stage in made.stages), wish.dtype)
    terms = {term: _carried(wish, made, term) for term in ("approximation", "rounding")}
    layers = (stage for stage in made.stages if stage.kind == "pointwise")
    output = _terms(terms, made, made.stages[-1].value)
    certificate = Certificate(
        subject="network",
        status=Status.PROVED,
        **{**output, "bound": min(output["bound"], max(wish.eps, made.error))},
        holds_for=wish.box,
        dtype=wish.dtype,
        witness=Witness((0.0,) * wish.box.size, 0, 0.0),
        digests=numbers.digests(),
        facts={"program": wish.program.digest()},
        children=tuple(_claim(wish, stage, made, terms) for stage in layers),
        versions=versions(),
    )
    network = rebuilt(Record(numbers, certificate, wish.program), engine, strict)
    wish.progress("searching for the largest error")
    witness = worst(network, wish.program, numbers, wish.box)
    if witness.error > certificate.bound:
        raise CertificateError(
            f"at an input of the box the network is off by {witness.error:.6g}, above its proved bound {certificate.bound:.6g}: "
            "this machine or its libraries compute otherwise than docs/arithmetic.md assumes"
        )
    network.certificate = replace(certificate, witness=witness)
    return network


def _with_heads(stage: Layer, made: Lowered) -> Layer:
    if stage.kind != "pointwise":
        return stage
    groups = [(neurons, head.numbers()) for neurons, head in made.heads[stage.value]]
    return pointwise_layer(stage.input, stage.value, groups)


def _claim(wish: Wish, stage: Layer, made: Lowered, terms: dict[str, dict[int, Array]]) -> Certificate:
    step = wish.program.steps[stage.value - 1]
    assert isinstance(step, Pointwise)
    width = made.known[stage.input].lo.shape[-1]
    heads = made.heads[stage.value]
    facts = {
        "function": label_of(step.function),
        "value": stage.value,
        "neurons": [width if neurons is None else len(neurons) for neurons, _ in heads],
        "error_in": with_room(float(made.known[stage.input].error.max())),
    }
    return Certificate(
        subject="layer",
        name=layer_name(wish.program, stage.value),
        status=Status.PROVED,
        **_terms(terms, made, stage.value),
        dtype=wish.dtype,
        facts=facts,
        children=tuple(head.certificate for _, head in heads),
    )


def _terms(terms: dict[str, dict[int, Array]], made: Lowered, value: int) -> dict[str, Any]:
    """The bound of one value of the program: in exact arithmetic, of rounding, of both."""
    error = float(made.known[value].error.max())
    approximation = min(float(terms["approximation"][value].max()), error)
    rounding = max(error - approximation, min(float(terms["rounding"][value].max()), error))
    named = {"approximation": approximation, "rounding": rounding, "bound": error}
    return {name: with_room(term) for name, term in named.items()}


def _carried(wish: Wish, made: Lowered, term: str) -> dict[int, Array]:
    """What one term of the heads' bounds becomes at each value, in exact arithmetic.

    `approximation` includes the deviations of the source's own functions: it bounds the error in exact arithmetic."""
    own: dict[int, Array | float] = {}
    for value, heads in made.heads.items():
        step = wish.program.steps[value - 1]
        assert isinstance(step, Pointwise)
        errors = np.zeros(made.known[value].lo.shape)
        for neurons, head in heads:
            errors[..., slice(None) if neurons is None else neurons] = getattr(head.certificate, term)
        own[value] = errors + (step.deviation if term == "approximation" else 0.0)
    return carried(made.stages, made.known, own)


def with_room(proved: float) -> float:
    """The proved bound and a part in 256 of it, in four digits: the checker may find a slightly larger bound."""
    return round_up(proved * (1 + 2.0**-8))
