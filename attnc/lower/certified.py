"""stages and heads → a network with its certificate."""

from __future__ import annotations

from dataclasses import replace

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
from attnc.records.head_certificate import round_up, versions
from attnc.records.network_certificate import GroupClaim, LayerClaim, NetworkCertificate, NetworkWitness
from attnc.records.network_numbers import Attention, Group, NetworkNumbers, Stage
from attnc.records.network_record import NetworkRecord


def certified(wish: Wish, made: Lowered, engine: str, strict: bool | None) -> Network:
    """The module, with the claims of its layers, the bound of the whole, and a witness."""
    numbers = NetworkNumbers(tuple(_with_heads(stage, made) for stage in made.stages), wish.dtype)
    approximation = min(_carried(wish, made, "approximation"), made.error)
    rounding = max(made.error - approximation, min(_carried(wish, made, "rounding"), made.error))
    certificate = NetworkCertificate(
        domain=wish.box,
        dtype=wish.dtype,
        bound=min(with_room(made.error), max(wish.eps, made.error)),
        approximation=with_room(approximation),
        rounding=with_room(rounding),
        layers=tuple(_claim(wish, stage, made) for stage in made.stages if isinstance(stage, Attention)),
        witness=NetworkWitness((0.0,) * wish.box.size, 0, 0.0),
        program=wish.program.digest(),
        digests=numbers.digests(),
        versions=versions(),
    )
    network = rebuilt(NetworkRecord(wish.program, numbers, certificate), engine, strict)
    wish.progress("looking for the largest error")
    witness = worst(network, wish.program, numbers, wish.box)
    if witness.error > certificate.bound:
        raise CertificateError(
            f"at an input of the box the network is off by {witness.error:.6g}, above its proved bound {certificate.bound:.6g}: "
            "this machine or its libraries compute otherwise than docs/arithmetic.md assumes"
        )
    network.certificate = replace(certificate, witness=witness)
    return network


def _with_heads(stage: Stage, made: Lowered) -> Stage:
    if not isinstance(stage, Attention):
        return stage
    groups = tuple(Group(neurons, head.numbers()) for neurons, head in made.heads[stage.value])
    return Attention(stage.input, stage.value, groups)


def _claim(wish: Wish, stage: Attention, made: Lowered) -> LayerClaim:
    step = wish.program.steps[stage.value - 1]
    assert isinstance(step, Pointwise)
    width = made.known[stage.input].lo.shape[-1]
    groups = []
    for neurons, head in made.heads[stage.value]:
        assert head.certificate is not None
        groups.append(GroupClaim(width if neurons is None else len(neurons), head.certificate))
    ends = (made.known[stage.input].error.max(), made.known[stage.value].error.max())
    error_in, error_out = (with_room(float(e)) for e in ends)
    name = layer_name(wish.program, stage.value)
    return LayerClaim(name, stage.value, label_of(step.function), tuple(groups), error_in, error_out)


def _carried(wish: Wish, made: Lowered, term: str) -> float:
    """What one term of the heads' bounds becomes at the output, in exact arithmetic.

    For `approximation` with the source's own deviations: the bound that exact arithmetic would have."""
    if not made.heads:
        return 0.0
    own: dict[int, Array | float] = {}
    for value, heads in made.heads.items():
        step = wish.program.steps[value - 1]
        assert isinstance(step, Pointwise)
        errors = np.zeros(made.known[value].lo.shape)
        for neurons, head in heads:
            errors[..., slice(None) if neurons is None else neurons] = getattr(head.certificate, term)
        own[value] = errors + (step.deviation if term == "approximation" else 0.0)
    found = carried(made.stages, made.known, own)
    return float(found[made.stages[-1].value].max())


def with_room(proved: float) -> float:
    """What is proved and a part in 256, so that another prover need not tie with this one, in four digits."""
    return round_up(proved * (1 + 2.0**-8))
