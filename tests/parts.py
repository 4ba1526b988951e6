"""Layers and certificates made by hand, for tests of networks that no compiler built."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnc.domain import Box
from attnc.records.certificate import Certificate, Status, Witness
from attnc.records.fields import seal, versions
from attnc.records.layers import Layer

Array = np.ndarray[Any, Any]


def affine(input: int, value: int, weight: Array, bias: Array | None = None) -> Layer:
    return Layer("affine", (input,), value, {"weight": weight} | ({} if bias is None else {"bias": bias}))


def scale(input: int, value: int, scale: Array, shift: Array) -> Layer:
    return Layer("batch_norm", (input,), value, {"scale": scale, "shift": shift})


def lookup(input: int, value: int, centre: Array, key: Array, offset: Array, values: Array) -> Layer:
    tensors = {"centre": centre, "key": key, "offset": offset, "values": values}
    return Layer("lookup", (input,), value, tensors)


def combine(inputs: tuple[int, ...], value: int, coefficients: tuple[float, ...]) -> Layer:
    return Layer("combine", inputs, value, {}, {"coefficients": coefficients})


def reshape(input: int, value: int, to: tuple[int, ...]) -> Layer:
    return Layer("reshape", (input,), value, {}, {"to": to})


def network_certificate(
    status: Status, box: Box, dtype: str, error: float = 0.0, **changes: Any
) -> Certificate:
    """The certificate of a network; a measured one has the error at its witness."""
    facts: dict[str, Any] = {"program": ""}
    if status is Status.MEASURED:
        facts |= {"points": 1, "seed": 0, "method": "lattice", "mean_square": 0.0, "confidence": 0.999}
    given: dict[str, Any] = {
        "subject": "network", "status": status, "approximation": error, "rounding": 0.0, "bound": error, "holds_for": box,
        "dtype": dtype, "witness": Witness((0.0,) * box.size, 0, error), "versions": versions(),
    }  # fmt: skip
    return Certificate(**(given | changes | {"facts": facts | changes.get("facts", {})}))


def reseal(record: dict[str, Any]) -> None:
    """Seal the record of a converted model, and its certificate, as they are now."""
    for sealed in (record["report"]["certificate"], record):
        sealed["seal"] = seal({name: value for name, value in sealed.items() if name != "seal"})
