"""A network from its record: the modules of its stages, each head with what its layer claims of it."""

from __future__ import annotations

from attnc.network import stages as modules
from attnc.network.head import Head
from attnc.network.network import Network
from attnc.network.stages import AffineMap, Combination, Pointwise, Reordering, Scaling, StageModule
from attnc.records.network_certificate import LayerClaim
from attnc.records.network_numbers import Attention, Linear, Reorder, Scale, Selection, Stage, Sum
from attnc.records.network_record import NetworkRecord


def rebuilt(record: NetworkRecord, engine: str = "softmax", strict: bool | None = None) -> Network:
    """The network that a record describes."""
    known = record.claims
    claims = {} if known is None else {claim.value: claim for claim in known.layers}
    made = [_module(stage, claims) for stage in record.numbers.stages]
    return Network(made, record.program, record.certificate, engine, strict, record.measured, record.shown)


def _module(stage: Stage, claims: dict[int, LayerClaim]) -> StageModule:
    match stage:
        case Linear():
            return AffineMap(stage)
        case Scale():
            return Scaling(stage)
        case Attention():
            claim = claims[stage.value]
            said = zip(stage.groups, claim.groups, strict=True)
            heads = [(group.neurons, Head(group.head, c.head.design, c.head)) for group, c in said]
            return Pointwise(heads, "softmax", name=claim.name, inputs=(stage.input,), value=stage.value)
        case Selection():
            return modules.Selection(stage)
        case Sum():
            return Combination(stage)
        case Reorder():
            return Reordering(stage)
