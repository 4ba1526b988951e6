"""stages and heads → a network with its certificate."""

from __future__ import annotations

from dataclasses import replace

from attnc.errors import CertificateError
from attnc.functions.function import label_of
from attnc.lower.program_to_network import Lowered, Request, layer_name
from attnc.lower.witness import worst
from attnc.network.network import Network
from attnc.network.rebuild import rebuilt
from attnc.program import Pointwise
from attnc.prove.compose import Layer
from attnc.prove.product import Squares
from attnc.records.certificate import round_up, versions
from attnc.records.network_certificate import GroupClaim, LayerClaim, NetworkCertificate, NetworkWitness
from attnc.records.network_numbers import Attention, Group, NetworkNumbers, Stage
from attnc.records.network_record import NetworkRecord


def certified(request: Request, made: Lowered, engine: str, strict: bool | None) -> Network:
    """The module, with the claims of its layers, the bound of the whole, and a witness."""
    numbers = NetworkNumbers(tuple(_with_heads(layer, made) for layer in made.layers), request.dtype)
    approximation = min(float(made.output.approximation.max()), made.error)
    rounding = float(made.output.rounding.max())
    certificate = NetworkCertificate(
        domain=request.box,
        dtype=request.dtype,
        bound=min(with_room(made.error), max(request.eps, made.error)),
        approximation=with_room(approximation),
        rounding=with_room(rounding),
        layers=tuple(_claim(request, layer, made) for layer in made.layers if isinstance(layer, Attention)),
        witness=NetworkWitness((0.0,) * request.box.size, 0, 0.0),
        program=request.program.digest(),
        digests=numbers.digests(),
        versions=versions(),
    )
    network = rebuilt(NetworkRecord(request.program, numbers, certificate), engine, strict)
    request.progress("looking for the largest error")
    witness = worst(network, request.program, numbers, request.box)
    if witness.error > certificate.bound:
        raise CertificateError(
            f"at an input of the box the network is off by {witness.error:.6g}, above its proved bound {certificate.bound:.6g}: "
            "this machine or its libraries compute otherwise than docs/arithmetic.md assumes"
        )
    network.certificate = replace(certificate, witness=witness)
    return network


def _with_heads(layer: Layer, made: Lowered) -> Stage:
    assert not isinstance(layer, Squares)
    if not isinstance(layer, Attention):
        return layer
    groups = tuple(Group(neurons, head.numbers()) for neurons, head in made.heads[layer.value])
    return Attention(layer.input, layer.value, groups)


def _claim(request: Request, stage: Attention, made: Lowered) -> LayerClaim:
    step = request.program.steps[stage.value - 1]
    assert isinstance(step, Pointwise)
    width = made.known[stage.input].lo.shape[-1]
    groups = []
    for neurons, head in made.heads[stage.value]:
        assert head.certificate is not None
        groups.append(GroupClaim(width if neurons is None else len(neurons), head.certificate))
    ends = (made.known[stage.input].error.max(), made.known[stage.value].error.max())
    error_in, error_out = (with_room(float(e)) for e in ends)
    name = layer_name(request.program, stage.value)
    return LayerClaim(name, stage.value, label_of(step.function), tuple(groups), error_in, error_out)


def with_room(proved: float) -> float:
    """What is proved and a part in 256, so that another prover need not tie with this one, in four digits."""
    return round_up(proved * (1 + 2.0**-8))
