"""A network from its record: a module for each layer, and each head with its certificate."""

from __future__ import annotations

from attnc.network.head import Head
from attnc.network.layer import AffineLayer, CombineLayer, LayerModule, ReshapeLayer, ScaleLayer
from attnc.network.lookup import LookupLayer
from attnc.network.network import Network
from attnc.network.pointwise import Pointwise, Stage
from attnc.records.certificate import Certificate
from attnc.records.layers import Layer, heads_of
from attnc.records.record import Record

_MODULES: dict[str, type[LayerModule]] = {
    "affine": AffineLayer,
    "batch_norm": ScaleLayer,
    "lookup": LookupLayer,
    "combine": CombineLayer,
    "reshape": ReshapeLayer,
}


def rebuilt(record: Record, engine: str = "softmax", strict: bool | None = None) -> Network:
    """The network that a record describes."""
    program, numbers = record.network
    known = record.certificate.claims
    claims = {} if known is None else {claim.facts["value"]: claim for claim in known.parts("layer")}
    stages = [module_of(layer, claims.get(layer.value)) for layer in numbers.layers]
    return Network(stages, program, record.certificate, engine, strict, record.presentation)


def module_of(layer: Layer, claim: Certificate | None = None) -> Stage:
    """The module of a layer; the heads of a pointwise layer get the certificates of the claim."""
    if layer.kind != "pointwise":
        return _MODULES[layer.kind](layer)
    assert claim is not None
    pairs = zip(heads_of(layer), claim.children, strict=True)
    heads = [(neurons, Head(head, str(c.facts["design"]), c)) for (neurons, head), c in pairs]
    return Pointwise(heads, "softmax", name=claim.name, inputs=layer.inputs, value=layer.value)
