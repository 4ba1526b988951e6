"""Temporary: the certificates and numbers of the classes that the tree of certificates replaces, in its terms."""

from __future__ import annotations

from typing import Any

from attnc.records import head_certificate, network_certificate, network_numbers
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.layers import Layer, NetworkNumbers, pointwise_layer

OLD = (head_certificate.Certificate, network_certificate.NetworkCertificate)


def tree(old: Any, numbers: Any = None) -> Certificate:
    if isinstance(old, Certificate):
        return old
    if isinstance(old, head_certificate.Certificate):
        return Certificate(
            subject="head", name=old.function, status=Status.PROVED, approximation=old.approximation, rounding=old.rounding,
            bound=old.bound, holds_for=old.domain, dtype=old.dtype, witness=Witness((old.witness.input,), 0, old.witness.error),
            digests=dict(old.digests), versions=dict(old.versions),
            facts={"function": old.function, "design": old.design, "precision": old.precision, "cells": old.cells},
        )  # fmt: skip
    children = [
        Certificate(
            subject="layer", name=c.name, status=Status.PROVED, approximation=c.error_out, rounding=0.0, bound=c.error_out,
            dtype=old.dtype, children=tuple(tree(g.head) for g in c.groups),
            facts={
                "function": c.function, "value": c.value, "neurons": [g.neurons for g in c.groups], "error_in": c.error_in,
            },
        )
        for c in old.layers
    ] + [
        Certificate(
            subject="lookup", name=c.name, status=Status.PROVED, approximation=c.error_out, rounding=0.0, bound=c.error_out,
            dtype=old.dtype, facts={"value": c.value, "anchors": c.anchors},
        )
        for c in old.lookups
    ]  # fmt: skip
    children.sort(key=lambda c: c.facts["value"])
    digests = dict(old.digests)
    if numbers is not None:
        found = numbers.digests()
        new = layered(numbers).digests()
        same = {n for n, d in old.digests.items() if found.get(n) == d}
        digests = {n: new[n] if n in same else d for n, d in old.digests.items()}
    witness = Witness(old.witness.input, old.witness.output, old.witness.error)
    return Certificate(
        subject="network", status=Status.PROVED, approximation=old.approximation, rounding=old.rounding, bound=old.bound,
        holds_for=old.domain, dtype=old.dtype, witness=witness, digests=digests, facts={"program": old.program},
        children=tuple(children), versions=dict(old.versions),
    )  # fmt: skip


def layered(old: Any) -> NetworkNumbers:
    if isinstance(old, NetworkNumbers):
        return old
    return NetworkNumbers(tuple(map(_layer, old.stages)), old.dtype)


def _layer(stage: Any) -> Layer:
    tensors = stage.tensors()
    match stage:
        case network_numbers.Linear():
            return Layer("affine", (stage.input,), stage.value, tensors)
        case network_numbers.Scale():
            return Layer("batch_norm", (stage.input,), stage.value, tensors)
        case network_numbers.Attention():
            return pointwise_layer(stage.input, stage.value, [(g.neurons, g.head) for g in stage.groups])
        case network_numbers.Selection():
            return Layer("lookup", (stage.input,), stage.value, tensors)
        case network_numbers.Sum():
            c = tuple(map(float, stage.coefficients))
            return Layer("combine", stage.inputs, stage.value, {}, {"coefficients": c})
        case _:
            return Layer("reshape", (stage.input,), stage.value, {}, {"to": tuple(stage.shape)})
